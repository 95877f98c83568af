//! Filling the RAM tier before clients ask (`fonn.v1.Admin/Warm`).

use std::cmp;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fonn_base::entry::Space;
use fonn_cold_tier::ColdError;
use fonn_cold_tier::checkpoint::SegmentState;
use fonn_proto::grpc::v1::{WarmEnd, WarmRequest, WarmResponse};
use futures_util::stream::{self, StreamExt as _};
use tokio::time::Instant;
use tonic::Status;

use super::cold::News;
use super::cold::news::{Teller, news};
use crate::engine::{Engine, Warmed};
use crate::server::Tiers;

/// Bytes of records a second, if the caller does not say.
const BYTES_PER_S: u64 = 128 << 20;

/// Entries that are read at once: few beside what a client's burst is to the disk, enough to make
/// up for the latency of a bucket.
pub(super) const AT_ONCE: usize = 16;

/// Entries of which keys are collected at once.
const PAGE: usize = 256;

/// How often the caller hears of it.
const NEWS_INTERVAL: Duration = Duration::from_millis(200);

/// Entries in a row that could not be read, after which disk or bucket count as out of reach.
const FAILURES_MAX: u64 = 64;

pub(super) type Responses = News<Result<WarmResponse, Status>>;

/// What is to be brought into RAM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    namespace: Option<u32>,
    entries: u64,
    bytes: u64,
    bytes_per_s: u64,
}

impl Wanted {
    pub(super) fn of(request: &WarmRequest, namespace: Option<u32>) -> Self {
        let or = |number, default| if number == 0 { default } else { number };
        Self {
            namespace,
            entries: or(request.newest, u64::MAX),
            bytes: or(request.bytes, u64::MAX),
            bytes_per_s: or(request.bytes_per_s, BYTES_PER_S),
        }
    }
}

/// Begins; the work goes on only while the stream is polled, and ends when it is dropped.
///
/// # Errors
/// FAILED_PRECONDITION without anything that it could be brought from.
pub(super) fn warm(tiers: Arc<Tiers>, wanted: Wanted) -> Result<Responses, Status> {
    if tiers.engine.disk().is_none() {
        return Err(Status::failed_precondition(
            "this node has RAM alone (--data-dir none): there is nothing to warm it from",
        ));
    }
    Ok(news(move |teller| async move {
        let mut work = Work::new(tiers, wanted, teller.clone());
        let last = work.run().await.map(|end| work.told(end));
        // The caller may be gone.
        let _ = teller.send(last).await;
    }))
}

/// An entry that may be brought.
struct Candidate {
    space: Space,
    key: Vec<u8>,
    stored_len: u64,
}

struct Work {
    tiers: Arc<Tiers>,
    engine: Arc<Engine>,
    wanted: Wanted,
    teller: Teller<Result<WarmResponse, Status>>,
    told_at: Instant,
    /// When the next entries may be read.
    due: Instant,
    failures_in_a_row: u64,
    /// RAM has no room for something that was read.
    is_ram_full: bool,
    /// Namespaces whose quota has none.
    full: BTreeSet<u32>,
    so_far: WarmResponse,
}

impl Work {
    fn new(
        tiers: Arc<Tiers>,
        wanted: Wanted,
        teller: Teller<Result<WarmResponse, Status>>,
    ) -> Self {
        let engine = Arc::clone(&tiers.engine);
        // With a bucket below it, most of what is on disk is there too.
        let on_disk = engine.disk().map_or(0, |disk| disk.usage().entries_approx);
        let in_bucket = engine.cold().map_or(0, |cold| cold.tier().entries_approx());
        let room = engine.warm_limit().saturating_sub(engine.ram().used());
        let now = Instant::now();
        Self {
            so_far: WarmResponse {
                entries_max: wanted.entries.min(on_disk.max(in_bucket)),
                bytes_max: wanted.bytes.min(room as u64),
                ..WarmResponse::default()
            },
            tiers,
            engine,
            wanted,
            teller,
            told_at: now,
            due: now,
            failures_in_a_row: 0,
            is_ram_full: false,
            full: BTreeSet::new(),
        }
    }

