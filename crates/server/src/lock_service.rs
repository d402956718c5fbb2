//! The streams of sessions over gRPC.
//!
//! Over frames the same streams are in `framed_service.rs`. It only moves messages; the edge of the session protocol decides.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fencepost_session::edge::Transmit;
use fencepost_session::{End, Reason, Tier};
use fencepost_wire::v1;
use futures_core::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::caller::principal;
use crate::connected::Connected;
use crate::engine::Shared;
use crate::status;
use fencepost_wire::grpc::lock_service_server::LockService;

pub(crate) struct LockEdge {
    pub(crate) shared: Shared,
}

/// The outgoing half of a stream. gRPC polls it when the connection has room.
pub(crate) struct Outgoing {
    /// `None` once the end was sent.
    connected: Option<Connected>,
}

impl Stream for Outgoing {
    type Item = Result<v1::ServerMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(connected) = &self.connected else { return Poll::Ready(None) };
        Poll::Ready(Some(match ready!(connected.poll_transmit(context)) {
            Transmit::Message(message) => Ok(message),
            Transmit::End(end) => {
                self.connected = None;
                Err(status::of(end))
            }
        }))
    }
}

#[tonic::async_trait]
impl LockService for LockEdge {
    type ConnectStream = Outgoing;
    type ConnectEfficiencyStream = Outgoing;

    async fn connect(&self, request: Request<Streaming<v1::ClientMessage>>) -> Result<Response<Outgoing>, Status> {
        self.serve(request, Tier::Correctness).map_err(status::of)
    }

    async fn connect_efficiency(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Outgoing>, Status> {
        self.serve(request, Tier::Efficiency).map_err(status::of)
    }
}

impl LockEdge {
    fn serve(&self, request: Request<Streaming<v1::ClientMessage>>, tier: Tier) -> Result<Response<Outgoing>, End> {
        let connected = Connected::new(&self.shared, principal(&request)?, tier)?;
        let mut incoming = request.into_inner();
        let outgoing = Outgoing { connected: Some(connected.clone()) };
        tokio::spawn(async move {
            loop {
                match incoming.message().await {
                    Ok(Some(message)) => connected.take_message(message),
                    Ok(None) => break connected.end(End::new(Reason::Done, "the client is done")),
                    Err(status) => break connected.end(End::invalid(status.message())),
                }
            }
        });
        Ok(Response::new(outgoing))
    }
}
