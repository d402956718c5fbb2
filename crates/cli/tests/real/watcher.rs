//! The observers of a run: one thread follows the cluster's event log without a gap, from any node, and one regularly reads the
//! deadlines of sessions and grants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost::{Client, Error, Event, GrantEnd, Held, LockMode, Position, PositionedEvent, Refused, SessionEnd};

use super::background::Background;
use super::clients::Recorder;
use super::history::{End, Lease, LogEvent, Mode, Sample, Taken, What};
use crate::patience::wait_until;

/// How often the deadlines are read.
const SAMPLE_EVERY: Duration = Duration::from_millis(150);

pub(crate) struct Watcher {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
    client: Client,
    /// The watch started after this position.
    from: Position,
    runtime: Background,
    recorder: Recorder,
}

impl Watcher {
    /// Starts the threads. Every event after this returns is watched.
    pub(crate) fn start(endpoints: &[String], recorder: &Recorder) -> Watcher {
        let runtime = Background::start();
        let inside = runtime.handle().enter();
        let builder = endpoints.iter().fold(Client::builder(), |builder, endpoint| builder.endpoint(endpoint));
        let builder = builder.call_timeout(Duration::from_secs(2)).connect_timeout(Duration::from_secs(1));
        let client = builder.name("watcher").connect_in_background().expect("valid addresses");
        drop(inside);
        let status = || runtime.block_on(client.status()).ok();
        let from = Position { index: wait_until("the cluster answers", status).applied.index, ordinal: u32::MAX };
        let stop = Arc::new(AtomicBool::new(false));
        let handle = runtime.handle().clone();
        let follower = std::thread::spawn({
            let (client, recorder, stop, handle) = (client.clone(), recorder.clone(), stop.clone(), handle.clone());
            move || handle.block_on(follow(client, from, recorder, stop))
        });
        let sampler = std::thread::spawn({
            let (client, recorder, stop) = (client.clone(), recorder.clone(), stop.clone());
            move || handle.block_on(sample(client, recorder, stop))
        });
        let (threads, recorder) = (vec![follower, sampler], recorder.clone());
        Watcher { stop, threads, client, from, runtime, recorder }
    }

    /// How many events were watched.
    pub(crate) fn seen(&self) -> usize {
        self.recorder.with(|history| history.events.len())
    }

    /// Waits until every event was watched, and stops the threads.
    pub(crate) fn finish(&mut self) {
        // A last grant: when the watcher has seen its end, it has seen everything before it.
        let last = wait_until("a last grant", || self.runtime.block_on(last_grant(&self.client)).ok());
        wait_until("the watcher has seen the last grant", || {
            let is_last = |event: &LogEvent| matches!(event.what, What::Ended { grant, .. } if grant == last);
            self.recorder.with(|history| history.events.iter().any(is_last)).then_some(())
        });
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("a watcher does not panic"));
        let grants = wait_until("the grants were read", || self.runtime.block_on(self.client.grants("", None)).ok());
        assert!(grants.what.next.is_none(), "more grants at the end than fit into a page");
        let waiters = wait_until("the waiters were read", || self.runtime.block_on(self.client.waiters("", None)).ok());
        assert!(waiters.what.rows.is_empty(), "I19: requests wait although all clients have ended: {waiters:?}");
        let ids = grants.what.rows.iter().map(|grant| grant.record.id.0).collect();
        self.recorder.with(|history| history.grants_at_end = ids);
    }

    /// Reads all watched events once more, from the current leader. Returns whether it has them all: a node that joined later
    /// does not know earlier events.
    pub(crate) fn read_again(&self) -> bool {
        let through = self.recorder.with(|history| history.events.last().map(|event| (event.index, event.ordinal)));
        let read = wait_until("the event log was read again", || {
            let read = read_again(&self.client, self.from, through);
            match self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), read).await }) {
                Ok(Ok(events)) => Some(Some(events)),
                Ok(Err(Error::Refused(Refused::Compacted(_)))) => Some(None),
                _ => None,
            }
        });
        let has_it_all = read.is_some();
        self.recorder.with(|history| history.replayed.extend(read));
        has_it_all
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The runtime must outlive the threads. A panic of theirs was already reported.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Takes a lock and releases it. Returns the grant, which marks the end of the event log.
async fn last_grant(client: &Client) -> Result<u64, Error> {
    let lock = client.lock("the last").acquire().await?;
    let grant = lock.grant().0;
    lock.release().await?;
    Ok(grant)
}

