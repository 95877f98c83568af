//! `fonnctl top`: what a process does right now, on a terminal, once a second; asked at a router,
//! what all members do.

mod figures;
mod screen;
mod together;

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use fonn_base::shutdown::StopSignals;
use fonn_proto::grpc::v1::{
    ListNamespacesRequest, ListNamespacesResponse, MembershipMapRequest, MembershipMapResponse,
    Namespace, WatchRequest,
};
use serde::Serialize;

use self::figures::{Figures, Fill, Lately};
use self::screen::{Keys, Screen};
use self::together::{OfRouter, Row, Together};
use super::connection::{Connection, Everybody};
use super::error::CtlError;
use super::output::Output;
use super::progress::bar;
use super::table::{Table, printable};
use super::words::{bytes, duration};
use super::{Verdict, args, cluster, namespaces};

/// Figures of the past to begin with.
const HISTORY_SECONDS: u32 = 12;

/// How often namespaces and members are asked for, and how long that may take.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// Between looks at a whole cluster.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Namespaces that are shown, the busiest first.
const NAMESPACES_MAX: usize = 10;

/// What is shown at a time.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Shown {
    /// The member that answered, in a cluster; none where it is of all.
    member: Option<String>,
    /// What the router did that was asked for all members, and each of them.
    router: Option<OfRouter>,
    members: Vec<Row>,
    #[serde(flatten)]
    lately: Lately,
    namespaces: Option<ListNamespacesResponse>,
    cluster: Option<MembershipMapResponse>,
}

/// What is asked for beside the figures. A router has no namespaces, a node of its own no members.
#[derive(Debug, Default)]
struct Sides {
    namespaces: Option<ListNamespacesResponse>,
    cluster: Option<MembershipMapResponse>,
}

async fn ask(node: &Connection) -> Sides {
    let (mut admin, mut membership) = (node.admin(), node.membership());
    let both = async {
        tokio::join!(
            admin.list_namespaces(ListNamespacesRequest {}),
            membership.map(MembershipMapRequest {}),
        )
    };
    // What is not told is not shown; that the node is gone is for the stream to say.
    match tokio::time::timeout(ASK_TIMEOUT, both).await {
        Ok((namespaces, cluster)) => Sides {
            namespaces: namespaces.ok().map(tonic::Response::into_inner),
            cluster: cluster.ok().map(tonic::Response::into_inner),
        },
        Err(_) => Sides::default(),
    }
}

pub(super) async fn run(
    node: &Connection,
    args: args::Top,
    output: &Output,
) -> Result<Verdict, CtlError> {
    if let Some(everybody) = node.everybody().await? {
        return all(node, everybody, args, output).await;
    }
    let mut telemetry = node.telemetry();
    let request = WatchRequest {
        history_seconds: HISTORY_SECONDS,
    };
    let (mut stream, member) = node.call_signed(telemetry.watch(request)).await?;
    // All that is shown is of one member, also where any may answer.
    let node = &match &member {
        Some(member) => node.to_member(member)?,
        None => node.clone(),
    };
    let mut figures = Figures::default();
    while !figures.are_enough() {
        figures.add(&next(node, &mut stream).await?);
    }
    if is_one_look(&args, output) {
        let shown = shown(member, &figures, ask(node).await);
        output.show(&shown, |shown| render(node.addr(), shown))?;
        return Ok(match shown.lately.not_ready_reason.is_empty() {
            true => Verdict::Good,
            false => Verdict::Bad,
        });
    }

    let mut signals = StopSignals::install()?;
    let mut screen = Screen::enter()?;
    let mut keys = Keys::start()?;
    let mut shown = shown(member, &figures, ask(node).await);
    let first = tokio::time::Instant::now() + ASK_INTERVAL;
    let mut asks = tokio::time::interval_at(first, ASK_INTERVAL);
    let mut asking = Box::pin(ask(node));
    let mut is_asking = false;
    loop {
        screen.draw(&render(node.addr(), &shown))?;
        tokio::select! {
            message = next(node, &mut stream) => {
                figures.add(&message?);
                shown.lately = figures.lately();
            }
            _ = asks.tick(), if !is_asking => {
                asking = Box::pin(ask(node));
                is_asking = true;
            }
            sides = &mut asking, if is_asking => {
                is_asking = false;
                shown.namespaces = sides.namespaces;
                shown.cluster = sides.cluster;
            }
            () = keys.quit() => return Ok(Verdict::Good),
            _ = signals.recv() => return Ok(Verdict::Good),
        }
    }
}

