//! The figures of the last hour, in memory.
//!
//! A sample is the value of every series at an instant, so counters stay counters: a reader of two
//! samples knows what happened between them, whatever their distance. The last minutes are kept
//! sample by sample, the hour before with gaps. What is added is read from
//! [`Metrics`](super::Metrics), so a reader of the history and one of `/metrics` see the same
//! numbers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use prometheus::proto::{Metric, MetricFamily, MetricType};

/// Series at most: a bound for the memory, far above what there is. Further ones are left out.
const SERIES_MAX: usize = 2048;

/// Newest samples, all of which are kept: two minutes of one a second.
const FINE_COUNT: usize = 120;

/// Of the samples before, every tenth is kept.
const COARSE_STEP: u64 = 10;

/// And so many of those: an hour.
const COARSE_COUNT: usize = 360;

/// A metric with its labels. A histogram is several: its sum, its count, and a counter for each
/// bucket that something fell into, without the lower ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Series {
    /// The name as it is published; of a bucket, with `_bucket`.
    pub name: String,
    /// Names and values of the labels.
    pub labels: Vec<(String, String)>,
}

/// The figures at an instant.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Which sample it is, from 1.
    pub sequence: u64,
    /// When it was read, as Unix time in milliseconds.
    pub at_ms: u64,
    /// The value of each series, by its place in [`History::series`]; NaN where there was none.
    /// Series that came later are missing at the end.
    pub values: Arc<[f64]>,
}

/// Series and samples.
#[derive(Debug, Default)]
pub struct History {
    series: Vec<Arc<Series>>,
    places: HashMap<Arc<Series>, usize>,
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
    count: u64,
}

impl History {
    /// Adds a sample that was read at `at_ms`, and shows it.
    pub fn add(&mut self, at_ms: u64, families: &[MetricFamily]) -> Sample {
        let mut values = vec![f64::NAN; self.series.len()];
        for family in families {
            for metric in family.get_metric() {
                self.flatten(family, metric, &mut values);
            }
        }
        self.count += 1;
        let sample = Sample {
            sequence: self.count,
            at_ms,
            values: values.into(),
        };
        if self.count.is_multiple_of(COARSE_STEP) {
            push(&mut self.coarse, sample.clone(), COARSE_COUNT);
        }
        push(&mut self.fine, sample.clone(), FINE_COUNT);
        sample
    }

    /// All series, in the order in which they appeared.
    #[must_use]
    pub fn series(&self) -> &[Arc<Series>] {
        &self.series
    }

    /// The samples since `from_ms` and after `sequence`, oldest first.
    pub fn samples(&self, from_ms: u64, sequence: u64) -> impl Iterator<Item = &Sample> {
        let first_fine = self.fine.front().map_or(0, |it| it.sequence);
        let coarse = self.coarse.iter();
        let coarse = coarse.filter(move |it| it.sequence < first_fine);
        coarse
            .chain(&self.fine)
            .filter(move |it| it.at_ms >= from_ms && it.sequence > sequence)
    }

    fn flatten(&mut self, family: &MetricFamily, metric: &Metric, values: &mut Vec<f64>) {
        let name = family.name();
        match family.get_field_type() {
            MetricType::COUNTER => {
                self.put(
                    values,
                    series(name, metric),
                    metric.get_counter().get_value(),
                );
            }
            MetricType::GAUGE => {
                self.put(values, series(name, metric), metric.get_gauge().get_value());
            }
            MetricType::HISTOGRAM => self.flatten_histogram(name, metric, values),
            // Nothing here publishes them.
            MetricType::SUMMARY | MetricType::UNTYPED => {}
        }
    }

    fn flatten_histogram(&mut self, name: &str, metric: &Metric, values: &mut Vec<f64>) {
        let histogram = metric.get_histogram();
        let count = histogram.get_sample_count();
        let mut below = 0;
        let bounds = histogram.get_bucket().iter();
        let bounds = bounds.map(|it| (it.upper_bound(), it.cumulative_count()));
        for (bound, cumulative) in bounds.chain([(f64::INFINITY, count)]) {
            if cumulative > below {
                let le = match bound.is_infinite() {
                    true => "+Inf".to_owned(),
                    false => bound.to_string(),
                };
                let mut bucket = series(&format!("{name}_bucket"), metric);
                bucket.labels.push(("le".to_owned(), le));
                self.put(values, bucket, (cumulative - below) as f64);
                below = cumulative;
            }
        }
        let sum = series(&format!("{name}_sum"), metric);
        self.put(values, sum, histogram.get_sample_sum());
        self.put(
            values,
            series(&format!("{name}_count"), metric),
            count as f64,
        );
    }

