//! What the node tells of its namespaces.

use std::sync::Arc;

use fonn_base::size::ByteCount;
use fonn_proto::grpc::v1::{ListNamespacesResponse, Namespace};

use crate::engine::Engine;
use crate::namespaces::Asked;

/// A namespace without a quota that was counted longer ago is counted again at the next request.
const STALE_MS: u64 = 60_000;

/// It rests this many times as long as the count took.
const REST: u64 = 20;

/// The namespaces for which `may_read` says yes.
pub(super) fn list(engine: &Engine, may_read: impl Fn(u32) -> bool) -> ListNamespacesResponse {
    let now_ms = engine.now_ms();
    let known = engine.namespaces().known();
    let in_ram = engine.ram().namespaces();
    let readable = known.iter().filter(|it| may_read(it.number));
    let namespaces = readable
        .map(|it| {
            let ram_entries = in_ram.get(&it.number).copied().unwrap_or(0);
            namespace(engine, &known, it, ram_entries, now_ms)
        })
        .collect();
    ListNamespacesResponse { namespaces, now_ms }
}

fn namespace(
    engine: &Engine,
    all: &[Arc<fonn_auth::Namespace>],
    it: &fonn_auth::Namespace,
    ram_entries: u64,
    now_ms: u64,
) -> Namespace {
    let namespaces = engine.namespaces();
    let asked = |asked| namespaces.asked(it.number, asked).unwrap_or(0);
    let base = all.iter().find(|base| Some(base.number) == it.base);
    let ram = engine.ram().quota_use(it.number);
    let mut told = Namespace {
        name: it.name.to_string(),
        quota_bytes: it.quota.map(ByteCount::bytes),
        base: base.map_or_else(String::new, |base| base.name.to_string()),
        ram_entries,
        ram_bytes: ram.map(|ram| ram.used_bytes as u64),
        hits: asked(Asked::Hit),
        misses: asked(Asked::Miss),
        stores: asked(Asked::Store),
        ..Namespace::default()
    };
    let account = namespaces.disk_account(it.number);
    told.quota_refusals = account.refused;
    if engine.disk().is_none() {
        told.entries = Some(ram_entries);
        told.used_bytes = told.ram_bytes;
        told.quota_evictions = ram.map_or(0, |ram| ram.evictions as u64);
        return told;
    }
    told.quota_evictions = account.cut_entries;
    told.quota_evicted_bytes = account.cut_bytes;
    told.counted_at_ms = account.counted_at_ms;
    if account.counted_at_ms > 0 {
        told.used_bytes = Some(account.bytes);
        told.entries = Some(account.entries);
    }
    let rest_ms = STALE_MS.max(account.count_took_ms.saturating_mul(REST));
    if now_ms.saturating_sub(account.counted_at_ms) > rest_ms {
        namespaces.ask_for(it.number);
    }
    told
}
