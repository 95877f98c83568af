//! Reports of reads from the bucket, for the collecting node: with a budget, the least read
//! segments go first, wherever they are read.
//!
//! A node reports the last reads that it knows of, at most once in each interval between
//! collections, and only after reads. The collecting node reads the reports when the budget is
//! exceeded: one list, and a request for each changed object.

use std::collections::HashMap;

use tokio::time::{Duration, Instant};

use crate::error::ColdError;
use crate::names::{READS, WriterId, parse_reads_key};
use crate::reads::{self, LEN_MAX};
use crate::shared::Shared;
use crate::store::{Body, ObjectKey, StoreErrorKind};

/// What was told so long ago, in milliseconds, is of a node that is gone: it counts in the index,
/// and is deleted.
const AGE_MAX_MS: u64 = 86_400_000;

/// What was told and heard.
#[derive(Debug)]
pub(super) struct News {
    told_at: Option<Instant>,
    /// The time of the last read that was told, or before this run.
    told_ms: u64,
    /// Objects as they were when they were read: size and time.
    heard: HashMap<ObjectKey, (u64, u64)>,
}

impl News {
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            told_at: None,
            told_ms: now_ms,
            heard: HashMap::new(),
        }
    }

    /// Tells what was read, if anything is new and the last time is `interval` ago. A node that may
    /// not, or cannot, reads and collects all the same.
    pub(super) async fn tell(&mut self, shared: &Shared, me: WriterId, interval: Duration) {
        // Rounds that only make room come often.
        let is_fresh = |at: Instant| at.elapsed() < interval / 2;
        if shared.budget.lock().is_none() || self.told_at.is_some_and(is_fresh) {
            return;
        }
        let (last_ms, text) = {
            // Times that lie ahead of this clock must not keep later reads from being told.
            let now_ms = shared.wall_ms();
            let table = shared.index.table();
            let last_ms = table.reads().map(|(_, ms)| ms.min(now_ms)).max();
            let last_ms = last_ms.unwrap_or(0);
            if last_ms <= self.told_ms {
                return;
            }
            let reads = table.reads().map(|(name, ms)| (name.clone(), ms));
            (last_ms, reads::compose(reads.collect()))
        };
        self.told_at = Some(Instant::now());
        let key = shared.options.region.reads_key(me);
        let body = Body::from(text.into_bytes());
        match shared.bucket().put(&key, body).await {
            Ok(()) => self.told_ms = last_ms,
            Err(error) => tracing::debug!(%error, "what was read cannot be told"),
        }
    }

    /// Hears what others have read, as far as it is new.
    pub(super) async fn hear(&mut self, shared: &Shared, me: WriterId) {
        if let Err(error) = self.try_hear(shared, me).await {
            tracing::warn!(%error, "what other nodes have read is not known: segments are given up by what was read here");
        }
    }

    async fn try_hear(&mut self, shared: &Shared, me: WriterId) -> Result<(), ColdError> {
        let objects = shared.list_all(READS, Some).await?;
        let own = shared.options.region.reads_key(me);
        let now_ms = shared.wall_ms();
        for object in &objects {
            let as_it_is = (object.size_bytes, object.modified_ms);
            let is_heard = self.heard.get(&object.key) == Some(&as_it_is);
            let Some(region) = parse_reads_key(object.key.as_str()).filter(|_| object.key != own)
            else {
                continue;
            };
            if !is_heard && object.size_bytes <= LEN_MAX {
                hear_one(shared, &object.key, now_ms).await?;
                self.heard.insert(object.key.clone(), as_it_is);
            }
            let is_old = object.modified_ms.saturating_add(AGE_MAX_MS) < now_ms;
            if is_old && region == shared.options.region {
                shared.bucket().delete(&object.key).await?;
            }
        }
        let is_there = |key: &ObjectKey| objects.iter().any(|object| object.key == *key);
        self.heard.retain(|key, _| is_there(key));
        Ok(())
    }
}

async fn hear_one(shared: &Shared, key: &ObjectKey, now_ms: u64) -> Result<(), ColdError> {
    let bytes = match shared.bucket().get(key).await {
        Ok(bytes) => bytes,
        // Deleted since it was listed.
        Err(error) if error.kind == StoreErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let Some(told) = reads::parse(&bytes) else {
        tracing::debug!(%key, "a node's report of its reads is malformed");
        return Ok(());
    };
    let table = shared.index.table();
    for (name, ms) in told {
        if let Some(id) = table.number(&name) {
            // A clock that is ahead must not keep a segment for ever.
            table.note_read(id, ms.min(now_ms));
        }
    }
    Ok(())
}
