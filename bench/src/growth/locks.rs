//! The cost of a pair of acquire and release of a free lock, over the number of other locks that are held.

use anyhow::Result;

use super::{Curve, Growth, Spent, hold_in_stages, patient};
use crate::alone::elsewhere::Elsewhere;
use crate::work::Work;
use fencepost_load::contender::Taker;
use fencepost_load::count;
use fencepost_load::pairs::Contenders;

const NODES: usize = 3;
/// Contenders that take and release free locks, at every size.
const CONTENDERS: usize = 64;

pub(super) async fn measure(growth: &mut Growth<'_>) -> Result<()> {
    let sizes = growth.sizes(Curve::Locks);
    let cluster = growth.cluster(NODES).await?;
    let (builder, stages) = (patient(&cluster), sizes.clone());
    let mut holders = Elsewhere::start(move |stage| hold_in_stages(builder, stages, stage))?;
    let client = patient(&cluster).name("growth: load").connect().await?;
    let session = client.session().open()?;
    let takers = (0..CONTENDERS).map(|_| Box::new(Taker::in_session(session.clone())) as _);
    let mut contenders: Contenders = takers.collect();
    for size in sizes {
        growth.tell(&format!("taking locks until {} are held", count(size as f64)));
        holders.next().await?;
        let probed = growth.probed()?;
        for round in 0..=growth.options.rounds {
            let spent = Spent::from(&cluster);
            let (again, done) = Work::Closed.perform(contenders, "growth/free", growth.options.block).await?;
            contenders = again;
            // Round 0 is for warming up.
            if round > 0 {
                let mut figures = probed.clone();
                figures.extend(spent.each(&cluster, done.operations));
                figures.extend(done.figures.iter().map(|(name, value)| ((*name).to_owned(), *value)));
                growth.record(Curve::Locks, NODES, size, round, figures)?;
            }
        }
        holders.go_on();
    }
    holders.fall_silent();
    Ok(())
}
