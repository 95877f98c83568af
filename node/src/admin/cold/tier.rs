//! The cold tier of this node, as [`ColdAdmin`].

use std::error::Error;
use std::fmt::Write as _;

use fonn_base::boxed::BoxFuture;
use fonn_base::breaker::Position;
use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_cold_tier::checkpoint::{SegmentFacts, SegmentState};
use fonn_cold_tier::names::SegmentName;
use fonn_cold_tier::segment::FORMAT;
use fonn_cold_tier::store::probe::{self, Outcome};
use fonn_cold_tier::store::{Location, Opened, Operation, StoreErrorKind};
use fonn_cold_tier::{
    ColdError as TierError, ColdStatus as TierStatus, ColdTier, Fetched, Found, RefusedFooter,
};
use fonn_proto::WriterId;
use fonn_proto::grpc::v1::{
    self, ColdStatus, Cost, Finding, RequestCost, Segment, SegmentDamage, SegmentEntry, Severity,
    SpillLag, VerifyProgress,
};

use super::news::{Teller, news};
use super::{ColdAdmin, ColdError, ColdLocation, ColdRecord, News, VerifyEvent, namespace_name};

/// Longest record that is read to tell its writer, in bytes.
const RECORD_LEN_MAX: u64 = 1 << 20;

/// S3 Standard in us-east-1, 2026.
const STORAGE_DOLLARS_PER_GB_MONTH: f64 = 0.023;

/// The tier, and what it was opened with.
pub struct TierAdmin {
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

fn record_of(fetched: Fetched) -> Option<ColdRecord> {
    match fetched {
        Fetched::Hit(entry) => Some(ColdRecord {
            writer: WriterId::new(entry.facts.writer),
            flags: entry.facts.flags,
            value_len: entry.value.len() as u64,
        }),
        _ => None,
    }
}

impl From<TierError> for ColdError {
    fn from(error: TierError) -> Self {
        let text = chain(&error);
        match &error {
            TierError::Store(store) if store.kind == StoreErrorKind::NotFound => {
                Self::NotFound("the bucket has no such segment".to_owned())
            }
            TierError::Segment { .. } | TierError::Checkpoint(_) => Self::Damaged(text),
            _ => Self::Unavailable(text),
        }
    }
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
) -> Result<T, ColdError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ColdError::Unavailable("the work panicked; the log has more".to_owned()))
}

fn segment_name(text: &str) -> Result<SegmentName, ColdError> {
    SegmentName::parse_short(text).ok_or_else(|| {
        ColdError::Invalid(format!(
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

impl TierAdmin {
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
}

impl ColdAdmin for TierAdmin {
    fn status(&self) -> BoxFuture<'_, ColdStatus> {
        Box::pin(async {
            let tier = self.tier.clone();
            let known = blocking(move || (tier.status(), tier.is_failing())).await;
            let head = ColdStatus {
                url: self.location.to_string(),
                region: self.region.clone(),
                ..ColdStatus::default()
            };
            match known {
                Err(error) => ColdStatus {
                    trouble: error.to_string(),
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
        })
    }

    fn find(
        &self,
        space: Space,
        key: Vec<u8>,
    ) -> BoxFuture<'_, Result<Option<ColdLocation>, ColdError>> {
        Box::pin(async move {
            let (tier, sought) = (self.tier.clone(), key.clone());
            let look = move || (tier.locate(space.0, &sought), tier.find(space.0, &sought));
            let (located, found) = blocking(look).await?;
            let Some((entry, segment)) = located? else {
                return Ok(None);
            };
            let record = match found {
                Found::At(location) if location.len_bytes() <= RECORD_LEN_MAX => {
                    record_of(self.tier.fetch(space.0, &key, &location).await.0)
                }
                _ => None,
            };
            Ok(Some(ColdLocation {
                // A tombstone that is not in the bucket yet.
                segment: segment.map_or_else(|| "none yet".to_owned(), |name| name.short()),
                offset: entry.offset,
                length: u64::from(entry.len),
                version: entry.at,
                expires_at_ms: entry.expires_at_ms,
                tombstone: entry.tombstone,
                record,
            }))
        })
    }

    fn doctor(&self) -> News<Finding> {
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

    fn segments(
        &self,
        query: v1::ListSegmentsRequest,
    ) -> BoxFuture<'_, Result<v1::ListSegmentsResponse, ColdError>> {
        Box::pin(async move {
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
        })
    }

    fn inspect(
        &self,
        query: v1::InspectSegmentRequest,
    ) -> BoxFuture<'_, Result<v1::InspectSegmentResponse, ColdError>> {
        Box::pin(async move {
            let name = segment_name(&query.name)?;
            let start: usize = match query.page_token.as_str() {
                "" => 0,
                token => token
                    .parse()
                    .map_err(|_| ColdError::Invalid("this is no page token".to_owned()))?,
            };
            let found =
                self.tier
                    .inspect(&name)
                    .await
                    .map_err(|error| match ColdError::from(error) {
                        ColdError::NotFound(_) => ColdError::NotFound(format!(
                            "the bucket has no segment `{}`",
                            name.short()
                        )),
                        other => other,
                    })?;
            let records = found.entries.len();
            let limit = query.page_size as usize;
            let end = start.saturating_add(limit);
            let part = found.entries.into_iter().skip(start).take(limit);
            let entries = part.map(|(entry, current)| SegmentEntry {
                key: entry.key.into_vec(),
                namespace: namespace_name(Space(entry.space)),
                database: Space(entry.space).database().into(),
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
        })
    }

    fn verify(&self, segment: Option<String>) -> News<Result<VerifyEvent, ColdError>> {
        let tier = self.tier.clone();
        news(move |teller| async move {
            if let Err(error) = verify(&tier, segment, &teller).await {
                // The caller may be gone.
                let _ = teller.send(Err(error)).await;
            }
        })
    }

    fn rebuild(&self) -> News<Result<v1::RebuildProgress, ColdError>> {
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
                Err(error) => Err(error.into()),
            };
            let _ = teller.send(end).await;
        })
    }
}

/// Checks one segment, or all.
async fn verify(
    tier: &ColdTier,
    segment: Option<String>,
    teller: &Teller<Result<VerifyEvent, ColdError>>,
) -> Result<(), ColdError> {
    let mut progress = VerifyProgress::default();
    let tell = async |news: VerifyEvent| {
        // The caller is gone: the stream that drives this is dropped too.
        let _ = teller.send(Ok(news)).await;
    };
    let damage = |name: &SegmentName, message: String| {
        VerifyEvent::Damage(SegmentDamage {
            segment: name.short(),
            offset: None,
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
            let compared = tier.compare().await?;
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
        let Some(check) = tier.verify_segment(name).await? else {
            if segment.is_some() {
                let text = format!("the bucket has no segment `{}`", name.short());
                return Err(ColdError::NotFound(text));
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
