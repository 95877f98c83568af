//! When which writer is asked for news, and when the bucket is listed for new ones: pure.

use std::time::Duration;

use tokio::time::Instant;

use super::announced::Heard;
use crate::index::Cursor;
use crate::names::WriterKey;

/// The longest wait: a writer that wrote nothing for an hour may do so again.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// How long to wait after the bucket failed.
pub(super) const RETRY: Duration = Duration::from_secs(2);

/// The same, where lookups wait for the answer.
const URGENT_RETRY: Duration = Duration::from_millis(200);

/// Writers that are asked at the same time at most, and as many besides whose answer is urgent.
const PARALLEL: usize = 8;

/// The wait after a writer had nothing new, if its last news are `idle` old: the longer it was idle
/// the less often it is asked, so that the many writers of past runs cost next to nothing.
fn wait(idle: Duration, interval: Duration) -> Duration {
    (idle / 10).clamp(interval, WAIT_MAX.max(interval))
}

/// How a request to the bucket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The writer has nothing more; its last news are that old.
    Ended(Duration),
    /// There was no answer.
    Failed,
}

/// The last time that a writer was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) at: Instant,
    pub(super) outcome: Outcome,
}

/// A writer that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) key: WriterKey,
    pub(super) cursor: Cursor,
    /// None: not in this run.
    pub(super) asked: Option<Asked>,
    /// What its member tells of it, if it is one of this cluster.
    pub(super) heard: Option<Heard>,
    /// Whether its member is lost, and its end is looked for.
    pub(super) is_taken_over: bool,
}

impl Candidate {
    /// Whether its member has told of a segment that is not followed yet.
    pub(super) fn is_ahead(&self) -> bool {
        let heard = self.heard.as_ref();
        heard.is_some_and(|heard| heard.segments > self.cursor.next_seq)
    }

    /// The number before which it is followed; None: as far as the bucket has segments. A request
    /// for a segment that its member has not told of would be one in vain.
    pub(super) fn end(&self) -> Option<u64> {
        let is_told = self.has_ended() && self.is_ahead() && !self.is_taken_over;
        let heard = self.heard.filter(|_| is_told);
        heard.map(|heard| heard.segments)
    }

    /// Whether the answer is waited for.
    fn is_urgent(&self) -> bool {
        let is_new = |heard: &Heard| self.asked.is_none_or(|asked| asked.at < heard.changed);
        self.is_taken_over || self.is_ahead() && self.heard.as_ref().is_some_and(is_new)
    }

    /// When it is to be asked.
    fn due(&self, interval: Duration, now: Instant) -> Instant {
        let is_urgent = self.is_urgent();
        match self.asked {
            None => now,
            Some(Asked {
                at,
                outcome: Outcome::Failed,
            }) => at + if is_urgent { URGENT_RETRY } else { RETRY },
            Some(_) if is_urgent => now,
            Some(Asked {
                at,
                outcome: Outcome::Ended(idle),
            }) => {
                let is_fresh = |heard: &Heard| heard.is_fresh(now);
                let is_announced = self.heard.as_ref().is_some_and(is_fresh);
                // Its member tells of the next segment. Asking is for the case that it does not.
                at + match is_announced && !self.is_ahead() {
                    true => WAIT_MAX.max(interval),
                    false => wait(idle, interval),
                }
            }
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.asked, Some(asked) if asked.outcome != Outcome::Failed)
    }
}

/// When the bucket is to be listed for new writers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing {
    /// When it is due.
    pub(super) due: Instant,
    /// Whether a takeover needs it.
    pub(super) is_wanted: bool,
    /// When it failed, if it did the last time.
    pub(super) failed: Option<Instant>,
    /// Whether it is under way.
    pub(super) is_under_way: bool,
}

impl Listing {
    fn due(&self, now: Instant) -> Instant {
        match self.failed {
            None if self.is_wanted => now,
            Some(at) if self.is_wanted => self.due.min(at + URGENT_RETRY),
            _ => self.due,
        }
    }
}

/// What the follower does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It asks these writers.
    Ask(Vec<Candidate>),
    /// It lists the bucket.
    List,
    /// It waits: nothing is due before, unless there are announcements.
    Wait(Instant),
}

