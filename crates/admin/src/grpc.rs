//! gRPC services of the port: which one answers a call, and what bounds it.
//!
//! The services come from generated code; here they are anything that turns a request into a
//! response. Browsers call them by gRPC-web over HTTP/1.1
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md>).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fonn_auth::{Authenticator, Role};
use fonn_base::boxed::BoxFuture;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::service::LayerExt as _;
use tonic_web::GrpcWebLayer;

use super::Options;
use super::body::guard;
use super::calls::{CallGuard, CallPermit, CallPool, Calls};
use super::health::{Health, Readiness};
use super::login::Login;
use super::relay::{Relay, member_of, passed_on, sign};

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

/// The way of a call, and its target if it has one.
type Way = (Arc<dyn Relay>, Option<String>);

type Call = Box<dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// Every client may ask for its health: a load balancer has no password, and learns nothing else.
const HEALTH: &str = "grpc.health.v1.Health";
/// Clients with a login may ask for its services.
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// Methods whose streams end when the caller ends them. A test of the node compares them with the
/// services.
pub const WATCHES: &[&str] = &["fonn.v1.Telemetry/Watch", REFLECTION];

/// A table of services. (Answered by [`Routes::with_grpc`](super::Routes::with_grpc).)
#[derive(Default)]
pub struct Grpc {
    services: BTreeMap<&'static str, Call>,
    roles: HashMap<&'static str, Role>,
    relay: Option<Arc<dyn Relay>>,
    /// Services that members have.
    relayed: BTreeSet<&'static str>,
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

    /// Says which role the user of a call needs, by `package.Service/Method`, where there are
    /// users. What is not said is for admins.
    #[must_use]
    pub fn with_roles(mut self, roles: &[(&'static str, Role)]) -> Self {
        self.roles.extend(roles.iter().copied());
        self
    }

    /// A server of these services beside others, with the limits of `options`. With `users`, they
    /// log in here too.
    #[must_use]
    pub fn bounded(self, options: &Options, users: Option<Arc<Authenticator>>) -> Bounded {
        Bounded(Limited::new(self, options, users))
    }

    /// Sends calls of these services on to the members that they are for. Services that are not
    /// here, too, are answered by any member; whether the user may call them is its to say.
    #[must_use]
    pub fn with_relay(mut self, relay: Arc<dyn Relay>, services: &[&'static str]) -> Self {
        self.relay = Some(relay);
        self.relayed.extend(services);
        self
    }

    /// The services' names.
    pub fn services(&self) -> impl Iterator<Item = &'static str> {
        self.services.keys().chain(&self.relayed).copied()
    }

    /// Adds the services that tools expect: health, by `readiness`, of all services added before,
    /// and reflection, by encoded `google.protobuf.FileDescriptorSet`s, of which only the services
    /// that are here are listed.
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
        let names: BTreeSet<&'static str> = self.services().collect();
        for name in names.iter().chain(&[HEALTH, service_of(REFLECTION)]) {
            builder = builder.with_service_name(*name);
        }
        let reflection = builder
            .build_v1()
            .map_err(|error| GrpcError(error.to_string()))?;
        let health = Health::new(readiness, names.into_iter().collect());
        Ok(self
            .with_roles(&[(REFLECTION, Role::Read)])
            .with(tonic_health::pb::health_server::HealthServer::new(health))
            .with(reflection))
    }
}

/// A table of services with its limits, for a server that has services of its own; clones share the
/// limits.
#[derive(Clone, Debug)]
pub struct Bounded(Limited);

impl<B> Service<Request<B>> for Bounded
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // What tonic says of a connection whose listener knows that much.
        let from = request.extensions().get::<Option<SocketAddr>>();
        if let Some(from) = from.copied().flatten() {
            request.extensions_mut().insert(Source(from.ip()));
        }
        self.0.call(request.map(Body::new))
    }
}

/// Whether the request asks how the program is, which every client may, in any way.
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
    calls: CallPool,
    watches: CallPool,
    answer_timeout: Duration,
}

impl Limited {
    pub(super) fn new(grpc: Grpc, options: &Options, users: Option<Arc<Authenticator>>) -> Self {
        Self {
            grpc: Arc::new(grpc),
            users,
            calls: CallPool::new("calls", options.calls),
            watches: CallPool::new("watches", options.watches),
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

fn unknown(service: &str) -> Status {
    Status::unimplemented(format!("there is no service `{service}` here"))
}

/// The service in `package.Service/Method`.
fn service_of(method: &str) -> &str {
    method.split('/').next().unwrap_or_default()
}

impl Limited {
    /// The caller, where there are users, and whether it may; the services find its [`Identity`]
    /// among the extensions of the request.
    ///
    /// [`Identity`]: fonn_auth::Identity
    async fn log_in(&self, method: &str, head: &mut Parts) -> Result<Option<Login>, Status> {
        let users = match &self.users {
            Some(users) if service_of(method) != HEALTH => users,
            _ => return Ok(None),
        };
        let address = head.extensions.get().map(|Source(address)| *address);
        let login = Login::check(users, &head.headers, address).await?;
        // Also for what others answer: they may not know users.
        let role = self.grpc.roles.get(method).copied();
        login.require(role.unwrap_or(Role::Admin), method)?;
        head.extensions.insert(login.identity.clone());
        Ok(Some(login))
    }

    /// Takes a place for a call, in the port's limits and in its connection. Health checks need
    /// none: how many connections and streams there are bounds them.
    fn permit(
        &self,
        method: &str,
        login: Option<&Login>,
        head: &mut Parts,
    ) -> Result<Option<(CallPermit, Option<CallGuard>)>, Status> {
        if service_of(method) == HEALTH {
            return Ok(None);
        }
        let pool = match WATCHES.contains(&method) {
            true => &self.watches,
            false => &self.calls,
        };
        let address = head.extensions.get().map(|Source(address)| *address);
        let permit = pool.take(login.map(|login| &login.identity), address)?;
        let in_connection = head.extensions.remove::<Calls>();
        Ok(Some((permit, in_connection.map(|calls| calls.begin()))))
    }

    /// The way of a call that is for another member, and for which; none if it is answered here.
    fn way(&self, service: &str, head: &Parts) -> Result<Option<Way>, Status> {
        let is_here = self.grpc.services.contains_key(service);
        let relay = self.grpc.relay.as_ref();
        let Some(relay) = relay.filter(|_| self.grpc.relayed.contains(service)) else {
            return match is_here {
                true => Ok(None),
                false => Err(unknown(service)),
            };
        };
        let member = member_of(&head.headers)?;
        let is_own = member.is_none() || relay.own_name() == member;
        Ok((!is_own || !is_here).then(|| (Arc::clone(relay), member)))
    }

    async fn serve(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let (mut head, body) = request.into_parts();
        // `/package.Service/Method`
        let path = head.uri.path().to_owned();
        let method = path.strip_prefix('/').unwrap_or_default();
        let name = service_of(method);
        let way = self.way(name, &head)?;
        let login = self.log_in(method, &mut head).await?;
        let permit = self.permit(method, login.as_ref(), &mut head)?;
        let response = match (way, self.grpc.services.get(name)) {
            (Some((relay, member)), _) => relay.relay(member, passed_on(&head, body)).await?,
            (None, Some(call)) => {
                let mut response = call(Request::from_parts(head, body)).await;
                let own = self.grpc.relay.as_ref().and_then(|relay| relay.own_name());
                if let Some(own) = own {
                    sign(&mut response, &own);
                }
                response
            }
            (None, None) => return Err(unknown(name)),
        };
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
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

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
