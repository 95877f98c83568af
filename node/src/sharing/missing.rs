//! Members that cannot be asked, and may know what no other member knows of slots: pure, and a
//! file.
//!
//! An owner that fails takes its unreplicated entries along, until it is back with its disk.
//! Members with older copies of these slots must not show them meanwhile. This holds for the member
//! that stands in. It also holds for an earlier owner that returns while the stand-in is down. So
//! each member notes for every slot, its own or not, which members are *missing*, from the maps
//! that it applies:
//!
//! - an owner that failed and left no other owner that is up;
//! - a member that still had to be asked about the slot when it failed. This holds for failures
//!   that were not seen too, since no other member can know of it.
//!
//! A member is missing no more when it is back, and is asked first. It is also missing no more when
//! it is removed, or has joined with an empty disk: then its copies are lost. Older versions of its
//! entries never show after a removal without a drain. The same holds for a member that was removed
//! while it still had to be asked, because a drain does not wait for members that are down.
//!
//! The notes survive a restart. A failure may be in no note, because it was not seen. Then a member
//! that is down may have owned any slot. That assumption ends for a slot with the reply of a member
//! that names no missing member. But the reply counts only from a member that knows. A member may
//! have come up by a map that this member has not seen. It may have had slots since, not yet
//! copied, when another member failed, and other members do not know of that. Then no reply counts
//! until the member that is down is back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use fonn_forward::{Member, MemberState, Topology};
use fonn_proto::Version;
use fonn_proto::peer::SlotSet;
use fonn_proto::placement::SLOT_COUNT;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::holdings::{Holdings, Part, Step};

const FILE: &str = "missing";
const LAYOUT: u32 = 1;
/// Longest file that is read, in bytes: 8 KiB for each of 512 members.
const LEN_MAX: u64 = 8 << 20;
/// The name under which those are stored that were removed as they were.
const REMOVED: &str = "";

/// The missing member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// By the maps that were gone by, or for maps that were not, if no other member can tell.
    seen: ByMember,
    /// By what others said, for other slots.
    told: ByMember,
    /// For lack of either.
    guessed: ByMember,
    /// Of those that were removed as they were, by removal. No slot is in two of them.
    removed: Vec<Lost>,
}

type ByMember = BTreeMap<Arc<str>, Lost>;

/// What one that is missing may know.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lost {
    slots: SlotSet,
    /// What it wrote is older than this; what is newer was written by its stand-in.
    up_to: Version,
}

/// The map by which the notes are right, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    epoch: u64,
    down: BTreeSet<Arc<str>>,
    /// Whether nothing was lacked any more by that map.
    is_settled: bool,
}

impl Known {
    /// As far as a map tells.
    #[must_use]
    pub(super) fn of(map: &Topology) -> Self {
        let down = map.members().iter().filter(|it| is_down(it));
        Self {
            epoch: map.epoch(),
            down: down.map(|it| Arc::from(it.id.as_str())).collect(),
            is_settled: false,
        }
    }

    /// The same, with nothing lacked any more.
    #[must_use]
    pub(super) fn settled(self) -> Self {
        Self {
            is_settled: true,
            ..self
        }
    }

    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        self.epoch > other.epoch
    }

    /// Whether it says the same as another one from a later map on, or less.
    pub(super) fn is_as(&self, later: &Self) -> bool {
        let is_settled = self.is_settled && self.epoch == later.epoch;
        self.down == later.down && self.epoch <= later.epoch && (is_settled || !later.is_settled)
    }

    /// Whether a member that is down now has been so since that map. `since` is the epoch since
    /// which it was up last.
    fn has_stayed(&self, id: &str, since: u64) -> bool {
        self.down.contains(id) && since <= self.epoch
    }
}

/// One map after another, for the notes.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    /// For the slots.
    pub(super) step: Step<'a>,
    /// What there was to do with these by the map before.
    pub(super) holdings: &'a Holdings,
    /// By what map the notes are right.
    pub(super) known: Option<&'a Known>,
    /// Since which epoch a member is up, or was when it fell.
    pub(super) since: &'a dyn Fn(&str) -> u64,
    /// Not older than what is here, and what others have that the missing one can have
    /// overwritten.
    pub(super) now: Version,
}

