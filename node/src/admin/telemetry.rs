//! `fonn.v1.Telemetry`: figures over time, and events.

mod message;
mod service;

use std::sync::Arc;
use std::time::Duration;

use fonn_admin::Readiness;
use fonn_base::clock::Clock;
use fonn_base::events::Events;
use fonn_base::metrics::Metrics;
use fonn_base::metrics::history::History;
use fonn_proto::grpc::v1::telemetry_server::TelemetryServer;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::service::TelemetryService;

/// Between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the service knows; clones are the same.
#[derive(Clone)]
pub struct Telemetry(Arc<State>);

struct State {
    clock: Clock,
    started_at_ms: u64,
    metrics: Metrics,
    readiness: Readiness,
    events: Events,
    history: Mutex<History>,
    /// Counts the samples.
    newest: watch::Sender<u64>,
}

impl Telemetry {
    /// Telemetry without a sample yet.
    #[must_use]
    pub fn new(clock: Clock, metrics: Metrics, readiness: Readiness, events: Events) -> Self {
        Self(Arc::new(State {
            started_at_ms: clock.wall_ms(),
            clock,
            metrics,
            readiness,
            events,
            history: Mutex::default(),
            newest: watch::Sender::new(0),
        }))
    }

    /// The service, for the admin port.
    pub fn server(&self) -> TelemetryServer<TelemetryService> {
        TelemetryServer::new(TelemetryService(self.clone()))
    }

    /// Takes a sample each second. Runs until it is dropped.
    pub async fn sample(self) {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.take_sample();
        }
    }

    /// Takes a sample now.
    pub(super) fn take_sample(&self) {
        let state = &*self.0;
        let families = state.metrics.gather();
        let at_ms = state.clock.wall_ms();
        state.history.lock().add(at_ms, &families);
        state.newest.send_modify(|samples| *samples += 1);
    }
}
