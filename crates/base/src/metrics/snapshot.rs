//! Samples that are made at scrape time.

use std::collections::BTreeMap;

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use super::cells::HistogramSum;

/// Collects the samples of one scrape.
///
/// Samples of one name must have one type, and each a different set of labels; a sample of another
/// type than the first of its name is dropped (and fails a debug build).
#[derive(Debug)]
pub struct Snapshot {
    families: BTreeMap<String, MetricFamily>,
}

/// Names and values of the labels of a sample.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

impl Snapshot {
    pub(super) fn new(families: BTreeMap<String, MetricFamily>) -> Self {
        Self { families }
    }

    pub(super) fn into_families(self) -> Vec<MetricFamily> {
        // The encoder refuses families without samples.
        self.families
            .into_values()
            .filter(|family| !family.get_metric().is_empty())
            .collect()
    }

    /// Adds a counter: a number that only grows while the process lives.
    pub fn counter(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: u64) {
        self.counter_f64(name, help, labels, value as f64);
    }

    /// [`Snapshot::counter`] for seconds and other fractions.
    pub fn counter_f64(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: f64) {
        let mut counter = Counter::default();
        counter.set_value(value);
        let mut metric = metric(labels);
        metric.set_counter(counter);
        self.add(name, help, MetricType::COUNTER, metric);
    }

    /// Adds a gauge: a number that goes up and down.
    pub fn gauge(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: f64) {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        let mut metric = metric(labels);
        metric.set_gauge(gauge);
        self.add(name, help, MetricType::GAUGE, metric);
    }

    /// Adds a histogram of durations in seconds.
    pub fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        labels: Labels<'_>,
        sum: &HistogramSum,
    ) {
        let mut histogram = Histogram::default();
        let mut cumulative = 0;
        let buckets = sum.buckets().map(|(bound_seconds, count)| {
            cumulative += count;
            let mut bucket = Bucket::default();
            bucket.set_cumulative_count(cumulative);
            bucket.set_upper_bound(bound_seconds);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(sum.count());
        histogram.set_sample_sum(sum.sum_seconds());
        let mut metric = metric(labels);
        metric.set_histogram(histogram);
        self.add(name, help, MetricType::HISTOGRAM, metric);
    }

    fn add(&mut self, name: &'static str, help: &str, kind: MetricType, metric: Metric) {
        let family = self.families.entry(name.to_owned()).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            family
        });
        if family.get_field_type() == kind {
            family.mut_metric().push(metric);
        } else {
            debug_assert!(false, "{name} has samples of two types");
        }
    }
}

fn metric(labels: Labels<'_>) -> Metric {
    let pairs = labels.iter().map(|&(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    Metric::from_label(pairs.collect())
}
