//! The stream that sessions live on.

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

/// Disconnects the stream when the task that reads it ends, however it does.
struct Connected {
    shared: Shared,
    stream: StreamId,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.shared.engine().disconnect(self.stream);
    }
}

/// Who talks. Without authentication everybody is who they say they are, and quotas are good manners.
pub(crate) fn principal<T>(request: &Request<T>) -> Result<Principal, Status> {
    let said = request.metadata().get("fencepost-client").map(|value| value.to_str());
    let name = match said {
        None => "anonymous",
        Some(Ok(name)) => name,
        Some(Err(_)) => {
            let message = "the header fencepost-client must be text of visible ASCII characters";
            return Err(status::reason(Code::InvalidArgument, "INVALID", message));
        }
    };
    Principal::new(name).map_err(|error| {
        status::reason(Code::InvalidArgument, "INVALID", format!("the header fencepost-client: {error}"))
    })
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
        let principal = principal(&request)?;
        let mut incoming = request.into_inner();
        let (stream, outbox) = {
            let mut engine = self.shared.engine();
            if engine.streams() >= STREAMS_MAX {
                let message =
                    format!("this node serves {STREAMS_MAX} streams already: share a stream between sessions");
                return Err(status::reason(Code::ResourceExhausted, "TOO_MANY_STREAMS", message));
            }
            engine.connect(principal, tier)?
        };
        let connected = Connected { shared: self.shared.clone(), stream };
        let answers = outbox.clone();
        tokio::spawn(async move {
            loop {
                match incoming.message().await {
                    Ok(Some(message)) => {
                        connected.shared.engine().take_message(stream, message);
                        connected.shared.ring();
                    }
                    Ok(None) => break answers.end(Status::ok("the client is done")),
                    Err(status) => break answers.end(status),
                }
            }
        });
        Ok(Response::new(outbox))
    }
}
