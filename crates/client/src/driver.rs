//! The driver: the one task of a client that connects its state machines with the network.
//!
//! It dials the node that [`Reconnect`] names, sends what the machine wants to send, passes messages to it, and wakes the tasks
//! whose answers have come. It decides nothing about locks. It decides only when to send, so that the requests of many tasks share
//! a message.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_wire::{WireError, v1};
use futures_util::{SinkExt, StreamExt};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::timeout;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_types::StatusExt;

use crate::clock::{self, Nanos};
use crate::process::Process;
use crate::shared::{AwaitsWrite, Shared, State};
use crate::stream::{self, LastWords, Stream};
use crate::tls;
use fencepost_session::Tier;
use fencepost_session::client::{DialFailure, Reconnect, Step};

/// Size of the send buffer. While the network is slow, requests gather in the machine, because a few large messages are better
/// than many small ones.
const WAITING_BYTES_MAX: usize = 64 * 1024;
/// How many answers are passed on before their callers may run: see [`hear`]. A node of the correctness tier gathers requests
/// while it writes its log, so larger parts are better there. A node that answers from memory is kept busy by fewer requests.
const ANSWERS_AT_ONCE_MAX: usize = 32;
const ANSWERS_AT_ONCE_MIN: usize = 16;
const ANSWERS_AT_ONCE_MIN_EFFICIENCY: usize = 4;
/// On a runtime with one thread, a driver with fewer requests in flight than this sends at once. Stepping back first would gather
/// few requests, and the node would wait while the tasks of other connections run: 64 contenders on four connections lost 5 to
/// 12% of their throughput that way.
const GATHERS_ON_ONE_THREAD: usize = 17;
/// The longest sleep. The timer of the runtime stops while the machine is suspended, so after a resume the driver looks at the
/// clock no later than this.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// HTTP/2 pings. A node that does not answer a ping in time counts as gone. Without pings, a watch or a long call would wait for
/// ever if the node hangs, or if the network drops the connection without an error.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_PATIENCE: Duration = Duration::from_secs(5);
/// Flow-control window of HTTP/2. With the small default of the standard, a busy stream would have to wait.
const WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// A channel to a node that adds to every call who calls.
pub(crate) type Way = InterceptedService<Channel, Caller>;

/// Who calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// The name of the client, if it has one.
    name: Option<AsciiMetadataValue>,
    /// `USER@HOST`: the author of what an administrator orders, if there is no certificate.
    user_at_host: Option<AsciiMetadataValue>,
}

impl Caller {
    /// A name that is not valid in a header is not sent with calls. It is still in the metadata of the sessions.
    pub(crate) fn new(name: Option<&str>) -> Caller {
        Caller {
            name: name.and_then(|name| AsciiMetadataValue::try_from(name).ok()),
            user_at_host: AsciiMetadataValue::try_from(Process::this().caller()).ok(),
        }
    }

    fn name(&self) -> &str {
        self.name.as_ref().and_then(|name| name.to_str().ok()).unwrap_or_default()
    }
}

impl Interceptor for Caller {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        for (header, value) in [("fencepost-client", &self.name), ("fencepost-caller", &self.user_at_host)] {
            if let Some(value) = value {
                request.metadata_mut().insert(header, value.clone());
            }
        }
        Ok(request)
    }
}

/// A stream to the leader, and its first message.
struct Connected {
    stream: Stream,
    hello: v1::ServerMessage,
}

