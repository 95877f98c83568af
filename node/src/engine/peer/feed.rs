//! Pages of the entries of some slots: all of them, or what has changed since a mark.

use fonn_base::entry::Space;
use fonn_disk_tier::{DiskError, Mark, SlotLimits, SlotPage};
use fonn_proto::Failure;
use fonn_proto::peer::SlotSet;
use thiserror::Error;

use super::{BAD_CURSOR, PAGE_KEYS_MAX, PutError, SlotEntries, position};
use crate::engine::Engine;

/// Why there is no page.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FeedError {
    /// The log does not have all changes since the mark. Without a disk tier there is no log.
    #[error("the log does not have all changes since the mark: copy the slots in full")]
    Lost,
    /// The page cannot be read.
    #[error("the page cannot be read")]
    Failed(#[from] PutError),
}

impl From<Failure> for FeedError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.into())
    }
}

impl From<DiskError> for FeedError {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::FeedLost => Self::Lost,
            error => failure_of(&error).into(),
        }
    }
}

/// Why a page of the disk cannot be read.
pub(super) fn failure_of(error: &DiskError) -> Failure {
    tracing::warn!(%error, "the iteration over the disk failed");
    match error {
        DiskError::Busy => Failure::Busy,
        _ => Failure::Unavailable,
    }
}

impl Engine {
    /// Marks the present end of the log: a write that was taken before the call is before the mark,
    /// and one that is taken after the call returns is behind it. See
    /// [`DiskTier::mark`](fonn_disk_tier::DiskTier::mark).
    ///
    /// # Errors
    /// [`FeedError::Lost`] without a disk tier, [`FeedError::Failed`] if the log cannot be synced.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn mark(&self) -> Result<Mark, FeedError> {
        let disk = self.disk.as_ref().ok_or(FeedError::Lost)?;
        Ok(disk.mark().await?)
    }

    /// Entries and tombstones of some slots, about `len_max` bytes of them, from `cursor` on, which
    /// is empty or what the last page said. Entries that are written meanwhile may be missed. With
    /// a disk, those that are in the bucket alone are not among them: every member has its index.
    /// An entry that cannot be read now is named, without its value.
    ///
    /// With a mark it is a feed: only keys whose newest record was taken behind the mark, and
    /// perhaps more. The pages of a feed are complete if the last one arrives. The feed knows
    /// nothing of what [`Engine::hide_slots`] hid: a caller that hid a slot refuses older marks of
    /// it.
    ///
    /// # Errors
    /// [`FeedError::Lost`] with a mark: the caller copies the slots in full. Else if the disk
    /// cannot be read or the cursor is none of ours.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn fetch_slots(
        &self,
        slots: &SlotSet,
        since: Option<Mark>,
        cursor: &[u8],
        len_max: usize,
    ) -> Result<SlotEntries, FeedError> {
        let mut page = SlotEntries::default();
        let Some(disk) = &self.disk else {
            if since.is_some() {
                return Err(FeedError::Lost);
            }
            self.add_from_ram(&mut page, slots, cursor, len_max).await?;
            return Ok(page);
        };
        let after = match cursor.split_first_chunk::<4>() {
            Some((space, key)) => Some((Space(u32::from_be_bytes(*space)), key.to_vec())),
            None if cursor.is_empty() => {
                // What is in RAM only is on disk then.
                disk.barrier().await;
                None
            }
            None => return Err(BAD_CURSOR.into()),
        };
        let limits = SlotLimits {
            keys: PAGE_KEYS_MAX,
            bytes: len_max,
        };
        let found = disk.scan_slots(slots, since, after, limits).await?;
        let SlotPage { keys, last } = found;
        page.next = last.map_or_else(Vec::new, |(space, key)| position(space, &key));
        for (space, key) in keys {
            self.add_to(&mut page, space, &key).await?;
            if page.entries.len() >= len_max {
                page.next = position(space, &key);
                break;
            }
        }
        match since {
            // A key was dropped between the scan and the read of its value.
            Some(mark) if !disk.holds(&mark) => Err(FeedError::Lost),
            _ => Ok(page),
        }
    }
}

#[cfg(test)]
mod tests;
