//! Walks over the indexes for clients: pages of keys, and counts.
//!
//! They have a thread of their own, so that no get waits behind them. One step is bounded in
//! records, and a page in keys and their bytes too. Between steps a walk ends if its caller has
//! gone.

use fonn_base::entry::{Meta, Space};
use fonn_proto::placement::{self, SLOT_COUNT};

use super::error::DiskError;
use super::generations::Snapshot;
use super::reader::{self, Merged, Met};
use super::record::Fact;
use super::{DiskTier, Shared};

/// Steps of walks that may wait.
pub(crate) const WALKS_MAX: usize = 256;

/// The most records that one step reads, tombstones included. Unit tests have a smaller limit,
/// because they write the records one by one.
pub(crate) const STEP_RECORDS: usize = if cfg!(test) { 64 } else { 8192 };

/// Bytes of keys that one step of a count reads.
const STEP_KEY_BYTES: u64 = 4 << 20;

/// Where a page ends, whichever is reached first; after [`STEP_RECORDS`] records in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimits {
    /// Keys.
    pub keys: usize,
    /// Bytes of keys. One key is always taken.
    pub key_bytes: usize,
}

/// Entries of a space, in the order of their index keys: keys in order, but long ones by their
/// beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// Their keys, and the facts about them.
    pub entries: Vec<(Vec<u8>, Meta)>,
    /// The last key that was looked at, to go on behind; None at the end of the space.
    pub last: Option<Vec<u8>>,
}

/// Where a count ends, whichever is reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountLimits {
    /// Records, tombstones included.
    pub records: u64,
    /// Bytes of their keys.
    pub key_bytes: u64,
}

/// The live entries of a space, as far as they were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceCount {
    /// Entries that have neither expired nor been flushed.
    pub entries: u64,
    /// The same by slot, if that was asked for.
    pub by_slot: Option<Vec<u32>>,
    /// Records that were looked at, tombstones included.
    pub records: u64,
    /// Bytes of their keys.
    pub key_bytes: u64,
    /// Whether there are no more.
    pub is_whole: bool,
}

/// A step of a count: what there is so far, and the key to go on behind.
type CountStep = (SpaceCount, Option<Vec<u8>>);

/// Body of the thread that walks.
pub(crate) fn run(shared: &Shared) {
    // A walk takes a processor for a second. What others read and write goes first.
    super::stand_back(super::UPKEEP_NICENESS);
    reader::run(shared, || shared.walks.take(&shared.stats));
}

/// Merges the indexes: the newest record of each key counts.
fn page(
    generations: &Snapshot,
    space: Space,
    after: Option<Vec<u8>>,
    limits: PageLimits,
) -> Result<KeyPage, DiskError> {
    let mut merged = Merged::open(generations, space, after.as_deref())?;
    let mut page = KeyPage::default();
    let mut key_bytes = 0;
    for _ in 0..STEP_RECORDS {
        let met = merged.next()?.filter(|met| met.space == space);
        let Some(Met { key, entry, .. }) = met else {
            return Ok(KeyPage { last: None, ..page });
        };
        page.last = Some(key.clone());
        if let Fact::Put(meta) = entry.fact {
            key_bytes += key.len();
            page.entries.push((key, meta));
        }
        if page.entries.len() >= limits.keys || key_bytes >= limits.key_bytes {
            break;
        }
    }
    Ok(page)
}

/// Goes on with a count.
fn count_on(
    shared: &Shared,
    space: Space,
    (mut count, after): CountStep,
    now_ms: u64,
) -> Result<CountStep, DiskError> {
    let generations = shared.generations.snapshot();
    let state = shared.state();
    let mut merged = Merged::open(&generations, space, after.as_deref())?;
    let mut last = None;
    let key_bytes_max = count.key_bytes + STEP_KEY_BYTES;
    for _ in 0..STEP_RECORDS {
        let met = merged.next()?.filter(|met| met.space == space);
        let Some(Met { key, entry, .. }) = met else {
            count.is_whole = true;
            return Ok((count, None));
        };
        count.records += 1;
        count.key_bytes += key.len() as u64;
        if let Fact::Put(meta) = entry.fact
            && !meta.is_expired(now_ms)
            && !state.is_hidden(space, &meta, now_ms)
        {
            count.entries += 1;
            let slots = count.by_slot.as_mut();
            if let Some(slot) = slots.and_then(|it| it.get_mut(usize::from(placement::slot(&key))))
            {
                *slot += 1;
            }
        }
        last = Some(key);
        if count.key_bytes >= key_bytes_max {
            break;
        }
    }
    Ok((count, last))
}

impl SpaceCount {
    /// Nothing counted yet.
    #[must_use]
    pub fn begin(by_slot: bool) -> Self {
        Self {
            by_slot: by_slot.then(|| vec![0; usize::from(SLOT_COUNT)]),
            ..Self::default()
        }
    }

    /// Whether a count ends here.
    #[must_use]
    pub fn has_reached(&self, limits: CountLimits) -> bool {
        self.is_whole || self.records >= limits.records || self.key_bytes >= limits.key_bytes
    }
}

impl DiskTier {
    /// Entries of a space, in the order of [`KeyPage`], from behind `after` on, as many as `limits`
    /// allow. No values are read.
    ///
    /// # Errors
    /// As [`DiskTier::find`], and [`DiskError::Index`] if an index cannot be read.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing; a page that was not begun is not read.
    pub async fn page(
        &self,
        space: Space,
        after: Option<Vec<u8>>,
        limits: PageLimits,
    ) -> Result<KeyPage, DiskError> {
        let step =
            move |shared: &Shared| page(&shared.generations.snapshot(), space, after, limits);
        self.ask(&self.handle.shared.walks, step).await
    }

    /// Counts the live entries of a space in bounded steps, up to `limits` and while `goes_on` says
    /// so.
    ///
    /// # Errors
    /// As [`DiskTier::page`].
    ///
    /// # Cancel safety
    /// As [`DiskTier::page`]: the count ends with the step that is under way.
    pub async fn count(
        &self,
        space: Space,
        by_slot: bool,
        limits: CountLimits,
        now_ms: u64,
        goes_on: impl Fn() -> bool,
    ) -> Result<SpaceCount, DiskError> {
        let mut count = SpaceCount::begin(by_slot);
        let mut after = None;
        while !count.has_reached(limits) && goes_on() {
            let begun = (std::mem::take(&mut count), after);
            let step = move |shared: &Shared| count_on(shared, space, begun, now_ms);
            (count, after) = self.ask(&self.handle.shared.walks, step).await?;
        }
        Ok(count)
    }
}
