//! What a process did lately, out of the figures that it streams.

use std::collections::{BTreeMap, VecDeque};

use fonn_proto::grpc::v1::WatchResponse;
use serde::Serialize;

/// Rates are over this many seconds, or as many as there are.
const WINDOW_MS: u64 = 10_000;

/// Samples that are kept: one a second, and some that come late.
const SAMPLES_MAX: usize = 32;

/// Tiers in the order in which they are asked.
pub(super) const TIERS: [&str; 3] = ["ram", "disk", "cold"];

/// Connections of clients to a node or router, by port.
const CONNECTIONS: [&str; 3] = [
    "fonn_connections",
    "fonn_router_connections",
    "fonn_http_connections",
];

/// Bytes from clients of memcached and Redis, over HTTP, and over gRPC.
const RECEIVED: [&str; 4] = [
    "fonn_received_bytes_total",
    "fonn_router_received_bytes_total",
    "fonn_http_received_bytes_total",
    "fonn_reapi_received_bytes_total",
];

/// Bytes to these.
const SENT: [&str; 4] = [
    "fonn_sent_bytes_total",
    "fonn_router_sent_bytes_total",
    "fonn_http_sent_bytes_total",
    "fonn_reapi_sent_bytes_total",
];

type Labels = BTreeMap<String, String>;

/// The series of a process, and their last values.
#[derive(Debug, Default)]
pub(super) struct Figures {
    started_at_ms: u64,
    series: BTreeMap<u32, (String, Labels)>,
    current: BTreeMap<u32, f64>,
    /// When, and what was then; the last is the newest.
    samples: VecDeque<(u64, BTreeMap<u32, f64>)>,
    not_ready: String,
}

/// What a process did lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Lately {
    /// Why it takes no traffic; empty when it does.
    pub not_ready_reason: String,
    /// Seconds that the rates are of.
    pub seconds: f64,
    /// Gets that found an entry, of all gets.
    pub hit_ratio: Option<f64>,
    /// By tier: of all gets.
    pub hit_ratio_by_tier: BTreeMap<String, f64>,
    /// Commands a second by kind.
    pub commands_per_second: BTreeMap<String, f64>,
    /// Bytes a second from and to clients.
    pub received_bytes_per_second: f64,
    pub sent_bytes_per_second: f64,
    /// Time of requests in seconds.
    pub latency_p50_seconds: Option<f64>,
    pub latency_p99_seconds: Option<f64>,
    /// How full each tier is.
    pub tiers: Vec<Fill>,
    pub connections: Option<f64>,
    /// Refused commands a second.
    pub refusals_per_second: f64,
    /// Gets a second, of which the ratios are.
    pub gets_per_second: f64,
    /// What is not in the bucket yet, and how old the oldest of it is.
    pub unspilled_bytes: Option<f64>,
    pub unspilled_seconds: Option<f64>,
}

/// How full a tier is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Fill {
    pub tier: String,
    pub used_bytes: f64,
    /// Missing where there is no limit.
    pub budget_bytes: Option<f64>,
    pub entries: Option<f64>,
}

impl Figures {
    /// Takes a message of the stream.
    pub(super) fn add(&mut self, message: &WatchResponse) {
        if message.started_at_ms != self.started_at_ms {
            // Another process: its counters begin anew.
            self.samples.clear();
            self.current.clear();
            self.started_at_ms = message.started_at_ms;
        }
        self.not_ready.clone_from(&message.not_ready_reason);
        for it in &message.series {
            let labels = it.labels.iter();
            let labels = labels.map(|label| (label.name.clone(), label.value.clone()));
            self.series
                .insert(it.id, (it.name.clone(), labels.collect()));
        }
        for sample in &message.samples {
            let changed = sample
                .ids
                .iter()
                .copied()
                .zip(sample.values.iter().copied());
            self.current.extend(changed);
            self.samples.push_back((sample.at_ms, self.current.clone()));
            if self.samples.len() > SAMPLES_MAX {
                self.samples.pop_front();
            }
        }
    }

