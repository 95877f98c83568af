//! The methods.

use std::collections::VecDeque;
use std::pin::Pin;

use fonn_base::metrics::history::Sample;
use fonn_proto::grpc::v1::telemetry_server;
use fonn_proto::grpc::v1::{EventsRequest, EventsResponse, WatchRequest, WatchResponse};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, async_trait};

use super::{Telemetry, message};

/// Samples in one message at most, so that a message stays well below the limits of clients.
const SAMPLES_MAX: usize = 60;

/// The service.
pub struct TelemetryService(pub(super) Telemetry);

/// What a reader has been sent.
struct Reader {
    telemetry: Telemetry,
    series_sent: usize,
    /// The newest sample that was looked at, and the values as the reader knows them.
    sequence: u64,
    values: Vec<f64>,
    event_sequence: u64,
    from_ms: u64,
    waiting: VecDeque<Sample>,
}

impl Reader {
    fn new(telemetry: Telemetry, history_seconds: u32) -> Self {
        let now_ms = telemetry.0.clock.wall_ms();
        Self {
            from_ms: now_ms.saturating_sub(u64::from(history_seconds) * 1000),
            telemetry,
            series_sent: 0,
            sequence: 0,
            values: Vec::new(),
            event_sequence: 0,
            waiting: VecDeque::new(),
        }
    }

    /// What the reader has not been sent yet, up to the size of a message; nothing if there is no
    /// news.
    fn news(&mut self) -> Option<WatchResponse> {
        let state = &*self.telemetry.0;
        let mut response = WatchResponse {
            started_at_ms: state.started_at_ms,
            not_ready_reason: state.readiness.reason().unwrap_or_default().to_owned(),
            ..WatchResponse::default()
        };
        if self.waiting.is_empty() {
            let history = state.history.lock();
            let samples = history.samples(self.from_ms, self.sequence);
            self.waiting = samples.cloned().collect();
            let unsent = history.series().iter().enumerate().skip(self.series_sent);
            response.series = unsent.map(message::series).collect();
            self.series_sent += response.series.len();
        }
        self.sequence = self.waiting.back().map_or(self.sequence, |it| it.sequence);
        let count = self.waiting.len().min(SAMPLES_MAX);
        for sample in self.waiting.drain(..count) {
            let sample = message::sample(&sample, &mut self.values);
            response.samples.push(sample);
        }
        let events = state.events.after(self.event_sequence);
        response.events = events.iter().map(|event| message::event(event)).collect();
        self.event_sequence = events.last().map_or(self.event_sequence, |it| it.sequence);
        (!response.samples.is_empty() || !response.events.is_empty()).then_some(response)
    }
}

/// Both wake a reader: it looks for itself what is new.
fn ticks(telemetry: &Telemetry) -> impl Stream<Item = u64> + Send + use<> {
    let stream = |receiver: watch::Receiver<u64>| {
        tokio_stream::wrappers::WatchStream::from_changes(receiver)
    };
    stream(telemetry.0.newest.subscribe()).merge(stream(telemetry.0.events.newest()))
}

#[async_trait]
impl telemetry_server::Telemetry for TelemetryService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let ticks = ticks(&self.0);
        let mut reader = Reader::new(self.0.clone(), request.into_inner().history_seconds);
        // What is remembered, at once and complete; what comes, with each tick.
        let mut remembered = Vec::new();
        while let Some(news) = reader.news() {
            remembered.push(news);
        }
        let coming = ticks.filter_map(move |_| reader.news());
        let stream = tokio_stream::iter(remembered).chain(coming).map(Ok);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn events(
        &self,
        request: Request<EventsRequest>,
    ) -> Result<Response<EventsResponse>, Status> {
        let events = self.0.0.events.after(request.into_inner().after_sequence);
        Ok(Response::new(EventsResponse {
            events: events.iter().map(|event| message::event(event)).collect(),
        }))
    }
}
