//! A cluster of one node for tests: the core's lock state behind the real edge and real sockets, without a log and without a disk.
//!
//! It uses the real clock and ends what is due. A test can make it cut every stream, fall silent, or point at another node.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fencepost_core::{Act, Admin, Counts, EventRing, GrantId, LogicalMs, Name, Operation, Position, Principal, Reason};
use fencepost_session::Tier;
use fencepost_session::edge::{Edge, Lead, StreamId, Transmit};
use fencepost_session::testing::LoneState;
use fencepost_wire::api::observe::ReadAt;
use fencepost_wire::{FRAME_GREETING, api, grpc, put_frame, take_frame, v1};
use futures_core::Stream;
use prost::bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
    streams: Arc<AtomicU64>,
}

struct Inner {
    /// The real lock state behind the real edge.
    lone: LoneState,
    edge: Edge,
    ring: EventRing,
    started: Instant,
    /// The channel for the messages of each stream.
    outboxes: HashMap<StreamId, mpsc::UnboundedSender<v1::ServerMessage>>,
    /// Reads all messages and answers none.
    silent: bool,
}

impl Cluster {
    /// A cluster and the address of its leader.
    pub async fn start() -> (Cluster, String) {
        let inner = Inner {
            lone: LoneState::default(),
            edge: Edge::new(0),
            ring: EventRing::new(10_000, Position::default()),
            started: Instant::now(),
            outboxes: HashMap::new(),
            silent: false,
        };
        let cluster = Cluster { inner: Arc::new(Mutex::new(inner)), changed: Arc::default(), streams: Arc::default() };
        let address = cluster.serve(None).await;
        let beats = cluster.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
                beats.beat();
            }
        });
        (cluster, address)
    }

    /// Adds a node that does not lead and points at the leader.
    pub async fn follower(&self, leader: &str) -> String {
        self.serve(Some(leader.to_owned())).await
    }

    async fn serve(&self, points_at: Option<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the loopback has a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let node = Node { cluster: self.clone(), points_at };
        let (calls, connections) = mpsc::unbounded_channel();
        let router = tonic::transport::Server::builder()
            .add_service(grpc::observe_service_server::ObserveServiceServer::new(node.clone()));
        tokio::spawn(router.serve_with_incoming(UnboundedReceiverStream::new(connections)));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (node, calls) = (node.clone(), calls.clone());
                tokio::spawn(async move {
                    socket.set_nodelay(true)?;
                    let mut first = [0];
                    socket.peek(&mut first).await?;
                    if first[0] != FRAME_GREETING[0] {
                        let _ = calls.send(std::io::Result::Ok(socket));
                        return Ok(());
                    }
                    let mut greeting = [0; FRAME_GREETING.len()];
                    socket.read_exact(&mut greeting).await?;
                    node.sessions(socket).await
                });
            }
        });
        address
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics in here")
    }

    pub fn counts(&self) -> Counts {
        self.lock().lone.state.counts()
    }

    /// Waits until the counts match the condition.
    pub async fn until(&self, what: &str, is_so: impl Fn(Counts) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so(self.counts()) {
            assert!(Instant::now() < deadline, "never {what}: {:?}", self.counts());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends every stream.
    pub fn cut(&self) {
        let mut inner = self.lock();
        let streams: Vec<StreamId> = inner.outboxes.drain().map(|(stream, _)| stream).collect();
        streams.into_iter().for_each(|stream| inner.edge.handle_disconnected(stream));
    }

    pub fn fall_silent(&self, silent: bool) {
        self.lock().silent = silent;
    }

    pub fn break_grant(&self, grant: GrantId) {
        let (by, reason) = (Principal::new("admin").unwrap(), Reason::new("a test").unwrap());
        let admin = Operation::Admin(Admin { by, reason, act: Act::Break { grant } });
        let mut inner = self.lock();
        inner.lone.operate(admin);
        inner.apply();
        drop(inner);
        self.changed.notify_waiters();
    }

    fn beat(&self) {
        let mut inner = self.lock();
        let now = inner.stamp();
        if !inner.silent && inner.lone.state.next_deadline().is_some_and(|due| due <= now) {
            inner.apply();
            self.changed.notify_waiters();
        }
    }

    fn read_at(inner: &Inner) -> ReadAt {
        ReadAt { index: inner.lone.index(), term: 1, stamp: inner.lone.state.stamp(), ..ReadAt::default() }
    }
}

impl Inner {
    fn stamp(&self) -> LogicalMs {
        LogicalMs(self.started.elapsed().as_millis() as u64)
    }

    /// Applies the gathered operations, and sends what the edge has for its streams.
    fn apply(&mut self) {
        let stamp = self.stamp();
        for (index, events) in self.lone.apply(stamp, &mut self.edge) {
            self.ring.push(index, stamp, None, events);
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        while let Some(stream) = self.edge.poll_ready() {
            while let Some(transmit) = self.edge.poll_transmit(stream) {
                let Transmit::Message(message) = transmit else { panic!("no stream ends here: {transmit:?}") };
                if let Some(outbox) = self.outboxes.get(&stream) {
                    let _ = outbox.send(message);
                }
            }
        }
    }
}

#[derive(Clone)]
struct Node {
    cluster: Cluster,
    points_at: Option<String>,
}

impl Node {
    fn lead(&self) -> Result<(), Status> {
        let Some(leader) = &self.points_at else { return Ok(()) };
        let metadata = HashMap::from([("leader".to_owned(), leader.clone())]);
        let details = ErrorDetails::with_error_info("NOT_LEADER", "fencepost", metadata);
        Err(Status::with_error_details(Code::FailedPrecondition, "this node does not lead", details))
    }
}

impl Node {
    /// Serves a connection that carries frames.
    async fn sessions(&self, socket: TcpStream) -> std::io::Result<()> {
        let (mut from, mut to) = socket.into_split();
        let (mut came, mut goes) = (BytesMut::new(), BytesMut::new());
        let stream = StreamId(self.cluster.streams.fetch_add(1, Ordering::Relaxed));
        let (outbox, mut messages) = mpsc::unbounded_channel();
        if let Some(leader) = &self.points_at {
            let (reason, message) = ("NOT_LEADER".to_owned(), "this node does not lead".to_owned());
            let end = v1::StreamEnd { reason, message, leader: Some(leader.clone()) };
            put_frame(&v1::ServerMessage { end: Some(end), ..v1::ServerMessage::default() }, &mut goes);
            return to.write_all(&goes).await;
        }
        {
            let mut inner = self.cluster.lock();
            let (principal, lead) = (Principal::new("tests").unwrap(), Lead { cluster: 1, group: 1, node: 1, term: 1 });
            inner.edge.handle_connected(stream, principal, Tier::Correctness, Ok(lead)).expect("it leads");
            inner.outboxes.insert(stream, outbox);
            inner.transmit();
        }
        loop {
            tokio::select! {
                message = messages.recv() => {
                    // `None`: the stream was cut.
                    let Some(message) = message else { return Ok(()) };
                    goes.clear();
                    put_frame(&message, &mut goes);
                    to.write_all(&goes).await?;
                }
                read = from.read_buf(&mut came) => {
                    if read? == 0 {
                        break;
                    }
                    while let Some(message) = take_frame(&mut came, 1 << 20).expect("a valid message") {
                        let mut inner = self.cluster.lock();
                        if !inner.silent && inner.outboxes.contains_key(&stream) {
                            let Inner { lone, edge, .. } = &mut *inner;
                            edge.handle_message(stream, message, lone);
                            inner.apply();
                            self.cluster.changed.notify_waiters();
                        }
                    }
                }
            }
        }
        let mut inner = self.cluster.lock();
        inner.outboxes.remove(&stream);
        inner.edge.handle_disconnected(stream);
        Ok(())
    }
}

#[tonic::async_trait]
impl grpc::observe_service_server::ObserveService for Node {
    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        self.lead()?;
        let v1::ExplainRequest { name, wait, .. } = request.into_inner();
        let name = Name::new(&name).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let wait = wait.map(|wait| api::observe::explained_wait_from_wire(wait).expect("a valid wait"));
        let inner = self.cluster.lock();
        let mut explanation = inner.lone.state.explain(&name, 100);
        if let Some((session, owner, locks)) = &wait {
            explanation.suspected = inner.lone.state.suspect(*session, owner.as_ref(), locks);
        }
        Ok(Response::new(api::observe::explanation_to_wire(Cluster::read_at(&inner), &explanation)))
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobResponse>, Status> {
        self.lead()?;
        let (name, key) = api::observe::job_id_from_wire(request.into_inner().job).expect("a valid job");
        let inner = self.cluster.lock();
        let job = inner.lone.state.job(&name, &key);
        Ok(Response::new(api::observe::job_to_wire(Cluster::read_at(&inner), &job)))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        self.lead()?;
        let (name, token) = api::observe::check_request_from_wire(&request.into_inner()).expect("a valid check");
        let inner = self.cluster.lock();
        let check = inner.lone.state.check(&name, token);
        Ok(Response::new(api::observe::check_to_wire(Cluster::read_at(&inner), check)))
    }

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        let inner = self.cluster.lock();
        Ok(Response::new(v1::GetStatusResponse {
            applied: Some(api::observe::read_at_to_wire(Cluster::read_at(&inner))),
            counts: Some(api::observe::counts_to_wire(&inner.lone.state.counts())),
            ..v1::GetStatusResponse::default()
        }))
    }

    type WatchStream = Boxed<v1::WatchResponse>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let v1::WatchRequest { prefix, after } = request.into_inner();
        let mut after = after.map(api::watch::position_from_wire).unwrap_or_default();
        let (sender, receiver) = mpsc::channel(4);
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            loop {
                let changed = cluster.changed.notified();
                let found = {
                    let inner = cluster.lock();
                    let events = inner.ring.after(after, &prefix, 100);
                    events.map(|events| events.map(api::watch::event_to_wire).collect::<Vec<_>>())
                };
                let response = match found {
                    Ok(events) if events.is_empty() => {
                        tokio::select! {
                            () = changed => continue,
                            () = sender.closed() => return,
                        }
                    }
                    Ok(events) => {
                        let through = events.last().and_then(|event| event.position);
                        after = through.map(api::watch::position_from_wire).unwrap_or(after);
                        Ok(v1::WatchResponse { events, through })
                    }
                    Err(compacted) => Err(Status::out_of_range(compacted.to_string())),
                };
                let is_over = response.is_err();
                if sender.send(response).await.is_err() || is_over {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn list_grants(
        &self,
        request: Request<v1::ListGrantsRequest>,
    ) -> Result<Response<v1::ListGrantsResponse>, Status> {
        let v1::ListGrantsRequest { prefix, after_grant, .. } = request.into_inner();
        let inner = self.cluster.lock();
        let page = inner.lone.state.list_grants(&prefix, Some(GrantId(after_grant)), 100);
        Ok(Response::new(v1::ListGrantsResponse {
            at: Some(api::observe::read_at_to_wire(Cluster::read_at(&inner))),
            grants: page.rows.iter().map(api::observe::grant_to_wire).collect(),
            next_after_grant: page.next.map(|next| next.0),
        }))
    }

    async fn list_jobs(&self, _: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsResponse>, Status> {
        Err(Status::unimplemented("not in this test server"))
    }

    async fn list_sessions(
        &self,
        _: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        Err(Status::unimplemented("not in this test server"))
    }

    async fn list_waiters(
        &self,
        _: Request<v1::ListWaitersRequest>,
    ) -> Result<Response<v1::ListWaitersResponse>, Status> {
        Err(Status::unimplemented("not in this test server"))
    }

    async fn list_freezes(
        &self,
        _: Request<v1::ListFreezesRequest>,
    ) -> Result<Response<v1::ListFreezesResponse>, Status> {
        Err(Status::unimplemented("not in this test server"))
    }

    async fn get_session(&self, _: Request<v1::GetSessionRequest>) -> Result<Response<v1::GetSessionResponse>, Status> {
        Err(Status::unimplemented("not in this test server"))
    }
}
