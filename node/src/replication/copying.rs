//! How a learner gets pages of slots from their primary, and what becomes of what it had before.

use std::sync::Arc;
use std::time::Duration;

use fonn_base::entry::Space;
use fonn_forward::{Target, envelope};
use fonn_proto::peer::{self, Content, Request, SlotSet};
use fonn_proto::{Failure, Outcome, Version as EntryVersion, placement};
use fonn_replication::{
    Attempt, Body, Epoch, Event as CoreEvent, MemberId, Message, Page, PageRequest, Record, Slot,
    SlotSet as CoreSlots, Version,
};

use super::metrics::Event;
use super::{Entry, Replication, Task, Written};
use crate::engine::{Acks, Engine, Transfer};

/// About how many bytes of entries a page has.
const PAGE_LEN: u32 = 1 << 20;

/// Bytes a second that are copied at most: clients come first.
const RATE: u64 = 64 << 20;

/// How long a page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// From a failed removal of what a slot had to the next try.
const CLEAR_AGAIN: Duration = Duration::from_secs(1);

/// Why a page is not here yet.
const NO_ANSWER: &str = "the member does not answer";
const MALFORMED: &str = "malformed reply";

/// What a member has of some slots and has to remove.
#[derive(Debug)]
pub(super) struct Removal {
    pub(super) slots: CoreSlots,
    /// The highest version that is removed.
    pub(super) up_to: EntryVersion,
    /// The attempt to copy the slots that waits for it.
    pub(super) attempt: Option<Attempt>,
}

impl Replication {
    /// Asks the primary for a page, and passes on what it answers.
    pub(super) async fn ask_page(
        &self,
        engine: &Engine,
        to: MemberId,
        epoch: Epoch,
        request: PageRequest,
    ) {
        match self.fetch_page(engine, to, epoch, request).await {
            Ok(Message {
                body: Body::Page(page),
                ..
            }) => self.tasks.put(Task::Page(to, epoch, page)),
            Ok(message) => self.handle(CoreEvent::Message(message)),
            // The core asks again.
            Err(reason) => {
                tracing::debug!(reason, member = to.0, "no page of the slots to copy yet");
            }
        }
    }

