//! The stream that sessions live on, over gRPC.

use fencepost_core::Principal;
use fencepost_wire::v1;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::bounds::STREAMS_MAX;
use crate::engine::{Shared, StreamId, Tier};
use crate::generated::lock_service_server::LockService;
use crate::outbox::Outbox;
use crate::status;

pub(crate) struct LockEdge {
    pub(crate) shared: Shared,
}

/// A stream that is served. It is over when this is dropped, however that comes.
pub(crate) struct Connected {
    shared: Shared,
    stream: StreamId,
}

impl Connected {
    /// # Errors
    /// A status that says where to ask instead.
    pub(crate) fn new(shared: &Shared, principal: Principal, tier: Tier) -> Result<(Connected, Outbox), Status> {
        let mut engine = shared.engine();
        if engine.streams() >= STREAMS_MAX {
            let message = format!("this node serves {STREAMS_MAX} streams already: share a stream between sessions");
            return Err(status::reason(Code::ResourceExhausted, "TOO_MANY_STREAMS", message));
        }
        let (stream, outbox) = engine.connect(principal, tier)?;
        Ok((Connected { shared: shared.clone(), stream }, outbox))
    }

    /// Takes what the client said, for the next turn.
    pub(crate) fn take_message(&self, message: v1::ClientMessage) {
        self.shared.engine().take_message(self.stream, message);
        self.shared.ring();
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.shared.engine().disconnect(self.stream);
    }
}

/// Who talks. Without authentication everybody is who they say they are, and quotas are good manners.
pub(crate) fn principal<T>(request: &Request<T>) -> Result<Principal, Status> {
    match request.metadata().get("fencepost-client").map(|value| value.to_str()) {
        None => named(None),
        Some(Ok(name)) => named(Some(name)),
        Some(Err(_)) => {
            let message = "the header fencepost-client must be text of visible ASCII characters";
            Err(status::reason(Code::InvalidArgument, "INVALID", message))
        }
    }
}

/// Who talks, by the name that was given.
pub(crate) fn named(name: Option<&str>) -> Result<Principal, Status> {
    Principal::new(name.unwrap_or("anonymous"))
        .map_err(|error| status::reason(Code::InvalidArgument, "INVALID", format!("the name of the client: {error}")))
}

#[tonic::async_trait]
impl LockService for LockEdge {
    type ConnectStream = Outbox;
    type ConnectEfficiencyStream = Outbox;

    async fn connect(&self, request: Request<Streaming<v1::ClientMessage>>) -> Result<Response<Outbox>, Status> {
        self.serve(request, Tier::Correctness)
    }

    async fn connect_efficiency(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Outbox>, Status> {
        self.serve(request, Tier::Efficiency)
    }
}

impl LockEdge {
    fn serve(&self, request: Request<Streaming<v1::ClientMessage>>, tier: Tier) -> Result<Response<Outbox>, Status> {
        let (connected, outbox) = Connected::new(&self.shared, principal(&request)?, tier)?;
        let mut incoming = request.into_inner();
        let answers = outbox.clone();
        tokio::spawn(async move {
            loop {
                match incoming.message().await {
                    Ok(Some(message)) => connected.take_message(message),
                    Ok(None) => break answers.end(Status::ok("the client is done")),
                    Err(status) => break answers.end(status),
                }
            }
        });
        Ok(Response::new(outbox))
    }
}
