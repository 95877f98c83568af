//! Flushes under simulated membership: begun by any member, with one cutoff for all members. Clocks
//! differ, members fail and return, and messages are late or lost.
//!
//! A flush without an answer may take effect at any time, in part. The model says nothing of
//! entries below a cutoff of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::data::{Held, Rules, Stand, assert_right, assert_wrong};
use super::message::Message;
use super::node::Node;
use super::seeds;
use super::world::{Event, World};
use crate::cluster::types::RaftId;

/// A flush that a member has begun, as [`fonn_forward::Flush`] goes about it.
#[derive(Debug)]
pub(super) struct Flushing {
    number: u64,
    /// Values up to this value had been written when it was begun.
    values: u64,
    epoch: u64,
    others: BTreeSet<RaftId>,
    waits_for: BTreeSet<RaftId>,
    cutoff: u64,
    /// All have drawn, and are told the cutoff.
    is_drawn: bool,
}

/// What the world has to know of a member's part in flushes.
#[derive(Debug)]
pub(super) enum News {
    /// It hides what is below a version, for the flush of that number.
    Hidden(u64, u64),
    /// The one that it began is done.
    Done(Box<Done>),
}

/// A flush that is acknowledged.
#[derive(Debug)]
pub(super) struct Done {
    number: u64,
    values: u64,
    cutoff: u64,
    /// The members that executed it.
    members: BTreeSet<RaftId>,
}

impl Node {
    /// What a read finds.
    pub(super) fn shown(&self) -> Option<Held> {
        let cutoff = self.disk.cutoff;
        let held = self.disk.held.filter(|held| held.version >= cutoff);
        held.filter(|held| !self.is_doubted(held))
    }

    fn begin_flush(&mut self, number: u64, values: u64, now: Instant) {
        if self.footing(now) != Some(Stand::Yes) {
            return;
        }
        let own = self.id();
        let others: BTreeSet<RaftId> = self
            .data
            .up
            .iter()
            .copied()
            .filter(|id| *id != own)
            .collect();
        let cutoff = self.hide(number, None);
        let epoch = self.data.epoch;
        self.data.flushing = Some(Flushing {
            number,
            values,
            epoch,
            waits_for: others.clone(),
            others,
            cutoff,
            is_drawn: false,
        });
        self.tell_flush(number, None);
        self.go_on_with_flush();
    }

    fn tell_flush(&mut self, number: u64, cutoff: Option<u64>) {
        let Some(flushing) = &self.data.flushing else {
            return;
        };
        let epoch = flushing.epoch;
        for id in &flushing.others {
            let message = Message::Flush {
                number,
                epoch,
                cutoff,
            };
            self.out.push((*id, message));
        }
    }

    /// Another member begins a flush, or tells what came of it.
    pub(super) fn take_part(
        &mut self,
        from: RaftId,
        (number, epoch, cutoff): (u64, u64, Option<u64>),
        now: Instant,
    ) {
        // By another map it is begun again; a member that does not know whether it is still there
        // begins nothing.
        let is_sound = cutoff.is_some() || self.footing(now) == Some(Stand::Yes);
        if self.data.epoch == epoch && is_sound {
            let cutoff = self.hide(number, cutoff);
            self.out.push((from, Message::Flushed { number, cutoff }));
        }
    }

    pub(super) fn took_part(&mut self, from: RaftId, number: u64, cutoff: u64) {
        if let Some(flushing) = self.data.flushing.as_mut().filter(|it| it.number == number) {
            flushing.cutoff = flushing.cutoff.max(cutoff);
            flushing.waits_for.remove(&from);
            self.go_on_with_flush();
        }
    }

    fn go_on_with_flush(&mut self) {
        let Some(mut flushing) = self.data.flushing.take() else {
            return;
        };
        if !flushing.waits_for.is_empty() {
            self.data.flushing = Some(flushing);
            return;
        }
        let (number, cutoff) = (flushing.number, flushing.cutoff);
        if !flushing.is_drawn && self.data.rules.agrees {
            self.hide(number, Some(cutoff));
            flushing.is_drawn = true;
            flushing.waits_for = flushing.others.clone();
            self.data.flushing = Some(flushing);
            self.tell_flush(number, Some(cutoff));
            return self.go_on_with_flush_of_one();
        }
        if self.data.epoch == flushing.epoch {
            let mut members = flushing.others;
            members.insert(self.id());
            self.data.news.push(News::Done(Box::new(Done {
                number,
                values: flushing.values,
                cutoff,
                members,
            })));
        }
    }

    /// There may be no other member to wait for.
    fn go_on_with_flush_of_one(&mut self) {
        let flushing = self.data.flushing.as_ref();
        if flushing.is_some_and(|it| it.waits_for.is_empty()) {
            self.go_on_with_flush();
        }
    }

