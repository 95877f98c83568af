//! The status of a node as a message.

use fonn_base::clock::Clock;
use fonn_base::size::ByteCount;
use fonn_proto::grpc::v1::{Count, DiskStatus, Lookups, RamStatus, StatusResponse};

use super::{Admin, Node, codecs, membership};
use crate::stats::Counter;

/// The status; of the cold tier nothing.
pub(super) fn status(admin: &Admin) -> StatusResponse {
    let state = &*admin.0;
    let mut status = StatusResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: state.started.elapsed().as_millis() as u64,
        now_ms: Clock::system().wall_ms(),
        not_ready_reason: state.readiness.reason().unwrap_or_default().to_owned(),
        resident_bytes: fonn_base::memory::resident().map_or(0, ByteCount::bytes),
        ..StatusResponse::default()
    };
    if let Some(node) = state.node.get() {
        fill(&mut status, node);
    }
    status
}

fn fill(status: &mut StatusResponse, node: &Node) {
    let engine = &node.shared.service.engine;
    let ram = engine.ram().stats();
    status.now_ms = engine.now_ms();
    status.listeners.clone_from(&node.listeners);
    status.durability = format!("{:?}", node.durability).to_lowercase();
    status.ram = Some(RamStatus {
        budget_bytes: ram.budget_bytes as u64,
        used_bytes: ram.used_bytes as u64,
        entries: ram.entries as u64,
        dirty_entries: ram.dirty as u64,
        evictions: ram.counters.evictions,
    });
    status.disk = engine.disk().map(|disk| {
        let usage = disk.usage();
        let directory = node.data_dir.as_ref();
        DiskStatus {
            directory: directory.map_or_else(String::new, |dir| dir.display().to_string()),
            budget_bytes: usage.budget_bytes,
            used_bytes: usage.bytes_on_disk,
            entries: usage.entries_approx,
            generations: u32::try_from(usage.generations).unwrap_or(u32::MAX),
            queue_bytes: usage.queue_bytes as u64,
            queue_bytes_max: usage.queue_bytes_max as u64,
        }
    });
    let count = |&(name, counter): &(&str, Counter)| Count {
        name: name.to_owned(),
        count: engine.stats().total(counter),
    };
    status.lookups = Some(Lookups {
        hits: Counter::HITS.iter().map(count).collect(),
        misses: Counter::MISSES.iter().map(count).collect(),
    });
    (status.codecs, status.codec_min_bytes) = codecs::list(engine);
    status.cluster = node.cluster.as_ref().map(membership::status);
    status.connections = node.shared.registry.len() as u64;
    status.connections_max = node.shared.connections_max as u64;
}
