//! Whether the program can take traffic: behind `/readyz`, and as the health service of gRPC
//! (<https://github.com/grpc/grpc/blob/master/doc/health-checking.md>).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{Semaphore, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

/// Health watches that stay open, of all callers together: a watch needs no login. A further watch
/// is answered once and ends.
const WATCHES_MAX: usize = 8;
/// Age at which a watch ends. By the protocol the client begins another watch.
const WATCH_AGE_MAX: Duration = Duration::from_secs(60);

/// Whether traffic is taken, and the words for it.
type Told = (bool, &'static str);

/// The state behind `/readyz`; cheap to clone. Not ready until told so.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<watch::Sender<ReadyState>>);

/// What the program says of itself, and what keeps it from being ready all the same.
#[derive(Clone, Copy, Debug)]
struct ReadyState {
    told: Told,
    obstacle: Option<&'static str>,
}

impl ReadyState {
    fn told(self) -> Told {
        self.obstacle.map_or(self.told, |words| (false, words))
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Not ready: "starting".
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(ReadyState {
            told: (false, "starting"),
            obstacle: None,
        })))
    }

    /// Takes traffic from now on.
    pub fn set_ready(&self) {
        self.set_ready_as("ready");
    }

    /// Takes traffic from now on, although something is not as it should be: `words` are shown
    /// instead of "ready".
    pub fn set_ready_as(&self, words: &'static str) {
        self.0.send_modify(|state| state.told = (true, words));
    }

    /// Takes no traffic from now on, for a reason that is shown, like "draining".
    pub fn set_not_ready(&self, reason: &'static str) {
        self.0.send_modify(|state| state.told = (false, reason));
    }

    /// Takes no traffic while there is an obstacle, whatever else is told. Its words are shown.
    pub fn set_obstacle(&self, words: Option<&'static str>) {
        self.0.send_if_modified(|state| {
            let is_change = state.obstacle != words;
            state.obstacle = words;
            is_change
        });
    }

    /// What `/readyz` tells: whether traffic is taken, and the words for it.
    #[must_use]
    pub fn told(&self) -> (bool, &'static str) {
        self.0.borrow().told()
    }

    /// Why no traffic is taken; `None` when it is.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        let (is_ready, words) = self.told();
        (!is_ready).then_some(words)
    }
}

/// The health service. All services of the port share one health, that of the program.
pub(super) struct Health {
    readiness: Readiness,
    services: Vec<&'static str>,
    watches: Arc<Semaphore>,
}

impl Health {
    pub(super) fn new(readiness: Readiness, services: Vec<&'static str>) -> Self {
        Self {
            readiness,
            services,
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
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

fn of_program((is_ready, _): Told) -> HealthCheckResponse {
    response(match is_ready {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
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
        Ok(Response::new(of_program(self.readiness.told())))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let changes: Self::WatchStream = match self.knows(&request.get_ref().service) {
            true => {
                let changes = WatchStream::new(self.readiness.0.subscribe());
                Box::pin(changes.map(|state| Ok(of_program(state.told()))))
            }
            // By the protocol the call goes on, for the service may come.
            false => {
                let unknown = Ok(response(ServingStatus::ServiceUnknown));
                Box::pin(tokio_stream::once(unknown).chain(tokio_stream::pending()))
            }
        };
        Ok(Response::new(
            match Arc::clone(&self.watches).try_acquire_owned() {
                Err(_) => Box::pin(changes.take(1)),
                Ok(permit) => {
                    let until = tokio::time::sleep(WATCH_AGE_MAX);
                    Box::pin(changes.take_until(until).inspect(move |_| {
                        // Held as long as the stream.
                        let _ = &permit;
                    }))
                }
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use tonic_health::pb::health_server::Health as _;

    use super::*;

    async fn watch(health: &Health) -> <Health as health_server::Health>::WatchStream {
        let request = Request::new(HealthCheckRequest::default());
        health.watch(request).await.unwrap().into_inner()
    }

    #[test]
    fn an_obstacle_is_told_until_it_is_gone() {
        let readiness = Readiness::new();
        readiness.set_obstacle(Some("refused"));
        readiness.set_ready();
        assert_eq!(readiness.told(), (false, "refused"));
        assert_eq!(readiness.reason(), Some("refused"));
        readiness.set_ready_as("ready without the index");
        readiness.set_obstacle(None);
        assert_eq!(readiness.told(), (true, "ready without the index"));
    }

    #[tokio::test(start_paused = true)]
    async fn watches_are_bounded_in_number_and_time_and_each_is_answered() {
        let health = Health::new(Readiness::new(), Vec::new());
        let mut open = Vec::new();
        for _ in 0..WATCHES_MAX {
            let mut changes = watch(&health).await;
            assert!(changes.next().await.unwrap().is_ok());
            open.push(changes);
        }
        let answers: Vec<_> = watch(&health).await.collect().await;
        assert_eq!(answers.len(), 1, "one more is answered and ends");
        // An ended watch makes room.
        open.pop();
        let mut last = watch(&health).await;
        last.next().await.unwrap().unwrap();
        health.readiness.set_ready();
        let change = last.next().await.unwrap().unwrap();
        assert_eq!(change.status, ServingStatus::Serving as i32);
        let begun = tokio::time::Instant::now();
        assert!(last.next().await.is_none());
        assert_eq!(begun.elapsed(), WATCH_AGE_MAX);
    }
}
