//! Taking slots over in the background: all that their sources know, page by page.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fonn_base::entry::Space;
use fonn_base::random::SplitMix64;
use fonn_forward::{MemberState, Target, envelope};
use fonn_proto::Version;
use fonn_proto::peer::{Content, Entry, Reply, Request, SlotSet};
use fonn_proto::placement::{self, SLOT_COUNT};
use thiserror::Error;

use super::holdings::{Holding, Part, Source};
use super::{Sharing, Told, Unconfirmed};
use crate::engine::{Acks, Engine};

/// Bytes of entries that one page has, about.
const PAGE_LEN: u32 = 1 << 20;

/// Bytes a second that are taken over at most: clients come first.
pub(super) const RATE: u64 = 64 << 20;

/// How long a page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Until a source is asked again that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Until owners are asked again which have not taken over yet what is left here.
const LEAVE_AGAIN: Duration = Duration::from_secs(10);

/// Bytes of own copies that are looked over at a time.
const OWN_PAGE_LEN: usize = 256 << 10;

/// Why slots are not here yet.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
enum HandoverError {
    #[error("the member does not answer")]
    Silent,
    #[error("malformed reply")]
    Malformed,
    #[error("what it sent could not be kept")]
    NotKept,
}

impl From<Unconfirmed> for HandoverError {
    fn from(why: Unconfirmed) -> Self {
        match why {
            Unconfirmed::Silent => Self::Silent,
            Unconfirmed::Kept(_) => Self::NotKept,
        }
    }
}

/// Takes over what the maps give to this member, for ever.
pub async fn run(sharing: Arc<Sharing>, engine: Arc<Engine>) {
    let mut changes = sharing.changes.subscribe();
    loop {
        let generation = *changes.borrow_and_update();
        let mut is_left = false;
        // A source of its sources becomes one here: they are gone through in this round
        // too.
        for (source, _) in sharing.unsettled(|_, it, of| it.part != Part::None && !of.is_asked) {
            if let Some(target) = sharing.forwarder.upstreams().member(&source) {
                is_left |= !sharing.resolve(&engine, &source, &target).await;
            }
        }
        let is_wanted = |_, it: &Holding, _: &Source| it.part != Part::None;
        for (source, slots) in sharing.unsettled(is_wanted) {
            let count = slots.len();
            let Some(target) = sharing.forwarder.upstreams().member(&source) else {
                // It is gone: what is here is all there is.
                sharing.settle(&slots, &source, generation).await;
                continue;
            };
            let taken = match sharing.resolve(&engine, &source, &target).await {
                true => sharing.take_over(&engine, &target, &slots).await,
                false => Err(HandoverError::Silent),
            };
            match taken {
                Ok(taken) => {
                    tracing::info!(%source, slots = count, bytes = taken, "slots taken over");
                    sharing.settle(&slots, &source, generation).await;
                }
                Err(error) => {
                    tracing::debug!(%source, slots = count, %error, "slots are not taken over yet");
                    is_left = true;
                }
            }
        }
        is_left |= !sharing.unsettled(is_wanted).is_empty();
        is_left |= !sharing.learn_all_flushes(&engine, generation).await;
        if is_left {
            // A map that changed meanwhile is looked at as well.
            let _ = tokio::time::timeout(AGAIN, changes.changed()).await;
            continue;
        }
        sharing.know_all_flushes(generation);
        sharing.note_all(generation).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = sharing.leave_all_behind(generation) => {}
        }
    }
}

/// What a member says of the sources of slots.
pub(super) struct ToldSources {
    /// Of the map that it goes by.
    pub(super) epoch: u64,
    pub(super) sources: Vec<(Arc<str>, SlotSet)>,
}

