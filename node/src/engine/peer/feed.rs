//! Pages of the entries of some slots: all of them, or what has changed since a mark.

use fonn_base::entry::Space;
use fonn_disk_tier::{DiskError, DiskTier, Mark, SlotPage};
use fonn_proto::Failure;
use fonn_proto::peer::SlotSet;
use thiserror::Error;

use super::{BAD_CURSOR, PAGE_KEYS_MAX, PutError, SlotEntries, position};
use crate::engine::Engine;

/// Why there is no feed of changes.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FeedError {
    /// There is no disk tier, and so no log.
    #[error("a member without a disk tier has no change feed: copy the slots in full")]
    NoLog,
    /// The log does not have all changes since the mark.
    #[error("the log lost changes since the mark: copy the slots in full")]
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
    /// and one that is taken after the call returns is behind it. See [`DiskTier::mark`].
    ///
    /// # Errors
    /// [`FeedError::NoLog`] without a disk tier, [`FeedError::Failed`] if the log cannot be synced.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn mark(&self) -> Result<Mark, FeedError> {
        let disk = self.disk.as_ref().ok_or(FeedError::NoLog)?;
        Ok(disk.mark().await?)
    }

    /// Whether a feed since the mark is complete, as far as it is known now.
    #[must_use]
    pub fn holds(&self, mark: &Mark) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.holds(mark))
    }

    /// Entries and tombstones of some slots, about `len_max` bytes of them, from `cursor` on, which
    /// is empty or what the last page said. Entries that are written meanwhile may be missed. With
    /// a disk, those that are in the bucket alone are not among them: every member has its index.
    /// An entry that cannot be read now is named, without its value.
    ///
    /// # Errors
    /// If the disk cannot be read or the cursor is none of ours.
    pub async fn fetch_slots(
        &self,
        slots: &SlotSet,
        cursor: &[u8],
        len_max: usize,
    ) -> Result<SlotEntries, PutError> {
        let Some(disk) = &self.disk else {
            let mut page = SlotEntries::default();
            self.add_from_ram(&mut page, slots, cursor, len_max).await?;
            return Ok(page);
        };
        let page = self.disk_page(disk, slots, None, (cursor, len_max)).await;
        page.map_err(|error| match error {
            FeedError::Failed(error) => error,
            FeedError::NoLog | FeedError::Lost => Failure::Unavailable.into(),
        })
    }

    /// As [`Engine::fetch_slots`], but only keys whose newest record was taken behind the mark, and
    /// perhaps more. The pages of a feed are complete if the last one arrives.
    ///
    /// The feed knows nothing of what [`Engine::hide_slots`] hid: a caller that hid a slot refuses
    /// older marks of it.
    ///
    /// # Errors
    /// [`FeedError::NoLog`] and [`FeedError::Lost`]: the caller copies the slots in full. Else as
    /// [`Engine::fetch_slots`].
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn fetch_slots_since(
        &self,
        slots: &SlotSet,
        since: Mark,
        cursor: &[u8],
        len_max: usize,
    ) -> Result<SlotEntries, FeedError> {
        let disk = self.disk.as_ref().ok_or(FeedError::NoLog)?;
        let place = (cursor, len_max);
        let page = self.disk_page(disk, slots, Some(since), place).await?;
        // A key may have been dropped between the scan and the read of its value.
        if disk.holds(&since) {
            Ok(page)
        } else {
            Err(FeedError::Lost)
        }
    }

    async fn disk_page(
        &self,
        disk: &DiskTier,
        slots: &SlotSet,
        since: Option<Mark>,
        (cursor, len_max): (&[u8], usize),
    ) -> Result<SlotEntries, FeedError> {
        let mut page = SlotEntries::default();
        let after = match cursor.split_first_chunk::<2>() {
            Some((space, key)) => Some((Space(u16::from_be_bytes(*space)), key.to_vec())),
            None if cursor.is_empty() => {
                // What is in RAM only is on disk then.
                disk.barrier().await;
                None
            }
            None => return Err(BAD_CURSOR.into()),
        };
        let found = disk.scan_slots(slots, since, after, PAGE_KEYS_MAX).await?;
        let SlotPage { keys, last } = found;
        page.next = last.map_or_else(Vec::new, |(space, key)| position(space, &key));
        for (space, key) in keys {
            self.add_to(&mut page, space, &key).await?;
            if page.entries.len() >= len_max {
                page.next = position(space, &key);
                break;
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests;
