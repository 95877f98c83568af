//! Members that are down and may know what a simulated member does not, as `sharing` has it for
//! slots; and members that are removed without a drain.
//!
//! In this model alone, a starting member applies the newest map at once. Real members apply the
//! map on their disk first, and then all later ones (`sharing::follow`). Tests with members of
//! their own cover that (`tests::restarts`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::World;
use super::data::{Held, Rules, assert_right, assert_wrong, begin};
use super::log::Payload;
use super::node::{Node, detector_options};
use super::seeds;
use crate::cluster::member::{Member, Phase};
use crate::cluster::state::Change;
use crate::cluster::types::RaftId;

/// No member has this id: for those that were removed as they were.
const REMOVED: RaftId = 0;
/// For how long a leader tries to remove a member.
const REMOVAL_MAX: Duration = Duration::from_secs(5);

/// What is noted on a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Noted {
    /// By which map, the members down by it, and whether nothing was lacked any more.
    epoch: u64,
    down: BTreeSet<RaftId>,
    is_settled: bool,
    /// The missing members, and up to which version copies are doubted for it.
    missing: BTreeMap<RaftId, u64>,
    /// The members of which it is only guessed.
    guessed: BTreeSet<RaftId>,
    /// The members to ask still, when it owned the key.
    sources: BTreeSet<RaftId>,
}

/// A member that the leader wants removed, since when, and in which term.
pub(super) type Removing = (RaftId, Instant, u64);

impl Node {
    /// Whether others can tell what became of the key by the maps that were not seen.
    fn do_others_know(&self) -> bool {
        let (epoch, noted) = (self.state.epoch, &self.disk.noted);
        let own = self.state.by_raft_id(self.id());
        let own = own.filter(|it| it.phase == Phase::Active && !it.is_down);
        own.is_none_or(|it| it.since >= epoch)
            || noted.epoch == epoch
            || noted.is_settled && noted.epoch + 1 == epoch
    }

    /// Notes the members to ask still, if it owns the key, and whether nothing is lacked any more.
    pub(super) fn note_settled(&mut self) {
        if self.data.is_owner() && self.data.rules.sources {
            self.disk.noted.sources = self.data.lacks().clone();
        }
        if self.data.lacks().is_empty() || !self.data.is_owner() {
            self.disk.noted.is_settled = true;
        }
    }

    /// Notes the missing members by the map that it applies from now on; `up` are those up by that.
    /// Returns those that are missing no more, and have to be asked.
    pub(super) fn note_missing(&mut self, up: &BTreeSet<RaftId>) -> BTreeSet<RaftId> {
        let (own, epoch) = (self.id(), self.state.epoch);
        let do_others_know = !self.data.rules.knows || self.do_others_know();
        let before = std::mem::take(&mut self.disk.noted);
        let data = &self.data;
        let is_next = data.epoch != 0 && epoch == data.epoch + 1;
        let is_down =
            |it: &&Member| it.phase == Phase::Active && it.is_down && it.info.raft_id != own;
        let down = self.state.live().filter(is_down);
        let down: BTreeMap<RaftId, u64> = down.map(|it| (it.info.raft_id, it.since)).collect();
        let has_stayed = |(id, since): (&RaftId, &u64)| {
            let is_noted = before.down.contains(id) && *since <= before.epoch;
            is_next && !data.up.contains(id) || is_noted
        };
        let now = data.newest_here();
        data.observe(now);
        let is_asked = |id: &RaftId| {
            before.sources.contains(id) || data.is_owner() && data.lacks().contains(id)
        };
        let is_lost = |id: &RaftId| data.up.first() == Some(id) || is_asked(id);
        let mut noted = Noted {
            epoch,
            down: down.keys().copied().collect(),
            // They stay with it, for the next owner of the key.
            sources: before.sources.intersection(up).copied().collect(),
            ..Noted::default()
        };
        for (id, since) in &down {
            if has_stayed((id, since)) {
                let known = before.missing.get(id).map(|up_to| (*id, *up_to));
                noted.missing.extend(known);
                if is_next || do_others_know {
                    noted.guessed.extend(before.guessed.get(id));
                }
            } else if !is_next || is_lost(id) {
                noted.missing.insert(*id, now);
                let is_guess = !is_next && do_others_know && !before.sources.contains(id);
                noted.guessed.extend(is_guess.then_some(*id));
            }
        }
        let removed = before.missing.get(&REMOVED).copied();
        let is_gone = |id: &&RaftId| **id != own && self.state.by_raft_id(**id).is_none();
        let has_lost = is_next && data.up.iter().filter(is_gone).any(is_lost)
            || before.sources.iter().any(|id| is_gone(&id));
        let removed = if has_lost { Some(now) } else { removed };
        noted.missing.extend(removed.map(|up_to| (REMOVED, up_to)));
        self.disk.noted = noted;
        let back = before.missing.into_keys().filter(|id| up.contains(id));
        back.filter(|id| *id != own).collect()
    }