    async fn fetch_page(
        &self,
        engine: &Engine,
        to: MemberId,
        epoch: Epoch,
        request: PageRequest,
    ) -> Result<Message<Entry>, &'static str> {
        let target = self.member(to).ok_or(NO_ANSWER)?;
        let slots = request.slots.iter().map(|slot| slot.0).collect();
        let asked = Request::FetchSlots {
            slots,
            after: request.after.map(|epoch| epoch.0),
            cursor: &request.cursor,
            len_max: PAGE_LEN,
        };
        let envelope = envelope(0, Space::default(), epoch.0);
        let call = target.client.call(&asked, envelope, None, PAGE_TIMEOUT);
        let answer = call.await.map_err(|_| NO_ANSWER)?;
        let told = Epoch(answer.head().envelope.epoch);
        let message = |body| Message {
            from: to,
            epoch: told,
            body,
        };
        if told != epoch {
            return Ok(message(Body::Status));
        }
        let page = match answer.reply() {
            Ok(peer::Reply::Page(page)) => page,
            Ok(peer::Reply::Incomplete(slots)) => {
                let slots = super::follow::core_slots(&slots);
                return Ok(message(Body::Incomplete { request, slots }));
            }
            _ => return Err(MALFORMED),
        };
        let mut records = Vec::new();
        for entry in page.iter() {
            let entry = entry.map_err(|_| MALFORMED)?;
            if let Some(record) = self.record(&target, epoch, &entry).await? {
                records.push(record);
            }
        }
        pace(page.entries.len() as u64).await;
        // Pages leave out what a flush hides at the primary, also one that is not done yet. So the
        // learner has to hide that too, before it is in sync.
        if page.next.is_empty() && !self.learn_flushes(engine, &target, epoch).await {
            return Err("the flushes of the member could not be kept");
        }
        let next = (!page.next.is_empty()).then(|| page.next.into());
        Ok(message(Body::Page(Page {
            request,
            records,
            next,
        })))
    }

    /// A record of a page; a value that is only named is fetched. `None` if there is none any more.
    async fn record(
        &self,
        target: &Target,
        epoch: Epoch,
        entry: &peer::Entry<'_>,
    ) -> Result<Option<Record<Entry>>, &'static str> {
        let space = Space(entry.space);
        let Content::Omitted { len } = entry.content else {
            return Ok(Some(record(epoch, entry)));
        };
        let request = Request::Fetch { key: entry.key };
        let envelope = envelope(placement::slot(entry.key), space, epoch.0);
        let call = target
            .client
            .call(&request, envelope, None, self.owners_wait);
        let answer = call.await.map_err(|_| NO_ANSWER)?;
        pace(len.min(PACED_LEN_MAX)).await;
        match answer.reply() {
            Ok(peer::Reply::Entry(found)) if !matches!(found.content, Content::Omitted { .. }) => {
                Ok(Some(record(epoch, &found)))
            }
            Ok(peer::Reply::Unknown) => Ok(None),
            // Neither when it was named nor now. What is older must not show; in the bucket it is
            // found.
            Ok(peer::Reply::Outcome(Outcome::Failed(Failure::Unavailable))) if len == 0 => {
                let gone = peer::Entry::tombstone(entry.space, entry.key, entry.version);
                Ok(Some(record(epoch, &gone)))
            }
            _ => Err(NO_ANSWER),
        }
    }

    /// Stores the copies of a page; `base` is that of the applied epoch. Without a base, stores
    /// writes of this member once more, so that the log has them behind its newest mark.
    ///
    /// False if one of them could not be stored.
    pub(super) async fn store(
        &self,
        engine: &Engine,
        records: &[Record<Entry>],
        base: Option<EntryVersion>,
    ) -> bool {
        let (mut acks, mut failed, mut reason) = (Acks::default(), 0, String::new());
        for record in records {
            let Written {
                space,
                key,
                transfer,
            } = &*record.entry;
            let entry = transfer.entry(*space, key, usize::MAX);
            // A page may have a live write, which is above the base.
            let kept = match base {
                Some(base) if entry.version < base => {
                    engine.put_copy(&entry, base, &mut acks).await
                }
                _ => engine.put_replicated(&entry, true, &mut acks).await,
            };
            match kept {
                Ok(true) => self.count(Event::Taken),
                Ok(false) => self.count(Event::Known),
                Err(error) => {
                    failed += 1;
                    reason = error.to_string();
                }
            }
        }
        for (_, failure) in acks.wait().await {
            failed += 1;
            reason = format!("{failure:?}");
        }
        if failed > 0 {
            self.events.add(Event::NotTaken, failed);
            tracing::warn!(failed, reason, "copies of another member could not be kept");
        }
        failed == 0
    }

    /// Removes what has to be removed, one after the other: a full copy begins when all earlier
    /// removals of its slots are over.
    pub(super) async fn run_removals(self: Arc<Self>, engine: Arc<Engine>) {
        loop {
            let removal = self.removals.next().await;
            self.clear(&engine, removal).await;
        }
    }

    /// Removes what this member has of some slots up to a version, until that is done.
    async fn clear(&self, engine: &Engine, removal: Removal) {
        let Removal {
            slots,
            up_to,
            attempt,
        } = removal;
        let set: SlotSet = slots.iter().map(|slot| slot.0).collect();
        while let Err(failure) = engine.hide_slots(&set, up_to).await {
            tracing::debug!(?failure, "older copies are not removed yet");
            tokio::time::sleep(CLEAR_AGAIN).await;
        }
        for slot in slots.iter() {
            self.rights.clear_floor(slot.0, up_to);
        }
        if let Some(attempt) = attempt {
            self.handle(CoreEvent::Cleared(attempt));
        }
    }
}

/// A value counts for the pace up to this length: what a member says about it is not to be waited
/// for without bounds.
const PACED_LEN_MAX: u64 = 256 << 20;

fn record(epoch: Epoch, entry: &peer::Entry<'_>) -> Record<Entry> {
    Record {
        slot: Slot(placement::slot(entry.key)),
        version: Version(entry.version),
        epoch,
        entry: Arc::new(Written {
            space: Space(entry.space),
            key: entry.key.into(),
            transfer: Transfer::received(entry),
        }),
    }
}

/// Waits as long as so many bytes may take.
async fn pace(len: u64) {
    let ms = len.saturating_mul(1000) / RATE;
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
