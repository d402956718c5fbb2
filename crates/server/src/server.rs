//! A whole node: opens the log, listens, runs the turn loop, and shuts down in order.
//!
//! It creates every task of the node and stops them. What the tasks do with a connection stands in their own files.

use fencepost_core::Nanos;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use fencepost_replica::store::{Start, close_to_others, read_identity};
use fencepost_replica::{GroupId, Log, Node, Role, Settings, Stop, StorageLocation};
use fencepost_wire::{Member, ShownNode};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::Server as Grpc;

use crate::admin_service::AdminEdge;
use crate::bounds;
use crate::config::{Begin, Config, TlsFiles};
use crate::door::{Door, ServeFrames};
use crate::engine::Shared;
use crate::error::StartError;
use crate::lock_service::LockEdge;
use crate::membership::{self, Introduction};
use crate::observe_service::ObserveEdge;
use crate::peer_service::PeerEdge;
use crate::peers::{Myself, Peers};
use crate::tls::{Calling, Greeting, Port};
use crate::wrong_door::{Purpose, Sign};
use crate::{caller, clock, framed_service, http};
use fencepost_wire::grpc::admin_service_server::AdminServiceServer;
use fencepost_wire::grpc::lock_service_server::LockServiceServer;
use fencepost_wire::grpc::observe_service_server::ObserveServiceServer;
use fencepost_wire::grpc::peer_service_server::PeerServiceServer;

/// The one group of a cluster that is not sharded.
pub(crate) const GROUP: u64 = 1;
/// How long a leader that shuts down waits for another node to take over.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long connections then have to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A node that listens. Dropping it stops it at once, as a crash would.
pub struct Server {
    shared: Shared,
    /// This node, as it describes itself to the others.
    member: Member,
    client_address: SocketAddr,
    http_address: SocketAddr,
    peer_address: SocketAddr,
    /// Tells every task that listens to end.
    closing: watch::Sender<bool>,
    tasks: JoinSet<()>,
    turns: tokio::task::JoinHandle<Stop>,
}

impl Server {
    /// Opens the log and begins to listen. Must be called on a tokio runtime. A runtime with one thread is enough, and is intended.
    ///
    /// # Errors
    /// [`StartError`] says what to do.
    pub async fn start(config: Config) -> Result<Server, StartError> {
        config.check()?;
        let tls = Tls::read(&config).map_err(|message| StartError::Config { message })?;
        let client = listen("clients", config.client_listen).await?;
        let web = listen("HTTP", config.http_listen).await?;
        let peer = listen("peers", config.peer_listen).await?;
        let address = |listener: &TcpListener| listener.local_addr().expect("a listener has an address");
        let (client_address, http_address, peer_address) = (address(&client), address(&web), address(&peer));

        let bell = Arc::new(Notify::new());
        let node = open_node(&config, tls.asking.as_ref(), bell.clone()).await?;
        let replica = node.replica();
        let introduction = Introduction {
            member: describe(replica.id(), &config, client_address, peer_address)?,
            ask: if let Begin::Join(addresses) = &config.begin { addresses.clone() } else { Vec::new() },
            calling: tls.asking,
        };
        tracing::info!(
            node = %ShownNode(replica.id()),
            cluster = format!("{:032x}", replica.group().cluster),
            name = config.name,
            clients = %client_address,
            http = %http_address,
            peers = %peer_address,
            applied = replica.applied().index,
            "the node is up"
        );
        let myself = Myself {
            group: replica.group(),
            node: replica.id(),
            peer_address: introduction.member.peer_address().to_owned(),
            known: replica.known(),
            calling: config.peer_tls.as_ref().and_then(Calling::peers),
        };
        let shared = Shared::new(node, Peers::new(myself), bell);
        shared.engine().follow_members();

        let (closing, closed) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let sign = |purpose, greeting: &Option<Greeting>| Sign {
            purpose,
            has_tls: greeting.is_some(),
            clients: introduction.member.client_address().to_owned(),
            http: format!("{}://{http_address}", if tls.http.is_some() { "https" } else { "http" }),
            peers: introduction.member.peer_address().to_owned(),
        };
        let (for_clients, for_peers) = (sign(Purpose::Clients, &tls.clients), sign(Purpose::Peers, &tls.peers));
        let for_http = sign(Purpose::Http, &tls.http);
        let mut open = |listener, sign: &Sign, greeting, speaks_frames| {
            let closed = wait_until_closed(closed.clone());
            let (door, keep) = Door::open(listener, sign.clone(), greeting, speaks_frames, closed);
            tasks.spawn(keep);
            door
        };
        let peers = PeerEdge { shared: shared.clone(), closed: closed.clone() };
        let client = open(client, &for_clients, tls.clients, Some(client_frames(&shared)));
        let web = open(web, &for_http, tls.http, None);
        let peer = open(peer, &for_peers, tls.peers, Some(peer_frames(&peers)));
        tasks.spawn(serve(client, signposted(client_routes(&shared, &closed), for_clients), closed.clone()));
        tasks.spawn(serve(peer, signposted(peer_routes(peers), for_peers), closed.clone()));
        tasks.spawn(serve_http(web, http::router(shared.clone(), config.http_hosts.clone()), closed.clone()));
        if config.peer_tls.is_some() {
            tasks.spawn(membership::ask_about_strangers(shared.clone(), introduction.clone(), closed.clone()));
        }
        let member = introduction.member.clone();
        tasks.spawn(membership::introduce(shared.clone(), introduction, closed));
        let turns = tokio::spawn(turn_for_ever(shared.clone()));
        Ok(Server { shared, member, client_address, http_address, peer_address, closing, tasks, turns })
    }