impl Change<'_> {
    /// Whether no map in between was seen.
    fn is_next(&self) -> bool {
        let old = self.step.old.map(Topology::epoch);
        old.is_some_and(|old| self.step.new.epoch() == old.saturating_add(1))
    }

    /// Whether others can tell what became of slots by the maps that were not seen: they had them
    /// until the new one, or all there was to know was known by the one before it.
    fn do_others_know(&self) -> bool {
        let epoch = self.step.new.epoch();
        let is_up_by_the_last = |known: &Known| {
            known.epoch >= epoch || known.is_settled && known.epoch.saturating_add(1) == epoch
        };
        let own = self.step.own;
        !self.serves(own) || (self.since)(own) >= epoch || self.known.is_some_and(is_up_by_the_last)
    }

    fn has_stayed_down(&self, id: &str) -> bool {
        let is_so = |known: &Known| known.has_stayed(id, (self.since)(id));
        self.is_next() && self.state_before(id) == Some(MemberState::Down)
            || self.known.is_some_and(is_so)
    }

    fn state_before(&self, id: &str) -> Option<MemberState> {
        Some(self.step.old?.member(id)?.state)
    }

    fn served_before(&self, id: &str) -> bool {
        self.state_before(id).is_some_and(MemberState::is_serving)
    }

    fn serves(&self, id: &str) -> bool {
        let member = self.step.new.member(id);
        member.is_some_and(|it| it.state.is_serving())
    }

    /// Slots of which a member that is gone by the new map, and was there by the one before, may
    /// know more than others: those about which it was to be `asked`, and those that it alone
    /// owned.
    fn lost_with(&self, id: &str, asked: &SlotSet) -> SlotSet {
        let is_alone = |old: &Topology, slot| {
            let (mut is_owner, mut is_left) = (false, false);
            for owner in old.owners(slot).filter(|it| it.state.is_serving()) {
                match owner.id == id {
                    true => is_owner = true,
                    false => is_left |= self.serves(&owner.id),
                }
            }
            is_owner && !is_left
        };
        let is_lost = |slot: &u16| {
            asked.contains(*slot) || self.step.old.is_some_and(|old| is_alone(old, *slot))
        };
        (0..SLOT_COUNT).filter(is_lost).collect()
    }

    /// Slots about which a member was to be asked still.
    fn asked(&self, id: &str) -> SlotSet {
        let asked = self.holdings.iter().filter(|(_, it)| it.asks(id));
        asked.map(|(slot, _)| slot).collect()
    }

    /// Those of them that are owned here, or were before the member was down itself. For others it
    /// is their owner that asks: its copy is right, however old, if the member is removed
    /// then.
    fn asked_as_owner(&self, id: &str) -> SlotSet {
        let was_down = self.state_before(self.step.own) == Some(MemberState::Down);
        let asked = self.holdings.iter().filter(|(_, it)| it.asks(id));
        let owned = asked.filter(|(_, it)| was_down || it.part != Part::None);
        owned.map(|(slot, _)| slot).collect()
    }

    /// The members that still had to be asked, and are none any more. By a map from before that by
    /// which they were they may be none yet.
    fn gone_sources(&self) -> BTreeSet<Arc<str>> {
        let new = self.step.new;
        let sources = self.holdings.iter().flat_map(|(_, it)| &it.sources);
        let is_gone = |id: &str| *id != *self.step.own && new.member(id).is_none();
        let gone = sources.filter(|it| !it.is_known && is_gone(&it.id));
        let gone = gone.filter(|_| new.epoch() >= self.holdings.epoch());
        gone.map(|it| Arc::clone(&it.id)).collect()
    }
}

fn is_down(member: &Member) -> bool {
    member.state == MemberState::Down
}

