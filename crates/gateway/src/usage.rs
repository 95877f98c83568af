//! What build tools get out of the cache: hits, misses and bytes by tool, namespace and identity.
//!
//! A lookup is one question of a tool whether the cache has a result: a `GET` of a value, an action
//! result of Bazel, an archive that GitHub Actions looks for. Blobs that a result refers to count
//! in bytes alone.
//!
//! Invariant: there are at most [`ROWS_MAX`] rows. What identities beyond these do counts for
//! [`WriterId::NONE`] in namespace 0.

use std::collections::HashMap;

use fonn_base::metrics::{Label as _, Snapshot};
use fonn_proto::WriterId;
use fonn_server::Scope;
use parking_lot::Mutex;

use crate::tool::Tool;

/// Rows of the table; of these, one for each tool is that of all other identities.
const ROWS_MAX: usize = 2048;

/// What one identity did with one tool since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Lookups that found a result.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Bytes of values that were sent: what the client did not have to make.
    pub served_bytes: u64,
    /// Bytes of values that were stored.
    pub stored_bytes: u64,
}

impl Use {
    pub(crate) fn lookup(is_hit: bool) -> Self {
        Self {
            hits: is_hit.into(),
            misses: (!is_hit).into(),
            ..Self::default()
        }
    }

    pub(crate) fn served(len: usize) -> Self {
        Self {
            served_bytes: len as u64,
            ..Self::default()
        }
    }

    pub(crate) fn stored(len: usize) -> Self {
        Self {
            stored_bytes: len as u64,
            ..Self::default()
        }
    }

    const fn add(&mut self, more: Self) {
        self.hits += more.hits;
        self.misses += more.misses;
        self.served_bytes += more.served_bytes;
        self.stored_bytes += more.stored_bytes;
    }
}

/// What a row counts for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Row {
    tool: Tool,
    namespace: u32,
    writer: WriterId,
}

/// A row for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolUse {
    /// The tool.
    pub tool: Tool,
    /// The number of the namespace.
    pub namespace: u32,
    /// The identity; none without users.
    pub writer: WriterId,
    /// What it did.
    pub what: Use,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    rows: Mutex<HashMap<Row, Use>>,
}

impl Usage {
    /// Counts what a client did.
    pub(crate) fn count(&self, tool: Tool, scope: &Scope, what: Use) {
        let row = Row {
            tool,
            namespace: scope.space.namespace(),
            writer: scope.writer,
        };
        let mut rows = self.rows.lock();
        if rows.len() >= ROWS_MAX - Tool::ALL.len() && !rows.contains_key(&row) {
            let others = Row {
                namespace: 0,
                writer: WriterId::NONE,
                ..row
            };
            rows.entry(others).or_default().add(what);
            return;
        }
        rows.entry(row).or_default().add(what);
    }

    /// All rows, in no order.
    pub(crate) fn rows(&self) -> Vec<ToolUse> {
        let rows = self.rows.lock();
        let rows = rows.iter().map(|(row, what)| ToolUse {
            tool: row.tool,
            namespace: row.namespace,
            writer: row.writer,
            what: *what,
        });
        rows.collect()
    }

    /// Publishes the sums of all identities.
    pub(crate) fn publish(&self, snapshot: &mut Snapshot) {
        let mut sums = [Use::default(); Tool::ALL.len()];
        for row in self.rows() {
            if let Some(sum) = sums.get_mut(row.tool.index()) {
                sum.add(row.what);
            }
        }
        for (tool, sum) in Tool::ALL.iter().zip(sums) {
            for (outcome, count) in [("hit", sum.hits), ("miss", sum.misses)] {
                snapshot.counter(
                    "fonn_tool_lookups_total",
                    "Lookups of build tools, by tool and outcome.",
                    &[("tool", tool.as_str()), ("outcome", outcome)],
                    count,
                );
            }
            for (name, help, count) in [
                (
                    "fonn_tool_served_bytes_total",
                    "Bytes of values that build tools did not have to make.",
                    sum.served_bytes,
                ),
                (
                    "fonn_tool_stored_bytes_total",
                    "Bytes of values that build tools stored.",
                    sum.stored_bytes,
                ),
            ] {
                snapshot.counter(name, help, &[("tool", tool.as_str())], count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::Space;

    use super::*;

    fn scope(namespace: u32, writer: u32) -> Scope {
        Scope {
            space: Space::new(namespace, 0),
            writer: WriterId::new(writer),
            ..Scope::default()
        }
    }

    #[test]
    fn each_identity_has_a_row_for_each_tool() {
        let usage = Usage::default();
        usage.count(Tool::Nx, &scope(1, 7), Use::lookup(true));
        usage.count(Tool::Nx, &scope(1, 7), Use::served(10));
        usage.count(Tool::Nx, &scope(1, 7), Use::lookup(false));
        usage.count(Tool::Bazel, &scope(1, 7), Use::stored(3));
        usage.count(Tool::Nx, &scope(1, 8), Use::lookup(false));
        let rows = usage.rows();
        assert_eq!(rows.len(), 3);
        let nx = rows
            .iter()
            .find(|it| it.tool == Tool::Nx && it.what.hits == 1);
        let expected = Use {
            hits: 1,
            misses: 1,
            served_bytes: 10,
            stored_bytes: 0,
        };
        assert_eq!(nx.unwrap().what, expected);
    }

    #[test]
    fn more_identities_than_rows_share_one() {
        let usage = Usage::default();
        for writer in 1..=10_000 {
            usage.count(Tool::Generic, &scope(3, writer), Use::lookup(true));
        }
        let rows = usage.rows();
        assert!(rows.len() <= ROWS_MAX);
        assert_eq!(rows.iter().map(|it| it.what.hits).sum::<u64>(), 10_000);
        let others = rows.iter().find(|it| it.writer == WriterId::NONE).unwrap();
        assert_eq!(others.namespace, 0);
        // A known one keeps its row.
        usage.count(Tool::Generic, &scope(3, 1), Use::lookup(true));
        let known = usage
            .rows()
            .into_iter()
            .find(|it| it.writer == WriterId::new(1));
        assert_eq!(known.unwrap().what.hits, 2);
    }
}
