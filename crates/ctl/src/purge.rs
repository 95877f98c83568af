//! `fonnctl purge`.

use fonn_proto::grpc::v1::{CountWrittenRequest, CountWrittenResponse, PurgeRequest};
use serde::Serialize;

use super::Verdict;
use super::args;
use super::connection::Connection;
use super::error::CtlError;
use super::output::Output;
use super::progress::Progress;
use super::table::printable;

/// What was purged, or would be.
#[derive(Debug, Serialize)]
pub(super) struct Purged {
    /// The identity.
    pub writer: String,
    /// The namespace; all without one.
    pub namespace: Option<String>,
    /// Entries that clients saw before, in memory and on disk.
    pub entries: u64,
    /// Members that did not answer the question how many they have.
    pub uncounted: Vec<String>,
    /// Whether they are gone.
    pub is_purged: bool,
}

pub(super) async fn run(
    node: &Connection,
    args: args::Purge,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let since_ms = args.since.map_or(0, |since| since.unix_ms);
    let request = CountWrittenRequest {
        writer: args.writer.clone(),
        namespace: args.namespace.clone(),
        since_ms,
    };
    let mut purged = Purged {
        writer: args.writer,
        namespace: args.namespace,
        entries: 0,
        uncounted: Vec::new(),
        is_purged: false,
    };
    let mut bar = Progress::new();
    match node.in_cluster().await {
        None => purged.entries = count(node, &request, &mut bar).await?,
        Some(members) => {
            for (name, member) in members {
                // Entries that cannot be counted can be purged all the same.
                match count(&member, &request, &mut bar).await {
                    Ok(entries) => purged.entries += entries,
                    Err(CtlError::NotNow(_) | CtlError::Late { .. }) => {
                        purged.uncounted.push(name);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    bar.clear();
    if !args.dry_run {
        let request = PurgeRequest {
            writer: purged.writer.clone(),
            namespace: purged.namespace.clone(),
            since_ms,
        };
        node.call(node.admin().purge(request)).await?;
        purged.is_purged = true;
    }
    output.show(&purged, render)?;
    Ok(match purged.uncounted.is_empty() {
        true => Verdict::Good,
        false => Verdict::Bad,
    })
}

/// Counts what a member has.
async fn count(
    node: &Connection,
    request: &CountWrittenRequest,
    bar: &mut Progress,
) -> Result<u64, CtlError> {
    let mut news = node
        .call(node.admin().count_written(request.clone()))
        .await?;
    let mut last = CountWrittenResponse::default();
    while let Some(it) = node.next(&mut news).await? {
        bar.set(
            it.visited,
            it.visited_max,
            &format!("{} entries", it.entries),
        );
        last = it;
    }
    Ok(last.entries)
}

pub(super) fn render(it: &Purged) -> String {
    let place = match &it.namespace {
        Some(namespace) => format!("namespace `{}`", printable(namespace)),
        None => "all namespaces".to_owned(),
    };
    let (writer, entries) = (printable(&it.writer), it.entries);
    let mut text = match it.is_purged {
        true => format!(
            "purged what `{writer}` wrote in {place}: {entries} entries in memory and on disk\n"
        ),
        false => format!("`{writer}` wrote {entries} entries of {place} in memory and on disk\n"),
    };
    if !it.uncounted.is_empty() {
        text += &format!("not counted: {}\n", printable(&it.uncounted.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_tells_what_it_hid_and_what_was_not_counted() {
        let purged = Purged {
            writer: "leaked".to_owned(),
            namespace: None,
            entries: 7,
            uncounted: Vec::new(),
            is_purged: true,
        };
        assert_eq!(
            render(&purged),
            "purged what `leaked` wrote in all namespaces: 7 entries in memory and on disk\n"
        );
        let counted = Purged {
            writer: "a\x1b[2Jb\n".to_owned(),
            namespace: Some("main".to_owned()),
            uncounted: vec!["b".to_owned(), "\x1b[2J".to_owned()],
            is_purged: false,
            ..purged
        };
        assert_eq!(
            render(&counted),
            "`a\u{FFFD}[2Jb\u{FFFD}` wrote 7 entries of namespace `main` in memory and on disk\n\
             not counted: b, \u{FFFD}[2J\n"
        );
    }
}
