//! Between the machines and the network: one task for a client. It dials whom it is told to, sends what there is to send, feeds
//! what comes, and wakes who waits. It decides nothing.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_wire::v1;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_types::StatusExt;

use crate::clock::{self, Nanos};
use crate::machine::{DialFailure, Reconnect, Step};
use crate::rpc::lock_service_client::LockServiceClient;
use crate::shared::{Shared, Tier};
use crate::tls;

/// Messages that wait for the network. While it is slow the machine gathers, so few and large are better than many and small.
const MESSAGES_BUFFERED: usize = 4;
/// The timer of the runtime stands still while the machine sleeps; after that we look at the clock no later than this.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// An attach may list all that a session holds.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A node that does not answer a ping for so long is taken for gone: what waits for it (a watch, a long call) would never hear
/// of a node that hangs, or of a way that was cut without a word.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_PATIENCE: Duration = Duration::from_secs(5);
/// Flow-control windows of HTTP/2. The small ones of the standard would make a busy stream wait.
const WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// A way to a node that says with every call who calls.
pub(crate) type Way = InterceptedService<Channel, Caller>;

/// Who calls, as far as it says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    name: Option<AsciiMetadataValue>,
}

impl Caller {
    /// A name that cannot stand in a header is for people only.
    pub(crate) fn new(name: Option<&str>) -> Caller {
        Caller { name: name.and_then(|name| AsciiMetadataValue::try_from(name).ok()) }
    }
}

impl Interceptor for Caller {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(name) = &self.name {
            request.metadata_mut().insert("fencepost-client", name.clone());
        }
        Ok(request)
    }
}

/// A stream to the leader.
struct Stream {
    channel: Channel,
    outbound: mpsc::Sender<v1::ClientMessage>,
    inbound: Streaming<v1::ServerMessage>,
    hello: v1::ServerMessage,
}

/// Runs until the last handle is gone, or the runtime is.
pub(crate) async fn drive(shared: Arc<Shared>) {
    // If this future is dropped with the runtime, nobody may wait for ever.
    let _at_the_end = ShutDown(shared.clone());
    let mut reconnect = Reconnect::new(shared.endpoints.clone());
    loop {
        let failure = match reconnect.poll(clock::now()) {
            Step::WaitUntil(at) => match meanwhile(&shared, sleep_to(Some(at))).await {
                Some(()) => continue,
                None => return,
            },
            Step::Dial(address) => match meanwhile(&shared, dial(&shared, &address)).await {
                None => return,
                Some(Err(failure)) => failure,
                Some(Ok(stream)) => {
                    reconnect.handle_connected(&address);
                    tracing::debug!(%address, "connected to the leader");
                    match serve(&shared, address, stream).await {
                        None => return,
                        Some(failure) => failure,
                    }
                }
            },
        };
        let (failure, said) = failure;
        tracing::debug!(%said, "no connection to the leader");
        reconnect.handle_failed(clock::now(), failure, random());
        shared.with(|state| {
            state.last_failure = said;
            state.machine.handle_reachable(!reconnect.is_open());
        });
    }
}

fn random() -> u64 {
    // Without randomness everybody comes back at the same moment, which is no reason to stay away.
    getrandom::u64().unwrap_or(0)
}

/// The end of the driver, however it comes.
struct ShutDown(Arc<Shared>);

impl Drop for ShutDown {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.shut_down = true;
            state.leader = None;
            state.machine.handle_shut_down();
        });
        self.0.connected.notify_waiters();
    }
}

/// Waits for something while time passes for the machine. None: the client is to end.
async fn meanwhile<T>(shared: &Shared, something: impl Future<Output = T>) -> Option<T> {
    let mut something = pin!(something);
    loop {
        let now = clock::now();
        let (over, wake_at) = shared.with(|state| {
            state.machine.handle_timeout(now);
            (state.is_over(now), state.machine.poll_timeout())
        });
        if over {
            return None;
        }
        tokio::select! {
            biased;
            result = &mut something => return Some(result),
            () = shared.wake.notified() => {}
            () = sleep_to(wake_at) => {}
        }
    }
}

async fn sleep_to(at: Option<Nanos>) {
    let now = clock::now();
    tokio::time::sleep(at.map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX))).await;
}

/// How a node is reached: the one place for everything that has to do with it.
pub(crate) fn endpoint(shared: &Shared, address: &str) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = match &shared.tls {
        Some(tls) => tls.apply(Endpoint::from_shared(format!("https://{address}"))?)?,
        None => Endpoint::from_shared(format!("http://{address}"))?,
    };
    Ok(endpoint
        .connect_timeout(shared.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE)
        // To hyper a connection is idle when nobody can ask anything on it any more, though a watch may still be open there.
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES))
}

