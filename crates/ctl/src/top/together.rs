//! All members of a cluster at once: what a router is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use fonn_proto::grpc::v1::{
    Label, ListNamespacesResponse, MembershipMapResponse, Sample, Series, WatchRequest,
    WatchResponse,
};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::connection::{Connection, Everybody};
use super::super::error::CtlError;
use super::super::namespaces;
use super::figures::{Figures, Fill, Lately};
use super::{ASK_TIMEOUT, HISTORY_SECONDS};

/// Messages of members that wait to be taken in: each sends one a second.
const NEWS_MAX: usize = 64;
/// Between tries to reach a member.
const RETRY: Duration = Duration::from_secs(1);

/// A member and what it did lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Row {
    pub member: String,
    /// Its state by the map.
    pub state: String,
    /// Why there are no figures; empty if there are.
    pub missing: String,
    #[serde(flatten)]
    pub lately: Lately,
}

/// What a router did lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct OfRouter {
    pub connections: Option<f64>,
    /// Requests of clients a second.
    pub requests_per_second: f64,
    pub received_bytes_per_second: f64,
    pub sent_bytes_per_second: f64,
    /// Time of requests in seconds, where clients connect.
    pub latency_p50_seconds: Option<f64>,
    pub latency_p99_seconds: Option<f64>,
}

/// What a member sent, or why it sends nothing.
type News = (String, Result<WatchResponse, String>);

/// What is known of one member.
#[derive(Debug, Default)]
struct Known {
    figures: Figures,
    missing: String,
}

/// What is asked for beside the figures of members.
#[derive(Debug, Default)]
pub(super) struct Asked {
    everybody: Option<Everybody>,
    namespaces: Option<ListNamespacesResponse>,
    metrics: Option<String>,
    at_ms: u64,
}

/// The members that are followed.
#[derive(Debug)]
pub(super) struct Together {
    router: Connection,
    map: MembershipMapResponse,
    known: BTreeMap<String, Known>,
    news: mpsc::Receiver<News>,
    news_in: mpsc::Sender<News>,
    followed: JoinSet<()>,
    names: BTreeSet<String>,
    own: Figures,
    namespaces: Option<ListNamespacesResponse>,
    started: tokio::time::Instant,
}

impl Together {
    pub(super) fn new(router: &Connection, everybody: Everybody) -> Self {
        let (news_in, news) = mpsc::channel(NEWS_MAX);
        let mut together = Self {
            router: router.clone(),
            map: MembershipMapResponse::default(),
            known: BTreeMap::new(),
            news,
            news_in,
            followed: JoinSet::new(),
            names: BTreeSet::new(),
            own: Figures::default(),
            namespaces: None,
            started: tokio::time::Instant::now(),
        };
        together.follow(everybody);
        together
    }

    /// Follows members that are new. Those that are down are tried again when they are not any
    /// more.
    fn follow(&mut self, everybody: Everybody) {
        for (name, way) in everybody.members {
            if self.names.insert(name.clone()) {
                self.followed.spawn(watch(name, way, self.news_in.clone()));
            }
        }
        self.map = everybody.map;
    }

    /// Waits for the next figures of any member.
    ///
    /// # Cancel safety
    /// Cancelling it loses none.
    pub(super) async fn next(&mut self) -> Option<News> {
        // There is always a sender.
        self.news.recv().await
    }

    /// Takes in what a member sent.
    pub(super) fn add(&mut self, (member, news): News) {
        let known = self.known.entry(member).or_default();
        match news {
            Ok(message) => {
                known.missing.clear();
                known.figures.add(&message);
            }
            Err(why) => {
                known.missing = why;
                known.figures = Figures::default();
            }
        }
    }

    /// Whether there are rates of each member, or why there are none; and of the router.
    pub(super) fn are_enough(&self) -> bool {
        let is_known = |name: &String| {
            let known = self.known.get(name);
            known.is_some_and(|it| it.figures.are_enough() || !it.missing.is_empty())
        };
        self.names.iter().all(is_known)
    }

