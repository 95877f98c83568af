//! gRPC services of the port: which one answers a call, and what bounds it.
//!
//! The services come from generated code; here they are anything that turns a request into a response.
//! Browsers call them by gRPC-web over HTTP/1.1
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md>).

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
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
use super::login::Login;
use crate::users::{Authenticator, Role};

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

/// Whether it is well, anybody may ask: a load balancer has no password, and learns nothing else.
const HEALTH: &str = "grpc.health.v1.Health";
/// What may be called, who is logged in may ask.
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// A table of services. (Answered by [`Routes::with_grpc`](super::Routes::with_grpc).)
#[derive(Default)]
pub struct Grpc {
    services: BTreeMap<&'static str, Call>,
    roles: HashMap<&'static str, Role>,
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

    /// Says which role the user of a call needs, by `package.Service/Method`, where there are users. What is
    /// not said is for admins.
    #[must_use]
    pub fn with_roles(mut self, roles: &[(&'static str, Role)]) -> Self {
        self.roles.extend(roles.iter().copied());
        self
    }

    /// The services' names.
    pub fn services(&self) -> impl Iterator<Item = &'static str> {
        self.services.keys().copied()
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
            .with_roles(&[(REFLECTION, Role::Read)])
            .with(tonic_health::pb::health_server::HealthServer::new(health))
            .with(reflection))
    }
}

/// Whether the request asks how the program is, which anybody may, in any way.
pub(super) fn is_health<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    path.strip_prefix('/')
        .is_some_and(|it| service_of(it) == HEALTH)
}

/// Whether the request is gRPC of any kind.
pub(super) fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// From where a call came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source(pub IpAddr);

/// The services with the limits of the port; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Limited {
    grpc: Arc<Grpc>,
    users: Option<Arc<Authenticator>>,
    calls: Arc<Semaphore>,
    calls_max: usize,
    answer_timeout: Duration,
}

impl Limited {
    pub(super) fn new(grpc: Grpc, options: &Options, users: Option<Arc<Authenticator>>) -> Self {
        Self {
            grpc: Arc::new(grpc),
            users,
            calls: Arc::new(Semaphore::new(options.calls_max)),
            calls_max: options.calls_max,
            answer_timeout: options.answer_timeout,
        }
    }

    /// Answers a call of gRPC or gRPC-web from `source`.
    pub(super) async fn answer<B>(&self, mut request: Request<B>, source: Source) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + fmt::Display,
    {
        request.extensions_mut().insert(source);
        let mut web = GrpcWebLayer::new().named_layer(self.clone());
        match web.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// The service in `package.Service/Method`.
fn service_of(method: &str) -> &str {
    method.split('/').next().unwrap_or_default()
}

impl Limited {
    /// Who calls, where there are users, and whether it may; the services find its [`Identity`] among the
    /// extensions of the request.
    ///
    /// [`Identity`]: crate::users::Identity
    async fn log_in(
        &self,
        method: &str,
        head: &mut hyper::http::request::Parts,
    ) -> Result<Option<Login>, Status> {
        let users = match &self.users {
            Some(users) if service_of(method) != HEALTH => users,
            _ => return Ok(None),
        };
        let address = head.extensions.get().map(|Source(address)| *address);
        let login = Login::check(users, &head.headers, address).await?;
        let role = self.grpc.roles.get(method).copied();
        login.require(role.unwrap_or(Role::Admin), method)?;
        head.extensions.insert(login.identity.clone());
        Ok(Some(login))
    }

    async fn serve(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let (mut head, body) = request.into_parts();
        // `/package.Service/Method`
        let path = head.uri.path().to_owned();
        let method = path.strip_prefix('/').unwrap_or_default();
        let name = service_of(method);
        let Some(call) = self.grpc.services.get(name) else {
            let why = format!("there is no service `{name}` here");
            return Err(Status::unimplemented(why));
        };
        let login = self.log_in(method, &mut head).await?;
        let Ok(permit) = Arc::clone(&self.calls).try_acquire_owned() else {
            let limit = self.calls_max;
            return Err(Status::resource_exhausted(format!(
                "{limit} calls are under way, which is the most; try again later"
            )));
        };
        let response = call(Request::from_parts(head, body)).await;
        let response = match login {
            Some(login) => login.hold(response),
            None => response,
        };
        Ok(guard(response, permit))
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
        let limit = self.answer_timeout;
        let served = self.clone().serve(request);
        Box::pin(async move {
            let served = tokio::time::timeout(limit, served).await;
            let served = served.unwrap_or_else(|_| {
                let why = format!("no answer within {limit:?}");
                Err(Status::deadline_exceeded(why))
            });
            Ok(served.unwrap_or_else(Status::into_http))
        })
    }
}