impl Missing {
    /// What the next map makes of it. Milliseconds, and as many again for each member that falls.
    #[must_use]
    pub(super) fn follow(&self, change: Change<'_>) -> Self {
        let mut next = Self::default();
        let keep = |from: &ByMember, to: &mut ByMember, id: &str| {
            let kept = from.get_key_value(id);
            to.extend(kept.map(|(id, lost)| (Arc::clone(id), lost.clone())));
        };
        next.removed.clone_from(&self.removed);
        let is_told = change.is_next() || change.do_others_know();
        let members = change.step.new.members().iter();
        for member in members.filter(|it| is_down(it) && it.id != change.step.own) {
            let id = member.id.as_str();
            if change.has_stayed_down(id) {
                keep(&self.seen, &mut next.seen, id);
                keep(&self.told, &mut next.told, id);
                match is_told {
                    true => keep(&self.guessed, &mut next.guessed, id),
                    false => {
                        if let Some(lost) = self.guessed.get(id) {
                            add(&mut next.seen, id, &lost.slots, lost.up_to);
                        }
                    }
                }
            } else if change.is_next() {
                let slots = change.lost_with(id, &change.asked(id));
                add(&mut next.seen, id, &slots, change.now);
            } else {
                // It may have stood in for any member.
                let to = match is_told {
                    true => &mut next.guessed,
                    false => &mut next.seen,
                };
                add(to, id, &SlotSet::all(), change.now);
                // What it was to be asked about others need not know of, whichever they are.
                add(&mut next.seen, id, &change.asked(id), change.now);
            }
        }
        if !change.is_next() {
            for id in change.gone_sources() {
                next.add_removed(change.asked_as_owner(&id), change.now);
            }
        }
        let old = change.step.old.filter(|_| change.is_next());
        let old = old.into_iter().flat_map(|old| old.members());
        for member in old.filter(|it| it.id != change.step.own && change.served_before(&it.id)) {
            if change.step.new.member(&member.id).is_none() {
                let asked = change.asked_as_owner(&member.id);
                next.add_removed(change.lost_with(&member.id, &asked), change.now);
            }
        }
        next
    }

    /// Notes what went with one that was removed.
    fn add_removed(&mut self, slots: SlotSet, up_to: Version) {
        for lost in &mut self.removed {
            let is_left = |slot: &u16| lost.slots.contains(*slot) && !slots.contains(*slot);
            lost.slots = (0..SLOT_COUNT).filter(is_left).collect();
        }
        self.removed.push(Lost { slots, up_to });
        self.removed.retain(|lost| !lost.slots.is_empty());
    }

    /// Notes that a member may know of slots what no other member does, as another one has told.
    /// Of what is known already it is known better up to where.
    pub(super) fn add(&mut self, id: &str, slots: &SlotSet, up_to: Version) {
        let is_known = |slot| {
            let mut known = [&self.seen, &self.told].into_iter();
            known.any(|it| it.get(id).is_some_and(|lost| lost.slots.contains(slot)))
        };
        let new = (0..SLOT_COUNT).filter(|slot| slots.contains(*slot) && !is_known(*slot));
        let new = new.collect();
        add(&mut self.told, id, &new, up_to);
    }

    /// Guesses no more about slots of which a member has told; `is_told` says which member it did
    /// not deny it.
    pub(super) fn trust(&mut self, slots: &SlotSet, is_told: impl Fn(&str, u16) -> bool) {
        for (id, lost) in &mut self.guessed {
            let is_open = |slot: &u16| {
                lost.slots.contains(*slot) && (!slots.contains(*slot) || is_told(id, *slot))
            };
            lost.slots = (0..SLOT_COUNT).filter(is_open).collect();
        }
        self.guessed.retain(|_, lost| !lost.slots.is_empty());
    }

    /// Those that can come back, each with slots of which it may know what no other member does.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &SlotSet)> {
        let all = self.seen.iter().chain(&self.told).chain(&self.guessed);
        all.map(|(id, lost)| (id, &lost.slots))
    }

    /// Up to which version copies of a slot are doubted; 0 if none are.
    #[must_use]
    pub(super) fn doubted(&self, slot: u16) -> Version {
        let all = [&self.seen, &self.told, &self.guessed].into_iter();
        let of_slot = all.flat_map(BTreeMap::values).chain(&self.removed);
        let of_slot = of_slot.filter(|lost| lost.slots.contains(slot));
        of_slot.map(|lost| lost.up_to).max().unwrap_or(0)
    }
}

fn add(to: &mut ByMember, id: &str, slots: &SlotSet, up_to: Version) {
    if slots.is_empty() {
        return;
    }
    match to.get_mut(id) {
        Some(lost) => {
            let both = |slot: &u16| lost.slots.contains(*slot) || slots.contains(*slot);
            lost.slots = (0..SLOT_COUNT).filter(both).collect();
            lost.up_to = lost.up_to.max(up_to);
        }
        None => {
            let slots = slots.clone();
            to.insert(Arc::from(id), Lost { slots, up_to });
        }
    }
}

/// The file. A field that a later version adds is skipped by this version; what must not be has
/// another layout.
#[derive(Serialize, Deserialize)]
struct Stored {
    layout: u32,
    epoch: u64,
    down: Vec<String>,
    #[serde(default)]
    is_settled: bool,
    missing: Vec<StoredLost>,
}

