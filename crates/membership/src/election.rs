//! When to stand for election: openraft 0.9 has no pre-vote, so this module adds one.
//!
//! openraft's own timer is off (`enable_elect`). A voter that has not heard a leader for a while
//! first asks the other voters whether they would vote for it. A voter that hears a leader refuses.
//! The question changes nothing. Only with the consent of a majority does the election start and
//! raise the term. So a member that was cut off returns with its old term, and deposes no leader
//! (Ongaro, "Consensus: Bridging Theory and Practice", 9.6).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fonn_base::random::SplitMix64;

use super::types::{LogId, RaftId};

/// How often a leader lets hear from it.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(150);
/// For how long after it was heard a leader has no vote against it.
pub(super) const LEASE: Duration = Duration::from_millis(600);
/// Silence of the leader after which a voter asks the others, at least and at most. Each voter has
/// a [`Turn`] in between.
const SILENCE_MIN: Duration = Duration::from_millis(800);
const SILENCE_MAX: Duration = Duration::from_millis(1200);
/// From a question that led to no leader to the next, at least; it is longer by as much as the
/// first.
const AGAIN: Duration = Duration::from_millis(400);

/// Whose turn it is: voters ask one after the other, not two at once, which would each get a part
/// of the votes and have to begin again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    rank: u32,
    count: u32,
}

impl Turn {
    /// The turn of `own` among these; any, if it is none of them.
    pub(super) fn of(own: RaftId, voters: &BTreeSet<RaftId>) -> Self {
        if !voters.contains(&own) {
            return Self::default();
        }
        Self {
            rank: voters.range(..own).count() as u32,
            count: voters.len() as u32,
        }
    }
}

/// The timer of one voter.
#[derive(Debug)]
pub(super) struct Timer {
    random: SplitMix64,
    due: Instant,
    /// What was heard when `due` was drawn.
    heard: Option<Instant>,
}

impl Timer {
    pub(super) fn new(random: SplitMix64, now: Instant) -> Self {
        let mut timer = Self {
            random,
            due: now,
            heard: None,
        };
        timer.draw(now, SILENCE_MIN, Turn::default());
        timer
    }

    /// When to look again, at the latest.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// Whether to ask the others now. `heard` is when a leader was last heard.
    pub(super) fn is_due(&mut self, heard: Instant, turn: Turn, now: Instant) -> bool {
        if Some(heard) > self.heard {
            self.heard = Some(heard);
            self.draw(heard, SILENCE_MIN, turn);
        }
        if now < self.due {
            return false;
        }
        self.draw(now, AGAIN, turn);
        true
    }

    fn draw(&mut self, from: Instant, least: Duration, turn: Turn) {
        let spread = SILENCE_MAX.saturating_sub(SILENCE_MIN);
        // Most of a turn lies between two questions, so that the first one is answered before the
        // next.
        let (begin, jitter) = match turn.count {
            0 => (Duration::ZERO, spread),
            count => (spread * turn.rank / count, spread / count / 4),
        };
        let jitter = self.random.below(jitter.as_micros() as u64);
        self.due = from + least + begin + Duration::from_micros(jitter);
    }
}

/// What a voter knows when it is asked for its vote.
#[derive(Clone, Copy, Debug)]
pub(super) struct Voter {
    /// When it last heard a leader; now, if it is one that a majority follows.
    pub(super) heard: Instant,
    /// The end of its log, as far as its vote [defends](defended) it.
    pub(super) last_log: Option<LogId>,
}

impl Voter {
    /// Whether it would vote for a candidate whose log ends at `candidate`.
    pub(super) fn would_vote(self, candidate: Option<LogId>, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) > LEASE && candidate >= self.last_log
    }
}

/// How far a vote defends the voter's log: no candidate whose log ends before gets it.
///
/// A voter of the newest configuration of its log defends all of it. Another one was left out by
/// the newest one, which was proposed when the one before, `agreed`, had been agreed on; whatever
/// else may have been since then was agreed on by a majority of others, which defend it. So its
/// vote is worth no more than what it knew of `agreed`: with all of its log it would refuse, for
/// good, candidates that never got the newest configuration, and it does not stand itself (Ongaro,
/// 4.2.2, has it stand; openraft does not).
pub(super) fn defended(
    is_voter: bool,
    last_log: Option<LogId>,
    agreed: Option<LogId>,
) -> Option<LogId> {
    match is_voter {
        true => last_log,
        false => agreed.min(last_log),
    }
}

