//! Metrics of namespaces. Their names are labels, of no more than a bounded number of them.

use fonn_base::metrics::Snapshot;

use crate::engine::Engine;
use crate::namespaces::{Asked, COUNTED_MAX};

pub(super) fn namespaces(snapshot: &mut Snapshot, engine: &Engine) {
    let namespaces = engine.namespaces();
    // Those whose requests are counted apart: fewer than `COUNTED_MAX`, as long as the process
    // lives.
    let known = namespaces.known();
    let apart = known
        .iter()
        .filter(|it| namespaces.asked(it.number, Asked::Hit).is_some());
    for it in apart.take(COUNTED_MAX) {
        let labels = [("namespace", &*it.name)];
        let account = namespaces.disk_account(it.number);
        let ram = engine.ram().quota_use(it.number);
        let asked = |asked| namespaces.asked(it.number, asked).unwrap_or(0);
        requests(snapshot, &it.name, asked);
        if let Some(quota) = it.quota {
            snapshot.gauge(
                "fonn_namespace_quota_bytes",
                "Bytes that the entries of the namespace may take on this node.",
                &labels,
                quota.bytes() as f64,
            );
            let (used, evicted) = match engine.disk() {
                Some(_) => (account.bytes, account.cut_entries),
                None => ram.map_or((0, 0), |ram| (ram.used_bytes as u64, ram.evictions as u64)),
            };
            snapshot.gauge(
                "fonn_namespace_used_bytes",
                "Bytes that the entries of a namespace with a quota take on disk, or in RAM without one; at most, between two counts.",
                &labels,
                used as f64,
            );
            snapshot.counter(
                "fonn_namespace_quota_evictions_total",
                "Entries that the namespace lost to its quota.",
                &labels,
                evicted,
            );
            snapshot.counter(
                "fonn_namespace_quota_refusals_total",
                "Writes that were refused because of the namespace's quota.",
                &labels,
                account.refused,
            );
        }
    }
    requests(snapshot, "", |asked| namespaces.asked_others(asked));
}

fn requests(snapshot: &mut Snapshot, name: &str, asked: impl Fn(Asked) -> u64) {
    let help = "Requests by namespace: gets that hit, gets that missed, stores. The namespace without a name is all others.";
    for (result, kind) in [
        ("hit", Asked::Hit),
        ("miss", Asked::Miss),
        ("store", Asked::Store),
    ] {
        let labels = [("namespace", name), ("result", result)];
        snapshot.counter("fonn_namespace_requests_total", help, &labels, asked(kind));
    }
}
