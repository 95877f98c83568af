//! The keys of some slots, in pages: all of them, or those that have changed since a mark.

use fonn_base::entry::Space;
use fonn_proto::peer::SlotSet;
use fonn_proto::placement;

use super::error::DiskError;
use super::mark::{self, Mark};
use super::reader::Merged;
use super::record::ERASED;
use super::{DiskTier, Shared};

/// How many keys a step of a scan reads. A point read waits for one step of a scan at most.
const STEP_KEYS: usize = 16 * 1024;

/// The most bytes that a record counts for. Longer values are not copied with the page of a key.
const COUNTED_LEN_MAX: usize = 64 * 1024;

/// Where a page of keys ends, whichever is reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Keys.
    pub keys: usize,
    /// Bytes of the keys and their records, where a record counts for 64 KiB at most. One key is
    /// always taken.
    pub bytes: usize,
}

/// Keys of some slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotPage {
    /// The keys found.
    pub keys: Vec<(Space, Vec<u8>)>,
    /// The last key that was looked at, to go on behind; None at the end.
    pub last: Option<(Space, Vec<u8>)>,
}

impl DiskTier {
    /// Keys of entries and tombstones of all spaces whose slot is in `slots`, from behind `after`
    /// on, in the order of spaces and keys. With `since`, only keys whose newest record is behind
    /// the mark, and perhaps more; older generations are not read then. Looks at a bounded number
    /// of keys; see [`SlotPage`]. Keys that are written during the scan may be missing.
    ///
    /// # Errors
    /// As [`DiskTier::page`]; [`DiskError::FeedLost`] if the log misses changes since the mark. A
    /// caller that reads the values of a page asks [`DiskTier::holds`] afterwards: a generation may
    /// have been dropped in between.
    pub async fn scan_slots(
        &self,
        slots: &SlotSet,
        since: Option<Mark>,
        after: Option<(Space, Vec<u8>)>,
        limits: SlotLimits,
    ) -> Result<SlotPage, DiskError> {
        let slots = slots.clone();
        self.read(move |shared| step(shared, &slots, since.as_ref(), after, limits))
            .await
    }
}

/// One step of a scan: walks over the keys of all spaces, and keeps those of some slots.
fn step(
    shared: &Shared,
    slots: &SlotSet,
    since: Option<&Mark>,
    after: Option<(Space, Vec<u8>)>,
    limits: SlotLimits,
) -> Result<SlotPage, DiskError> {
    let generations = shared.generations.snapshot();
    let (count, offset) = match since {
        Some(mark) => mark::begin(shared, &generations, mark).ok_or(DiskError::FeedLost)?,
        None => (generations.len(), 0),
    };
    let generations = generations.get(..count).unwrap_or(&generations);
    // The oldest that is read: in it, what lies before the offset is before the mark.
    let oldest = generations.last().map(|oldest| oldest.id);
    let space = after.as_ref().map_or(Space::default(), |after| after.0);
    let key = after.as_ref().map(|after| &*after.1);
    let mut merged = Merged::open(generations, space, key)?;
    let mut page = SlotPage::default();
    let mut bytes = 0;
    for _ in 0..STEP_KEYS {
        let Some(met) = merged.next()? else {
            return Ok(SlotPage { last: None, ..page });
        };
        let is_before = Some(met.generation) == oldest && met.entry.offset < offset;
        let is_erased = met.entry.fact.version() == ERASED;
        let last = (met.space, met.key);
        if !is_before && !is_erased && slots.contains(placement::slot(&last.1)) {
            let record_len = usize::try_from(met.entry.record_len).unwrap_or(usize::MAX);
            bytes += last.1.len() + record_len.min(COUNTED_LEN_MAX);
            page.keys.push(last.clone());
        }
        page.last = Some(last);
        if page.keys.len() >= limits.keys || bytes >= limits.bytes {
            break;
        }
    }
    Ok(page)
}