/// Whether `yes` is a majority of each of the voter sets; there are two while voters change.
pub(super) fn is_majority(configs: &[BTreeSet<RaftId>], yes: &BTreeSet<RaftId>) -> bool {
    let has = |config: &BTreeSet<RaftId>| 2 * config.intersection(yes).count() > config.len();
    !configs.is_empty() && configs.iter().all(has)
}

#[cfg(test)]
mod tests {
    use openraft::CommittedLeaderId;

    use super::*;

    fn log_id(term: u64, index: u64) -> Option<LogId> {
        Some(LogId::new(CommittedLeaderId::new(term, 1), index))
    }

    #[test]
    fn a_voter_that_hears_a_leader_gives_no_vote() {
        let start = Instant::now();
        let voter = Voter {
            heard: start,
            last_log: log_id(2, 5),
        };
        let vote = |after| voter.would_vote(log_id(9, 9), start + after);
        assert!(!vote(Duration::ZERO));
        assert!(!vote(LEASE));
        assert!(vote(LEASE + Duration::from_millis(1)));
    }

    #[test]
    fn a_shorter_log_gets_no_vote() {
        let heard = Instant::now();
        let voter = |last_log| Voter { heard, last_log };
        let vote = |mine, theirs| voter(mine).would_vote(theirs, heard + 2 * LEASE);
        assert!(vote(None, None));
        assert!(vote(log_id(2, 5), log_id(2, 5)));
        assert!(vote(log_id(2, 5), log_id(3, 4)));
        assert!(!vote(log_id(2, 5), log_id(2, 4)));
        assert!(!vote(log_id(2, 5), None));
    }

    #[test]
    fn a_voter_left_out_by_its_newest_configuration_defends_no_more_than_the_one_before() {
        let (last, agreed) = (log_id(2, 9), log_id(2, 5));
        assert_eq!(defended(true, last, agreed), last);
        assert_eq!(defended(false, last, agreed), agreed);
        assert_eq!(defended(false, None, agreed), None);
        assert_eq!(defended(false, last, None), None);
    }

    #[test]
    fn both_voter_sets_count_while_they_change() {
        let set = |ids: &[RaftId]| ids.iter().copied().collect::<BTreeSet<_>>();
        let configs = [set(&[1, 2, 3]), set(&[3, 4, 5])];
        assert!(is_majority(&configs, &set(&[1, 3, 4])));
        assert!(!is_majority(&configs, &set(&[1, 2, 3])));
        assert!(!is_majority(&configs[..1], &set(&[1])));
        assert!(!is_majority(&[], &set(&[1])));
        assert!(!is_majority(&[set(&[1, 2])], &set(&[1])));
    }

    #[test]
    fn voters_have_turns_and_other_members_have_any() {
        let voters: BTreeSet<RaftId> = [5, 7, 9].into();
        let due = |own, seed| {
            let start = Instant::now();
            let mut timer = Timer::new(SplitMix64::new(seed), start);
            let heard = start + Duration::from_millis(1);
            timer.is_due(heard, Turn::of(own, &voters), heard);
            timer.due() - heard
        };
        let width = Duration::from_millis(400) / 3;
        for seed in 0..100 {
            for (rank, own) in (0..).zip([5, 7, 9]) {
                let begin = Duration::from_millis(800) + width * rank;
                assert!((begin..begin + width / 3).contains(&due(own, seed)));
            }
        }
        let stranger: Vec<Duration> = (0..100).map(|seed| due(6, seed)).collect();
        assert!(stranger.iter().max() > stranger.iter().min().map(|it| *it + 2 * width).as_ref());
    }

    #[test]
    fn the_timer_asks_only_after_silence_and_again_after_each_round() {
        let start = Instant::now();
        for seed in 0..100 {
            let turn = Turn::of(seed % 4, &[0, 1, 2].into());
            let mut timer = Timer::new(SplitMix64::new(seed), start);
            let mut now = start;
            for _ in 0..50 {
                now += HEARTBEAT;
                assert!(!timer.is_due(now, turn, now));
            }
            let silent_since = now;
            let mut rounds = Vec::new();
            while rounds.len() < 3 {
                now += Duration::from_millis(10);
                if timer.is_due(silent_since, turn, now) {
                    rounds.push(now);
                }
            }
            let mut last = silent_since;
            let spread = SILENCE_MAX - SILENCE_MIN;
            for (round, least) in rounds.into_iter().zip([SILENCE_MIN, AGAIN, AGAIN]) {
                let wait = round - last;
                let most = least + spread + Duration::from_millis(10);
                assert!((least..=most).contains(&wait), "{wait:?}");
                last = round;
            }
        }
    }
}
