//! Figures and events as messages.

use std::sync::Arc;

use fonn_base::events::{Event, Level};
use fonn_base::metrics::history::{Sample, Series};
use fonn_proto::grpc::v1;

/// A series by its place in the history.
pub(super) fn series((place, series): (usize, &Arc<Series>)) -> v1::Series {
    let label = |(name, value): &(String, String)| v1::Label {
        name: name.clone(),
        value: value.clone(),
    };
    v1::Series {
        id: place as u32,
        name: series.name.clone(),
        labels: series.labels.iter().map(label).collect(),
    }
}

/// What differs in a sample from `known`, which becomes the sample's values.
pub(super) fn sample(sample: &Sample, known: &mut Vec<f64>) -> v1::Sample {
    if known.len() < sample.values.len() {
        known.resize(sample.values.len(), f64::NAN);
    }
    let mut message = v1::Sample {
        at_ms: sample.at_ms,
        ..v1::Sample::default()
    };
    for (place, (known, value)) in known.iter_mut().zip(sample.values.iter()).enumerate() {
        // By bits: a value that is missing (NaN) stays the same when it stays missing.
        if known.to_bits() != value.to_bits() {
            *known = *value;
            message.ids.push(place as u32);
            message.values.push(*value);
        }
    }
    message
}

/// An event.
pub(super) fn event(event: &Event) -> v1::Event {
    let level = match event.level {
        Level::Info => v1::EventLevel::Info,
        Level::Warning => v1::EventLevel::Warning,
        Level::Error => v1::EventLevel::Error,
    };
    v1::Event {
        sequence: event.sequence,
        at_ms: event.at_ms,
        level: level.into(),
        topic: event.topic.as_str().to_owned(),
        message: event.message.clone(),
    }
}