impl Sharing {
    /// Slots of which their owners may lack something that the member of that name has, by the map
    /// of `epoch` or a later one: by an older map they may not need it yet. A member that had a
    /// slot and would have had to ask it names it to the owner, so that counts as well. Owners that
    /// are down are not asked, since they may never return; one that does shows nothing older than
    /// what it lacks ([`super::missing`]). While a member is down, what others would name is kept
    /// for that member, and does not count.
    ///
    /// # Errors
    /// The name of a member that does not say, or does not go by that map yet.
    pub async fn needed_from(&self, id: &str, epoch: u64) -> Result<u32, String> {
        if self.epoch() < epoch {
            return Err(self.own.to_string());
        }
        let topology = self.topology();
        let members = topology.as_deref().map_or(&[][..], |it| it.members());
        let is_owned = members.iter().any(|it| it.state == MemberState::Down);
        let is_meant =
            |_, it: &Holding, of: &Source| (!is_owned || it.part != Part::None) && *of.id == *id;
        let mut needed = self.unsettled(is_meant).remove(id).unwrap_or_default();
        for member in members.iter().filter(|it| it.id != id && it.id != self.own) {
            let Some(target) = self.forwarder.upstreams().member(&member.id) else {
                continue;
            };
            let told = self
                .sources_at(&target, &SlotSet::all(), is_owned, epoch)
                .await;
            let sources = match told {
                Some(told) if told.epoch >= epoch => told.sources,
                _ => return Err(member.id.clone()),
            };
            for (of, slots) in sources.iter().filter(|(of, _)| **of == *id) {
                tracing::trace!(%of, member = member.id, slots = slots.len(), "still needed");
                (0..SLOT_COUNT)
                    .filter(|slot| slots.contains(*slot))
                    .for_each(|slot| needed.insert(slot));
            }
        }
        Ok(needed.len())
    }

    /// Waits for a key to be confirmed by the sources of its slot: once [`super::OWNERS_WAIT`], and
    /// again, up to `waits` times in all, as long as they answer, and are only behind on the map.
    pub(super) async fn wait_for_sources(
        &self,
        slot: u16,
        waits: u32,
        confirm: impl Future<Output = Result<(), Unconfirmed>>,
    ) -> Result<(), Unconfirmed> {
        let mut confirm = std::pin::pin!(confirm);
        for wait in 1..=waits {
            if let Ok(confirmed) = tokio::time::timeout(self.owners_wait, confirm.as_mut()).await {
                return confirmed;
            }
            if wait < waits && !self.are_sources_there(slot).await {
                break;
            }
        }
        Err(Unconfirmed::Silent)
    }

    /// Whether all answer that have not told about a slot yet.
    async fn are_sources_there(&self, slot: u16) -> bool {
        let ids: Vec<Arc<str>> = {
            let held = self.held.lock();
            let sources = held.holdings.get(slot).map(|it| it.sources.iter());
            sources
                .into_iter()
                .flatten()
                .map(|it| Arc::clone(&it.id))
                .collect()
        };
        let targets = ids
            .iter()
            .filter_map(|id| self.forwarder.upstreams().member(id));
        let wait = self.owners_wait / 3;
        let pings = targets.map(|target| async move {
            let envelope = envelope(slot, Space::default(), target.epoch);
            let ping = target.client.call(&Request::Ping, envelope, None, wait);
            ping.await.is_ok()
        });
        let answers = futures_util::future::join_all(pings).await;
        answers.into_iter().all(|is_there| is_there)
    }

    /// All that `source` knows of the slots is here; unless the map changed since `generation`,
    /// when it may have to be asked anew. That is noted first: a member that is reported as needed
    /// no more may be gone in a moment.
    async fn settle(self: &Arc<Self>, slots: &SlotSet, source: &Arc<str>, generation: u64) {
        if self.notes.are_kept() {
            let (it, slots, source) = (Arc::clone(self), slots.clone(), Arc::clone(source));
            let note = move || it.note_without(&source, &slots, generation);
            // What is not noted is asked for again after a restart.
            let _ = tokio::task::spawn_blocking(note).await;
        }
        let mut held = self.held.lock();
        if *self.changes.borrow() != generation {
            return;
        }
        for slot in (0..SLOT_COUNT).filter(|slot| slots.contains(*slot)) {
            held.holdings.settle(slot, source);
            if let Some(holding) = held.holdings.get(slot) {
                self.store(slot, holding);
            }
        }
    }

    /// Notes that nothing is lacked here any more, and the members that are still sources for
    /// others.
    async fn note_all(self: &Arc<Self>, generation: u64) {
        let it = Arc::clone(self);
        // It is what a restart may go by; without that more members are asked then.
        let _ = tokio::task::spawn_blocking(move || it.note_settled(generation)).await;
    }

    /// Asks until all is [left behind](Self::leave_behind), and has no end then.
    async fn leave_all_behind(self: &Arc<Self>, generation: u64) {
        while !self.leave_behind(generation).await {
            tokio::time::sleep(LEAVE_AGAIN).await;
        }
        self.note_all(generation).await;
        std::future::pending().await
    }