    /// Whether there is enough for rates.
    pub(super) fn are_enough(&self) -> bool {
        self.samples.len() > 1
    }

    fn ids<'a>(
        &'a self,
        name: &'a str,
        label: Option<(&'a str, &'a str)>,
    ) -> impl Iterator<Item = u32> + 'a {
        let matches = move |labels: &Labels| {
            label.is_none_or(|(name, value)| labels.get(name).is_some_and(|it| it == value))
        };
        self.series
            .iter()
            .filter(move |(_, (found, labels))| found == name && matches(labels))
            .map(|(&id, _)| id)
    }

    pub(super) fn label_values(&self, name: &str, label: &str) -> Vec<String> {
        let named = self.series.values().filter(|(found, _)| found == name);
        let mut values: Vec<_> = named
            .filter_map(|(_, labels)| labels.get(label).cloned())
            .collect();
        values.sort();
        values.dedup();
        values
    }

    pub(super) fn now(&self, name: &str) -> Option<f64> {
        let mut values = self.ids(name, None).filter_map(|id| self.current.get(&id));
        let first = *values.next()?;
        Some(values.fold(first, |sum, value| sum + value))
    }

    /// The sample that rates are counted from, and how many seconds ago that was.
    pub(super) fn before(&self) -> Option<(&BTreeMap<u32, f64>, f64)> {
        let (newest_ms, _) = self.samples.back()?;
        let (at_ms, then) = self
            .samples
            .iter()
            .find(|(at_ms, _)| at_ms + WINDOW_MS >= *newest_ms)?;
        let seconds = newest_ms.saturating_sub(*at_ms) as f64 / 1000.0;
        (seconds > 0.0).then_some((then, seconds))
    }

    /// By how much a counter grew within the window.
    pub(super) fn growth(&self, name: &str, label: Option<(&str, &str)>) -> f64 {
        let Some((then, _)) = self.before() else {
            return 0.0;
        };
        let value = |values: &BTreeMap<u32, f64>, id| values.get(&id).copied().unwrap_or(0.0);
        self.ids(name, label)
            .map(|id| (value(&self.current, id) - value(then, id)).max(0.0))
            .sum()
    }

    /// A quantile of what fell into a histogram within the window, interpolated within its bucket.
    pub(super) fn quantile(&self, quantile: f64, name: &str) -> Option<f64> {
        let name = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = self
            .label_values(&name, "le")
            .into_iter()
            .filter_map(|le| {
                let bound = match le.as_str() {
                    "+Inf" => f64::INFINITY,
                    le => le.parse().ok()?,
                };
                Some((bound, self.growth(&name, Some(("le", &le)))))
            })
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total: f64 = buckets.iter().map(|(_, count)| count).sum();
        let (mut below, mut low) = (0.0, 0.0);
        for (high, count) in buckets {
            if count > 0.0 && below + count >= quantile * total {
                // The last one has no known end.
                let high = if high.is_finite() { high } else { low };
                return Some(low + (high - low) * (quantile * total - below) / count);
            }
            below += count;
            low = if high.is_finite() { high } else { low };
        }
        None
    }

    /// Connections of clients, over HTTP too.
    pub(super) fn connections(&self) -> Option<f64> {
        let counts = CONNECTIONS.into_iter().filter_map(|name| self.now(name));
        counts.reduce(|sum, count| sum + count)
    }

    /// Bytes a second from clients, over HTTP and gRPC too.
    pub(super) fn received_bytes_per_second(&self) -> f64 {
        RECEIVED.into_iter().map(|name| self.rate(name)).sum()
    }

    /// Bytes a second to clients, over HTTP and gRPC too.
    pub(super) fn sent_bytes_per_second(&self) -> f64 {
        SENT.into_iter().map(|name| self.rate(name)).sum()
    }

    /// How much a counter grows in a second.
    pub(super) fn rate(&self, name: &str) -> f64 {
        self.before()
            .map_or(0.0, |(_, seconds)| self.growth(name, None) / seconds)
    }

    /// What the process did lately.
    pub(super) fn lately(&self) -> Lately {
        let seconds = self.before().map_or(0.0, |(_, seconds)| seconds);
        let rate = |name: &str, label: Option<(&str, &str)>| match seconds {
            0.0 => 0.0,
            _ => self.growth(name, label) / seconds,
        };
        let hits = self.growth("fonn_hits_total", None);
        let gets = hits + self.growth("fonn_misses_total", None);
        let share = |hits: f64| if gets > 0.0 { hits / gets } else { 0.0 };
        let by_tier = |tier: &&str| {
            let hits = self.growth("fonn_hits_total", Some(("tier", tier)));
            ((*tier).to_owned(), share(hits))
        };
        let is_there = |tier: &&&str| self.now(&fill_name(tier, "used")).is_some();
        let commands = self.label_values("fonn_commands_total", "command");
        Lately {
            not_ready_reason: self.not_ready.clone(),
            seconds,
            hit_ratio: (gets > 0.0).then(|| share(hits)),
            hit_ratio_by_tier: TIERS.iter().filter(is_there).map(by_tier).collect(),
            commands_per_second: commands
                .into_iter()
                .map(|it| {
                    let rate = rate("fonn_commands_total", Some(("command", &it)));
                    (it, rate)
                })
                .collect(),
            received_bytes_per_second: self.received_bytes_per_second(),
            sent_bytes_per_second: self.sent_bytes_per_second(),
            latency_p50_seconds: self.quantile(0.5, "fonn_request_duration_seconds"),
            latency_p99_seconds: self.quantile(0.99, "fonn_request_duration_seconds"),
            tiers: TIERS
                .iter()
                .filter_map(|tier| {
                    Some(Fill {
                        tier: (*tier).to_owned(),
                        used_bytes: self.now(&fill_name(tier, "used"))?,
                        budget_bytes: self
                            .now(&fill_name(tier, "budget"))
                            .filter(|budget| *budget > 0.0),
                        entries: self.now(&fill_name(tier, "entries")),
                    })
                })
                .collect(),
            connections: self.connections(),
            refusals_per_second: rate("fonn_refusals_total", None),
            gets_per_second: if seconds > 0.0 { gets / seconds } else { 0.0 },
            unspilled_bytes: self.now("fonn_cold_unspilled_bytes"),
            unspilled_seconds: self.now("fonn_cold_unspilled_seconds"),
        }
    }
}