async fn follow(client: Client, from: Position, recorder: Recorder, stop: Arc<AtomicBool>) {
    let mut position = from;
    'restart: while !stop.load(Ordering::Relaxed) {
        // Without a leader the watch cannot start: try again.
        let Ok(mut watch) = client.watch("").after(position).start().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            match tokio::time::timeout(Duration::from_millis(200), watch.next()).await {
                Err(_) => {}
                Ok(Some(Ok(event))) => {
                    position = event.position;
                    let seen_at = recorder.now();
                    recorder.with(|history| history.events.extend(translate(&event, seen_at)));
                }
                Ok(Some(Err(Error::Refused(refused)))) => panic!("the watch ended: {refused}"),
                Ok(_) => continue 'restart,
            }
        }
    }
}

/// The whole event log once more, up to the last event that was watched.
async fn read_again(client: &Client, from: Position, through: Option<(u64, u32)>) -> Result<Vec<LogEvent>, Error> {
    let mut events: Vec<LogEvent> = Vec::new();
    let mut watch = client.watch("").after(from).start().await?;
    while events.last().map(|event| (event.index, event.ordinal)) < through {
        match watch.next().await {
            Some(event) => events.extend(translate(&event?, 0)),
            None => break,
        }
    }
    Ok(events)
}

async fn sample(client: Client, recorder: Recorder, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let asked_at = recorder.now();
        if let Ok(sessions) = client.sessions(None).await {
            let (stamp_ms, term) = (sessions.at.stamp.0, sessions.at.term);
            let samples = sessions.what.rows.into_iter().map(|session| Sample {
                asked_at,
                lease: Lease::Session(session.id.0),
                ttl_ms: session.ttl.millis().get(),
                renewed_ms: session.renewed_at.0,
                deadline_ms: session.deadline.0,
                stamp_ms,
                term,
            });
            recorder.with(|history| history.samples.extend(samples));
        }
        let asked_at = recorder.now();
        if let Ok(grants) = client.grants("", None).await {
            let (stamp_ms, term) = (grants.at.stamp.0, grants.at.term);
            let samples = grants.what.rows.into_iter().filter_map(|grant| {
                let ttl_ms = grant.record.terms.as_ref()?.ttl?.millis().get();
                let (lease, deadline_ms) = (Lease::Grant(grant.record.id.0), grant.deadline.0);
                let renewed_ms = deadline_ms.saturating_sub(ttl_ms);
                Some(Sample { asked_at, lease, ttl_ms, renewed_ms, deadline_ms, stamp_ms, term })
            });
            recorder.with(|history| history.samples.extend(samples));
        }
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
}

fn translate(event: &PositionedEvent, seen_at: u64) -> Option<LogEvent> {
    let PositionedEvent { position, stamp, event, .. } = event;
    let what = match event {
        Event::SessionOpened { session, .. } => What::SessionOpened { session: session.0 },
        Event::SessionEnded { session, how } => {
            What::SessionEnded { session: session.0, expired: *how == SessionEnd::Expired }
        }
        Event::Queued { request, .. } => {
            let converts = request.converts.map(|grant| grant.0);
            What::Queued { request: (request.session.0, request.number.0), converts }
        }
        Event::NotGranted { request, .. } => What::NotGranted { request: (request.session.0, request.number.0) },
        Event::Granted { request, grant, token, .. } => {
            let taken = taken(&request.wants);
            let request = (request.session.0, request.number.0);
            What::Granted { request, taken, grant: grant.0, token: token.0 }
        }
        Event::Converted { grant, token, held, .. } => {
            What::Converted { grant: grant.0, token: token.0, mode: taken(held)[0].1 }
        }
        Event::Ended { grant, session, how, .. } => {
            let how = match how {
                GrantEnd::Released => End::Released,
                GrantEnd::Session(_) => End::Session,
                GrantEnd::Ttl => End::Ttl,
                _ => End::Other,
            };
            What::Ended { grant: grant.0, session: session.0, how }
        }
        _ => return None,
    };
    Some(LogEvent { index: position.index, ordinal: position.ordinal, stamp_ms: stamp.0, seen_at, what })
}

/// What a grant takes, in the order of the names. In these runs only locks on one name are converted.
fn taken(held: &Held) -> Taken {
    let lock = |lock: &fencepost_core::Lock| {
        let mode = match lock.mode {
            LockMode::Shared => Mode::Shared,
            LockMode::Update => Mode::Update,
            _ => Mode::Exclusive,
        };
        (lock.name.as_str().to_owned(), mode)
    };
    let mut taken: Taken = match held {
        Held::Locks(locks) => locks.iter().map(lock).collect(),
        Held::Permits { name, permits } => vec![(name.as_str().to_owned(), Mode::Permits(permits.get()))],
    };
    taken.sort();
    taken
}