    /// What to ask for, and the members to ask, without holding this.
    pub(super) fn asking(&self) -> impl Future<Output = Asked> + Send + use<> {
        let (router, started) = (self.router.clone(), self.started);
        async move {
            let asked = async {
                let everybody = router.everybody().await.ok().flatten();
                let mut lists = Vec::new();
                for (_, member) in everybody.iter().flat_map(|it| &it.members) {
                    lists.extend(namespaces::list(member).await.ok());
                }
                Asked {
                    everybody,
                    namespaces: (!lists.is_empty()).then(|| namespaces::together(&lists)),
                    metrics: router.metrics().await,
                    at_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(0),
                }
            };
            // What is not told is not shown.
            let asked = tokio::time::timeout(ASK_TIMEOUT, asked).await;
            asked.unwrap_or_default()
        }
    }

    /// Takes in what was told.
    pub(super) fn take(&mut self, asked: Asked) {
        self.namespaces = asked.namespaces;
        if let Some(page) = &asked.metrics {
            self.own.add(&message(page, asked.at_ms));
        }
        if let Some(everybody) = asked.everybody {
            self.follow(everybody);
        }
    }

    /// Each member of the map, and what it did lately.
    pub(super) fn rows(&self) -> Vec<Row> {
        let members = self.map.members.iter().filter_map(|it| it.member.as_ref());
        members
            .map(|member| {
                let known = self.known.get(&member.id);
                let lately = known.filter(|it| it.figures.are_enough());
                let missing = match known {
                    Some(known) if lately.is_none() => known.missing.clone(),
                    Some(_) => String::new(),
                    None => "it is not asked".to_owned(),
                };
                Row {
                    member: member.id.clone(),
                    state: member.state().name(),
                    missing,
                    lately: lately.map_or_else(Lately::default, |it| it.figures.lately()),
                }
            })
            .collect()
    }

    /// What the router itself did lately.
    pub(super) fn own(&self) -> OfRouter {
        let figures = &self.own;
        let latency = |quantile| figures.quantile(quantile, "fonn_router_request_duration_seconds");
        OfRouter {
            connections: figures.connections(),
            requests_per_second: figures.rate("fonn_router_request_duration_seconds_count"),
            received_bytes_per_second: figures.received_bytes_per_second(),
            sent_bytes_per_second: figures.sent_bytes_per_second(),
            latency_p50_seconds: latency(0.5),
            latency_p99_seconds: latency(0.99),
        }
    }

    pub(super) fn map(&self) -> &MembershipMapResponse {
        &self.map
    }

    pub(super) fn namespaces(&self) -> Option<&ListNamespacesResponse> {
        self.namespaces.as_ref()
    }
}