/// The metric that says how full a tier is.
fn fill_name(tier: &str, what: &str) -> String {
    match (tier, what) {
        ("cold", "used") => "fonn_cold_region_bytes".to_owned(),
        ("cold", "entries") => "fonn_cold_index_entries".to_owned(),
        (_, "entries") => format!("fonn_{tier}_entries"),
        (_, what) => format!("fonn_{tier}_{what}_bytes"),
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::grpc::v1::{Label, Sample, Series};

    use super::*;

    fn series(id: u32, name: &str, labels: &[(&str, &str)]) -> Series {
        let label = |(name, value): &(&str, &str)| Label {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
        };
        Series {
            id,
            name: name.to_owned(),
            labels: labels.iter().map(label).collect(),
        }
    }

    fn sample(at_ms: u64, values: &[(u32, f64)]) -> Sample {
        Sample {
            at_ms,
            ids: values.iter().map(|it| it.0).collect(),
            values: values.iter().map(|it| it.1).collect(),
        }
    }

    fn message(series: Vec<Series>, samples: Vec<Sample>) -> WatchResponse {
        WatchResponse {
            started_at_ms: 1,
            series,
            samples,
            ..WatchResponse::default()
        }
    }

    #[test]
    fn rates_are_of_the_window_and_only_of_what_changed() {
        let mut figures = Figures::default();
        let all = vec![
            series(1, "fonn_hits_total", &[("tier", "ram")]),
            series(2, "fonn_hits_total", &[("tier", "disk")]),
            series(3, "fonn_misses_total", &[("reason", "absent")]),
            series(4, "fonn_commands_total", &[("command", "get")]),
            series(5, "fonn_ram_used_bytes", &[]),
            series(6, "fonn_ram_budget_bytes", &[]),
            series(7, "fonn_disk_used_bytes", &[]),
        ];
        let first = [
            (1, 1000.0),
            (2, 50.0),
            (3, 7.0),
            (4, 1057.0),
            (5, 5.0),
            (6, 10.0),
            (7, 3.0),
        ];
        figures.add(&message(all, vec![sample(1000, &first)]));
        assert!(!figures.are_enough());
        assert_eq!(figures.lately().hit_ratio, None);
        // Too long ago to count.
        figures.add(&message(vec![], vec![sample(30_000, &[(1, 2000.0)])]));
        figures.add(&message(
            vec![],
            vec![
                sample(35_000, &[(1, 2060.0)]),
                sample(40_000, &[(2, 70.0), (3, 27.0), (4, 1157.0)]),
            ],
        ));
        let lately = figures.lately();
        assert_eq!((lately.seconds, lately.hit_ratio), (10.0, Some(0.8)));
        let of = |tier: &str| lately.hit_ratio_by_tier.get(tier).copied();
        assert_eq!(
            (of("ram"), of("disk"), of("cold")),
            (Some(0.6), Some(0.2), None)
        );
        assert_eq!(lately.commands_per_second["get"], 10.0);
        assert_eq!(lately.tiers.len(), 2);
        assert_eq!(lately.tiers[0].budget_bytes, Some(10.0));
        assert_eq!(lately.tiers[1].budget_bytes, None);
        // Another process.
        let again = WatchResponse {
            started_at_ms: 2,
            ..message(vec![], vec![sample(41_000, &[(1, 1.0)])])
        };
        figures.add(&again);
        assert!(!figures.are_enough());
    }

    #[test]
    fn clients_over_http_and_grpc_count() {
        let mut figures = Figures::default();
        let dialect = |id, name, value| series(id, name, &[("dialect", value)]);
        let all = vec![
            series(1, "fonn_connections", &[]),
            series(2, "fonn_http_connections", &[]),
            series(3, "fonn_sent_bytes_total", &[]),
            dialect(4, "fonn_http_sent_bytes_total", "generic"),
            dialect(5, "fonn_http_sent_bytes_total", "nx"),
            series(6, "fonn_reapi_sent_bytes_total", &[]),
            series(7, "fonn_router_sent_bytes_total", &[]),
            dialect(8, "fonn_http_received_bytes_total", "nx"),
        ];
        let first: Vec<_> = (1..=8).map(|id| (id, 0.0)).collect();
        figures.add(&message(all, vec![sample(1000, &first)]));
        let next = [
            (1, 1.0),
            (2, 2.0),
            (3, 10.0),
            (4, 20.0),
            (5, 40.0),
            (6, 80.0),
            (7, 160.0),
            (8, 6.0),
        ];
        figures.add(&message(vec![], vec![sample(3000, &next)]));
        let lately = figures.lately();
        assert_eq!(lately.connections, Some(3.0));
        assert_eq!(lately.sent_bytes_per_second, 155.0);
        assert_eq!(lately.received_bytes_per_second, 3.0);
        assert_eq!(Figures::default().connections(), None);
    }

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let mut figures = Figures::default();
        let name = "fonn_request_duration_seconds_bucket";
        let all = ["0.001", "0.01", "+Inf"]
            .iter()
            .zip(1..)
            .map(|(le, id)| series(id, name, &[("le", le)]))
            .collect();
        let zero = sample(1000, &[(1, 5.0), (2, 5.0), (3, 0.0)]);
        figures.add(&message(all, vec![zero]));
        assert_eq!(figures.lately().latency_p99_seconds, None);
        let next = sample(2000, &[(1, 85.0), (2, 24.0), (3, 1.0)]);
        figures.add(&message(vec![], vec![next]));
        let near = |value: Option<f64>, expected: f64| {
            assert!((value.unwrap() - expected).abs() < 1e-9, "{value:?}");
        };
        near(figures.lately().latency_p50_seconds, 0.001 * 50.0 / 80.0);
        near(figures.lately().latency_p99_seconds, 0.01);
    }
}