/// Runs until the last handle of the client is dropped, or the runtime shuts down.
pub(crate) async fn drive(shared: Arc<Shared>) {
    // If this future is dropped with the runtime, no task may wait for an answer for ever.
    let _at_the_end = ShutDown(shared.clone());
    let mut reconnect = Reconnect::new(shared.endpoints.clone(), shared.refused_patience);
    // When the last stream was lost. `None` before the first.
    let mut lost_at: Option<Nanos> = None;
    // Whether the breaker was open when it was last looked at, and why the last try had failed.
    let (mut was_open, mut last_said) = (false, String::new());
    loop {
        let failure = match reconnect.poll(clock::now()) {
            Step::WaitUntil(at) => match meanwhile(&shared, sleep_to(Some(at))).await {
                Some(()) => {
                    report(&shared, &reconnect, &mut was_open, &last_said);
                    continue;
                }
                None => return,
            },
            Step::Dial(address) => match meanwhile(&shared, dial(&shared, &address)).await {
                None => return,
                Some(Err(failure)) => failure,
                Some(Ok(connected)) => {
                    reconnect.handle_connected(&address);
                    shared.tell_connected(&address, lost_at.map(|at| clock::now().since(at)), has_sessions(&shared));
                    let Some(failure) = serve(&shared, address.clone(), connected).await else { return };
                    lost_at = Some(clock::now());
                    shared.tell_disconnected(&address, &failure.1, has_sessions(&shared));
                    failure
                }
            },
        };
        let (failure, said) = failure;
        tracing::debug!(%said, "no connection to the leader");
        let now = clock::now();
        reconnect.handle_failed(now, failure.clone(), random());
        last_said.clone_from(&said);
        shared.with(|state| state.note_failure(&failure, said, !reconnect.is_open(now)));
        report(&shared, &reconnect, &mut was_open, &last_said);
    }
}

/// Tells the callers what is known about the cluster while there is no connection, and the program when the breaker opens. A client without
/// a session has nothing to tell: after a close, say.
fn report(shared: &Shared, reconnect: &Reconnect, was_open: &mut bool, last_said: &str) {
    let now = clock::now();
    let is_open = reconnect.is_open(now);
    if !std::mem::replace(was_open, is_open) && is_open && has_sessions(shared) {
        shared.tell_unreachable(last_said);
    }
    let is_refused = shared.with(|state| {
        state.machine.handle_reachable(!is_open);
        (state.is_refusing, state.is_refused) = (reconnect.is_refusing(), reconnect.is_refused(now));
        state.is_refused
    });
    if is_refused {
        shared.connected.notify_waiters();
    }
}

fn has_sessions(shared: &Shared) -> bool {
    shared.with(|state| !state.machine.living().is_empty())
}

fn random() -> u64 {
    // Without randomness all clients reconnect at the same moment, which is still better than not to reconnect.
    getrandom::u64().unwrap_or(0)
}

/// Shuts the shared state down when the driver ends, also if its future is dropped.
struct ShutDown(Arc<Shared>);

impl Drop for ShutDown {
    fn drop(&mut self) {
        self.0.with(State::shut_down);
        self.0.connected.notify_waiters();
    }
}

/// Waits for a future, and meanwhile tells the machine the time. `None` if the client must end.
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

/// The settings of a gRPC connection to a node. All gRPC connections are made here.
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
        // For hyper, a connection is idle when no handle for new requests is left, although a watch may still be open on it.
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES))
}

