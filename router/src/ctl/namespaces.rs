//! `fonnctl namespaces`.

use fonn_proto::grpc::v1::{ListNamespacesRequest, ListNamespacesResponse, Namespace};

use super::Verdict;
use super::connection::Connection;
use super::error::CtlError;
use super::output::Output;
use super::table::{Side, Table};
use super::words::{bytes, percent};

pub(super) async fn run(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    let mut admin = node.admin();
    let list = node
        .call(admin.list_namespaces(ListNamespacesRequest {}))
        .await?;
    output.show(&list, render)?;
    Ok(Verdict::Good)
}

pub(super) fn render(list: &ListNamespacesResponse) -> String {
    let mut table = Table::new(&[
        ("NAMESPACE", Side::Left),
        ("BASE", Side::Left),
        ("USED", Side::Right),
        ("QUOTA", Side::Right),
        ("FULL", Side::Right),
        ("ENTRIES", Side::Right),
        ("IN RAM", Side::Right),
        ("HITS", Side::Right),
        ("OF GETS", Side::Right),
        ("STORES", Side::Right),
        ("LOST", Side::Right),
        ("REFUSED", Side::Right),
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
