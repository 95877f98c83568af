//! gRPC services of the port: which one answers a call, and what bounds it.
//!
//! The services come from generated code; here they are anything that turns a request into a response.
//! Browsers call them by gRPC-web over HTTP/1.1
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md>).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::service::LayerExt as _;
use tonic_web::GrpcWebLayer;

use super::Options;
use super::body::guard;
use super::health::{Health, Readiness};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What generated servers are.
pub trait GrpcService:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
    + NamedService
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> GrpcService for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// The reflection service cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("the descriptors of the gRPC services do not decode: {0}; run `cargo xtask codegen`")]
pub struct GrpcError(String);

type Call = Box<dyn Fn(Request<Body>) -> BoxFuture<Response<Body>> + Send + Sync>;

/// A table of services. (Answered by [`Routes::with_grpc`](super::Routes::with_grpc).)
#[derive(Default)]
pub struct Grpc {
    services: BTreeMap<&'static str, Call>,
}

impl fmt::Debug for Grpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.keys()).finish()
    }
}

impl Grpc {
    /// No services at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a service under its name. A later one of the same name replaces the earlier.
    #[must_use]
    pub fn with<S: GrpcService>(mut self, service: S) -> Self {
        let call: Call = Box::new(move |request| {
            // Generated servers are always ready.
            let response = service.clone().call(request);
            Box::pin(async move {
                match response.await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            })
        });
        self.services.insert(S::NAME, call);
        self
    }

    /// Adds the services that tools expect: health, by `readiness`, of all services added before, and
    /// reflection, by encoded `google.protobuf.FileDescriptorSet`s.
    ///
    /// # Errors
    /// If a set of descriptors does not decode.
    pub fn with_standard(
        self,
        readiness: Readiness,
        descriptors: &[&[u8]],
    ) -> Result<Self, GrpcError> {
        let mut builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        for set in descriptors {
            builder = builder.register_encoded_file_descriptor_set(set);
        }
        let reflection = builder
            .build_v1()
            .map_err(|error| GrpcError(error.to_string()))?;
        let health = Health::new(readiness, self.services.keys().copied().collect());
        Ok(self
            .with(tonic_health::pb::health_server::HealthServer::new(health))
            .with(reflection))
    }
}

/// Whether the request is gRPC of any kind.
pub(super) fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The services with the limits of the port; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Limited {
    grpc: Arc<Grpc>,
    calls: Arc<Semaphore>,
    calls_max: usize,
    answer_timeout: Duration,
}

impl Limited {
    pub(super) fn new(grpc: Grpc, options: &Options) -> Self {
        Self {
            grpc: Arc::new(grpc),
            calls: Arc::new(Semaphore::new(options.calls_max)),
            calls_max: options.calls_max,
            answer_timeout: options.answer_timeout,
        }
    }

    /// Answers a call of gRPC or gRPC-web.
    pub(super) async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + fmt::Display,
    {
        let mut web = GrpcWebLayer::new().named_layer(self.clone());
        match web.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

impl Service<Request<Body>> for Limited {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let refuse = |status: Status| -> Self::Future {
            let refused: Ready<_> = ready(Ok(status.into_http()));
            Box::pin(refused)
        };
        // `/package.Service/Method`
        let name = request.uri().path().split('/').nth(1).unwrap_or_default();
        let Some(call) = self.grpc.services.get(name) else {
            return refuse(Status::unimplemented(format!(
                "there is no service `{name}` here"
            )));
        };
        let Ok(permit) = Arc::clone(&self.calls).try_acquire_owned() else {
            let limit = self.calls_max;
            return refuse(Status::resource_exhausted(format!(
                "{limit} calls are under way, which is the most; try again later"
            )));
        };
        let response = call(request);
        let limit = self.answer_timeout;
        Box::pin(async move {
            let response = tokio::time::timeout(limit, response).await;
            Ok(match response {
                Ok(response) => guard(response, permit),
                Err(_) => {
                    Status::deadline_exceeded(format!("no answer within {limit:?}")).into_http()
                }
            })
        })
    }
}