#[derive(Serialize, Deserialize)]
struct StoredLost {
    member: String,
    /// As [`hex`] has them.
    slots: String,
    up_to: Version,
    how: How,
}

/// How it is known.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum How {
    Seen,
    Told,
    Guessed,
}

/// Saves the notes in `dir`; durable when it returns.
///
/// # Errors
/// What the operating system said; the notes of before are gone then, rather than believed.
pub(super) fn save(dir: &Path, known: &Known, missing: &Missing) -> io::Result<()> {
    let stored = Stored {
        layout: LAYOUT,
        epoch: known.epoch,
        down: known.down.iter().map(ToString::to_string).collect(),
        is_settled: known.is_settled,
        missing: stored(&missing.seen, How::Seen)
            .chain(stored(&missing.told, How::Told))
            .chain(stored(&missing.guessed, How::Guessed))
            .chain(
                missing
                    .removed
                    .iter()
                    .map(|lost| lost.stored(REMOVED, How::Seen)),
            )
            .collect(),
    };
    let replaced = replace(dir, FILE, &serde_json::to_vec(&stored)?);
    replaced.inspect_err(|_| {
        let _ = std::fs::remove_file(dir.join(FILE)).and_then(|()| sync(dir));
    })
}

/// Replaces a file in `dir` as a whole; durable when it returns. One at a time.
pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = dir.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(new, dir.join(name))?;
    sync(dir)
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Loads the notes; None if there are none that can be understood. Then nothing is known of those
/// that are down.
#[must_use]
pub(super) fn load(dir: &Path) -> Option<(Known, Missing)> {
    let stored: Stored = read(dir, FILE)?;
    if stored.layout != LAYOUT {
        return None;
    }
    let mut missing = Missing::default();
    for lost in &stored.missing {
        if lost.member == REMOVED {
            missing.add_removed(parse(&lost.slots)?, lost.up_to);
            continue;
        }
        let to = match lost.how {
            How::Seen => &mut missing.seen,
            How::Told => &mut missing.told,
            How::Guessed => &mut missing.guessed,
        };
        add(to, &lost.member, &parse(&lost.slots)?, lost.up_to);
    }
    let known = Known {
        epoch: stored.epoch,
        down: stored.down.iter().map(|id| Arc::from(&**id)).collect(),
        is_settled: stored.is_settled,
    };
    Some((known, missing))
}

/// What is in a file, if it can be understood.
pub(super) fn read<T: DeserializeOwned>(dir: &Path, name: &str) -> Option<T> {
    let path = dir.join(name);
    if std::fs::metadata(&path).ok()?.len() > LEN_MAX {
        return None;
    }
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn stored(all: &ByMember, how: How) -> impl Iterator<Item = StoredLost> {
    all.iter().map(move |(id, lost)| lost.stored(id, how))
}

impl Lost {
    fn stored(&self, id: &str, how: How) -> StoredLost {
        StoredLost {
            member: id.to_owned(),
            slots: hex(&self.slots),
            up_to: self.up_to,
            how,
        }
    }
}

/// Hexadecimal, slot 0 first: eight slots in two digits, the first in the lowest bit.
pub(super) fn hex(slots: &SlotSet) -> String {
    let digit = |first: u16| {
        let bits = (0..4).filter(|bit| slots.contains(first + bit));
        let value = bits.fold(0, |value, bit| value | 1 << bit);
        char::from_digit(value, 16).unwrap_or('0')
    };
    let firsts = (0..SLOT_COUNT).step_by(8);
    firsts
        .flat_map(|first| [digit(first + 4), digit(first)])
        .collect()
}

/// The slots of what [`hex`] made.
pub(super) fn parse(hex: &str) -> Option<SlotSet> {
    if hex.len() != usize::from(SLOT_COUNT) / 4 {
        return None;
    }
    let mut slots = SlotSet::new();
    for (at, digit) in (0_u16..).zip(hex.chars()) {
        let value = digit.to_digit(16)?;
        // The high digit of a byte comes first.
        let first = (at ^ 1) * 4;
        let set = (0..4).filter(|bit| value & 1 << bit != 0);
        set.for_each(|bit| slots.insert(first + bit));
    }
    Some(slots)
}

#[cfg(test)]
mod tests;
