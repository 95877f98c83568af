//! `fonnctl namespaces`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fonn_proto::grpc::v1::{ListNamespacesRequest, ListNamespacesResponse, Namespace};

use super::Verdict;
use super::connection::Connection;
use super::error::CtlError;
use super::output::Output;
use super::table::Table;
use super::words::{bytes, percent};

pub(super) async fn run(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    let list = match node.everybody().await? {
        None => list(node).await?,
        Some(everybody) => {
            let mut lists = Vec::new();
            for (_, member) in &everybody.members {
                lists.push(list(member).await?);
            }
            together(&lists)
        }
    };
    output.show(&list, render)?;
    Ok(Verdict::Good)
}

/// As one node has them.
pub(super) async fn list(node: &Connection) -> Result<ListNamespacesResponse, CtlError> {
    let mut admin = node.admin();
    node.call(admin.list_namespaces(ListNamespacesRequest {}))
        .await
}

/// What several nodes hold and may hold in all; copies count as often as there are.
pub(super) fn together(lists: &[ListNamespacesResponse]) -> ListNamespacesResponse {
    let mut sums: BTreeMap<&str, Namespace> = BTreeMap::new();
    for it in lists.iter().flat_map(|list| &list.namespaces) {
        match sums.entry(&it.name) {
            Entry::Vacant(entry) => {
                entry.insert(it.clone());
            }
            Entry::Occupied(entry) => add(entry.into_mut(), it),
        }
    }
    ListNamespacesResponse {
        namespaces: sums.into_values().collect(),
        now_ms: lists.iter().map(|list| list.now_ms).max().unwrap_or(0),
    }
}

fn add(sum: &mut Namespace, it: &Namespace) {
    // What one of them does not know is not known of all; a node without a limit has no limit in
    // all.
    let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
    sum.quota_bytes = both(sum.quota_bytes, it.quota_bytes);
    sum.used_bytes = both(sum.used_bytes, it.used_bytes);
    sum.entries = both(sum.entries, it.entries);
    sum.ram_bytes = both(sum.ram_bytes, it.ram_bytes);
    sum.counted_at_ms = sum.counted_at_ms.min(it.counted_at_ms);
    sum.ram_entries += it.ram_entries;
    sum.hits += it.hits;
    sum.misses += it.misses;
    sum.stores += it.stores;
    sum.quota_evictions += it.quota_evictions;
    sum.quota_evicted_bytes += it.quota_evicted_bytes;
    sum.quota_refusals += it.quota_refusals;
}

pub(super) fn render(list: &ListNamespacesResponse) -> String {
    let mut table = Table::new(&[
        "NAMESPACE",
        "BASE",
        ">USED",
        ">QUOTA",
        ">FULL",
        ">ENTRIES",
        ">IN RAM",
        ">HITS",
        ">OF GETS",
        ">STORES",
        ">LOST",
        ">REFUSED",
    ]);
    for it in &list.namespaces {
        table.row(row(it));
    }
    table.render()
}

fn row(it: &Namespace) -> [String; 12] {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let full = it.used_bytes.zip(it.quota_bytes);
    [
        it.name.clone(),
        it.base.clone(),
        known(it.used_bytes.map(bytes)),
        known(it.quota_bytes.map(bytes)),
        full.map_or_else(String::new, |(used, quota)| percent(used, quota)),
        known(it.entries.map(|entries| entries.to_string())),
        it.ram_entries.to_string(),
        it.hits.to_string(),
        percent(it.hits, it.hits + it.misses),
        it.stores.to_string(),
        it.quota_evictions.to_string(),
        it.quota_refusals.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_members_hold_is_added_up_and_what_one_does_not_know_is_not_known() {
        let of = |name: &str, quota_bytes, used_bytes, hits| Namespace {
            name: name.to_owned(),
            quota_bytes,
            used_bytes,
            hits,
            counted_at_ms: hits,
            ..Namespace::default()
        };
        let list = |namespaces, now_ms| ListNamespacesResponse { namespaces, now_ms };
        let all = together(&[
            list(
                vec![of("b", Some(10), Some(3), 5), of("c", None, Some(1), 1)],
                7,
            ),
            list(
                vec![of("a", None, None, 2), of("b", Some(10), Some(4), 6)],
                9,
            ),
            list(
                vec![of("b", Some(10), None, 1), of("c", None, Some(1), 1)],
                8,
            ),
        ]);
        let names: Vec<&str> = all.namespaces.iter().map(|it| &*it.name).collect();
        assert_eq!((names, all.now_ms), (vec!["a", "b", "c"], 9));
        let b = &all.namespaces[1];
        assert_eq!((b.quota_bytes, b.used_bytes), (Some(30), None));
        assert_eq!((b.hits, b.counted_at_ms), (12, 1));
        assert_eq!(all.namespaces[2].used_bytes, Some(2));
    }
}
