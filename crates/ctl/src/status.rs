//! `fonnctl status`.

pub(super) mod members;

use fonn_proto::grpc::v1::{Count, RouterStatusRequest, StatusRequest, StatusResponse};

use super::connection::Connection;
use super::error::CtlError;
use super::output::Output;
use super::table::pairs;
use super::words::{bytes, count, duration, percent};
use super::{Verdict, cluster, codec, cold};

/// Bad is a node that takes no traffic; at a router a member that does not, or is down, or the
/// router itself if it is behind.
pub(super) async fn run(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    if let Some(everybody) = node.everybody().await? {
        let mut router = node.router();
        let router = node.call(router.status(RouterStatusRequest {})).await?;
        return members::run(&everybody, &router, output).await;
    }
    let mut admin = node.admin();
    let status = node.call(admin.status(StatusRequest {})).await?;
    output.show(&status, render)?;
    Ok(match status.not_ready_reason.is_empty() {
        true => Verdict::Good,
        false => Verdict::Bad,
    })
}

/// The status of a node whose store is open.
///
/// # Errors
/// As [`Connection::call`]; [`CtlError::NotNow`] while the store opens.
pub(super) async fn opened(node: &Connection) -> Result<StatusResponse, CtlError> {
    let status = node.call(node.admin().status(StatusRequest {})).await?;
    match status.ram {
        Some(_) => Ok(status),
        None => Err(CtlError::NotNow(
            "the node is still opening its store; try again".to_owned(),
        )),
    }
}

/// `3 of 10 (30 %)`
fn filled(used: u64, budget: u64) -> String {
    let share = percent(used, budget);
    format!("{} of {} ({share})", bytes(used), bytes(budget))
}

/// `3 MiB (30 %)`
fn filled_short(used: u64, budget: u64) -> String {
    format!("{} ({})", bytes(used), percent(used, budget))
}

fn sum(counts: &[Count]) -> u64 {
    counts.iter().map(|it| it.count).sum()
}

/// `12 ram, 3 disk`
fn list(counts: &[Count]) -> String {
    let parts: Vec<String> = counts
        .iter()
        .map(|it| format!("{} {}", it.count, it.name))
        .collect();
    parts.join(", ")
}

pub(super) fn render(status: &StatusResponse) -> String {
    let state = match status.not_ready_reason.as_str() {
        "" => "ready".to_owned(),
        reason => format!("not ready: {reason}"),
    };
    let mut lines = vec![
        (
            "node",
            format!(
                "fonn-node {}, up {}",
                status.version,
                duration(status.uptime_ms)
            ),
        ),
        ("state", state),
    ];
    let Some(ram) = &status.ram else {
        // The store is not open: there is nothing more to say.
        return pairs(&lines);
    };
    lines.push(("clients", status.listeners.join(", ")));
    lines.push((
        "open",
        format!(
            "{} of {} connections",
            status.connections, status.connections_max
        ),
    ));
    if status.resident_bytes > 0 {
        lines.push((
            "memory",
            format!("{} resident", bytes(status.resident_bytes)),
        ));
    }
    let tier = |used, budget, entries| format!("{}, {entries} entries", filled(used, budget));
    lines.push((
        "ram",
        format!(
            "{}, {} to write, {} evictions",
            tier(ram.used_bytes, ram.budget_bytes, ram.entries),
            ram.dirty_entries,
            ram.evictions
        ),
    ));
    lines.push((
        "disk",
        match &status.disk {
            Some(disk) => format!(
                "{}, {}, {} queued, in {}, durability {}",
                tier(disk.used_bytes, disk.budget_bytes, disk.entries),
                count(disk.generations.into(), "generation", "generations"),
                bytes(disk.queue_bytes),
                disk.directory,
                status.durability
            ),
            None => "none".to_owned(),
        },
    ));
    let codecs: Vec<String> = status
        .codecs
        .iter()
        .map(|it| format!("{}={}", it.level, codec::in_force(it)))
        .collect();
    let least = status.codec_min_bytes;
    lines.push((
        "codecs",
        format!("{}, from {least} bytes on", codecs.join(" ")),
    ));
    if let Some(lookups) = &status.lookups {
        let (hits, misses) = (sum(&lookups.hits), sum(&lookups.misses));
        let share = match percent(hits, hits + misses) {
            it if it.is_empty() => it,
            it => format!(", {it} of gets"),
        };
        lines.push(("hits", format!("{hits}{share}: {}", list(&lookups.hits))));
        lines.push(("misses", format!("{misses}: {}", list(&lookups.misses))));
    }
    if let Some(cluster) = &status.cluster {
        lines.push(("cluster", cluster::status_line(cluster)));
    }
    match &status.cold {
        Some(tier) => lines.extend(cold::status_lines(tier)),
        None => lines.push(("cold", "none".to_owned())),
    }
    pairs(&lines)
}
