//! `fonnctl tools`: what build tools get out of the cache.

use std::collections::BTreeMap;

use fonn_proto::grpc::v1::{ToolUse, ToolUsesRequest, ToolUsesResponse};

use super::Verdict;
use super::connection::Connection;
use super::error::CtlError;
use super::output::Output;
use super::table::{Table, printable};
use super::words::{bytes, percent};

/// Of a router the clients of its own port, and those of all members.
pub(super) async fn run(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    let mut lists = vec![uses(node).await?];
    for (_, member) in node.everybody().await?.iter().flat_map(|it| &it.members) {
        lists.push(uses(member).await?);
    }
    output.show(&together(lists), render)?;
    Ok(Verdict::Good)
}

async fn uses(node: &Connection) -> Result<ToolUsesResponse, CtlError> {
    node.call(node.tools().uses(ToolUsesRequest {})).await
}

/// The uses of several processes, one row for each identity and tool.
fn together(lists: Vec<ToolUsesResponse>) -> ToolUsesResponse {
    let mut sums: BTreeMap<[String; 3], ToolUse> = BTreeMap::new();
    for it in lists.into_iter().flat_map(|list| list.uses) {
        let key = [it.namespace.clone(), it.identity.clone(), it.tool.clone()];
        let sum = sums.entry(key).or_insert_with(|| ToolUse {
            tool: it.tool.clone(),
            namespace: it.namespace.clone(),
            identity: it.identity.clone(),
            ..ToolUse::default()
        });
        sum.hits += it.hits;
        sum.misses += it.misses;
        sum.served_bytes += it.served_bytes;
        sum.stored_bytes += it.stored_bytes;
    }
    ToolUsesResponse {
        uses: sums.into_values().collect(),
    }
}

fn render(list: &ToolUsesResponse) -> String {
    if list.uses.is_empty() {
        return "no build tool has used the HTTP port since the start\n".to_owned();
    }
    let mut table = Table::new(&[
        "NAMESPACE",
        "IDENTITY",
        "TOOL",
        ">HITS",
        ">MISSES",
        ">HIT",
        ">SERVED",
        ">STORED",
    ]);
    for it in &list.uses {
        table.row([
            printable(&it.namespace).to_string(),
            match it.identity.as_str() {
                "" => "-".to_owned(),
                name => printable(name).to_string(),
            },
            it.tool.clone(),
            it.hits.to_string(),
            it.misses.to_string(),
            percent(it.hits, it.hits + it.misses),
            bytes(it.served_bytes),
            bytes(it.stored_bytes),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(identity: &str, tool: &str, hits: u64) -> ToolUse {
        ToolUse {
            tool: tool.to_owned(),
            namespace: "acme".to_owned(),
            identity: identity.to_owned(),
            hits,
            misses: 1,
            served_bytes: 1024 * hits,
            stored_bytes: 10,
        }
    }

    #[test]
    fn an_identity_at_several_members_has_one_row_a_tool() {
        let one = vec![used("ci", "nx", 3), used("ci", "bazel", 1)];
        let two = vec![used("ci", "nx", 4), used("", "nx", 1)];
        let lists = [one, two].map(|uses| ToolUsesResponse { uses }).into();
        let text = render(&together(lists));
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert_eq!(rows[0][..4], ["acme", "-", "nx", "1"]);
        assert_eq!(rows[1][..4], ["acme", "ci", "bazel", "1"]);
        assert_eq!(rows[2][..6], ["acme", "ci", "nx", "7", "2", "78"]);
    }
}
