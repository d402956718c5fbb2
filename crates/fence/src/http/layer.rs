//! The layer: a request that may write is refused unless it has tokens that can be parsed.
//!
//! It does not check the tokens: only the guard of the service's own store can do that together with the write.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Request, Response};
use bytes::Bytes;
use futures_util::TryFutureExt;
use futures_util::future::{Either, MapOk};
use http_body_util::{Either as EitherBody, Full};
use tower_layer::Layer;
use tower_service::Service;

use super::header::Presented;
use super::refusal::Refusal;

/// A tower layer that parses `Fencing-Token` and refuses requests that need the header and have none.
///
/// Over HTTP, safe methods (GET, HEAD, OPTIONS, TRACE) need no header. gRPC has no such methods: there, every call needs it.
#[derive(Clone, Debug, Default)]
pub struct FencingLayer {
    exempt: Arc<[String]>,
}

impl FencingLayer {
    /// A layer for which every request that is not safe needs a token.
    pub fn new() -> FencingLayer {
        FencingLayer::default()
    }

    /// Lets requests pass whose path begins with this, such as `/grpc.health.v1.Health/`.
    #[must_use]
    pub fn exempt(self, path: &str) -> FencingLayer {
        FencingLayer { exempt: self.exempt.iter().cloned().chain([path.to_owned()]).collect() }
    }
}

impl<Inner> Layer<Inner> for FencingLayer {
    type Service = Fencing<Inner>;

    fn layer(&self, inner: Inner) -> Fencing<Inner> {
        Fencing { inner, exempt: self.exempt.clone() }
    }
}

/// A service behind a [`FencingLayer`].
#[derive(Clone, Debug)]
pub struct Fencing<Inner> {
    inner: Inner,
    exempt: Arc<[String]>,
}

/// The inner service's own body, or the text of a refusal.
type Body<Inner> = EitherBody<Inner, Full<Bytes>>;

impl<Inner, RequestBody, ResponseBody> Service<Request<RequestBody>> for Fencing<Inner>
where
    Inner: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
{
    type Response = Response<Body<ResponseBody>>;
    type Error = Inner::Error;
    type Future = Either<
        Ready<Result<Self::Response, Self::Error>>,
        MapOk<Inner::Future, fn(Response<ResponseBody>) -> Self::Response>,
    >;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<RequestBody>) -> Self::Future {
        if !self.exempt.iter().any(|path| request.uri().path().starts_with(path)) {
            let grpc = grpc(&request);
            let refusal = match Presented::from_headers(request.headers()) {
                Ok(Some(presented)) => {
                    request.extensions_mut().insert(presented);
                    None
                }
                Ok(None) if grpc.is_none() && request.method().is_safe() => None,
                Ok(None) => Some(Refusal::missing()),
                Err(refusal) => Some(refusal),
            };
            if let Some(refusal) = refusal {
                let response = grpc.map_or_else(|| refusal.http(), |content_type| refusal.grpc(content_type));
                return Either::Left(ready(Ok(response.map(|text| EitherBody::Right(Full::from(text))))));
            }
        }
        Either::Right(self.inner.call(request).map_ok(|response| response.map(EitherBody::Left)))
    }
}

/// The content type of a gRPC request, such as `application/grpc+proto`; `None` for other requests.
fn grpc<Body>(request: &Request<Body>) -> Option<HeaderValue> {
    let content_type = request.headers().get(CONTENT_TYPE)?;
    content_type.as_bytes().starts_with(b"application/grpc").then(|| content_type.clone())
}
