//! The time from the start of a node's process to the first grant, over the number of locks that it restores.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::{Curve, Growth, hold_in_stages, patient};
use crate::alone::elsewhere::Elsewhere;
use fencepost_load::count;

const NODES: usize = 1;

pub(super) async fn measure(growth: &mut Growth<'_>) -> Result<()> {
    let sizes = growth.sizes(Curve::Restart);
    let mut cluster = growth.cluster(NODES).await?;
    let (builder, stages) = (patient(&cluster), sizes.clone());
    // The holders reconnect when the node is back, as real programs would.
    let mut holders = Elsewhere::start(move |stage| hold_in_stages(builder, stages, stage))?;
    for size in sizes {
        growth.tell(&format!("taking locks until {} are held", count(size as f64)));
        holders.next().await?;
        for round in 1..=growth.options.rounds {
            let mut figures = growth.probed()?;
            let held = cluster.control().status().await?.counts.grants;
            let (_, node) = cluster.kill_leader().await?;
            let bytes = bytes_of_files(&cluster.directory());
            let started = Instant::now();
            cluster.restart(node)?;
            figures.insert("listens_ms".to_owned(), started.elapsed().as_secs_f64() * 1e3);
            let client = patient(&cluster).name("growth: first").connect().await?;
            let guard = client.lock("growth/first").acquire().await?;
            figures.insert("serves_ms".to_owned(), started.elapsed().as_secs_f64() * 1e3);
            guard.release().await?;
            client.close().await?;
            figures.insert("locks_count".to_owned(), held as f64);
            figures.insert("disk_bytes".to_owned(), bytes as f64);
            growth.record(Curve::Restart, NODES, size, round, figures)?;
        }
        holders.go_on();
    }
    holders.fall_silent();
    Ok(())
}

/// Bytes of the log and the snapshots below a directory, without the reserve for a full disk. A file that disappears meanwhile is not
/// counted.
fn bytes_of_files(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let sizes = entries.flatten().filter(|entry| entry.file_name() != "RESERVE").map(|entry| match entry.metadata() {
        Ok(it) if it.is_dir() => bytes_of_files(&entry.path()),
        Ok(it) => it.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
