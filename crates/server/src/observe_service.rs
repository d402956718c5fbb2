//! The observe service: reads of the lock state, and the event log.
//!
//! A read is linearizable unless the caller asks for a stale one. Nothing here changes the state.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost_core::{Arrival, GrantId, Name, Position, SessionId, shortened};
use fencepost_session::{End, Reason};
use fencepost_wire::api::observe::{self, ReadAt};
use fencepost_wire::api::watch as events;
use fencepost_wire::{api, v1};
use futures_core::Stream;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::bounds::{EVENTS_PER_MESSAGE_MAX, EXPLAIN_QUEUE_MAX, PAGE_ROWS_MAX, WATCHERS_MAX};
use crate::clock;
use crate::engine::{Engine, Shared};
use crate::peers::VERSION;
use crate::status;
use fencepost_wire::grpc::observe_service_server::ObserveService;

pub(crate) struct ObserveEdge {
    shared: Shared,
    watchers: Arc<AtomicUsize>,
    closed: watch::Receiver<bool>,
}

impl ObserveEdge {
    pub(crate) fn new(shared: Shared, closed: watch::Receiver<bool>) -> ObserveEdge {
        ObserveEdge { shared, watchers: Arc::default(), closed }
    }

    /// Reads the state. A stale read shows what this node has applied so far.
    async fn read<Found>(
        &self,
        stale: bool,
        read: impl FnOnce(&Engine, ReadAt) -> Found,
    ) -> Result<Response<Found>, End> {
        if !stale {
            self.shared.linearize().await?;
        }
        let engine = self.shared.engine();
        engine.check_member()?;
        let at = read_at_for_people(&engine);
        Ok(Response::new(read(&engine, at)))
    }
}

/// The position and time that a read shows, without the wall clock.
fn read_at(engine: &Engine) -> ReadAt {
    let replica = engine.replica();
    let applied = replica.applied();
    ReadAt { index: applied.index, term: applied.term, stamp: replica.stamp(), ..ReadAt::default() }
}

/// The same for an answer with stamps that people read.
pub(crate) fn read_at_for_people(engine: &Engine) -> ReadAt {
    let wall_clock = engine.replica().wall_clock().clone();
    ReadAt { wall_clock_ms: clock::wall_ms(), wall_clock, ..read_at(engine) }
}

fn page_rows(asked: u32) -> usize {
    match asked {
        0 => PAGE_ROWS_MAX,
        asked => (asked as usize).min(PAGE_ROWS_MAX),
    }
}

fn name_of(text: &str) -> Result<Name, End> {
    Name::new(text).map_err(|why| End::invalid(format!("the name {:?}: {why}", shortened(text))))
}

