//! What other members ask of this member: to take writes, and for pages of slots.

use fonn_proto::peer::{Entry as PeerEntry, SlotSet};
use fonn_proto::placement;
use fonn_replication::{
    Attempt, Body, Command as CoreCommand, Epoch, Event as CoreEvent, Message, Page, PageRequest,
};

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
        let request = PageRequest {
            attempt: Attempt::default(),
            slots: super::follow::core_slots(slots),
            after: after.map(Epoch),
            cursor: cursor.into(),
        };
        let is_hidden = |slot: u16| slots.contains(slot) && self.rights.floor(slot).is_some();
        if (0..placement::SLOT_COUNT).any(is_hidden) {
            // What is hidden is not removed yet. The learner asks again.
            return Ok(PageAnswer::NotPrimary);
        }
        let epoch = Epoch(self.epoch());
        // The answer goes to the connection that asked, whichever member that is.
        let me = self.me();
        let asked = CoreEvent::Message(Message {
            from: me,
            epoch,
            body: Body::PageRequest(request.clone()),
        });
        if let Some(answer) = self.refusal(self.decide(asked)) {
            return Ok(answer);
        }
        let read = match after.map(|after| self.mark_after(Epoch(after))) {
            None => engine
                .fetch_slots(slots, cursor, len_max)
                .await
                .map_err(FeedError::from),
            Some(Some(mark)) => engine.fetch_slots_since(slots, mark, cursor, len_max).await,
            Some(None) => Err(FeedError::Lost),
        };
        let entries = match read {
            Ok(entries) => entries,
            Err(FeedError::Failed(error)) => return Err(error),
            Err(FeedError::Lost | FeedError::NoLog) => {
                return Ok(PageAnswer::Incomplete(slots.clone()));
            }
        };
        // The log may have lost changes meanwhile, or another member may lead the slots.
        let read = CoreEvent::PageRead {
            to: me,
            page: Page {
                request,
                records: Vec::new(),
                next: None,
            },
        };
        let answer = self.refusal(self.decide(read));
        Ok(answer.unwrap_or(PageAnswer::Page(entries)))
    }

    /// What the core says against a page, if anything.
    fn refusal(&self, commands: Vec<CoreCommand<super::Entry>>) -> Option<PageAnswer> {
        match commands.into_iter().next() {
            Some(CoreCommand::ReadPage { .. }) => None,
            Some(CoreCommand::Send(_, message)) => match message.body {
                Body::Incomplete { slots, .. } => {
                    let slots = slots.iter().map(|slot| slot.0).collect();
                    Some(PageAnswer::Incomplete(slots))
                }
                _ => None,
            },
            _ => Some(PageAnswer::NotPrimary),
        }
    }
}
