//! Purges of what an identity wrote, and the counts before them.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_auth::writer_id;
use fonn_base::hlc;
use fonn_proto::grpc::v1::CountWrittenResponse;
use fonn_proto::{Failure, PurgeScope};
use tonic::Status;

use super::caller::Caller;
use super::cold::News;
use super::cold::news::{Teller, news};
use crate::engine::WrittenCursor;
use crate::server::Tiers;

/// Longest name of a writer in bytes: more than any user, token or OIDC identity has.
const WRITER_LEN_MAX: usize = 1024;

/// How often the caller hears of a count.
const NEWS_INTERVAL: Duration = Duration::from_millis(200);

pub(super) type Responses = News<Result<CountWrittenResponse, Status>>;

/// What a request is about.
///
/// # Errors
/// INVALID_ARGUMENT for a name that cannot be one, NOT_FOUND for an unknown namespace.
pub(super) fn scope(
    caller: &Caller,
    writer: &str,
    namespace: Option<&str>,
    since_ms: u64,
) -> Result<PurgeScope, Status> {
    if writer.is_empty() || writer.len() > WRITER_LEN_MAX {
        return Err(Status::invalid_argument(format!(
            "the name of a writer has 1 to {WRITER_LEN_MAX} bytes"
        )));
    }
    Ok(PurgeScope {
        writer: writer_id(writer),
        namespace: namespace.map(|name| caller.reads(name)).transpose()?,
        since: hlc::at_ms(since_ms),
    })
}

/// Counts what a purge would hide here. The work goes on only while the stream is polled.
pub(super) fn count(tiers: Arc<Tiers>, purge: PurgeScope) -> Responses {
    news(move |teller| async move {
        let last = run(&tiers, purge, &teller).await;
        // The caller may be gone.
        let _ = teller.send(last).await;
    })
}

async fn run(
    tiers: &Tiers,
    purge: PurgeScope,
    teller: &Teller<Result<CountWrittenResponse, Status>>,
) -> Result<CountWrittenResponse, Status> {
    let engine = &tiers.engine;
    engine.before_count().await;
    let spaces = engine.spaces_of(purge);
    let mut so_far = CountWrittenResponse {
        visited_max: engine.keys_approx(),
        ..CountWrittenResponse::default()
    };
    let mut told_at = Instant::now();
    let mut cursor = Some(WrittenCursor::default());
    while let Some(at) = cursor {
        let is_counted = |key: &[u8]| tiers.is_primary_of(key);
        let step = engine.count_written(purge, &spaces, at, is_counted).await;
        let step =
            step.map_err(|_| Status::unavailable("the disk cannot be read; the log has more"))?;
        so_far.visited += step.visited;
        so_far.entries += step.entries;
        cursor = step.next;
        if told_at.elapsed() >= NEWS_INTERVAL {
            told_at = Instant::now();
            let _ = teller.send(Ok(so_far)).await;
        }
        tokio::task::yield_now().await;
    }
    Ok(so_far)
}

/// What the log and the events say of a purge. The caller chose the name of the writer freely, so
/// its control characters are escaped: a line break would begin another line.
pub(super) fn notice(writer: &str, namespace: Option<&str>, caller: &impl Display) -> String {
    let (writer, place) = (writer.escape_debug(), namespace.unwrap_or("all namespaces"));
    format!("what `{writer}` wrote in {place} was purged by {caller}")
}

/// Purges on all members that are up.
///
/// # Errors
/// UNAVAILABLE, FAILED_PRECONDITION.
pub(super) async fn purge(tiers: &Tiers, purge: PurgeScope) -> Result<(), Status> {
    let purged = match &tiers.replication {
        Some(replication) => replication.purge(&tiers.engine, purge).await,
        None => tiers.engine.purge_now(purge).await.map(|_| ()),
    };
    purged.map_err(|failure| match failure {
        Failure::OutOfSpace => Status::failed_precondition(
            "a member keeps as many purges as it can: purge a writer of all namespaces and times \
             instead, which takes the place of its other purges",
        ),
        _ => Status::unavailable(
            "not every member that is up could make the purge durable: purge again, or what it \
             hid may come back",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notice_of_a_purge_is_one_line_whatever_the_name_of_the_writer_is() {
        let notice = notice("ci\n\x1b[2Jok", Some("main"), &"the user `ops`");
        assert_eq!(
            notice,
            "what `ci\\n\\u{1b}[2Jok` wrote in main was purged by the user `ops`"
        );
    }
}