/// Sends what a member streams, for as long as there is a receiver.
async fn watch(name: String, way: Connection, news: mpsc::Sender<News>) {
    loop {
        let Err(error) = stream(&name, &way, &news).await else {
            return;
        };
        if news
            .send((name.clone(), Err(error.to_string())))
            .await
            .is_err()
        {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A missing receiver is fine.
async fn stream(name: &str, way: &Connection, news: &mpsc::Sender<News>) -> Result<(), CtlError> {
    let request = WatchRequest {
        history_seconds: HISTORY_SECONDS,
    };
    let mut stream = way.call(way.telemetry().watch(request)).await?;
    loop {
        let message = super::next(way, &mut stream).await?;
        if news.send((name.to_owned(), Ok(message))).await.is_err() {
            return Ok(());
        }
    }
}

/// All members as one. Of latency there are no sums, and the bucket is the same for all.
pub(super) fn sum(rows: &[Row]) -> Lately {
    let parts: Vec<&Lately> = rows
        .iter()
        .filter(|row| row.missing.is_empty())
        .map(|row| &row.lately)
        .collect();
    let total = |of: fn(&Lately) -> f64| parts.iter().map(|it| of(it)).sum::<f64>();
    let gets = total(|it| it.gets_per_second);
    let share = |of: &dyn Fn(&Lately) -> f64| {
        let hits: f64 = parts.iter().map(|it| of(it) * it.gets_per_second).sum();
        if gets > 0.0 { hits / gets } else { 0.0 }
    };
    let tiers: BTreeSet<&String> = parts
        .iter()
        .flat_map(|it| it.hit_ratio_by_tier.keys())
        .collect();
    let by_tier = |tier: &String| {
        let of = |it: &Lately| it.hit_ratio_by_tier.get(tier).copied().unwrap_or(0.0);
        (tier.clone(), share(&of))
    };
    let mut commands = BTreeMap::new();
    for (command, rate) in parts.iter().flat_map(|it| &it.commands_per_second) {
        *commands.entry(command.clone()).or_default() += rate;
    }
    let known = |of: fn(&Lately) -> Option<f64>| parts.iter().filter_map(move |it| of(it));
    let not_ready = parts.iter().map(|it| it.not_ready_reason.as_str());
    Lately {
        not_ready_reason: not_ready.max().unwrap_or_default().to_owned(),
        seconds: parts.iter().map(|it| it.seconds).fold(0.0, f64::max),
        hit_ratio: (gets > 0.0).then(|| share(&|it| it.hit_ratio.unwrap_or(0.0))),
        hit_ratio_by_tier: tiers.into_iter().map(by_tier).collect(),
        commands_per_second: commands,
        received_bytes_per_second: total(|it| it.received_bytes_per_second),
        sent_bytes_per_second: total(|it| it.sent_bytes_per_second),
        latency_p50_seconds: None,
        latency_p99_seconds: None,
        tiers: super::figures::TIERS
            .iter()
            .filter_map(|tier| fill(tier, &parts))
            .collect(),
        connections: None,
        refusals_per_second: total(|it| it.refusals_per_second),
        gets_per_second: gets,
        unspilled_bytes: known(|it| it.unspilled_bytes).reduce(|a, b| a + b),
        unspilled_seconds: known(|it| it.unspilled_seconds).reduce(f64::max),
    }
}

fn fill(tier: &str, parts: &[&Lately]) -> Option<Fill> {
    let fills = parts.iter().flat_map(|it| &it.tiers);
    let fills: Vec<&Fill> = fills.filter(|it| it.tier == tier).collect();
    let merge: fn(f64, f64) -> f64 = match tier {
        // There is one bucket, of which each knows how full it is, and its own part of the index.
        "cold" => f64::max,
        _ => |a, b| a + b,
    };
    Some(Fill {
        tier: tier.to_owned(),
        used_bytes: fills.iter().map(|it| it.used_bytes).reduce(merge)?,
        budget_bytes: fills.iter().filter_map(|it| it.budget_bytes).reduce(merge),
        entries: match tier {
            "cold" => None,
            _ => fills.iter().filter_map(|it| it.entries).reduce(merge),
        },
    })
}

/// The page of `/metrics` (<https://prometheus.io/docs/instrumenting/exposition_formats/>) as a
/// message of the stream, in which no bucket includes the lower ones.
fn message(page: &str, at_ms: u64) -> WatchResponse {
    let mut message = WatchResponse {
        started_at_ms: 1,
        ..WatchResponse::default()
    };
    let mut sample = Sample {
        at_ms,
        ..Sample::default()
    };
    let mut below: Option<(String, f64)> = None;
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let Ok(mut value) = value.parse::<f64>() else {
            continue;
        };
        // The same in each page, whatever else is in it.
        let mut hasher = DefaultHasher::new();
        series.hash(&mut hasher);
        let id = hasher.finish() as u32;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',');
        let labels: Vec<(&str, &str)> = labels.filter_map(|it| it.split_once('=')).collect();
        if name.ends_with("_bucket") {
            let others = labels.iter().filter(|(label, _)| *label != "le");
            let family = format!("{name} {:?}", others.collect::<Vec<_>>());
            let lower = match &below {
                Some((last, lower)) if *last == family => *lower,
                _ => 0.0,
            };
            below = Some((family, value));
            value -= lower;
        }
        message.series.push(Series {
            id,
            name: name.to_owned(),
            labels: labels
                .into_iter()
                .map(|(name, value)| Label {
                    name: name.to_owned(),
                    value: value.trim_matches('"').to_owned(),
                })
                .collect(),
        });
        sample.ids.push(id);
        sample.values.push(value);
    }
    message.samples.push(sample);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_added_up_by_what_they_were_asked_for() {
        let fill = |tier: &str, used, budget| Fill {
            tier: tier.to_owned(),
            used_bytes: used,
            budget_bytes: budget,
            entries: Some(used),
        };
        let row = |ratio, gets, unspilled| Row {
            lately: Lately {
                seconds: 10.0,
                hit_ratio: (gets > 0.0).then_some(ratio),
                hit_ratio_by_tier: [("ram".to_owned(), ratio)].into(),
                gets_per_second: gets,
                commands_per_second: [("get".to_owned(), gets)].into(),
                tiers: vec![fill("ram", 5.0, Some(10.0)), fill("cold", 70.0, None)],
                unspilled_bytes: unspilled,
                unspilled_seconds: unspilled,
                ..Lately::default()
            },
            ..Row::default()
        };
        let gone = Row {
            missing: "gone".to_owned(),
            ..row(1.0, 1000.0, Some(1000.0))
        };
        let rows = [row(0.9, 300.0, Some(2.0)), row(0.5, 100.0, Some(3.0)), gone];
        let all = sum(&rows);
        assert_eq!((all.hit_ratio, all.gets_per_second), (Some(0.8), 400.0));
        assert_eq!(all.hit_ratio_by_tier["ram"], 0.8);
        assert_eq!(all.commands_per_second["get"], 400.0);
        assert_eq!(
            all.tiers[0],
            Fill {
                entries: Some(10.0),
                ..fill("ram", 10.0, Some(20.0))
            }
        );
        let bucket = Fill {
            entries: None,
            ..fill("cold", 70.0, None)
        };
        assert_eq!(all.tiers[1..], [bucket], "of one bucket there is no sum");
        assert_eq!(
            (all.unspilled_bytes, all.unspilled_seconds),
            (Some(5.0), Some(3.0))
        );
        assert_eq!(sum(&[]).hit_ratio, None);
    }

    #[test]
    fn a_page_of_metrics_is_read_as_the_stream_says_it() {
        let page = |count: u32| {
            format!(
                "# HELP x y\n# TYPE fonn_router_connections gauge\nfonn_router_connections 7\n\
                 fonn_router_request_duration_seconds_bucket{{protocol=\"text\",le=\"0.001\"}} {}\n\
                 fonn_router_request_duration_seconds_bucket{{protocol=\"text\",le=\"0.01\"}} {count}\n\
                 fonn_router_request_duration_seconds_bucket{{protocol=\"text\",le=\"+Inf\"}} {count}\n\
                 fonn_router_request_duration_seconds_bucket{{protocol=\"resp\",le=\"0.001\"}} 0\n\
                 fonn_router_request_duration_seconds_bucket{{protocol=\"resp\",le=\"+Inf\"}} 0\n\
                 fonn_router_request_duration_seconds_count{{protocol=\"text\"}} {count}\n\
                 nonsense\n",
                count / 2
            )
        };
        let mut figures = Figures::default();
        figures.add(&message(&page(0), 1000));
        figures.add(&message(&page(100), 3000));
        assert_eq!(figures.now("fonn_router_connections"), Some(7.0));
        let name = "fonn_router_request_duration_seconds";
        assert_eq!(figures.growth(&format!("{name}_count"), None), 100.0);
        let middle = figures.quantile(0.5, name).unwrap();
        assert!((middle - 0.001).abs() < 1e-9, "{middle}");
        let high = figures.quantile(0.99, name).unwrap();
        assert!((0.009..0.01).contains(&high), "{high}");
    }
}