/// The next step of a follower that asks active writers every `interval`. `candidates` are not
/// being asked at present; `asking` others are.
pub(super) fn next(
    candidates: &[Candidate],
    asking: usize,
    listing: Listing,
    interval: Duration,
    now: Instant,
) -> Step {
    let is_due = |it: &&Candidate| it.due(interval, now) <= now;
    let due = || candidates.iter().filter(is_due);
    let room = (2 * PARALLEL).saturating_sub(asking);
    let urgent: Vec<_> = due()
        .filter(|it| it.is_urgent())
        .take(room)
        .cloned()
        .collect();
    if !urgent.is_empty() {
        return Step::Ask(urgent);
    }
    if !listing.is_under_way && listing.due(now) <= now {
        return Step::List;
    }
    // One batch after the other, so that planning costs little where there are many.
    if asking == 0 {
        let routine: Vec<_> = due().take(PARALLEL).cloned().collect();
        if !routine.is_empty() {
            return Step::Ask(routine);
        }
    }
    // An announcement may cease to count meanwhile, so it is looked at again soon.
    let mut until = now + interval;
    if !listing.is_under_way {
        until = until.min(listing.due(now));
    }
    let later = candidates.iter().map(|it| it.due(interval, now));
    Step::Wait(
        later
            .filter(|due| *due > now)
            .min()
            .unwrap_or(until)
            .min(until),
    )
}