    /// Another member has told the missing members as far as it knows.
    pub(super) fn hear_of_missing(&mut self, from: RaftId, told: &BTreeSet<RaftId>) {
        // The former owner of the key, or the one without this member, knows.
        let own = self.id();
        let before = self.data.up.iter().find(|id| **id != own);
        if before == Some(&from) {
            let noted = &mut self.disk.noted;
            for id in std::mem::take(&mut noted.guessed) {
                match told.contains(&id) {
                    true => drop(noted.guessed.insert(id)),
                    false => drop(noted.missing.remove(&id)),
                }
            }
        }
        let now = self.data.newest_here();
        for id in told.iter().filter(|id| self.disk.noted.down.contains(id)) {
            self.disk.noted.missing.entry(*id).or_insert(now);
            self.data.observe(now);
        }
    }

    /// The missing members, for others.
    pub(super) fn missing(&self) -> BTreeSet<RaftId> {
        let missing = self.disk.noted.missing.keys().copied();
        missing.filter(|id| *id != REMOVED).collect()
    }

    /// Whether what it has is not shown because a member is missing, or what is missing may be with
    /// that member.
    pub(super) fn misses_for_doubt(&self) -> bool {
        let doubts = self.data.rules.doubts && !self.disk.noted.missing.is_empty();
        let held = self.disk.held.as_ref();
        doubts && held.is_none_or(|held| self.is_doubted(held))
    }

    /// Whether a member may have overwritten it that cannot be asked.
    pub(super) fn is_doubted(&self, held: &Held) -> bool {
        let mut missing = self.disk.noted.missing.values();
        self.data.rules.doubts && missing.any(|up_to| held.version <= *up_to)
    }

    /// Begins to remove a member, as the leader.
    fn begin_removal(&mut self, id: RaftId, now: Instant) {
        let others = self.active().len();
        let is_up = self.state.by_raft_id(id).is_some_and(|it| !it.is_down);
        if !self.is_leading(now) || id == self.id() || !is_up || others < 3 {
            return;
        }
        if self.data.removing.is_none() {
            if self.data.rules.waits {
                self.grants.leave(id, now);
            }
            self.data.removing = Some((id, now, self.term()));
        }
    }

    /// Removes it, when that is due.
    pub(super) fn go_on_with_removal(&mut self, now: Instant) {
        let Some((id, since, term)) = self.data.removing else {
            return;
        };
        let member = self.state.by_raft_id(id).cloned();
        let Some(member) = member.filter(|_| term == self.term() && now - since < REMOVAL_MAX)
        else {
            self.grants.stay(id);
            self.data.removing = None;
            return;
        };
        let silence = detector_options().silence;
        let is_over = member.is_down || self.grants.is_over(id, silence, now);
        if self.is_leading(now) && (is_over || !self.data.rules.waits) {
            self.data.removing = None;
            let remove = Change::Remove { id: member.info.id };
            self.append(Payload::Change(remove), now);
            self.heartbeat(now);
        }
    }
}

impl World {
    /// An operator has the leader remove a member, which may hear nothing any more, or starts one
    /// that was removed with an empty disk.
    pub(super) fn remove_somebody(&mut self) {
        let count = self.nodes.len();
        let mut at = self.random.below(count as u64) as usize;
        let owner = self.leader().and_then(|leader| {
            let node = self.nodes[leader].node.as_ref()?;
            self.place(*node.data.up.first()?)
        });
        if let Some(owner) = owner.filter(|_| self.random.below(2) == 0) {
            at = owner;
        }
        let id = self.nodes[at].info.raft_id;
        if self.clients.removed.contains(&id) {
            let wall = self.nodes[at]
                .node
                .as_ref()
                .map_or(self.nodes[at].disk.wall, |node| node.disk.wall);
            self.wipe(at);
            self.nodes[at].disk.wall = wall;
            self.wake(at);
            return;
        }
        let Some(leader) = self.leader() else { return };
        let now = self.now;
        if let Some(node) = &mut self.nodes[leader].node {
            node.begin_removal(id, now);
            if node.data.removing.is_some_and(|(of, ..)| of == id) {
                self.clients.removed.insert(id);
                if self.random.below(2) == 0 {
                    self.cut.extend((0..count).map(|it| (it, at)));
                }
            }
        }
    }
}