    /// Hides what there is, or what is below a cutoff. Returns its own.
    fn hide(&mut self, number: u64, cutoff: Option<u64>) -> u64 {
        let cutoff = cutoff.unwrap_or_else(|| self.data.next());
        self.learn_cutoff(cutoff);
        self.data.news.push(News::Hidden(number, cutoff));
        cutoff
    }

    /// Takes a cutoff over, which is on its disk then.
    pub(super) fn learn_cutoff(&mut self, cutoff: u64) {
        if cutoff > self.disk.cutoff {
            self.disk.cutoff = cutoff;
            self.data.observe(cutoff);
            self.disk.ceiling = self.disk.ceiling.max(self.data.last() + 1);
        }
    }
}

/// What clients know of flushes.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    begun: u64,
    /// Of those that are not acknowledged: the highest cutoff that a member has of it.
    open: BTreeMap<u64, u64>,
    /// The one that was begun last of those that were acknowledged.
    done: Option<Done>,
    /// What is written behind it is not overwritten for so long, nor flushed, so that others come
    /// to show it.
    rest: Option<Duration>,
    pub(super) quiet_until: Option<Instant>,
    pub(super) count: u64,
}

impl Flushes {
    /// Whether nothing is written or flushed.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        self.quiet_until.is_some_and(|until| now < until)
    }

    pub(super) fn note_write(&mut self, now: Instant) {
        if let Some(rest) = self.rest.take() {
            self.quiet_until = Some(now + rest);
        }
    }

    /// Whether a flush without a reply may hide a version.
    pub(super) fn may_hide(&self, version: u64) -> bool {
        self.open.values().any(|cutoff| *cutoff > version)
    }

    /// Whether a member shows what was flushed, though those that executed it told it.
    pub(super) fn is_shown(&self, node: &Node, beyond: u64) -> bool {
        let (Some(done), Some(shown)) = (&self.done, node.shown()) else {
            return false;
        };
        let own = node.info.raft_id;
        let is_told = done.members.contains(&own) || !done.members.is_disjoint(&node.data.stayed);
        is_told && shown.version > beyond && shown.value <= done.values
    }
}

impl World {
    /// A client asks some member to flush all.
    pub(super) fn flush(&mut self, again: bool) {
        if again {
            let wait = Duration::from_millis(20 + self.random.below(400));
            self.schedule(self.now + wait, Event::Flush { again });
        }
        let at = self.random.below(self.nodes.len() as u64) as usize;
        let (now, values) = (self.now, self.clients.values);
        let slot = &mut self.nodes[at];
        let is_left = slot.paused_until > now || self.clients.flushes.is_quiet(now);
        if let Some(node) = slot.node.as_mut().filter(|_| !is_left) {
            self.clients.flushes.begun += 1;
            node.turn(now);
            node.begin_flush(self.clients.flushes.begun, values, now);
            self.collect(at);
        }
    }

    /// Hears what a member did for flushes.
    pub(super) fn hear_of_flushes(&mut self, at: usize) {
        let Some(node) = &mut self.nodes[at].node else {
            return;
        };
        let (news, up) = (std::mem::take(&mut node.data.news), node.data.up.len());
        let has_fallen = up < std::mem::replace(&mut node.data.up_seen, up);
        if has_fallen && self.clients.rules.flushes {
            // Clocks have just been moved, not all by the same.
            let wait = Duration::from_millis(self.random.below(100));
            self.schedule(self.now + wait, Event::Flush { again: false });
        }
        for news in news {
            let flushes = &mut self.clients.flushes;
            let done = match news {
                News::Hidden(number, cutoff) => {
                    let highest = flushes.open.entry(number).or_default();
                    *highest = cutoff.max(*highest);
                    continue;
                }
                News::Done(done) => done,
            };
            flushes.count += 1;
            flushes.open.remove(&done.number);
            flushes.rest =
                (self.random.below(2) == 0).then(|| Duration::from_millis(self.random.below(6000)));
            let newest = &mut self.clients.newest;
            *newest =
                newest.filter(|(held, _)| held.value > done.values && held.version >= done.cutoff);
            if flushes
                .done
                .as_ref()
                .is_none_or(|it| it.values <= done.values)
            {
                flushes.done = Some(*done);
            }
        }
    }
}

/// What members go by where clients flush; `agrees` says whether on one cutoff.
fn rules(agrees: bool) -> Rules {
    Rules {
        agrees,
        flushes: true,
        ..Rules::default()
    }
}

#[test]
fn what_was_flushed_is_gone_and_what_is_written_behind_stays() {
    assert_right(seeds(), rules(true));
}

#[test]
fn with_a_cutoff_of_each_member_what_is_written_behind_a_flush_is_missed() {
    assert_wrong(0..300, rules(false));
}
