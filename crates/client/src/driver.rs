//! Between the machines and the network: one task for a client. It dials whom it is told to, sends what there is to send, feeds
//! what comes, and wakes who waits. It decides nothing.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_wire::{WireError, v1};
use futures_util::{SinkExt, StreamExt};
use tokio::time::timeout;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_types::StatusExt;

use crate::clock::{self, Nanos};
use crate::machine::{DialFailure, Reconnect, Step};
use crate::shared::{Shared, State, Tier};
use crate::stream::{self, Stream};
use crate::tls;

/// Bytes that wait for the network. While it is slow the machine gathers, so few and large messages are better than many and
/// small ones.
const WAITING_BYTES_MAX: usize = 64 * 1024;
/// Answers that are taken before their askers may go on. A node that writes a log gathers anyway, so as many as make a message
/// worth its while; one that answers at once is kept busy by less.
const ANSWERS_AT_ONCE_MAX: usize = 16;
const ANSWERS_AT_ONCE_MIN: usize = 4;
/// The timer of the runtime stands still while the machine sleeps; after that we look at the clock no later than this.
const SLEEP_MAX: Duration = Duration::from_secs(1);
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

    fn name(&self) -> &str {
        self.name.as_ref().and_then(|name| name.to_str().ok()).unwrap_or_default()
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

/// A stream to the leader, and its first message.
struct Connected {
    stream: Stream,
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
                Some(Ok(connected)) => {
                    reconnect.handle_connected(&address);
                    tracing::debug!(%address, "connected to the leader");
                    match serve(&shared, address, connected).await {
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

async fn dial(shared: &Shared, address: &str) -> Result<Connected, (DialFailure, String)> {
    let begin =
        v1::StreamBegin { client: shared.caller.name().to_owned(), efficiency: shared.tier == Tier::Efficiency };
    let connect = async {
        let lost = |error: io::Error| unreachable(address, &explained(chain(&error), shared));
        let mut stream = stream::dial(address, shared.tls.as_ref(), begin).await.map_err(lost)?;
        match stream.next().await {
            Some(Ok(v1::ServerMessage { end: Some(end), .. })) => Err(ended(address, end)),
            Some(Ok(hello)) if hello.hello.is_some() => Ok(Connected { stream, hello }),
            Some(Ok(_)) => Err(unreachable(address, "the stream did not begin with a hello")),
            Some(Err(error)) => Err(lost(error)),
            None => Err(unreachable(address, &explained("the connection closed at once".to_owned(), shared))),
        }
    };
    match timeout(shared.connect_timeout, connect).await {
        Ok(result) => result,
        Err(_) => Err(unreachable(address, "no answer in time")),
    }
}

fn unreachable(address: &str, said: &str) -> (DialFailure, String) {
    (DialFailure::Unreachable, format!("{address}: {said}"))
}

/// The node has ended the stream, and said why.
fn ended(address: &str, end: v1::StreamEnd) -> (DialFailure, String) {
    let said = format!("{address}: {}", end.message);
    match end.reason.as_str() {
        "NOT_LEADER" => (DialFailure::NotLeader { leader: end.leader.filter(|leader| !leader.is_empty()) }, said),
        _ => (DialFailure::Unreachable, said),
    }
}

/// Serves one stream until it ends. None: the client is to end.
async fn serve(shared: &Shared, address: String, connected: Connected) -> Option<(DialFailure, String)> {
    let Connected { mut stream, hello } = connected;
    let now = clock::now();
    let first = shared.with(|state| {
        // Dialled when somebody asks for something beside the stream.
        state.leader = endpoint(shared, &address).ok().map(|endpoint| (address.clone(), endpoint.connect_lazy()));
        if let Some(hello) = &hello.hello {
            state.machine.handle_connected(hello, now);
        }
        state.machine.handle_message(hello, now)
    });
    shared.connected.notify_waiters();
    let mut failed = first.err().map(|error| unreachable(&address, &error.to_string()));
    let mut alarm = pin!(tokio::time::sleep(SLEEP_MAX));
    let mut rings_at = now.after(SLEEP_MAX);
    while failed.is_none() {
        let now = clock::now();
        let (over, stalled, wake_at) = shared.with(|state| {
            state.machine.handle_timeout(now);
            let over = state.is_over(now);
            transmit(state, &mut stream, now);
            (over, state.machine.is_stalled(), state.machine.poll_timeout())
        });
        if over {
            // The last words.
            let _ = timeout(SLEEP_MAX, stream.flush()).await;
            return None;
        }
        if stalled {
            failed = Some((DialFailure::Stalled, format!("{address}: no answer for too long")));
            break;
        }
        // An alarm that rings too early costs one look; to set it anew for every message would cost more.
        let wake_in = wake_at.map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX));
        if now.after(wake_in) < rings_at {
            rings_at = now.after(wake_in);
            alarm.as_mut().reset(tokio::time::Instant::now() + wake_in);
        }
        let was_full = stream.write_buffer().len() >= WAITING_BYTES_MAX;
        tokio::select! {
            biased;
            moved = poll_fn(|context| poll_stream(&mut stream, was_full, context)) => failed = match moved {
                Moved::Room => None,
                Moved::Message(Some(Ok(v1::ServerMessage { end: Some(end), .. }))) => Some(ended(&address, end)),
                Moved::Message(Some(Ok(message))) => {
                    let heard = hear(shared, message, &mut stream).await;
                    heard.err().map(|error| unreachable(&address, &error.to_string()))
                }
                Moved::Message(Some(Err(error))) => Some(unreachable(&address, &chain(&error))),
                Moved::Message(None) => Some(unreachable(&address, "the stream ended")),
            },
            () = shared.wake.notified() => {}
            () = alarm.as_mut() => rings_at = Nanos(u64::MAX),
        }
    }
    shared.with(|state| {
        state.leader = None;
        state.machine.handle_disconnected(clock::now());
    });
    failed
}

/// Puts what there is to say where it waits for the network.
fn transmit(state: &mut State, stream: &mut Stream, now: Nanos) {
    while stream.write_buffer().len() < WAITING_BYTES_MAX
        && let Some(message) = state.machine.poll_transmit(now)
    {
        stream.start_send_unpin(message).expect("it only grows a buffer");
    }
}

/// Takes what the node said, some answers at a time: those who have theirs go on, and what they ask for next is under way while
/// the others are still being told. All at once, the node would have nothing to do while this program is busy, and the other
/// way round.
async fn hear(shared: &Shared, mut message: v1::ServerMessage, stream: &mut Stream) -> Result<(), WireError> {
    if let Some(v1::Decided { index, term, stamp_ms, answers, .. }) = message.decided.first_mut() {
        let mut left = std::mem::take(answers).into_iter();
        let at_once = match shared.tier {
            Tier::Correctness => ANSWERS_AT_ONCE_MAX,
            Tier::Efficiency => (left.len() / 8).clamp(ANSWERS_AT_ONCE_MIN, ANSWERS_AT_ONCE_MAX),
        };
        while left.len() > at_once {
            let answers = left.by_ref().take(at_once).collect();
            let part = v1::Decided { index: *index, term: *term, stamp_ms: *stamp_ms, answers, pushes: Vec::new() };
            let part = v1::ServerMessage { decided: vec![part], ..v1::ServerMessage::default() };
            shared.with(|state| state.machine.handle_message(part, clock::now()))?;
            tokio::task::yield_now().await;
            shared.with(|state| transmit(state, stream, clock::now()));
            // What cannot be sent at once is sent later; if the stream is broken, whoever uses it next finds out.
            let _ = poll_fn(|context| Poll::Ready(stream.poll_flush_unpin(context))).await;
        }
        *answers = left.collect();
    }
    shared.with(|state| state.machine.handle_message(message, clock::now()))
}

/// What became of a stream's both directions.
enum Moved {
    /// There is room again for what is to be sent.
    Room,
    /// The next message; none if the stream has ended.
    Message(Option<io::Result<v1::ServerMessage>>),
}

/// Sends what waits, and waits for what comes: neither side waits for the other to read first.
fn poll_stream(stream: &mut Stream, was_full: bool, context: &mut Context<'_>) -> Poll<Moved> {
    match stream.poll_flush_unpin(context) {
        Poll::Ready(Ok(())) if was_full => return Poll::Ready(Moved::Room),
        // What came before it broke is still worth reading.
        Poll::Ready(Err(error)) => {
            return stream.poll_next_unpin(context).map(|next| Moved::Message(next.or(Some(Err(error)))));
        }
        _ => {}
    }
    stream.poll_next_unpin(context).map(Moved::Message)
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