#[test]
fn without_notes_of_missing_members_older_values_show() {
    let rules = Rules {
        doubts: false,
        ..Rules::default()
    };
    assert_wrong(0..200, rules);
}

/// The owner is back, and crashes before it could ask the owner of the meantime, which falls as
/// well. Others have seen that the key was no longer that member's. Tells what was seen that must
/// not be; None if it did not come to that.
fn fall_before_it_is_asked(seed: u64, rules: Rules) -> Option<Result<(), String>> {
    const SECONDS: Duration = Duration::from_secs(4);
    let (owner, stood_in) = (0, 1);
    let (mut world, mut time) = begin(seed, 5, rules);
    let mut go_on = |world: &mut World, lasts: Duration| {
        time += lasts;
        world.run_until(time);
    };
    // A member leads that hears both, in the end.
    for leader in [owner, stood_in] {
        world.crash(leader);
        go_on(&mut world, SECONDS);
        world.wake(leader);
        go_on(&mut world, SECONDS);
    }
    world.crash(owner);
    go_on(&mut world, SECONDS);
    world.cut.extend([(owner, stood_in), (stood_in, owner)]);
    world.wake(owner);
    go_on(&mut world, SECONDS);
    let id = world.nodes[stood_in].info.raft_id;
    let node = world.nodes[owner].node.as_ref();
    let is_asking = node.is_some_and(|it| it.data.is_owner() && it.data.lacks().contains(&id));
    // What it acknowledged last is not overwritten.
    world.clients.flushes.quiet_until = Some(world.now + SECONDS * 8);
    world.crash(stood_in);
    go_on(&mut world, SECONDS / 8);
    world.crash(owner);
    go_on(&mut world, SECONDS);
    world.cut.clear();
    world.wake(owner);
    go_on(&mut world, SECONDS);
    world.wake(stood_in);
    go_on(&mut world, SECONDS);
    let violation = world.clients.violation.take();
    is_asking.then(|| violation.map_or(Ok(()), Err))
}

#[test]
fn a_member_that_fails_before_it_was_asked_is_missing_to_one_that_was_down_and_had_to_ask_it() {
    let seen_by = |sources| {
        let rules = Rules {
            sources,
            ..Rules::default()
        };
        let runs = (0..40).filter_map(move |seed| fall_before_it_is_asked(seed, rules));
        let (fine, seen): (Vec<_>, Vec<_>) = runs.partition(Result::is_ok);
        let seen: Vec<String> = seen.into_iter().filter_map(Result::err).collect();
        (fine.len(), seen)
    };
    let (fine, seen) = seen_by(true);
    println!("with notes of who was to be asked: {fine} runs");
    assert!(seen.is_empty(), "{}", seen.join("\n"));
    assert!(fine >= 10, "{fine}");
    // Where that is not noted, older values show.
    let (fine, seen) = seen_by(false);
    println!("without: {} of {}", seen.len(), fine + seen.len());
    assert!(seen.len() >= 10, "{fine}");
}

#[test]
fn where_the_word_of_members_that_do_not_know_counts_older_values_show() {
    let rules = Rules {
        knows: false,
        removals: true,
        ..Rules::default()
    };
    // It takes a restart between two maps, and a fall at the second.
    assert_wrong(1700..1800, rules);
}

#[test]
fn a_member_that_is_removed_as_it_is_shows_nothing_older_and_no_other_does() {
    let rules = Rules {
        removals: true,
        ..Rules::default()
    };
    assert_right(seeds(), rules);
}

#[test]
fn where_its_promise_is_not_waited_for_a_removed_member_shows_older_values() {
    let rules = Rules {
        removals: true,
        waits: false,
        ..Rules::default()
    };
    assert_wrong(0..200, rules);
}