    /// The address for clients.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// The address for health checks and metrics.
    pub fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// The address for peers.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Returns when this node serves as leader, or knows another node that leads.
    pub async fn wait_until_ready(&self) {
        let mut progress = self.shared.progress();
        // The engine lives as long as the server does.
        let _ = progress
            .wait_for(|now| now.serves_in.is_some() || now.leader.is_some_and(|leader| Some(leader) != self.own_id()))
            .await;
    }

    /// Returns when this node is a voting member, as far as it knows.
    pub async fn wait_until_member(&self) {
        let mut applied = self.shared.applied();
        let votes = || {
            let engine = self.shared.engine();
            let (replica, members) = (engine.replica(), engine.replica().members());
            members.iter().any(|it| it.node == replica.id() && it.role == Role::Voter && it.member.is_some())
        };
        while !votes() {
            // The engine lives as long as the server does.
            let _ = applied.changed().await;
        }
    }

    fn own_id(&self) -> Option<u64> {
        Some(self.shared.engine().replica().id())
    }

    /// Serves until the future is done, then shuts down in order: hands the lead over, sends clients to the new leader, and
    /// lets calls end.
    ///
    /// # Errors
    /// [`Stop`] if the node had to stop before.
    pub async fn run_until(mut self, asked_to_end: impl Future<Output = ()>) -> Result<(), Stop> {
        tokio::select! {
            stop = &mut self.turns => {
                let stop = stop.expect("the turns do not panic");
                tracing::error!(reason = %stop, "the node stops");
                return Err(stop);
            }
            () = asked_to_end => {}
        }
        tracing::info!("the node ends");
        self.hand_over().await?;
        self.shared.engine().shut_down();
        // This fails only if every task has ended already.
        let _ = self.closing.send(true);
        let drained = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("connections did not end in time: they are cut");
        }
        Ok(())
    }

    /// Hands the lead over to another node, if this node leads and there is another voter.
    async fn hand_over(&mut self) -> Result<(), Stop> {
        let cause = caller::by_node(&self.member, "it shuts down");
        let successor = self.shared.engine().begin_hand_over(None, cause);
        let Some(successor) = successor else { return Ok(()) };
        self.shared.ring();
        let mut progress = self.shared.progress();
        let handed_over = progress.wait_for(|now| now.serves_in.is_none() && now.leader.is_some());
        tokio::select! {
            stop = &mut self.turns => return Err(stop.expect("the turns do not panic")),
            done = tokio::time::timeout(HAND_OVER_TIMEOUT, handed_over) => match done {
                Ok(_) => tracing::info!(to = %ShownNode(successor), "the lead is handed over"),
                Err(_) => tracing::warn!("no node took the lead in time: the others will elect a leader"),
            }
        }
        Ok(())
    }
}