type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ObserveService for ObserveEdge {
    async fn list_grants(
        &self,
        request: Request<v1::ListGrantsRequest>,
    ) -> Result<Response<v1::ListGrantsResponse>, Status> {
        let v1::ListGrantsRequest { prefix, page_size, after_grant, stale, session } = request.into_inner();
        let session = session.map(observe::session_id_from_wire);
        self.read(stale, |engine, at| {
            let after = (after_grant > 0).then_some(GrantId(after_grant));
            let page = engine.replica().state().list_grants(&prefix, after, page_rows(page_size));
            let of_session = page.rows.iter().filter(|row| session.is_none_or(|session| row.record.session == session));
            v1::ListGrantsResponse {
                at: Some(observe::read_at_to_wire(at)),
                grants: of_session.map(observe::grant_to_wire).collect(),
                next_after_grant: page.next.map(|grant| grant.0),
            }
        })
        .await
        .map_err(status::of)
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let v1::ListSessionsRequest { page_size, after, stale } = request.into_inner();
        self.read(stale, |engine, at| {
            let after = after.map(observe::session_id_from_wire);
            let page = engine.replica().state().list_sessions(after, page_rows(page_size));
            v1::ListSessionsResponse {
                at: Some(observe::read_at_to_wire(at)),
                sessions: page.rows.iter().map(observe::session_to_wire).collect(),
                next_after: page.next.map(observe::session_id_to_wire),
            }
        })
        .await
        .map_err(status::of)
    }

    async fn list_waiters(
        &self,
        request: Request<v1::ListWaitersRequest>,
    ) -> Result<Response<v1::ListWaitersResponse>, Status> {
        let v1::ListWaitersRequest { prefix, page_size, after_arrival, stale } = request.into_inner();
        self.read(stale, |engine, at| {
            let after = (after_arrival > 0).then_some(Arrival(after_arrival));
            let page = engine.replica().state().list_waiters(&prefix, after, page_rows(page_size));
            v1::ListWaitersResponse {
                at: Some(observe::read_at_to_wire(at)),
                waiters: page.rows.iter().map(observe::waiter_to_wire).collect(),
                next_after_arrival: page.next.map(|arrival| arrival.0),
            }
        })
        .await
        .map_err(status::of)
    }

    async fn list_freezes(
        &self,
        request: Request<v1::ListFreezesRequest>,
    ) -> Result<Response<v1::ListFreezesResponse>, Status> {
        self.read(request.into_inner().stale, |engine, at| v1::ListFreezesResponse {
            at: Some(observe::read_at_to_wire(at)),
            freezes: engine.replica().state().freezes().map(observe::freeze_to_wire).collect(),
        })
        .await
        .map_err(status::of)
    }

    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsResponse>, Status> {
        let v1::ListJobsRequest { prefix, page_size, after, stale } = request.into_inner();
        let after = after.map(|job| observe::job_id_from_wire(Some(job))).transpose();
        let after = after.map_err(|error| status::of(End::invalid(error.for_caller())))?;
        self.read(stale, |engine, at| {
            let page = engine.replica().state().list_jobs(&prefix, after.as_ref(), page_rows(page_size));
            v1::ListJobsResponse {
                at: Some(observe::read_at_to_wire(at)),
                jobs: page.rows.iter().map(observe::listed_job_to_wire).collect(),
                next_after: page.next.map(|(name, key)| observe::job_id_to_wire(&name, &key)),
            }
        })
        .await
        .map_err(status::of)
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobResponse>, Status> {
        let v1::GetJobRequest { job, stale } = request.into_inner();
        let (name, key) =
            observe::job_id_from_wire(job).map_err(|error| status::of(End::invalid(error.for_caller())))?;
        self.read(stale, |engine, at| observe::job_to_wire(at, &engine.replica().state().job(&name, &key)))
            .await
            .map_err(status::of)
    }

    async fn get_session(
        &self,
        request: Request<v1::GetSessionRequest>,
    ) -> Result<Response<v1::GetSessionResponse>, Status> {
        let v1::GetSessionRequest { session, stale } = request.into_inner();
        let id = session.map_or(SessionId(0), observe::session_id_from_wire);
        self.read(stale, |engine, at| v1::GetSessionResponse {
            at: Some(observe::read_at_to_wire(at)),
            session: engine.replica().state().session(id).as_ref().map(observe::session_to_wire),
        })
        .await
        .map_err(status::of)
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        let v1::ExplainRequest { name, queue_max, stale, wait } = request.into_inner();
        let name = name_of(&name).map_err(status::of)?;
        let wait = wait
            .map(observe::explained_wait_from_wire)
            .transpose()
            .map_err(|error| status::of(End::invalid(error.for_caller())))?;
        let queue_max = if queue_max == 0 { 100 } else { (queue_max as usize).min(EXPLAIN_QUEUE_MAX) };
        self.read(stale, |engine, at| {
            let state = engine.replica().state();
            let mut explanation = state.explain(&name, queue_max);
            if let Some((session, owner, locks)) = &wait {
                explanation.suspected = state.suspect(*session, owner.as_ref(), locks);
            }
            observe::explanation_to_wire(at, &explanation)
        })
        .await
        .map_err(status::of)
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        let (name, token) = observe::check_request_from_wire(&request.into_inner())
            .map_err(|error| status::of(End::invalid(error.for_caller())))?;
        // For programs, once for each write: without the wall clock.
        self.read(false, |engine, _| {
            observe::check_to_wire(read_at(engine), engine.replica().state().check(&name, token))
        })
        .await
        .map_err(status::of)
    }

    type WatchStream = WatchStream;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<WatchStream>, Status> {
        let v1::WatchRequest { prefix, after } = request.into_inner();
        self.shared.engine().check_member().map_err(status::of)?;
        if self.watchers.load(Ordering::Relaxed) >= WATCHERS_MAX {
            let message = format!("this node has {WATCHERS_MAX} watchers already: watch on another node");
            return Err(status::of(End::new(Reason::TooManyWatchers, message)));
        }
        let after = match after {
            Some(after) => events::position_from_wire(after),
            None => end_of(self.shared.engine().replica().applied().index),
        };
        // If the watcher does not read, this channel fills up and the task waits. Meanwhile the event ring moves on, and the watcher
        // then gets the error that its events are gone.
        let (sender, receiver) = mpsc::channel(2);
        let counted = Counted::new(self.watchers.clone());
        let mut closed = self.closed.clone();
        let watching = watch_from(self.shared.clone(), prefix, after, sender.clone(), counted);
        tokio::spawn(async move {
            tokio::select! {
                () = watching => {}
                // The watcher resumes at another node. If the channel is full, the closed connection tells it.
                _ = closed.wait_for(|closed| *closed) => drop(sender.try_send(Err(status::of(End::shutting_down())))),
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        let engine = self.shared.engine();
        engine.check_member().map_err(status::of)?;
        Ok(Response::new(status_to_wire(&engine)))
    }
}

/// The cluster as this node sees it.
pub(crate) fn status_to_wire(engine: &Engine) -> v1::GetStatusResponse {
    let replica = engine.replica();
    let (state, group) = (replica.state(), replica.group());
    let (cluster_high, cluster_low) = api::halves(group.cluster);
    v1::GetStatusResponse {
        cluster_high,
        cluster_low,
        group: group.group,
        node: replica.id(),
        version: VERSION.to_owned(),
        term: replica.term(),
        leader: replica.leader(),
        leader_address: engine.known_leader_address(),
        applied: Some(observe::read_at_to_wire(read_at(engine))),
        state_hash: state.state_hash(),
        members: crate::membership::views(engine),
        counts: Some(observe::counts_to_wire(&state.counts())),
        oldest_live_token: state.oldest_live_token().0,
        disk_short: engine.node().is_disk_short(),
        format_version: state.version().get(),
        without_leader: replica.leader().is_none().then(|| status::without_leader(&replica.hearing())),
    }
}

/// Entries without an event for a watcher after which it is told its position.
const QUIET_ENTRIES_MAX: u64 = 1_000;

/// The position behind the last event of an entry.
fn end_of(index: u64) -> Position {
    Position { index, ordinal: u32::MAX }
}

/// Counts one watcher until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(watchers: Arc<AtomicUsize>) -> Counted {
        watchers.fetch_add(1, Ordering::Relaxed);
        Counted(watchers)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends the events after a position until the watcher is gone.
async fn watch_from(
    shared: Shared,
    prefix: String,
    mut after: Position,
    sender: mpsc::Sender<Result<v1::WatchResponse, Status>>,
    _counted: Counted,
) {
    let mut applied = shared.applied();
    let mut last_said = after;
    loop {
        applied.mark_unchanged();
        let is_over;
        let found = {
            let engine = shared.engine();
            let replica = engine.replica();
            let through = end_of(replica.applied().index);
            is_over = replica.was_removed();
            replica.events().after(after, &prefix, EVENTS_PER_MESSAGE_MAX).map(|events| {
                let events: Vec<v1::WatchEvent> = events.map(events::event_to_wire).collect();
                (events, through)
            })
        };
        let response = match found {
            Ok((events, _)) if events.len() == EVENTS_PER_MESSAGE_MAX => {
                let last = events.last().and_then(|event| event.position);
                after = last.map_or(after, events::position_from_wire);
                Ok(v1::WatchResponse { events, through: last })
            }
            // A watcher of a quiet prefix is told its position from time to time, so that it can resume from there.
            Ok((events, through)) if !events.is_empty() || through.index >= last_said.index + QUIET_ENTRIES_MAX => {
                after = through;
                Ok(v1::WatchResponse { events, through: Some(events::position_to_wire(through)) })
            }
            // This node was removed: no further event will come.
            Ok(_) if is_over => Err(status::of(End::removed())),
            // No new event, or this node is behind: waits for the next entry.
            Ok(_) => {
                tokio::select! {
                    changed = applied.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
                continue;
            }
            Err(compacted) => Err(status::of(End::new(Reason::Compacted, compacted.to_string()))),
        };
        last_said = after;
        let ends = response.is_err();
        if sender.send(response).await.is_err() || ends {
            return;
        }
    }
}