    /// Forgets the sources that are left of slots which others own by now and lack nothing of: the
    /// owner that is next asks these. Kept, they would count as missing for these slots if they
    /// fell long after. False if some are left; no member forgets any while another one is down,
    /// since the latter may have been told of them here, and would have to be told again.
    pub(super) async fn leave_behind(&self, generation: u64) -> bool {
        let epoch = self.epoch();
        let (left, owners) = self.left_behind();
        if left.is_empty() {
            return true;
        }
        let map = self.topology();
        let members = map.iter().flat_map(|map| map.members());
        if members.into_iter().any(|it| it.state == MemberState::Down) {
            return false;
        }
        let asked = owners.iter().map(|(owner, slots)| async move {
            let lacked = self.lacked_by(owner, slots, epoch).await;
            lacked.unwrap_or_else(|| slots.clone())
        });
        let lacked = futures_util::future::join_all(asked).await;
        let is_open = |slot: &u16| lacked.iter().any(|of| of.contains(*slot));
        let open: SlotSet = (0..SLOT_COUNT).filter(is_open).collect();
        let mut held = self.held.lock();
        if *self.changes.borrow() != generation {
            return false;
        }
        let is_done = |slot: &u16| left.contains(*slot) && !open.contains(*slot);
        for slot in (0..SLOT_COUNT).filter(is_done) {
            held.holdings.leave(slot);
            if let Some(holding) = held.holdings.get(slot) {
                self.store(slot, holding);
            }
        }
        open.is_empty()
    }

    /// The slots that have sources here and are owned by others, and these.
    fn left_behind(&self) -> (SlotSet, HashMap<String, SlotSet>) {
        let held = self.held.lock();
        let (mut left, mut owners) = (SlotSet::new(), HashMap::<String, SlotSet>::new());
        let Some(map) = &held.topology else {
            return (left, owners);
        };
        let is_left = |it: &Holding| it.part == Part::None && !it.sources.is_empty();
        for (slot, _) in held.holdings.iter().filter(|(_, it)| is_left(it)) {
            for owner in map.owners(slot).filter(|it| it.state.is_serving()) {
                left.insert(slot);
                owners.entry(owner.id.clone()).or_default().insert(slot);
            }
        }
        (left, owners)
    }

    /// Those of some slots that `owner` lacks something of by the map of `epoch`, be they its own
    /// or not any more: the map may change while it answers. None if it does not say.
    async fn lacked_by(&self, owner: &str, slots: &SlotSet, epoch: u64) -> Option<SlotSet> {
        let target = self.forwarder.upstreams().member(owner)?;
        let told = self.sources_at(&target, slots, false, epoch).await?;
        // By a later map the slots may not be its own any more.
        if told.epoch != epoch {
            return None;
        }
        let mut lacked = SlotSet::new();
        for (_, of) in told.sources {
            let of = (0..SLOT_COUNT).filter(|slot| of.contains(*slot));
            of.for_each(|slot| lacked.insert(slot));
        }
        Some(lacked)
    }

    /// What a member says of members that know of some slots, or of those of them that it owns,
    /// what it may not. None if it does not answer, or does not know yet.
    pub(super) async fn sources_at(
        &self,
        target: &Target,
        slots: &SlotSet,
        is_owned: bool,
        epoch: u64,
    ) -> Option<ToldSources> {
        let request = Request::Sources {
            slots: slots.clone(),
            is_owned,
        };
        let envelope = envelope(0, Space::default(), epoch);
        let wait = self.owners_wait;
        let answer = target
            .client
            .call(&request, envelope, None, wait)
            .await
            .ok()?;
        let Ok(Reply::Sources(sources)) = answer.reply() else {
            return None;
        };
        let sources = sources.iter().map(|it| it.map(|(id, of)| (id.into(), of)));
        Some(ToldSources {
            epoch: answer.head().envelope.epoch,
            sources: sources.collect::<Result<_, _>>().ok()?,
        })
    }

    /// Brings all that a member knows of some slots here. Returns how many bytes that were.
    async fn take_over(
        &self,
        engine: &Engine,
        target: &Target,
        slots: &SlotSet,
    ) -> Result<u64, HandoverError> {
        let mut cursor = Vec::new();
        let mut taken = 0;
        loop {
            let next = self.take_page(engine, target, slots, &cursor, &mut taken);
            let next = next.await?;
            if next.is_empty() {
                break;
            }
            cursor = next;
        }
        let floor = self.floor_of(target).await?;
        if floor > 0 {
            self.check_own(engine, target, slots, floor).await?;
            for (slot, known) in (0..SLOT_COUNT).zip(&self.floors) {
                if slots.contains(slot) {
                    known.fetch_max(floor, Ordering::AcqRel);
                }
            }
        }
        Ok(taken)
    }