fn is_one_look(args: &args::Top, output: &Output) -> bool {
    args.once || output.is_json() || !std::io::stdout().is_terminal()
}

/// The same of all members of a cluster, by the router that answers for them.
async fn all(
    router: &Connection,
    everybody: Everybody,
    args: args::Top,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let mut together = Together::new(router, everybody);
    let enough = tokio::time::sleep(ASK_TIMEOUT);
    tokio::pin!(enough);
    let asked = together.asking().await;
    together.take(asked);
    while !together.are_enough() {
        tokio::select! {
            Some(news) = together.next() => together.add(news),
            // A silent member has a row without figures.
            () = &mut enough => break,
        }
    }
    if is_one_look(&args, output) {
        // What the router does takes two looks at it.
        tokio::time::sleep(LOOK_INTERVAL).await;
        let asked = together.asking().await;
        together.take(asked);
        let shown = shown_of_all(&together);
        output.show(&shown, |shown| render(router.addr(), shown))?;
        let is_well = |row: &Row| row.missing.is_empty() && row.lately.not_ready_reason.is_empty();
        return Ok(match shown.members.iter().all(is_well) {
            true => Verdict::Good,
            false => Verdict::Bad,
        });
    }

    let mut signals = StopSignals::install()?;
    let mut screen = Screen::enter()?;
    let mut keys = Keys::start()?;
    let first = tokio::time::Instant::now() + LOOK_INTERVAL;
    let mut draws = tokio::time::interval(LOOK_INTERVAL);
    let mut asks = tokio::time::interval_at(first, ASK_INTERVAL);
    let mut asking = Box::pin(together.asking());
    let mut is_asking = false;
    loop {
        tokio::select! {
            _ = draws.tick() => screen.draw(&render(router.addr(), &shown_of_all(&together)))?,
            Some(news) = together.next() => together.add(news),
            _ = asks.tick(), if !is_asking => {
                asking = Box::pin(together.asking());
                is_asking = true;
            }
            asked = &mut asking, if is_asking => {
                is_asking = false;
                together.take(asked);
            }
            () = keys.quit() => return Ok(Verdict::Good),
            _ = signals.recv() => return Ok(Verdict::Good),
        }
    }
}

fn shown_of_all(together: &Together) -> Shown {
    let members = together.rows();
    Shown {
        member: None,
        router: Some(together.own()),
        lately: together::sum(&members),
        members,
        namespaces: together.namespaces().cloned(),
        cluster: Some(together.map().clone()),
    }
}

async fn next(
    node: &Connection,
    stream: &mut tonic::Streaming<fonn_proto::grpc::v1::WatchResponse>,
) -> Result<fonn_proto::grpc::v1::WatchResponse, CtlError> {
    let message = node.next(stream).await?;
    message.ok_or_else(|| CtlError::Unreachable {
        addr: node.addr().to_owned(),
        reason: "it ended the stream of its figures".to_owned(),
    })
}

fn shown(member: Option<String>, figures: &Figures, sides: Sides) -> Shown {
    Shown {
        member,
        router: None,
        members: Vec::new(),
        lately: figures.lately(),
        namespaces: sides.namespaces,
        cluster: sides.cluster,
    }
}

fn share(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

fn latency(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(it) if it < 1e-3 => format!("{:.0} us", it * 1e6),
        Some(it) if it < 1.0 => format!("{:.1} ms", it * 1e3),
        Some(it) => format!("{it:.1} s"),
    }
}

fn byte_rate(rate: f64) -> String {
    format!("{}/s", bytes(rate as u64))
}

fn fill(it: &Fill) -> String {
    let entries = it
        .entries
        .map_or_else(String::new, |entries| format!(", {entries:.0} entries"));
    let used = bytes(it.used_bytes as u64);
    match it.budget_bytes {
        Some(budget) => format!(
            "{} {used} of {}{entries}",
            bar(it.used_bytes as u64, budget as u64),
            bytes(budget as u64)
        ),
        None => format!("{used}{entries}"),
    }
}

