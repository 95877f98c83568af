//! The cold tier of this node, as messages of `fonn/v1/cold.proto`.

use std::error::Error;
use std::fmt::Write as _;

use fonn_base::breaker::Position;
use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_cold_tier::checkpoint::{IndexEntry, SegmentFacts, SegmentState};
use fonn_cold_tier::names::SegmentName;
use fonn_cold_tier::segment::FORMAT;
use fonn_cold_tier::store::probe::{self, Outcome};
use fonn_cold_tier::store::{Location, Opened, Operation, StoreErrorKind};
use fonn_cold_tier::{
    ColdEntry, ColdError, ColdStatus as TierStatus, ColdTier, Fetched, Found, RefusedFooter,
};
use fonn_proto::grpc::v1::verify_response::Event as VerifyEvent;
use fonn_proto::grpc::v1::{
    self, ColdStatus, Cost, Finding, RequestCost, Segment, SegmentDamage, SegmentEntry, Severity,
    SpillLag, VerifyProgress,
};
use tonic::Status;

use super::news::{Teller, news};
use super::{News, namespace_name};

/// Longest record that is read to tell its writer, in bytes.
const RECORD_LEN_MAX: u64 = 1 << 20;

/// S3 Standard in us-east-1, 2026.
const STORAGE_DOLLARS_PER_GB_MONTH: f64 = 0.023;

/// The tier, and what it was opened with. No method blocks its thread.
pub struct ColdAdmin {
    /// The tier.
    pub tier: ColdTier,
    /// The bucket.
    pub bucket: Opened,
    /// As in `--cold-tier`.
    pub location: Location,
    /// As in `--region`.
    pub region: String,
    /// This machine's clock.
    pub clock: Clock,
}

/// The newest record of a key by the local index.
pub(in crate::admin) struct ColdCopy {
    /// What the index knows of it.
    pub entry: IndexEntry,
    /// Where it is. None: a tombstone that is not in the bucket yet.
    pub segment: Option<SegmentName>,
    /// What the record says, unless it is long or cannot be read now.
    pub record: Option<ColdEntry>,
}

/// Why the cold tier does not answer, in a sentence for the operator.
fn status_of(error: &ColdError) -> Status {
    match error {
        ColdError::Store(store) if store.kind == StoreErrorKind::NotFound => {
            Status::not_found("the bucket has no such segment")
        }
        ColdError::Segment { .. } | ColdError::Checkpoint(_) => Status::data_loss(chain(error)),
        _ => Status::unavailable(chain(error)),
    }
}

fn no_segment(name: &SegmentName) -> Status {
    Status::not_found(format!("the bucket has no segment `{}`", name.short()))
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing into a string cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// Runs what blocks for a moment.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Status::unavailable("the work panicked; the log has more"))
}

fn segment_name(text: &str) -> Result<SegmentName, Status> {
    SegmentName::parse_short(text).ok_or_else(|| {
        Status::invalid_argument(format!(
            "`{text}` is not REGION/WRITER/SEQUENCE, as `fonnctl cold ls` shows it"
        ))
    })
}

fn segment(facts: SegmentFacts) -> Segment {
    let state = match facts.state {
        SegmentState::Live => v1::SegmentState::Live,
        SegmentState::Doomed { .. } => v1::SegmentState::Doomed,
        SegmentState::Lost { .. } => v1::SegmentState::Lost,
    };
    Segment {
        name: facts.name.short(),
        region: facts.name.region.to_string(),
        writer: facts.name.writer.to_string(),
        sequence: facts.name.seq,
        size_bytes: facts.size,
        data_bytes: facts.data_len,
        live_bytes: facts.live_bytes,
        entries: u64::from(facts.entries.saturating_sub(facts.tombstones)),
        tombstones: u64::from(facts.tombstones),
        created_at_ms: facts.created_ms,
        last_read_at_ms: facts.last_read_ms,
        state: state.into(),
    }
}