    /// Brings a page here, and what it only names, no faster than allowed; counts its bytes in
    /// `taken`. Returns where the next one begins.
    async fn take_page(
        &self,
        engine: &Engine,
        target: &Target,
        slots: &SlotSet,
        cursor: &[u8],
        taken: &mut u64,
    ) -> Result<Vec<u8>, HandoverError> {
        let epoch = self.epoch();
        let request = Request::FetchSlots {
            slots: slots.clone(),
            cursor,
            len_max: PAGE_LEN,
        };
        let envelope = envelope(0, Space::default(), epoch);
        let call = target.client.call(&request, envelope, None, PAGE_TIMEOUT);
        let answer = call.await.map_err(|_| HandoverError::Silent)?;
        if answer.head().envelope.epoch < epoch {
            return Err(HandoverError::Silent);
        }
        let Ok(Reply::Page(page)) = answer.reply() else {
            return Err(HandoverError::Malformed);
        };
        let mut acks = Acks::default();
        for entry in page.iter() {
            let entry = entry.map_err(|_| HandoverError::Malformed)?;
            let space = Space(entry.space);
            match entry.content {
                Content::Omitted { len } => {
                    let known = engine.newest(space, entry.key).await;
                    let known = known.map_err(|_| HandoverError::NotKept)?;
                    if known.is_some_and(|known| known >= entry.version) {
                        continue;
                    }
                    let of = (space, entry.key);
                    match self.ask(engine, target, of, &mut 0, &mut acks).await? {
                        Told::All => {}
                        // Neither when it was named nor now. What is older must not show; in the
                        // bucket it is found.
                        Told::Unreadable if len == 0 => {
                            let gone = Entry::tombstone(entry.space, entry.key, entry.version);
                            let kept = self.keep(engine, &gone, &mut acks).await;
                            kept.map_err(|_| HandoverError::NotKept)?;
                        }
                        Told::NotYet | Told::Unreadable => return Err(HandoverError::Silent),
                    }
                    // What a member says about it is not to be waited for without bounds.
                    let len = len.min(engine.value_len_max() as u64);
                    *taken += len;
                    pace(len).await;
                }
                _ => {
                    let kept = self.keep(engine, &entry, &mut acks).await;
                    kept.map_err(|_| HandoverError::NotKept)?;
                }
            }
        }
        if !acks.wait().await.is_empty() {
            return Err(HandoverError::NotKept);
        }
        let len = page.entries.len() as u64;
        *taken += len;
        pace(len).await;
        Ok(page.next.to_vec())
    }

    /// The version below which a member may have forgotten what it knew.
    async fn floor_of(&self, target: &Target) -> Result<Version, HandoverError> {
        let mut random = SplitMix64::from_entropy();
        // No member has such a key.
        let key = [
            random.next_u64().to_be_bytes(),
            random.next_u64().to_be_bytes(),
        ]
        .concat();
        let envelope = envelope(placement::slot(&key), Space::default(), self.epoch());
        let request = Request::Fetch { key: &key };
        let call = target.client.call(&request, envelope, None, PAGE_TIMEOUT);
        let answer = call.await.map_err(|_| HandoverError::Silent)?;
        match answer.reply() {
            Ok(Reply::Unknown) => Ok(0),
            Ok(Reply::Entry(entry)) => Ok(entry.version),
            _ => Err(HandoverError::Malformed),
        }
    }

    /// Asks about the copies that were here already and are older than what the member may have
    /// forgotten.
    async fn check_own(
        &self,
        engine: &Engine,
        target: &Target,
        slots: &SlotSet,
        floor: Version,
    ) -> Result<(), HandoverError> {
        let mut cursor = Vec::new();
        loop {
            let page = engine.fetch_slots(slots, &cursor, OWN_PAGE_LEN).await;
            let page = page.map_err(|_| HandoverError::NotKept)?;
            let mut acks = Acks::default();
            for entry in page.entries.page(&page.next).iter() {
                let entry = entry.map_err(|_| HandoverError::NotKept)?;
                if entry.version > floor || entry.content == Content::Tombstone {
                    continue;
                }
                let of = (Space(entry.space), entry.key);
                let told = self.ask(engine, target, of, &mut 0, &mut acks).await?;
                if told != Told::All {
                    return Err(HandoverError::Silent);
                }
            }
            if !acks.wait().await.is_empty() {
                return Err(HandoverError::NotKept);
            }
            if page.next.is_empty() {
                return Ok(());
            }
            cursor = page.next;
        }
    }
}

/// Waits as long as so many bytes may take.
async fn pace(len: u64) {
    let ms = len.saturating_mul(1000) / RATE;
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