    fn told(&self, end: WarmEnd) -> WarmResponse {
        WarmResponse {
            end: end.into(),
            ..self.so_far
        }
    }

    async fn run(&mut self) -> Result<WarmEnd, Status> {
        if let Some(end) = self.read_disk().await? {
            return Ok(end);
        }
        if let Some(end) = self.read_bucket().await? {
            return Ok(end);
        }
        Ok(match self.full.is_empty() {
            true => WarmEnd::All,
            false => WarmEnd::RamFull,
        })
    }

    /// Why it ended, if it did.
    async fn read_disk(&mut self) -> Result<Option<WarmEnd>, Status> {
        let Some(disk) = self.engine.disk() else {
            return Ok(None);
        };
        let mut newest = disk.newest_entries(self.wanted.namespace);
        loop {
            let now_ms = self.engine.now_ms();
            let read = tokio::task::spawn_blocking(move || {
                let page = newest.page(PAGE, now_ms);
                (newest, page)
            });
            let (again, page) = read
                .await
                .map_err(|_| Status::internal("reading the index panicked; the log has more"))?;
            newest = again;
            let page = page.map_err(|error| Status::unavailable(error.to_string()))?;
            if page.is_empty() {
                return Ok(None);
            }
            let page = page.into_iter().map(|entry| Candidate {
                space: entry.space,
                key: entry.key,
                stored_len: entry.stored_len,
            });
            if let Some(end) = self.bring(page.collect(), true).await? {
                return Ok(Some(end));
            }
        }
    }