    fn put(&mut self, values: &mut Vec<f64>, series: Series, value: f64) {
        let place = match self.places.get(&series) {
            Some(place) => *place,
            None if self.series.len() >= SERIES_MAX => return,
            None => {
                let series = Arc::new(series);
                self.series.push(Arc::clone(&series));
                self.places.insert(series, self.series.len() - 1);
                values.push(f64::NAN);
                self.series.len() - 1
            }
        };
        if let Some(slot) = values.get_mut(place) {
            *slot = value;
        }
    }
}

fn series(name: &str, metric: &Metric) -> Series {
    let labels = metric.get_label().iter();
    Series {
        name: name.to_owned(),
        labels: labels
            .map(|it| (it.name().to_owned(), it.value().to_owned()))
            .collect(),
    }
}

fn push(samples: &mut VecDeque<Sample>, sample: Sample, count_max: usize) {
    if samples.len() >= count_max {
        samples.pop_front();
    }
    samples.push_back(sample);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::cells::{HistogramSum, LocalCounter, LocalGauge, LocalHistogram};

    fn named(name: &str, labels: &[(&str, &str)]) -> Series {
        let labels = labels.iter().map(|&(k, v)| (k.to_owned(), v.to_owned()));
        Series {
            name: name.to_owned(),
            labels: labels.collect(),
        }
    }

    /// The value of a series in a sample.
    fn value(history: &History, sample: &Sample, series: &Series) -> Option<f64> {
        let place = history.places.get(series)?;
        let value = sample.values.get(*place)?;
        (!value.is_nan()).then_some(*value)
    }

    fn newest(history: &History) -> &Sample {
        history.fine.back().unwrap()
    }

    #[test]
    fn it_says_what_the_metrics_say() {
        let metrics = Metrics::new();
        let cells: Arc<(LocalCounter, LocalGauge, LocalHistogram)> = Arc::default();
        let scraped = Arc::clone(&cells);
        metrics.on_scrape(move |snapshot| {
            let (gets, open, latency) = &*scraped;
            snapshot.counter("fonn_gets_total", "Gets.", &[], gets.get());
            snapshot.gauge("fonn_open", "Open.", &[], -(open.get() as f64));
            let mut sum = HistogramSum::default();
            sum.merge(latency);
            snapshot.histogram("fonn_seconds", "Time.", &[("tier", "disk")], &sum);
        });
        let mut history = History::default();
        history.add(1000, &metrics.gather());
        let (gets, open, latency) = &*cells;
        gets.add(7);
        open.set(3);
        latency.record_many_ns(1500, 4);
        latency.record_many_ns(u64::MAX, 1);
        history.add(2000, &metrics.gather());

        let told = |series| value(&history, newest(&history), &series);
        assert_eq!(told(named("fonn_gets_total", &[])), Some(7.0));
        assert_eq!(told(named("fonn_open", &[])), Some(-3.0));
        let bucket = |le| {
            told(named(
                "fonn_seconds_bucket",
                &[("tier", "disk"), ("le", le)],
            ))
        };
        assert_eq!(bucket("0.000001536"), Some(4.0));
        assert_eq!(bucket("+Inf"), Some(1.0));
        assert_eq!(bucket("0.000002048"), None, "nothing fell into it");
        assert_eq!(
            told(named("fonn_seconds_count", &[("tier", "disk")])),
            Some(5.0)
        );
        // The first sample knows nothing of buckets that came with the second.
        let first = history.samples(0, 0).next().unwrap();
        assert_eq!(
            value(&history, first, &named("fonn_gets_total", &[])),
            Some(0.0)
        );
        assert_eq!(first.values.len() + 2, history.series().len());
    }

    #[test]
    fn old_samples_are_kept_with_gaps_and_then_not_at_all() {
        let mut history = History::default();
        for second in 1..=4000 {
            history.add(second * 1000, &[]);
        }
        let sequences = |from, after| -> Vec<u64> {
            history.samples(from, after).map(|it| it.sequence).collect()
        };
        let since = |first: u64| (first..3881).step_by(10).chain(3881..=4000);
        assert!(sequences(0, 0).into_iter().eq(since(410)));
        assert!(sequences(3_860_000, 0).into_iter().eq(since(3860)));
        assert_eq!(sequences(0, 3998), [3999, 4000]);
        assert!(sequences(0, 4000).is_empty());
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let metrics = Metrics::new();
        metrics.on_scrape(|snapshot| {
            for number in 0..SERIES_MAX + 10 {
                let number = number.to_string();
                snapshot.gauge("fonn_many", "Many.", &[("number", &number)], 1.0);
            }
        });
        let mut history = History::default();
        history.add(0, &metrics.gather());
        assert_eq!(history.series().len(), SERIES_MAX);
        assert_eq!(newest(&history).values.len(), SERIES_MAX);
    }
}
