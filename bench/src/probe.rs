//! Probes of this machine's speed: one sync, one round trip, and one commit of three nodes, which consists of the same syncs and round
//! trips without any computation.
//!
//! The figures of a benchmark say little without them, because machines are shared and disks differ. They are taken before every
//! block, so that a slow minute of the machine can be told from a slow system.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// How often each probe is repeated for one median. All together take a few tens of milliseconds.
const SYNCS: usize = 40;
const ROUND_TRIPS: usize = 200;
const COMMITS: usize = 60;
/// About the length of a lock request and of its log entry.
const MESSAGE_BYTES: usize = 100;

/// The probes, ready to be taken. Their threads end when this is dropped, because their sockets close.
pub struct Probes {
    disk: ProbeFile,
    loopback: TcpStream,
    commit: TcpStream,
    _directory: TempDir,
}

/// The medians of the probes, taken once.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// A write of 4 KiB and its sync, in a file whose blocks are already allocated.
    pub disk: Duration,
    /// One byte there and back over loopback, between two threads.
    pub loopback: Duration,
    /// One commit of three nodes. The client sends to the leader, the leader to two followers. All three sync at the same time. The
    /// leader waits for one follower, and answers. A real commit on this machine cannot be faster.
    pub commit: Duration,
}

impl Probes {
    /// Creates the files and threads of the probes.
    ///
    /// # Errors
    /// If the temporary directory cannot be written.
    pub fn new() -> Result<Probes> {
        let directory = tempfile::Builder::new().prefix("fencepost-probe-").tempdir().context(
            "cannot make a temporary directory for the disk probe: set TMPDIR to one where this user may write",
        )?;
        let (loopback, mut far) = pair()?;
        std::thread::spawn(move || {
            let mut byte = [0];
            while far.read_exact(&mut byte).and_then(|()| far.write_all(&byte)).is_ok() {}
        });
        let commit = commit_of_three(directory.path())?;
        Ok(Probes { disk: ProbeFile::new(directory.path(), "disk")?, loopback, commit, _directory: directory })
    }

    /// Takes all probes.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn take(&mut self) -> Result<Taken> {
        let disk = median(SYNCS, || self.disk.sync())?;
        let loopback = median(ROUND_TRIPS, || {
            let mut byte = [7];
            self.loopback.write_all(&byte)?;
            self.loopback.read_exact(&mut byte)
        })?;
        let commit = median(COMMITS, || {
            let mut message = [7; MESSAGE_BYTES];
            self.commit.write_all(&message)?;
            self.commit.read_exact(&mut message)
        })?;
        Ok(Taken { disk, loopback, commit })
    }
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// Starts the three nodes of the commit probe: blocking sockets, and one thread for each node.
fn commit_of_three(directory: &Path) -> Result<TcpStream> {
    let (near, mut client) = pair()?;
    let mut followers = Vec::new();
    for node in ["follower-1", "follower-2"] {
        let (leader, mut follower) = pair()?;
        let mut disk = ProbeFile::new(directory, node)?;
        followers.push(leader);
        std::thread::spawn(move || -> std::io::Result<()> {
            let mut message = [0; MESSAGE_BYTES];
            loop {
                follower.read_exact(&mut message)?;
                disk.sync()?;
                follower.write_all(&message)?;
            }
        });
    }
    let mut disk = ProbeFile::new(directory, "leader")?;
    std::thread::spawn(move || -> std::io::Result<()> {
        let mut message = [0; MESSAGE_BYTES];
        loop {
            client.read_exact(&mut message)?;
            for follower in &mut followers {
                follower.write_all(&message)?;
            }
            disk.sync()?;
            // The leader and one follower are a majority. The other answer is read after the client has its own.
            followers[0].read_exact(&mut message)?;
            client.write_all(&message)?;
            followers[1].read_exact(&mut message)?;
        }
    });
    Ok(near)
}

/// A file whose blocks are already allocated, as in a log.
struct ProbeFile {
    file: File,
    written: u64,
}

impl ProbeFile {
    const BLOCK: usize = 4_096;
    const BLOCKS: u64 = 1_000;

    fn new(directory: &Path, name: &str) -> std::io::Result<ProbeFile> {
        let mut file = File::create(directory.join(name))?;
        file.write_all(&vec![7; Self::BLOCK * Self::BLOCKS as usize])?;
        file.sync_all()?;
        Ok(ProbeFile { file, written: 0 })
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(self.written % Self::BLOCKS * Self::BLOCK as u64))?;
        self.file.write_all(&[self.written as u8; Self::BLOCK])?;
        self.written += 1;
        self.file.sync_data()
    }
}

fn median(times: usize, mut once: impl FnMut() -> std::io::Result<()>) -> Result<Duration> {
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        let started = Instant::now();
        once().context("a probe of this machine failed")?;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    Ok(took[took.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_takes_some_time() {
        let mut probes = Probes::new().expect("a temporary directory");
        for _ in 0..2 {
            let taken = probes.take().expect("the disk works");
            assert!(taken.disk > Duration::ZERO && taken.loopback > Duration::ZERO && taken.commit > Duration::ZERO);
        }
    }
}