/// What is wrong with the tier, in a sentence; empty when nothing is.
fn trouble(status: &TierStatus, is_failing: bool) -> String {
    let because = || match &status.last_error {
        Some(error) => format!(": {error}"),
        None => String::new(),
    };
    // Others that are gone were collected.
    let lost = status.lost_segments.min(status.counts.lost_segments);
    if let Some(refused) = &status.refused {
        let (found, remedy) = refusal(refused, status.caught_up);
        format!("{found}: {remedy}")
    } else if status.index_failed {
        "the local index failed; restart the node to have it built again".to_owned()
    } else if is_failing {
        format!("nothing can be brought into the bucket{}", because())
    } else if status.breaker != Position::Closed {
        format!("reads are refused for a while{}", because())
    } else if lost > 0 {
        format!("{lost} segments are gone from the bucket; their entries are misses")
    } else {
        String::new()
    }
}

/// What a footer that the bucket refuses means, and what to do.
fn refusal(refused: &RefusedFooter, is_caught_up: bool) -> (String, String) {
    let name = refused.name.key();
    let meanwhile = if is_caught_up {
        "what its writer spilled since is not known here"
    } else {
        "nothing is spilled, and what only the bucket has may be missed"
    };
    let found = format!(
        "the index waits for the footer of {name}, which the bucket refuses ({}); until it is given {meanwhile}",
        refused.message
    );
    let rights = if refused.is_denied {
        "allow s3:GetObject on it, and kms:Decrypt with its key if it has one"
    } else {
        "have the bucket give it"
    };
    (
        found,
        format!("{rights}, or delete the object if what only it holds may be lost"),
    )
}

/// Whether the index is complete, as the doctor says it.
fn index_finding(status: &TierStatus) -> Finding {
    let (severity, message, remedy) = match &status.refused {
        Some(refused) => {
            let (found, remedy) = refusal(refused, status.caught_up);
            (Severity::Failed, found, remedy)
        }
        None if status.index_failed => (
            Severity::Failed,
            "the local index of the bucket failed: nothing is spilled, and what only the bucket \
             has is missed"
                .to_owned(),
            "restart the node: it builds the index again".to_owned(),
        ),
        None if status.ready => (
            Severity::Ok,
            "the index of the bucket is complete".to_owned(),
            String::new(),
        ),
        None => (
            Severity::Warning,
            "the index of the bucket is being read".to_owned(),
            "wait; the log says how far it is".to_owned(),
        ),
    };
    Finding {
        check: "cold index".to_owned(),
        severity: severity.into(),
        message,
        remedy,
        duration_ms: 0,
    }
}

impl ColdAdmin {
    fn cost(&self, stored_bytes: u64) -> Cost {
        let meter = &self.bucket.meter;
        let mut cost = Cost {
            requests_dollars: meter.cost_dollars(),
            ..Cost::default()
        };
        if matches!(self.location, Location::S3 { .. }) {
            cost.storage_dollars_per_month =
                stored_bytes as f64 / 1e9 * STORAGE_DOLLARS_PER_GB_MONTH;
        }
        for operation in Operation::ALL {
            let stats = meter.of(operation);
            cost.uploaded_bytes += stats.sent_bytes;
            cost.downloaded_bytes += stats.received_bytes;
            if stats.calls > 0 {
                // That there is nothing is an answer: it is how others are followed.
                let answers = stats.errors_of(StoreErrorKind::NotFound)
                    + stats.errors_of(StoreErrorKind::AlreadyExists);
                cost.requests.push(RequestCost {
                    kind: operation.as_str().to_owned(),
                    count: stats.calls,
                    failed: stats.errors.iter().sum::<u64>().saturating_sub(answers),
                    dollars: stats.cost_dollars,
                });
            }
        }
        cost
    }

    /// How full it is, how far it lags behind, what it has cost. No request to the bucket.
    pub async fn status(&self) -> ColdStatus {
        let tier = self.tier.clone();
        let known = blocking(move || (tier.status(), tier.is_failing())).await;
        let head = ColdStatus {
            url: self.location.to_string(),
            region: self.region.clone(),
            ..ColdStatus::default()
        };
        match known {
            Err(error) => ColdStatus {
                trouble: error.message().to_owned(),
                ..head
            },
            Ok((status, is_failing)) => ColdStatus {
                ready: status.ready,
                trouble: trouble(&status, is_failing),
                segments: status.segments,
                stored_bytes: status.bytes,
                budget_bytes: status.budget_bytes.unwrap_or(0),
                entries: status.entries,
                live_bytes: status.live_bytes,
                lag: Some(SpillLag {
                    age_ms: u64::try_from(status.backlog_age.as_millis()).unwrap_or(u64::MAX),
                    entries: status.backlog.entries,
                    bytes: status.backlog.bytes,
                }),
                cost: Some(self.cost(status.bytes)),
                ..head
            },
        }
    }

