//! What other members ask of this member: to take writes, and for pages of slots.

use fonn_proto::peer::{Entry as PeerEntry, SlotSet};
use fonn_proto::placement;
use fonn_replication::{Epoch, SlotSet as CoreSlots};

use super::Replication;
use crate::engine::{Acks, Engine, FeedError, PutError, SlotEntries};

/// What a member is answered that asks for a page.
pub(crate) enum PageAnswer {
    /// The page.
    Page(SlotEntries),
    /// These slots have to be copied in full.
    Incomplete(SlotSet),
    /// This member does not lead all of the slots.
    NotPrimary,
}

impl Replication {
    /// Takes a write of the primary. `None` if this member is neither an owner nor a learner of the
    /// slot. The caller has checked that both have applied one epoch. False if the write is not
    /// newer than what is here.
    ///
    /// # Errors
    /// If it cannot be kept.
    pub async fn take(
        &self,
        engine: &Engine,
        entry: &PeerEntry<'_>,
        again: bool,
        acks: &mut Acks,
    ) -> Option<Result<bool, PutError>> {
        let slot = placement::slot(entry.key);
        if !self.rights.takes(slot) {
            return None;
        }
        Some(engine.put_replicated(entry, again, acks).await)
    }

    /// As [`Self::take`] for a write that comes for the first time, if it is newer than what is
    /// here and nothing has to be waited for. False otherwise: nothing was done then.
    pub fn take_at_once(&self, engine: &Engine, entry: &PeerEntry<'_>, acks: &mut Acks) -> bool {
        self.rights.takes(placement::slot(entry.key)) && engine.put_at_once(entry, acks)
    }

    /// Reads a page of some slots of which this member is the primary: all there is, or what was
    /// written after an epoch.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn page(
        &self,
        engine: &Engine,
        slots: &SlotSet,
        after: Option<u64>,
        (cursor, len_max): (&[u8], usize),
    ) -> Result<PageAnswer, PutError> {
        let is_hidden = |slot: u16| slots.contains(slot) && self.rights.floor(slot).is_some();
        if (0..placement::SLOT_COUNT).any(is_hidden) {
            // What is hidden is not removed yet. The learner asks again.
            return Ok(PageAnswer::NotPrimary);
        }
        let (asked, after) = (super::follow::core_slots(slots), after.map(Epoch));
        if let Some(answer) = self.refusal(&asked, after) {
            return Ok(answer);
        }
        let read = match after.map(|after| self.mark_after(after)) {
            Some(None) => Err(FeedError::Lost),
            since => {
                let since = since.flatten();
                engine.fetch_slots(slots, since, cursor, len_max).await
            }
        };
        let entries = match read {
            Ok(entries) => entries,
            Err(FeedError::Failed(error)) => return Err(error),
            Err(FeedError::Lost) => return Ok(PageAnswer::Incomplete(slots.clone())),
        };
        // The log may have lost changes meanwhile, or another member may lead the slots.
        let answer = self.refusal(&asked, after);
        Ok(answer.unwrap_or(PageAnswer::Page(entries)))
    }

    /// What the core says against a page, if anything.
    fn refusal(&self, slots: &CoreSlots, after: Option<Epoch>) -> Option<PageAnswer> {
        let cell = self.core.lock();
        let core = cell.core.as_ref().filter(|_| !cell.is_applying);
        match core.and_then(|core| core.incomplete(slots, after)) {
            None => Some(PageAnswer::NotPrimary),
            Some(slots) if slots.is_empty() => None,
            Some(slots) => {
                let slots = slots.iter().map(|slot| slot.0).collect();
                Some(PageAnswer::Incomplete(slots))
            }
        }
    }
}