    /// What the disk has is in RAM by now, as far as it shall be.
    async fn read_bucket(&mut self) -> Result<Option<WarmEnd>, Status> {
        let Some(cold) = self.engine.cold() else {
            return Ok(None);
        };
        let tier = cold.tier().clone();
        if !tier.is_ready() {
            return Err(Status::unavailable(
                "the index of the bucket is still loading; try again",
            ));
        }
        let mut segments = tier.list();
        segments.retain(|it| it.live_entries > 0 && !matches!(it.state, SegmentState::Lost { .. }));
        segments.sort_by_key(|it| cmp::Reverse(it.created_ms));
        for segment in segments {
            let footer = match tier.inspect(&segment.name).await {
                Ok(footer) => footer,
                // Collected since.
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(Status::unavailable(error.to_string())),
            };
            let now_ms = self.engine.now_ms();
            let is_wanted = |space: Space| {
                let namespace = self.wanted.namespace;
                namespace.is_none_or(|namespace| space.namespace() == namespace)
            };
            let mut entries: Vec<_> = footer
                .entries
                .into_iter()
                .filter(|(entry, counts)| {
                    let has_expired = entry.expires_at_ms != 0 && entry.expires_at_ms <= now_ms;
                    *counts && !entry.tombstone && !has_expired && is_wanted(Space(entry.space))
                })
                .map(|(entry, _)| entry)
                .collect();
            entries.sort_by_key(|entry| cmp::Reverse(entry.at));
            let entries = entries.into_iter().map(|entry| Candidate {
                space: Space(entry.space),
                stored_len: u64::from(entry.len),
                key: entry.key.into_vec(),
            });
            if let Some(end) = self.bring(entries.collect(), false).await? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Brings entries; what is in RAM already counts if `present_counts`. Why it ended, if it did.
    async fn bring(
        &mut self,
        candidates: Vec<Candidate>,
        present_counts: bool,
    ) -> Result<Option<WarmEnd>, Status> {
        let (tiers, engine) = (Arc::clone(&self.tiers), Arc::clone(&self.engine));
        let mut owned = candidates
            .into_iter()
            .filter(|it| tiers.owns(&it.key))
            .peekable();
        while owned.peek().is_some() {
            // No more at once than may be brought in all.
            let mut batch = Vec::with_capacity(AT_ONCE);
            let mut bytes = 0;
            let mut end = None;
            while batch.len() < AT_ONCE {
                let Some(next) = owned.peek() else { break };
                // It would be read for nothing.
                if self.full.contains(&next.space.namespace()) {
                    owned.next();
                    continue;
                }
                bytes += next.stored_len;
                end = self.end(batch.len() as u64, bytes);
                if end.is_some() {
                    break;
                }
                batch.extend(owned.next());
            }
            if let (true, Some(end)) = (batch.is_empty(), end) {
                return Ok(Some(end));
            }
            let mut outcomes = stream::iter(batch)
                .map(|it| {
                    let engine = Arc::clone(&engine);
                    async move { (engine.warm(it.space, &it.key).await, it) }
                })
                .buffer_unordered(AT_ONCE);
            let mut read = 0;
            while let Some((outcome, candidate)) = outcomes.next().await {
                read += self.count(outcome, &candidate, present_counts);
            }
            if self.is_full() {
                return Ok(Some(WarmEnd::RamFull));
            }
            if self.failures_in_a_row >= FAILURES_MAX {
                return Err(Status::unavailable(
                    "disk or bucket cannot be read; the log has more",
                ));
            }
            self.tell().await;
            self.rest(read).await;
        }
        Ok(None)
    }

    /// Whether it ends before one more entry, besides so many of so many bytes with it, is brought.
    fn end(&self, others: u64, bytes: u64) -> Option<WarmEnd> {
        let so_far = &self.so_far;
        let seen = so_far.from_disk + so_far.from_cold + so_far.present + others;
        if seen >= self.wanted.entries || so_far.bytes + bytes > self.wanted.bytes {
            return Some(WarmEnd::Limit);
        }
        let used = self.engine.ram().used() as u64;
        (used + bytes > self.engine.warm_limit() as u64).then_some(WarmEnd::RamFull)
    }

    /// Whether there is no room in RAM for what is wanted.
    fn is_full(&self) -> bool {
        let namespace = self.wanted.namespace;
        self.is_ram_full || namespace.is_some_and(|namespace| self.full.contains(&namespace))
    }

    /// Notes what came of an entry; returns how many bytes were read for it.
    fn count(&mut self, outcome: Warmed, candidate: &Candidate, present_counts: bool) -> u64 {
        let len = candidate.stored_len;
        let so_far = &mut self.so_far;
        match outcome {
            Warmed::Failed => {
                so_far.failed += 1;
                self.failures_in_a_row += 1;
                return len;
            }
            Warmed::Present => {
                so_far.present += u64::from(present_counts);
                return 0;
            }
            Warmed::Nothing => return len,
            Warmed::RamFull => {
                self.is_ram_full = true;
                return len;
            }
            Warmed::QuotaFull => {
                self.full.insert(candidate.space.namespace());
                return len;
            }
            Warmed::FromDisk => so_far.from_disk += 1,
            Warmed::FromCold => so_far.from_cold += 1,
        }
        self.failures_in_a_row = 0;
        so_far.bytes += len;
        len
    }

    async fn tell(&mut self) {
        if self.told_at.elapsed() >= NEWS_INTERVAL {
            self.told_at = Instant::now();
            // The caller is gone: the stream that drives this is dropped too.
            let _ = self.teller.send(Ok(self.so_far)).await;
        }
    }

    /// Waits as long as `bytes` are worth. What is slower than that may not be made up for later.
    async fn rest(&mut self, bytes: u64) {
        let worth = Duration::from_secs_f64(bytes as f64 / self.wanted.bytes_per_s as f64);
        let due = self.due.max(Instant::now()) + worth;
        self.due = due;
        if worth.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep_until(due).await;
        }
    }
}

fn is_gone(error: &ColdError) -> bool {
    matches!(error, ColdError::Store(store) if store.kind == fonn_cold_tier::StoreErrorKind::NotFound)
}