fn render(addr: &str, shown: &Shown) -> String {
    let lately = &shown.lately;
    let state = match lately.not_ready_reason.as_str() {
        "" => "ready".to_owned(),
        reason => format!("not ready: {}", printable(reason)),
    };
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut line = |name: &str, what: &str| {
        let _ = writeln!(text, "{name:<9}{what}");
    };
    let connections = lately
        .connections
        .map_or_else(String::new, |it| format!(", {it:.0} connections"));
    match &shown.router {
        None => {
            let name = match &shown.member {
                Some(member) => format!("{}, asked at {addr}", printable(member)),
                None => addr.to_owned(),
            };
            let seconds = lately.seconds;
            let text = format!("{name}, {state}{connections}; rates over {seconds:.0} s");
            line("node", &text);
        }
        Some(router) => {
            line("router", &of_router(addr, router));
            let told = shown.members.iter().filter(|it| it.missing.is_empty());
            line(
                "cluster",
                &format!(
                    "{} of {} members together, {state}; rates over {:.0} s",
                    told.count(),
                    shown.members.len(),
                    lately.seconds
                ),
            );
        }
    }
    let tiers: Vec<String> = figures::TIERS
        .iter()
        .filter_map(|tier| {
            let ratio = lately.hit_ratio_by_tier.get(*tier)?;
            Some(format!("{tier} {}", share(*ratio)))
        })
        .collect();
    let hits = lately.hit_ratio.map_or_else(
        || "no gets".to_owned(),
        |it| format!("{} of gets", share(it)),
    );
    line("hits", &format!("{hits}: {}", tiers.join(", ")));
    let rates: Vec<String> = lately
        .commands_per_second
        .iter()
        .filter(|(command, rate)| **rate > 0.0 || matches!(command.as_str(), "get" | "store"))
        .map(|(command, rate)| format!("{command} {rate:.1}/s"))
        .chain([format!("refused {:.1}/s", lately.refusals_per_second)])
        .collect();
    line("commands", &rates.join(", "));
    line(
        "traffic",
        &format!(
            "{} in, {} out",
            byte_rate(lately.received_bytes_per_second),
            byte_rate(lately.sent_bytes_per_second)
        ),
    );
    // Of several members there is none: that of the router is what clients wait for.
    if shown.router.is_none() {
        let (p50, p99) = (lately.latency_p50_seconds, lately.latency_p99_seconds);
        line("latency", &latencies(p50, p99));
    }
    for it in &lately.tiers {
        let unspilled = match (it.tier.as_str(), lately.unspilled_bytes) {
            ("cold", Some(left)) => format!(", {} not in it yet", bytes(left as u64)),
            _ => String::new(),
        };
        line(&it.tier, &format!("{}{unspilled}", fill(it)));
    }
    if shown.router.is_some() {
        text.push('\n');
        text.push_str(&rows(&shown.members));
    }
    if let Some(list) = &shown.namespaces {
        text.push('\n');
        text.push_str(&namespaces::render(&busiest(list)));
    }
    if let Some(map) = &shown.cluster {
        text.push('\n');
        text.push_str(&cluster::render_map(map));
    }
    text
}

fn latencies(p50: Option<f64>, p99: Option<f64>) -> String {
    format!("p50 {}, p99 {}", latency(p50), latency(p99))
}

fn of_router(addr: &str, router: &OfRouter) -> String {
    let Some(connections) = router.connections else {
        return format!("{addr}; it does not tell its own figures");
    };
    format!(
        "{addr}, {connections:.0} connections, {:.1} requests/s, {} in, {} out, {}",
        router.requests_per_second,
        byte_rate(router.received_bytes_per_second),
        byte_rate(router.sent_bytes_per_second),
        latencies(router.latency_p50_seconds, router.latency_p99_seconds)
    )
}

/// The members, a line each.
fn rows(members: &[Row]) -> String {
    let mut table = Table::new(&[
        "MEMBER",
        "STATE",
        ">HITS",
        ">GETS/S",
        ">STORES/S",
        ">P99",
        ">RAM",
        ">DISK",
        ">TO SPILL",
        ">OLDEST",
        "",
    ]);
    for it in members {
        let lately = &it.lately;
        let none = || "-".to_owned();
        let filled = |tier: &str| {
            let fill = lately.tiers.iter().find(|it| it.tier == tier);
            let budget = fill.and_then(|it| Some((it.used_bytes, it.budget_bytes?)));
            budget.map_or_else(none, |(used, budget)| share(used / budget))
        };
        let stores = lately.commands_per_second.get("store").copied();
        let figures = match it.missing.is_empty() {
            false => [const { String::new() }; 8],
            true => [
                lately.hit_ratio.map_or_else(none, share),
                format!("{:.1}", lately.gets_per_second),
                format!("{:.1}", stores.unwrap_or(0.0)),
                latency(lately.latency_p99_seconds),
                filled("ram"),
                filled("disk"),
                lately
                    .unspilled_bytes
                    .map_or_else(none, |it| bytes(it as u64)),
                lately
                    .unspilled_seconds
                    .map_or_else(none, |it| duration((it * 1e3) as u64)),
            ],
        };
        let why = match lately.not_ready_reason.as_str() {
            "" => it.missing.clone(),
            reason => format!("not ready: {reason}"),
        };
        let head = [it.member.clone(), it.state.clone()];
        table.row(head.into_iter().chain(figures).chain([why]));
    }
    table.render()
}