    /// The newest record of a key by the local index. One request to the bucket.
    pub(in crate::admin) async fn find(
        &self,
        space: Space,
        key: Vec<u8>,
    ) -> Result<Option<ColdCopy>, Status> {
        let (tier, sought) = (self.tier.clone(), key.clone());
        let look = move || (tier.locate(space.0, &sought), tier.find(space.0, &sought));
        let (located, found) = blocking(look).await?;
        let Some((entry, segment)) = located.map_err(|error| status_of(&error))? else {
            return Ok(None);
        };
        let fetched = match found {
            Found::At(location) if location.len_bytes() <= RECORD_LEN_MAX => {
                Some(self.tier.fetch(space.0, &key, &location).await.0)
            }
            _ => None,
        };
        let record = match fetched {
            Some(Fetched::Hit(record)) => Some(record),
            _ => None,
        };
        Ok(Some(ColdCopy {
            entry,
            segment,
            record,
        }))
    }

    /// Examines the bucket; a finding for each check.
    pub(super) fn doctor(&self) -> News<Finding> {
        let (store, clock) = (self.bucket.without_retries.clone(), self.clock.clone());
        let tier = self.tier.clone();
        news(move |teller| async move {
            for finding in probe::probe(store.as_ref(), &clock).await {
                let (message, remedy) = finding.parts();
                let severity = match finding.outcome {
                    Outcome::Passed => Severity::Ok,
                    Outcome::Warned => Severity::Warning,
                    Outcome::Failed => Severity::Failed,
                    Outcome::Skipped => Severity::Skipped,
                };
                let finding = Finding {
                    check: finding.check.to_string(),
                    severity: severity.into(),
                    message: message.to_owned(),
                    remedy: remedy.unwrap_or_default().to_owned(),
                    duration_ms: 0,
                };
                if teller.send(finding).await.is_err() {
                    return;
                }
            }
            if let Ok(status) = blocking(move || tier.status()).await {
                // The caller may be gone.
                let _ = teller.send(index_finding(&status)).await;
            }
        })
    }

    /// Segments that the index knows, in the order of their names. A page has at most
    /// `page_size` of them.
    pub(super) fn segments(
        &self,
        query: &v1::ListSegmentsRequest,
    ) -> Result<v1::ListSegmentsResponse, Status> {
        let after = match query.page_token.as_str() {
            "" => None,
            token => Some(segment_name(token)?),
        };
        let is_wanted = |name: &SegmentName| {
            (query.region.is_empty() || name.region.as_str() == query.region)
                && after.as_ref().is_none_or(|after| name > after)
        };
        let all = self.tier.list().into_iter();
        let mut wanted = all.filter(|facts| is_wanted(&facts.name)).peekable();
        let limit = query.page_size as usize;
        let segments: Vec<Segment> = wanted.by_ref().take(limit).map(segment).collect();
        let next_page_token = match (segments.last(), wanted.peek()) {
            (Some(last), Some(_)) => last.name.clone(),
            _ => String::new(),
        };
        Ok(v1::ListSegmentsResponse {
            segments,
            next_page_token,
        })
    }

    /// Header and footer of a segment, read from the bucket. A page has at most `page_size`
    /// entries.
    pub(super) async fn inspect(
        &self,
        query: &v1::InspectSegmentRequest,
    ) -> Result<v1::InspectSegmentResponse, Status> {
        let name = segment_name(&query.name)?;
        let start: usize = match query.page_token.as_str() {
            "" => 0,
            token => token
                .parse()
                .map_err(|_| Status::invalid_argument("this is no page token"))?,
        };
        let found = self.tier.inspect(&name).await;
        let found = found.map_err(|error| match &error {
            ColdError::Store(store) if store.kind == StoreErrorKind::NotFound => no_segment(&name),
            other => status_of(other),
        })?;
        let records = found.entries.len();
        let limit = query.page_size as usize;
        let end = start.saturating_add(limit);
        let part = found.entries.into_iter().skip(start).take(limit);
        let entries = part.map(|(entry, current)| SegmentEntry {
            key: entry.key.into_vec(),
            namespace: namespace_name(Space(entry.space)),
            database: Space(entry.space).database(),
            offset: entry.offset,
            length: u64::from(entry.len),
            version: entry.at,
            expires_at_ms: entry.expires_at_ms,
            tombstone: entry.tombstone,
            current,
        });
        let mut known = self.tier.list().into_iter();
        Ok(v1::InspectSegmentResponse {
            segment: known.find(|facts| facts.name == name).map(segment),
            format_version: FORMAT,
            footer_bytes: found.footer_len,
            records: records as u64,
            entries: entries.collect(),
            next_page_token: match end < records {
                true => end.to_string(),
                false => String::new(),
            },
        })
    }

