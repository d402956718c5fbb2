//! Watching events in log order, without a gap or a repeat.
//!
//! A watch is for observers. Do not decide by events whether a lock is held: an event describes the past. Only a guard says whether
//! its lock is held.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fencepost_core::{Position, PositionedEvent};
use fencepost_wire::api::watch;
use fencepost_wire::v1;
use futures_core::Stream;
use tonic::{Code, Streaming};

use crate::calls::{Kind::Repeatable, refusal};
use crate::client::Client;
use crate::error::{Error, Failed};
use fencepost_wire::grpc::observe_service_client::ObserveServiceClient;

/// How many streams in a row may break before the watch fails.
const BREAKS_MAX: u32 = 10;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// The settings of a watch. Begin with [`Client::watch`].
#[derive(Clone, Debug)]
#[must_use = "nothing is watched until `start`"]
pub struct WatchRequest {
    client: Client,
    prefix: String,
    after: Option<Position>,
}

impl WatchRequest {
    pub(crate) fn new(client: Client, prefix: String) -> WatchRequest {
        WatchRequest { client, prefix, after: None }
    }

    /// Watches all events after this position. Without this, a watch begins now.
    pub fn after(mut self, position: Position) -> WatchRequest {
        self.after = Some(position);
        self
    }

    /// Begins the watch. From here on no event is missed.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn start(self) -> Result<Watch, Error> {
        let after = match self.after {
            Some(after) => after,
            // After every event of the last entry. So there is a position to resume from even if the first stream breaks.
            None => Position { index: self.client.status().await?.applied.index, ordinal: u32::MAX },
        };
        let (stream, breaks) = (None, 0);
        let source = Source { client: self.client, prefix: self.prefix, after, stream, breaks };
        Ok(Watch { position: after, state: State::Idle(Box::new(source)), events: VecDeque::new() })
    }
}

/// Events as they happen: a [`Stream`], or one after the other with [`Watch::next`].
///
/// After a broken connection the watch continues by itself where it stopped.
///
/// ```no_run
/// # async fn example(client: fencepost::Client) -> Result<(), fencepost::Error> {
/// let mut watch = client.watch("orders/").start().await?;
/// while let Some(event) = watch.next().await {
///     let event = event?;
///     println!("{:?} {}", event.position, event.event.kind());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    position: Position,
    state: State,
    events: VecDeque<PositionedEvent>,
}

type Fetching = Pin<Box<dyn Future<Output = (Box<Source>, Result<Vec<PositionedEvent>, Error>)> + Send>>;

enum State {
    Idle(Box<Source>),
    Fetching(Fetching),
    /// The watch has failed, and has returned the error.
    Ended,
}

struct Source {
    client: Client,
    prefix: String,
    /// All events up to this position were received.
    after: Position,
    stream: Option<Streaming<v1::WatchResponse>>,
    breaks: u32,
}

impl Watch {
    /// The next event; `None` after an error.
    ///
    /// # Errors
    /// [`crate::Refused::Compacted`] if the events are no longer kept; [`Failed::Unreachable`] if no node could be asked.
    ///
    /// # Cancellation
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Option<Result<PositionedEvent, Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// The position of the last event that was returned. A new watch can resume from it.
    pub fn position(&self) -> Position {
        self.position
    }
}

impl Stream for Watch {
    type Item = Result<PositionedEvent, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.events.pop_front() {
                this.position = event.position;
                return Poll::Ready(Some(Ok(event)));
            }
            this.state = match std::mem::replace(&mut this.state, State::Ended) {
                State::Ended => return Poll::Ready(None),
                State::Idle(source) => State::Fetching(Box::pin(source.fetch())),
                State::Fetching(mut fetching) => match fetching.as_mut().poll(context) {
                    Poll::Pending => {
                        this.state = State::Fetching(fetching);
                        return Poll::Pending;
                    }
                    ready => {
                        let (source, fetched) = ready!(ready);
                        match fetched {
                            Err(error) => return Poll::Ready(Some(Err(error))),
                            Ok(events) => this.events.extend(events),
                        }
                        State::Idle(source)
                    }
                },
            };
        }
    }
}

impl Source {
    async fn fetch(mut self: Box<Self>) -> (Box<Source>, Result<Vec<PositionedEvent>, Error>) {
        let fetched = self.fetch_some().await;
        (self, fetched)
    }

    async fn fetch_some(&mut self) -> Result<Vec<PositionedEvent>, Error> {
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => {
                    let stream = self.open().await?;
                    self.stream.insert(stream)
                }
            };
            let status = match stream.message().await {
                Ok(Some(response)) => {
                    self.breaks = 0;
                    self.after = response.through.map_or(self.after, watch::position_from_wire);
                    if response.events.is_empty() {
                        continue;
                    }
                    return Ok(response.events.into_iter().map(watch::event_from_wire).collect::<Result<_, _>>()?);
                }
                Ok(None) => tonic::Status::unavailable("the node ended the watch"),
                Err(status) if status.code() == Code::OutOfRange => return Err(refusal(&status)),
                Err(status) => status,
            };
            self.stream = None;
            self.breaks += 1;
            if self.breaks >= BREAKS_MAX {
                return Err(Failed::Unreachable { last: status.message().to_owned() }.into());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn open(&self) -> Result<Streaming<v1::WatchResponse>, Error> {
        let after = Some(watch::position_to_wire(self.after));
        let request = v1::WatchRequest { prefix: self.prefix.clone(), after };
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).watch(request).await }
        };
        self.client.call(Repeatable, ask).await
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("position", &self.position).finish_non_exhaustive()
    }
}