/// The namespaces with most requests.
fn busiest(list: &ListNamespacesResponse) -> ListNamespacesResponse {
    let asked = |it: &Namespace| it.hits + it.misses + it.stores;
    let mut namespaces = list.namespaces.clone();
    namespaces.sort_by_key(|it| std::cmp::Reverse(asked(it)));
    namespaces.truncate(NAMESPACES_MAX);
    ListNamespacesResponse {
        namespaces,
        now_ms: list.now_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_shown_and_what_is_not_is_not_made_up() {
        let namespace = |name: &str, hits| Namespace {
            name: name.to_owned(),
            hits,
            ..Namespace::default()
        };
        let shown = Shown {
            member: None,
            router: None,
            members: Vec::new(),
            lately: Lately {
                seconds: 10.0,
                hit_ratio: Some(0.9),
                hit_ratio_by_tier: [("ram".to_owned(), 0.8), ("disk".to_owned(), 0.1)].into(),
                commands_per_second: [("get".to_owned(), 120.0)].into(),
                received_bytes_per_second: 2048.0,
                latency_p50_seconds: Some(0.000_120),
                latency_p99_seconds: Some(0.0123),
                tiers: vec![
                    Fill {
                        tier: "ram".to_owned(),
                        used_bytes: 512.0,
                        budget_bytes: Some(1024.0),
                        entries: Some(3.0),
                    },
                    Fill {
                        tier: "cold".to_owned(),
                        used_bytes: 100.0,
                        ..Fill::default()
                    },
                ],
                connections: Some(4.0),
                ..Lately::default()
            },
            namespaces: Some(ListNamespacesResponse {
                namespaces: vec![namespace("a", 1), namespace("b", 2)],
                now_ms: 0,
            }),
            cluster: None,
        };
        let text = render("host:1", &shown);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..8],
            [
                "node     host:1, ready, 4 connections; rates over 10 s",
                "hits     90.0 % of gets: ram 80.0 %, disk 10.0 %",
                "commands get 120.0/s, refused 0.0/s",
                "traffic  2.0 KiB/s in, 0 B/s out",
                "latency  p50 120 us, p99 12.3 ms",
                "ram      [===============>              ]  50 % 512 B of 1.0 KiB, 3 entries",
                "cold     100 B",
                "",
            ]
        );
        assert!(
            lines[9].starts_with("b ") && lines[10].starts_with("a "),
            "{text}"
        );
        let sent_on = Shown {
            member: Some("b".to_owned()),
            ..shown
        };
        let text = render("host:1", &sent_on);
        assert!(
            text.starts_with("node     b, asked at host:1, ready"),
            "{text}"
        );
        let of_all = Shown {
            member: None,
            router: Some(OfRouter {
                connections: Some(9.0),
                requests_per_second: 120.0,
                latency_p50_seconds: Some(0.001),
                ..OfRouter::default()
            }),
            members: vec![
                Row {
                    member: "a".to_owned(),
                    state: "active".to_owned(),
                    lately: Lately {
                        unspilled_bytes: Some(2048.0),
                        unspilled_seconds: Some(3.0),
                        ..sent_on.lately.clone()
                    },
                    ..Row::default()
                },
                Row {
                    member: "b".to_owned(),
                    state: "down".to_owned(),
                    missing: "it is not asked".to_owned(),
                    ..Row::default()
                },
            ],
            ..sent_on
        };
        let text = render("host:1", &of_all);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "router   host:1, 9 connections, 120.0 requests/s, 0 B/s in, 0 B/s out, p50 1.0 ms, p99 -",
                "cluster  1 of 2 members together, ready; rates over 10 s",
            ]
        );
        assert!(!text.contains("latency"), "{text}");
        assert_eq!(
            lines[8..11],
            [
                "MEMBER  STATE     HITS  GETS/S  STORES/S      P99     RAM  DISK  TO SPILL  OLDEST",
                "a       active  90.0 %     0.0       0.0  12.3 ms  50.0 %     -   2.0 KiB     3 s",
                "b       down                                                                       it is not asked",
            ]
        );
        let nothing = render("host:1", &Shown::default());
        assert!(
            nothing.contains("no gets") && nothing.contains("p50 -"),
            "{nothing}"
        );
    }
}