impl Drop for Server {
    /// Tasks of this node may keep the engine alive for a while. The node must not turn any more, and its log must be closed.
    fn drop(&mut self) {
        self.turns.abort();
        self.shared.engine().close();
    }
}

/// The TLS of each port, and of this node's calls to other nodes' ports for clients. `None` is plain text.
struct Tls {
    clients: Option<Greeting>,
    http: Option<Greeting>,
    peers: Option<Greeting>,
    asking: Option<Calling>,
}

impl Tls {
    fn read(config: &Config) -> Result<Tls, String> {
        let greeting =
            |port, files: &Option<TlsFiles>| files.as_ref().map(|files| Greeting::new(port, files.clone())).transpose();
        // All nodes of a cluster must be configured alike, so the others have TLS for clients if this one has.
        let asking = config.tls.as_ref();
        let asking = asking.and_then(|_| Calling::clients(config.join_authority.as_ref(), config.peer_tls.as_ref()));
        asking.as_ref().map_or(Ok(()), Calling::check)?;
        Ok(Tls {
            clients: greeting(Port::Clients, &config.tls)?,
            http: greeting(Port::Http, &config.tls)?,
            peers: greeting(Port::Peers(config.name.clone()), &config.peer_tls)?,
            asking,
        })
    }
}

async fn listen(what: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { what, address, source })
}

/// Opens the log, or begins one as the configuration says.
async fn open_node(config: &Config, asking: Option<&Calling>, bell: Arc<Notify>) -> Result<Node, StartError> {
    let wake = Arc::new(move || bell.notify_one());
    if let Some(directory) = &config.directory {
        for path in close_to_others(directory).map_err(Stop::from)? {
            tracing::warn!(path = %path.display(), "other users could read this; it is closed to them now");
        }
    }
    let known = config.directory.as_deref().map(read_identity).transpose().map_err(Stop::from)?.flatten();
    let directory = config.directory.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let (cluster, node, log) = match (&config.begin, known) {
        (Begin::Found, Some(_)) => return Err(StartError::LogExists { directory }),
        (begin, Some(identity)) => {
            if let Begin::Join(_) = begin {
                tracing::info!("there is a log already: the node does not join again");
            }
            (identity.cluster, identity.node, None)
        }
        (Begin::Never, None) => return Err(StartError::NoLog { directory }),
        (Begin::Found, None) => {
            let node = draw_node_id();
            (draw_u128(), node, Some(Log::new(&[node])))
        }
        (Begin::Join(addresses), None) => {
            let cluster = membership::find_cluster(addresses, asking).await?;
            (cluster, draw_node_id(), Some(Log::joining()))
        }
    };
    let settings = Settings {
        snapshot_every_entries: config.snapshot_every_entries,
        snapshot_every_bytes: config.snapshot_every_bytes,
        ..Settings::new(node, GroupId { cluster, group: GROUP }, draw_u128() as u64)
    };
    let location = match &config.directory {
        Some(path) => StorageLocation::Directory { path, start: log.as_ref().map_or(Start::Again, Start::New) },
        None => StorageLocation::Memory(Box::new(log.clone().expect("a node in memory has no log to go on with"))),
    };
    Ok(Node::start(settings, location, wake, clock::now())?)
}

fn describe(node: u64, config: &Config, client: SocketAddr, peer: SocketAddr) -> Result<Member, StartError> {
    let client = config.client_advertise.clone().unwrap_or_else(|| client.to_string());
    let peer = config.peer_advertise.clone().unwrap_or_else(|| peer.to_string());
    Member::new(node, &config.name, &peer, &client).map_err(|why| StartError::Config { message: why.to_string() })
}

pub(crate) fn draw_u128() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u128::from_le_bytes(bytes)
}

/// 48 random bits, so that people can read an id aloud and type it. Never zero, which means no node.
pub(crate) fn draw_node_id() -> u64 {
    ((draw_u128() as u64) >> 16).max(1)
}