async fn dial(shared: &Shared, address: &str) -> Result<Stream, (DialFailure, String)> {
    let unreachable = |said: String| (DialFailure::Unreachable, format!("{address}: {said}"));
    let refused = |status: Status| (failure(&status), format!("{address}: {}", reason(&status, shared)));
    let connect = async {
        let endpoint = endpoint(shared, address).map_err(|error| unreachable(chain(&error)))?;
        let channel = endpoint.connect().await.map_err(|error| unreachable(explained(chain(&error), shared)))?;
        let (outbound, messages) = mpsc::channel(MESSAGES_BUFFERED);
        let mut client = LockServiceClient::with_interceptor(channel.clone(), shared.caller.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX);
        let messages = ReceiverStream::new(messages);
        let stream = match shared.tier {
            Tier::Correctness => client.connect(messages).await,
            Tier::Efficiency => client.connect_efficiency(messages).await,
        };
        let mut inbound = stream.map_err(refused)?.into_inner();
        match inbound.message().await.map_err(refused)? {
            Some(hello) if hello.hello.is_some() => Ok(Stream { channel, outbound, inbound, hello }),
            _ => Err(unreachable("the stream did not begin with a hello".to_owned())),
        }
    };
    match timeout(shared.connect_timeout, connect).await {
        Ok(result) => result,
        Err(_) => Err(unreachable("no answer in time".to_owned())),
    }
}

/// Serves one stream until it ends. None: the client is to end.
async fn serve(shared: &Shared, address: String, stream: Stream) -> Option<(DialFailure, String)> {
    let Stream { channel, outbound, mut inbound, hello } = stream;
    let now = clock::now();
    let first = shared.with(|state| {
        state.leader = Some((address.clone(), channel));
        if let Some(hello) = &hello.hello {
            state.machine.handle_connected(hello, now);
        }
        state.machine.handle_message(hello, now)
    });
    shared.connected.notify_waiters();
    let mut ended = first.err().map(|error| (DialFailure::Unreachable, error.to_string()));
    while ended.is_none() {
        let now = clock::now();
        let mut full = false;
        let (over, stalled, wake_at) = shared.with(|state| {
            state.machine.handle_timeout(now);
            let over = state.is_over(now);
            loop {
                let Ok(place) = outbound.try_reserve() else {
                    full = true;
                    break;
                };
                let Some(message) = state.machine.poll_transmit(now) else { break };
                place.send(message);
            }
            (over, state.machine.is_stalled(), state.machine.poll_timeout())
        });
        if over {
            return None;
        }
        if stalled {
            ended = Some((DialFailure::Stalled, format!("{address}: no answer for too long")));
            break;
        }
        tokio::select! {
            biased;
            message = inbound.message() => ended = match message {
                Ok(Some(message)) => {
                    let heard = shared.with(|state| state.machine.handle_message(message, clock::now()));
                    heard.err().map(|error| (DialFailure::Unreachable, format!("{address}: {error}")))
                }
                Ok(None) => Some((DialFailure::Unreachable, format!("{address}: the stream ended"))),
                Err(status) => Some((failure(&status), format!("{address}: {}", status.message()))),
            },
            () = shared.wake.notified() => {}
            _ = outbound.reserve(), if full => {}
            () = sleep_to(wake_at) => {}
        }
    }
    shared.with(|state| {
        state.leader = None;
        state.machine.handle_disconnected(clock::now());
    });
    ended
}

fn failure(status: &Status) -> DialFailure {
    match not_leader(status) {
        Some(leader) => DialFailure::NotLeader { leader },
        None => DialFailure::Unreachable,
    }
}

/// If a node said that it does not lead: who does, as far as it knows.
pub(crate) fn not_leader(status: &Status) -> Option<Option<String>> {
    let info = status.get_details_error_info().filter(|info| info.reason == "NOT_LEADER")?;
    Some(info.metadata.get("leader").filter(|leader| !leader.is_empty()).cloned())
}

/// What a status says, with what caused it and what to do.
pub(crate) fn reason(status: &Status, shared: &Shared) -> String {
    match std::error::Error::source(status) {
        Some(source) => explained(format!("{}: {}", status.message(), chain(source)), shared),
        None => status.message().to_owned(),
    }
}

fn explained(said: String, shared: &Shared) -> String {
    let hint = tls::hint(&said, shared.tls.is_some());
    said + hint
}

/// An error with what caused it: the outermost alone says only that it did not work.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
