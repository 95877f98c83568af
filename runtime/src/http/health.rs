//! Whether the program can take traffic: behind `/readyz`, and as the health service of gRPC
//! (<https://github.com/grpc/grpc/blob/master/doc/health-checking.md>).

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

/// Why no traffic is taken; `None` when it is.
type Reason = Option<&'static str>;

/// The state behind `/readyz`; cheap to clone. Not ready until told so.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<watch::Sender<Reason>>);

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Not ready: "starting".
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Some("starting"))))
    }

    /// Takes traffic from now on.
    pub fn set_ready(&self) {
        self.0.send_replace(None);
    }

    /// Takes no traffic from now on, for a reason that is shown, like "draining".
    pub fn set_not_ready(&self, reason: &'static str) {
        self.0.send_replace(Some(reason));
    }

    /// Why no traffic is taken; `None` when it is.
    #[must_use]
    pub fn reason(&self) -> Reason {
        *self.0.borrow()
    }
}

/// The health service. All services of the port share one health, that of the program.
pub(super) struct Health {
    readiness: Readiness,
    services: Vec<&'static str>,
}

impl Health {
    pub(super) fn new(readiness: Readiness, services: Vec<&'static str>) -> Self {
        Self {
            readiness,
            services,
        }
    }

    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

fn by_reason(reason: Reason) -> HealthCheckResponse {
    response(match reason {
        None => ServingStatus::Serving,
        Some(_) => ServingStatus::NotServing,
    })
}

#[async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !self.knows(&request.get_ref().service) {
            return Err(Status::not_found("no such service"));
        }
        Ok(Response::new(by_reason(self.readiness.reason())))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        if !self.knows(&request.get_ref().service) {
            // By the protocol the call goes on, for the service may come.
            let unknown = Ok(response(ServingStatus::ServiceUnknown));
            let forever = tokio_stream::once(unknown).chain(tokio_stream::pending());
            return Ok(Response::new(Box::pin(forever)));
        }
        let changes = WatchStream::new(self.readiness.0.subscribe());
        Ok(Response::new(Box::pin(
            changes.map(|reason| Ok(by_reason(reason))),
        )))
    }
}