/// Turns the replica whenever input has come or time has passed. Returns when the node must stop.
async fn turn_for_ever(shared: Shared) -> Stop {
    let mut alarm = pin!(tokio::time::sleep(Duration::ZERO));
    let mut rings_at = clock::now();
    loop {
        let (jobs, next_turn) = {
            let mut engine = shared.engine();
            if let Err(stop) = engine.turn(clock::now()) {
                engine.shut_down();
                return stop;
            }
            (engine.peers.take_jobs(), engine.next_turn())
        };
        for job in jobs {
            tokio::spawn(job.run(shared.clone()));
        }
        // The alarm is only moved forward. An alarm that is too early costs one turn; resetting it every turn would cost more.
        if next_turn < rings_at {
            rings_at = next_turn;
            let wait = Duration::from_nanos(next_turn.0.saturating_sub(clock::now().0));
            alarm.as_mut().reset(tokio::time::Instant::now() + wait);
        }
        tokio::select! {
            () = shared.rung() => {}
            () = alarm.as_mut() => rings_at = Nanos(u64::MAX),
        }
    }
}

fn client_routes(shared: &Shared, closed: &watch::Receiver<bool>) -> Routes {
    let (reporter, health) = tonic_health::server::health_reporter();
    let mut progress = shared.progress();
    tokio::spawn(async move {
        loop {
            let ready = {
                let now = progress.borrow_and_update();
                now.leader.is_some() && !now.was_removed
            };
            let status =
                if ready { tonic_health::ServingStatus::Serving } else { tonic_health::ServingStatus::NotServing };
            reporter.set_service_status("", status).await;
            if progress.changed().await.is_err() {
                return;
            }
        }
    });
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(fencepost_wire::grpc::SCHEMA)
    };
    let is_good = "the build generated the schema";
    let reflection_v1 = reflection().build_v1().expect(is_good);
    // Older tools ask for this version only.
    let reflection_v1alpha = reflection().build_v1alpha().expect(is_good);
    let limit = fencepost_session::bounds::CLIENT_MESSAGE_BYTES_MAX;
    Routes::new(LockServiceServer::new(LockEdge { shared: shared.clone() }).max_decoding_message_size(limit))
        .add_service(
            ObserveServiceServer::new(ObserveEdge::new(shared.clone(), closed.clone()))
                .max_decoding_message_size(limit),
        )
        .add_service(AdminServiceServer::new(AdminEdge { shared: shared.clone() }).max_decoding_message_size(limit))
        .add_service(health)
        .add_service(reflection_v1)
        .add_service(reflection_v1alpha)
}

/// The services, and an answer that says where to go instead of an empty one for everything else.
fn signposted(routes: Routes, sign: Sign) -> Routes {
    let fallback = move |headers: HeaderMap| async move {
        let is_grpc = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        match is_grpc {
            true => Status::unimplemented(sign.for_grpc()).into_http::<Body>(),
            false => (StatusCode::BAD_REQUEST, sign.for_http() + "\n").into_response(),
        }
    };
    routes.into_axum_router().fallback(fallback).into()
}

fn peer_routes(peers: PeerEdge) -> Routes {
    Routes::new(PeerServiceServer::new(peers).max_decoding_message_size(bounds::PEER_MESSAGE_BYTES_MAX))
}

fn peer_frames(peers: &PeerEdge) -> ServeFrames {
    let peers = peers.clone();
    Arc::new(move |connection| Box::pin(peers.clone().serve(connection)))
}

fn client_frames(shared: &Shared) -> ServeFrames {
    let shared = shared.clone();
    Arc::new(move |connection| Box::pin(framed_service::serve(shared.clone(), connection)))
}

async fn serve(door: Door, routes: Routes, closed: watch::Receiver<bool>) {
    let server = Grpc::builder()
        .max_concurrent_streams(bounds::STREAMS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(bounds::HEADER_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(bounds::PENDING_RESETS_MAX))
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .add_routes(routes);
    if let Err(error) = server.serve_with_incoming_shutdown(door, wait_until_closed(closed)).await {
        tracing::error!(%error, "gRPC cannot be served any more");
    }
}

async fn serve_http(door: Door, router: Router, closed: watch::Receiver<bool>) {
    if let Err(error) = axum::serve(door, router).with_graceful_shutdown(wait_until_closed(closed)).await {
        tracing::error!(%error, "HTTP cannot be served any more");
    }
}

pub(crate) async fn wait_until_closed(mut closed: watch::Receiver<bool>) {
    // An error means that the server was dropped, which closes it, too.
    let _ = closed.wait_for(|closed| *closed).await;
}