async fn dial(shared: &Shared, address: &str) -> Result<Connected, (DialFailure, String)> {
    let begin =
        v1::StreamBegin { client: shared.caller.name().to_owned(), efficiency: shared.tier == Tier::Efficiency };
    let connect = async {
        let lost = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused => (DialFailure::Refused, format!("{address}: connection refused")),
            _ => {
                let (failure, said) = unreachable(address, &explained(chain(&error), shared));
                (if tls::is_wrong_door(&said) { DialFailure::WrongDoor } else { failure }, said)
            }
        };
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

/// The failure for a stream that the node has ended with a reason.
fn ended(address: &str, end: v1::StreamEnd) -> (DialFailure, String) {
    let said = format!("{address}: {}", end.message);
    match end.reason.as_str() {
        "NOT_LEADER" => (DialFailure::NotLeader { leader: end.leader.filter(|leader| !leader.is_empty()) }, said),
        "WRONG_DOOR" => (DialFailure::WrongDoor, said),
        _ => (DialFailure::Unreachable, said),
    }
}

/// Serves one stream until it ends. `None` if the client must end.
async fn serve(shared: &Shared, address: String, connected: Connected) -> Option<(DialFailure, String)> {
    let Connected { stream, hello } = connected;
    let mut line = Line { shared, stream: Some(stream) };
    let stream = line.stream.as_mut().expect("it was just put there");
    // Dropped as soon as everything that the machine had to send before is written.
    let mut awaiting_write = Vec::new();
    let now = clock::now();
    let first = shared.with(|state| {
        // Connects only when a call beside the stream is made.
        if let Ok(endpoint) = endpoint(shared, &address) {
            state.note_leader(address.clone(), endpoint.connect_lazy());
        }
        if let Some(hello) = &hello.hello {
            state.machine.handle_connected(hello, now);
        }
        state.machine.handle_message(hello, now)
    });
    shared.connected.notify_waiters();
    let mut failed = first.err().map(|error| unreachable(&address, &error.problem()));
    let mut alarm = pin!(tokio::time::sleep(SLEEP_MAX));
    let mut rings_at = now.after(SLEEP_MAX);
    let mut others_may_ask = false;
    while failed.is_none() {
        if std::mem::take(&mut others_may_ask) {
            step_back().await;
        }
        let now = clock::now();
        let (over, stalled, wake_at, in_flight) = shared.with(|state| {
            state.machine.handle_timeout(now);
            let over = state.is_over(now);
            if transmit(state, stream, now) {
                awaiting_write.append(&mut state.awaiting_write);
            }
            (over, state.machine.is_stalled(), state.machine.poll_timeout(), state.machine.in_flight())
        });
        if over {
            // Write the closes of the sessions.
            let _ = timeout(SLEEP_MAX, stream.flush()).await;
            return None;
        }
        if stalled {
            failed = Some((DialFailure::Stalled, format!("{address}: no answer for too long")));
            break;
        }
        // A timer that fires too early costs one loop. Resetting it for every message would cost more.
        let wake_in = wake_at.map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX));
        if now.after(wake_in) < rings_at {
            rings_at = now.after(wake_in);
            alarm.as_mut().reset(tokio::time::Instant::now() + wake_in);
        }
        let was_full = stream.write_buffer().len() >= WAITING_BYTES_MAX;
        tokio::select! {
            biased;
            moved = poll_fn(|context| poll_stream(stream, was_full, &mut awaiting_write, context)) => failed = match moved {
                Moved::Room => None,
                Moved::Message(Some(Ok(v1::ServerMessage { end: Some(end), .. }))) => Some(ended(&address, end)),
                Moved::Message(Some(Ok(message))) => match hear(shared, message, stream).await {
                    Ok(may_ask) => {
                        others_may_ask = may_ask;
                        None
                    }
                    Err(error) => Some(unreachable(&address, &error.problem())),
                },
                Moved::Message(Some(Err(error))) => Some(unreachable(&address, &chain(&error))),
                Moved::Message(None) => Some(unreachable(&address, "the stream ended")),
            },
            // While the node is busy with our requests, requests that other tasks are about to make can share this message.
            () = shared.wake.notified() => others_may_ask = gathers(in_flight),
            () = alarm.as_mut() => rings_at = Nanos(u64::MAX),
        }
    }
    line.stream = None;
    shared.with(|state| {
        state.leader = None;
        state.machine.handle_disconnected(clock::now());
    });
    failed
}

/// The stream that the driver serves. Dropping it sends the pending releases, cancels and closes.
///
/// A program that ends drops the driver with its runtime, often before the driver has run again. The program may have dropped a
/// guard or a client just before. Their releases are sent here: otherwise the locks would be held until the end of their TTL.
struct Line<'a> {
    shared: &'a Shared,
    /// `None` if nothing can be sent on the stream any more.
    stream: Option<Stream>,
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        self.shared.with(|state| {
            let now = clock::now();
            state.machine.handle_farewell();
            let mut last_words = LastWords::new(stream);
            last_words.say(std::iter::from_fn(|| state.machine.poll_transmit(now)));
            state.last_words = Some(last_words);
            // Under the same lock: a guard that is dropped from here on finds that the driver is gone.
            state.shut_down();
        });
    }
}

/// Fills the send buffer. Returns whether the machine has nothing more to send.
fn transmit(state: &mut State, stream: &mut Stream, now: Nanos) -> bool {
    while stream.write_buffer().len() < WAITING_BYTES_MAX {
        let Some(message) = state.machine.poll_transmit(now) else { return true };
        stream.start_send_unpin(message).expect("it only grows a buffer");
    }
    false
}