/// Whether every writer was followed to its end in this run, if these are all.
pub(super) fn is_caught_up(candidates: &[Candidate]) -> bool {
    candidates.iter().all(Candidate::has_ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::WriterId;

    const SECOND: Duration = Duration::from_secs(1);
    const INTERVAL: Duration = Duration::from_secs(10);

    #[test]
    fn idle_writers_are_asked_less_often_and_within_bounds() {
        let secs = Duration::from_secs;
        assert_eq!(wait(secs(0), secs(10)), secs(10));
        assert_eq!(wait(secs(600), secs(10)), secs(60));
        assert_eq!(wait(secs(86_400), secs(10)), secs(300));
        assert_eq!(wait(secs(86_400), secs(900)), secs(900));
    }

    fn writer(number: u128) -> Candidate {
        Candidate {
            key: WriterKey {
                region: "eu".parse().unwrap(),
                writer: WriterId::mint(7, number),
            },
            cursor: Cursor {
                next_seq: 3,
                last_new_ms: 0,
            },
            asked: None,
            heard: None,
            is_taken_over: false,
        }
    }

    fn ended(at: Instant, idle: Duration) -> Option<Asked> {
        let outcome = Outcome::Ended(idle);
        Some(Asked { at, outcome })
    }

    fn heard(segments: u64, changed: Instant, at: Instant) -> Option<Heard> {
        Some(Heard {
            segments,
            changed,
            at,
        })
    }

    fn quiet(now: Instant) -> Listing {
        Listing {
            due: now + 3600 * SECOND,
            is_wanted: false,
            failed: None,
            is_under_way: false,
        }
    }

    fn asks(those: &[Candidate]) -> Step {
        Step::Ask(those.to_vec())
    }

    #[test]
    fn a_writer_is_asked_at_once_when_its_member_tells_of_a_segment_however_idle_it_was() {
        let now = Instant::now();
        let idle = Candidate {
            asked: ended(now, 3600 * SECOND),
            ..writer(1)
        };
        let step =
            |it: &Candidate, now| next(std::slice::from_ref(it), 0, quiet(now), INTERVAL, now);
        assert_eq!(idle.due(INTERVAL, now), now + 300 * SECOND);
        let now = now + SECOND;
        let told = Candidate {
            heard: heard(4, now, now),
            ..idle.clone()
        };
        assert_eq!(step(&told, now), asks(std::slice::from_ref(&told)));
        // It was asked, and the bucket does not have that segment: once is enough.
        let asked = Candidate {
            asked: ended(now, SECOND),
            ..told.clone()
        };
        assert_eq!(step(&asked, now), Step::Wait(now + INTERVAL));
        // The bucket failed.
        let failed = Candidate {
            asked: Some(Asked {
                at: now,
                outcome: Outcome::Failed,
            }),
            heard: heard(4, now + SECOND, now + SECOND),
            ..told
        };
        assert_eq!(step(&failed, now), Step::Wait(now + URGENT_RETRY));
        let now = now + URGENT_RETRY;
        assert_eq!(step(&failed, now), asks(std::slice::from_ref(&failed)));
    }

    #[test]
    fn a_writer_is_followed_as_far_as_its_member_told_and_to_its_end_at_first_and_in_a_takeover() {
        let now = Instant::now();
        let told = Candidate {
            asked: ended(now, SECOND),
            heard: heard(5, now, now),
            ..writer(1)
        };
        assert_eq!(told.end(), Some(5));
        let asked = None;
        let first = Candidate {
            asked,
            ..told.clone()
        };
        assert_eq!(first.end(), None);
        let is_taken_over = true;
        let lost = Candidate {
            is_taken_over,
            ..told.clone()
        };
        assert_eq!(lost.end(), None);
        let heard = heard(3, now, now);
        assert_eq!(Candidate { heard, ..told }.end(), None);
    }

    #[test]
    fn a_writer_that_is_announced_is_asked_every_five_minutes_until_its_member_ceases_to_announce_it()
     {
        let now = Instant::now();
        let active = Candidate {
            asked: ended(now, SECOND),
            ..writer(1)
        };
        assert_eq!(active.due(INTERVAL, now), now + INTERVAL);
        let announced = Candidate {
            heard: heard(3, now, now),
            ..active
        };
        let fresh = now + 9 * SECOND;
        assert_eq!(announced.due(INTERVAL, fresh), now + WAIT_MAX);
        // The follower looks again within the interval, as the announcements may cease.
        let step = next(
            std::slice::from_ref(&announced),
            0,
            quiet(now),
            INTERVAL,
            fresh,
        );
        assert_eq!(step, Step::Wait(fresh + INTERVAL));
        let late = now + 10 * SECOND;
        assert_eq!(announced.due(INTERVAL, late), now + INTERVAL);
    }

    #[test]
    fn the_writers_of_a_lost_member_come_before_all_others() {
        let now = Instant::now();
        let mut writers: Vec<_> = (0..20).map(writer).collect();
        writers.push(Candidate {
            asked: ended(now, SECOND),
            is_taken_over: true,
            ..writer(99)
        });
        let overdue = Listing {
            due: now,
            ..quiet(now)
        };
        let lost = asks(&writers[20..]);
        assert_eq!(next(&writers, 0, overdue, INTERVAL, now), lost);
        // Also while others are being asked.
        assert_eq!(next(&writers, 8, overdue, INTERVAL, now), lost);
        let rest = &writers[..20];
        assert_eq!(next(rest, 8, overdue, INTERVAL, now), Step::List);
        let under_way = Listing {
            is_under_way: true,
            ..overdue
        };
        let batch = asks(&rest[..PARALLEL]);
        assert_eq!(next(rest, 0, under_way, INTERVAL, now), batch);
        let step = next(rest, 8, under_way, INTERVAL, now);
        assert_eq!(step, Step::Wait(now + INTERVAL));
    }

    #[test]
    fn a_takeover_has_the_bucket_listed_at_once_and_again_where_that_fails() {
        let now = Instant::now();
        let wanted = Listing {
            is_wanted: true,
            ..quiet(now)
        };
        assert_eq!(
            next(&[], 0, quiet(now), INTERVAL, now),
            Step::Wait(now + INTERVAL)
        );
        assert_eq!(next(&[], 0, wanted, INTERVAL, now), Step::List);
        let failed = Listing {
            failed: Some(now),
            ..wanted
        };
        let again = now + URGENT_RETRY;
        assert_eq!(next(&[], 0, failed, INTERVAL, now), Step::Wait(again));
        assert_eq!(next(&[], 0, failed, INTERVAL, again), Step::List);
    }

    #[test]
    fn a_failure_keeps_the_follower_from_being_caught_up() {
        let now = Instant::now();
        let done = Candidate {
            asked: ended(now, SECOND),
            ..writer(1)
        };
        let failed = Candidate {
            asked: Some(Asked {
                at: now,
                outcome: Outcome::Failed,
            }),
            ..writer(2)
        };
        assert!(is_caught_up(&[]) && is_caught_up(std::slice::from_ref(&done)));
        assert!(!is_caught_up(&[done.clone(), failed]));
        assert!(!is_caught_up(&[done, writer(3)]));
    }
}