    /// Reads a segment, or all, in full and checks every record. The last news is the last
    /// progress.
    pub(super) fn verify(&self, segment: Option<String>) -> News<Result<VerifyEvent, Status>> {
        let tier = self.tier.clone();
        news(move |teller| async move {
            if let Err(error) = verify(&tier, segment, &teller).await {
                // The caller may be gone.
                let _ = teller.send(Err(error)).await;
            }
        })
    }

    /// Merges everything in the bucket into the index again. Dropped before its end, what was
    /// merged stays.
    pub(super) fn rebuild(&self) -> News<Result<v1::RebuildProgress, Status>> {
        let (tier, meter) = (self.tier.clone(), self.bucket.meter.clone());
        news(move |teller| async move {
            let read = move || meter.of(Operation::GetSuffix).received_bytes;
            let before = read();
            let progress = |phase: &str, done, total| v1::RebuildProgress {
                phase: phase.to_owned(),
                segments_done: done,
                segments_total: total,
                entries: tier.entries_approx(),
                bytes_read: read().saturating_sub(before),
            };
            let _ = teller.send(Ok(progress("listing", 0, 0))).await;
            let mut last = 0;
            let mut tell = |done, total| {
                last = total;
                // A slow reader misses some of it.
                let _ = teller.try_send(Ok(progress("reading footers", done, total)));
            };
            let rebuilt = tier.rebuild(&mut tell).await;
            let end = match rebuilt {
                Ok(()) => Ok(progress("done", last, last)),
                Err(error) => Err(status_of(&error)),
            };
            let _ = teller.send(end).await;
        })
    }
}

/// Checks one segment, or all.
async fn verify(
    tier: &ColdTier,
    segment: Option<String>,
    teller: &Teller<Result<VerifyEvent, Status>>,
) -> Result<(), Status> {
    let mut progress = VerifyProgress::default();
    let tell = async |news: VerifyEvent| {
        // The caller is gone: the stream that drives this is dropped too.
        let _ = teller.send(Ok(news)).await;
    };
    let damage = |name: &SegmentName, message: String| {
        VerifyEvent::Damage(SegmentDamage {
            segment: name.short(),
            message,
        })
    };
    let listed = match &segment {
        Some(name) => {
            let name = segment_name(name)?;
            let known = tier.list().into_iter();
            let mut sizes = known.filter(|facts| facts.name == name);
            let size = sizes.next().map_or(0, |facts| facts.size);
            vec![(name, size)]
        }
        None => {
            let compared = tier.compare().await.map_err(|error| status_of(&error))?;
            for name in &compared.missing {
                progress.damages += 1;
                let text = "the index leads to it, and it is not in the bucket; `fonnctl cold \
                            rebuild` makes its entries misses";
                tell(damage(name, text.to_owned())).await;
            }
            compared.listed
        }
    };
    progress.segments_total = listed.len() as u64;
    progress.bytes_total = listed.iter().map(|(_, size)| size).sum();
    tell(VerifyEvent::Progress(progress)).await;
    for (name, _) in &listed {
        let checked = tier.verify_segment(name).await;
        let Some(check) = checked.map_err(|error| status_of(&error))? else {
            if segment.is_some() {
                return Err(no_segment(name));
            }
            // Collected since it was listed.
            progress.segments_total -= 1;
            continue;
        };
        progress.segments_done += 1;
        progress.bytes_done += check.bytes;
        progress.records_sound += check.records;
        if let Some(message) = check.damage {
            progress.damages += 1;
            tell(damage(name, message)).await;
        }
        if check.wrong_entries > 0 {
            progress.damages += 1;
            let count = check.wrong_entries;
            let text = format!("the index lacks {count} of its entries; `fonnctl cold rebuild`");
            tell(damage(name, text)).await;
        }
        tell(VerifyEvent::Progress(progress)).await;
    }
    Ok(())
}