/// Lets the tasks run that are ready. Not `yield_now` of the runtime: that waits until the worker has run out of tasks and has
/// polled the system for events, and meanwhile the other tasks would wait for this driver.
async fn step_back() {
    let mut has_stepped_back = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_stepped_back, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Whether the driver steps back before it sends, so that other tasks can add their requests to the message. If nothing is in
/// flight, the node is idle and gets the next request at once.
fn gathers(in_flight: usize) -> bool {
    let has_one_thread = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
    in_flight >= if has_one_thread { GATHERS_ON_ONE_THREAD } else { 1 }
}

/// Passes a message of the node to the machine, a part of its answers at a time. The callers of one part go on, and their next
/// requests are in flight while the other callers get their answers. If all answers were passed on at once, the node would be idle
/// while this program is busy, and the other way round. Returns whether the driver should step back before it sends.
async fn hear(shared: &Shared, mut message: v1::ServerMessage, stream: &mut Stream) -> Result<bool, WireError> {
    let mut others_may_ask = false;
    if let Some(v1::Decided { index, term, stamp_ms, answers, .. }) = message.decided.first_mut() {
        let mut left = std::mem::take(answers).into_iter();
        // A part must be large enough for a message, and small enough to keep the node busy. If the next message has already
        // come, the node is busy, and parts may be larger.
        let share = if stream.read_buffer().is_empty() { 4 } else { 2 };
        let in_flight = shared.with(|state| state.machine.in_flight());
        others_may_ask = left.len() > 1 && gathers(in_flight);
        let least = match shared.tier {
            Tier::Correctness => ANSWERS_AT_ONCE_MIN,
            Tier::Efficiency => ANSWERS_AT_ONCE_MIN_EFFICIENCY,
        };
        let at_once = if gathers(in_flight) { (in_flight / share).clamp(least, ANSWERS_AT_ONCE_MAX) } else { least };
        while left.len() > at_once {
            let answers = left.by_ref().take(at_once).collect();
            let part = v1::Decided { index: *index, term: *term, stamp_ms: *stamp_ms, answers, pushes: Vec::new() };
            let part = v1::ServerMessage { decided: vec![part], ..v1::ServerMessage::default() };
            shared.with(|state| state.machine.handle_message(part, clock::now()))?;
            step_back().await;
            shared.with(|state| transmit(state, stream, clock::now()));
            // What cannot be sent now is sent later. If the stream is broken, its next use returns the error.
            let _ = poll_fn(|context| Poll::Ready(stream.poll_flush_unpin(context))).await;
        }
        *answers = left.collect();
    }
    shared.with(|state| state.machine.handle_message(message, clock::now()))?;
    Ok(others_may_ask)
}

/// What happened on a stream.
enum Moved {
    /// The send buffer has room again.
    Room,
    /// The next message; `None` if the stream has ended.
    Message(Option<io::Result<v1::ServerMessage>>),
}

/// Flushes the send buffer and polls for the next message. Both at once, so that the two sides never wait for each other to read.
fn poll_stream(
    stream: &mut Stream,
    was_full: bool,
    awaiting_write: &mut Vec<AwaitsWrite>,
    context: &mut Context<'_>,
) -> Poll<Moved> {
    match stream.poll_flush_unpin(context) {
        Poll::Ready(Ok(())) if was_full => return Poll::Ready(Moved::Room),
        Poll::Ready(Ok(())) => awaiting_write.clear(),
        // First read what came before the stream broke.
        Poll::Ready(Err(error)) => {
            return stream.poll_next_unpin(context).map(|next| Moved::Message(next.or(Some(Err(error)))));
        }
        _ => {}
    }
    stream.poll_next_unpin(context).map(Moved::Message)
}

/// `Some` if the node says that it does not lead; inside, the address of the leader if the node knows it.
pub(crate) fn not_leader(status: &Status) -> Option<Option<String>> {
    let info = status.get_details_error_info().filter(|info| info.reason == "NOT_LEADER")?;
    Some(info.metadata.get("leader").filter(|leader| !leader.is_empty()).cloned())
}

/// The message of a status, with its cause and a hint what to do.
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

/// The text of an error and of all its causes: the outermost error alone often says only that something failed.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
