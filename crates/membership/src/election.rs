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

/// Times of elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How often a leader lets hear from it.
    pub heartbeat: Duration,
    /// For how long after it was heard a leader has no vote against it.
    pub lease: Duration,
    /// Silence of the leader after which a voter asks the others, at least.
    pub silence_min: Duration,
    /// The same at most. Each voter has a [`Turn`] in between.
    pub silence_max: Duration,
    /// From a question that led to no leader to the next, at least; it is longer by as much as the
    /// first.
    pub again: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(150),
            lease: Duration::from_millis(600),
            silence_min: Duration::from_millis(800),
            silence_max: Duration::from_millis(1200),
            again: Duration::from_millis(400),
        }
    }
}

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
    options: Options,
    random: SplitMix64,
    due: Instant,
    /// What was heard when `due` was drawn.
    heard: Option<Instant>,
}

impl Timer {
    pub(super) fn new(options: Options, random: SplitMix64, now: Instant) -> Self {
        let mut timer = Self {
            options,
            random,
            due: now,
            heard: None,
        };
        timer.draw(now, options.silence_min, Turn::default());
        timer
    }

    /// When to look again, at the latest.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// Whether to ask the others now. `heard` is when a leader was last heard.
    pub(super) fn is_due(&mut self, heard: Option<Instant>, turn: Turn, now: Instant) -> bool {
        if heard > self.heard {
            self.heard = heard;
            self.draw(heard.unwrap_or(now), self.options.silence_min, turn);
        }
        if now < self.due {
            return false;
        }
        self.draw(now, self.options.again, turn);
        true
    }

    fn draw(&mut self, from: Instant, least: Duration, turn: Turn) {
        let options = self.options;
        let spread = options.silence_max.saturating_sub(options.silence_min);
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
    pub(super) heard: Option<Instant>,
    /// The end of its log, as far as its vote [defends](defended) it.
    pub(super) last_log: Option<LogId>,
}

impl Voter {
    /// Whether it would vote for a candidate whose log ends at `candidate`.
    pub(super) fn would_vote(
        self,
        candidate: Option<LogId>,
        lease: Duration,
        now: Instant,
    ) -> bool {
        let silence = self.heard.map(|heard| now.saturating_duration_since(heard));
        silence.is_none_or(|silence| silence > lease) && candidate >= self.last_log
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
        let options = Options::default();
        let start = Instant::now();
        let voter = Voter {
            heard: Some(start),
            last_log: log_id(2, 5),
        };
        let vote = |after| voter.would_vote(log_id(9, 9), options.lease, start + after);
        assert!(!vote(Duration::ZERO));
        assert!(!vote(options.lease));
        assert!(vote(options.lease + Duration::from_millis(1)));
    }

    #[test]
    fn a_shorter_log_gets_no_vote() {
        let voter = |last_log| Voter {
            heard: None,
            last_log,
        };
        let vote = |mine, theirs| voter(mine).would_vote(theirs, Duration::ZERO, Instant::now());
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
            let mut timer = Timer::new(Options::default(), SplitMix64::new(seed), start);
            let heard = start + Duration::from_millis(1);
            timer.is_due(Some(heard), Turn::of(own, &voters), heard);
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
        let options = Options::default();
        let start = Instant::now();
        for seed in 0..100 {
            let turn = Turn::of(seed % 4, &[0, 1, 2].into());
            let mut timer = Timer::new(options, SplitMix64::new(seed), start);
            let mut now = start;
            for _ in 0..50 {
                now += options.heartbeat;
                assert!(!timer.is_due(Some(now), turn, now));
            }
            let silent_since = now;
            let mut rounds = Vec::new();
            while rounds.len() < 3 {
                now += Duration::from_millis(10);
                if timer.is_due(Some(silent_since), turn, now) {
                    rounds.push(now);
                }
            }
            let mut last = silent_since;
            let spread = options.silence_max - options.silence_min;
            for (round, least) in
                rounds
                    .into_iter()
                    .zip([options.silence_min, options.again, options.again])
            {
                let wait = round - last;
                let most = least + spread + Duration::from_millis(10);
                assert!((least..=most).contains(&wait), "{wait:?}");
                last = round;
            }
        }
    }
}
