//! What the members of this cluster announce of their segments, and which of them are lost: pure.
//!
//! A member announces each of its writers with the number of segments that the bucket has of it. So
//! a segment is followed when it is announced, and the bucket is asked about a writer that is
//! announced only as a safety net.
//!
//! A takeover is complete when the bucket has been listed for new writers and has been asked for
//! the end of every writer of the lost member, both after the takeover began. Invariant: everything
//! here is bounded by the number of members.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::names::{Region, WriterId, WriterKey};

/// How long an announcement counts. Members repeat theirs every two seconds.
const FRESH_MAX: Duration = Duration::from_secs(10);

/// Members that are remembered at most.
const MEMBERS_MAX: usize = 256;

/// What a node tells the other members of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The region that it writes for.
    pub region: Region,
    /// Its writers, each with the number of its segments that are in the bucket. One without a
    /// segment is about to have its first.
    pub writers: BTreeMap<WriterId, u64>,
}

impl Announcement {
    /// Writers of one member at most: those of uploads and of the collector are fewer.
    pub const WRITERS_MAX: usize = 16;
}

/// Tells when the segments of a lost member have been followed to their end.
#[derive(Clone, Debug)]
pub struct CatchUp(watch::Receiver<bool>);

impl From<watch::Receiver<bool>> for CatchUp {
    /// It is done when the value is true, or has no sender any more.
    fn from(is_done: watch::Receiver<bool>) -> Self {
        Self(is_done)
    }
}

impl CatchUp {
    /// Whether that is so, or another takeover of the member has begun since.
    #[must_use]
    pub fn is_done(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Waits until [`CatchUp::is_done`].
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn done(&self) {
        // An error means that the sender is gone, which is the same.
        let _ = self.0.clone().wait_for(|is_done| *is_done).await;
    }
}

/// What is known of a writer by its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    /// Segments of it that are in the bucket.
    pub(super) segments: u64,
    /// When that became more.
    pub(super) changed: Instant,
    /// When it was announced last.
    pub(super) at: Instant,
}

impl Heard {
    /// Whether its member tells of each new segment.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < FRESH_MAX
    }
}

/// The members of the cluster, as far as they announce segments.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    members: BTreeMap<String, BTreeMap<WriterKey, Heard>>,
    /// By member.
    takeovers: BTreeMap<String, Takeover>,
}

/// A member is lost, and the bucket may have segments of it that are not followed yet.
#[derive(Debug)]
struct Takeover {
    begun: Instant,
    /// Writers whose end is not found yet.
    left: BTreeSet<WriterKey>,
    /// Whether the bucket was listed for writers that the member had not announced yet.
    is_listed: bool,
    done: watch::Sender<bool>,
}

impl Announced {
    /// Takes what a member announces. Returns whether anything of it is new.
    pub(crate) fn hear(&mut self, member: &str, told: &Announcement, now: Instant) -> bool {
        if !self.members.contains_key(member) && self.members.len() >= MEMBERS_MAX {
            return false;
        }
        let before = self.members.remove(member).unwrap_or_default();
        let mut is_news = false;
        let told_writers = told.writers.iter().take(Announcement::WRITERS_MAX);
        let writers = told_writers.map(|(&writer, &segments)| {
            let region = told.region.clone();
            let key = WriterKey { region, writer };
            let heard = match before.get(&key) {
                // An older announcement may come late.
                Some(before) if before.segments >= segments => Heard { at: now, ..*before },
                _ => {
                    is_news = true;
                    Heard {
                        segments,
                        changed: now,
                        at: now,
                    }
                }
            };
            (key, heard)
        });
        let writers = writers.collect();
        self.members.insert(member.to_owned(), writers);
        is_news
    }

    /// Forgets the members that are not among these.
    pub(crate) fn retain(&mut self, is_member: impl Fn(&str) -> bool) {
        self.members.retain(|member, _| is_member(member));
    }

    /// All writers that members have announced.
    pub(super) fn writers(&self) -> impl Iterator<Item = (&WriterKey, Heard)> {
        let writers = self.members.values().flatten();
        writers.map(|(key, heard)| (key, *heard))
    }

    /// A member is lost. Where it has announced no writer, its writers may be any of `others`.
    pub(crate) fn take_over(
        &mut self,
        member: &str,
        others: impl FnOnce() -> BTreeSet<WriterKey>,
        now: Instant,
    ) -> CatchUp {
        let announced = self.members.get(member);
        let announced = announced.filter(|writers| !writers.is_empty());
        let left = announced.map_or_else(others, |writers| writers.keys().cloned().collect());
        let (done, is_done) = watch::channel(false);
        let takeover = Takeover {
            begun: now,
            left,
            is_listed: false,
            done,
        };
        self.takeovers.insert(member.to_owned(), takeover);
        CatchUp(is_done)
    }

    /// Writers whose end is to be found at once.
    pub(super) fn taken_over(&self) -> BTreeSet<&WriterKey> {
        let left = self.takeovers.values().flat_map(|it| &it.left);
        left.collect()
    }

    /// Whether the bucket is to be listed for new writers at once.
    pub(super) fn wants_list(&self) -> bool {
        self.takeovers.values().any(|it| !it.is_listed)
    }

    /// The bucket has been asked for the end of a writer, from `began` on.
    pub(super) fn followed(&mut self, key: &WriterKey, began: Instant) {
        for takeover in self.takeovers.values_mut() {
            if takeover.begun <= began {
                takeover.left.remove(key);
            }
        }
    }

    /// The bucket has been listed, from `began` on, and has shown these new writers.
    pub(super) fn listed(&mut self, found: &[WriterKey], began: Instant) {
        for takeover in self.takeovers.values_mut() {
            if takeover.begun <= began && !takeover.is_listed {
                takeover.is_listed = true;
                takeover.left.extend(found.iter().cloned());
            }
        }
    }

    /// Ends the takeovers that are complete, and returns when they had begun.
    pub(super) fn finish(&mut self) -> Vec<Instant> {
        let mut finished = Vec::new();
        self.takeovers.retain(|_, it| {
            let is_open = !it.is_listed || !it.left.is_empty();
            if !is_open {
                it.done.send_replace(true);
                finished.push(it.begun);
            }
            is_open
        });
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn writer(number: u128) -> WriterId {
        WriterId::mint(7, number)
    }

    fn key(number: u128) -> WriterKey {
        WriterKey {
            region: "eu".parse().unwrap(),
            writer: writer(number),
        }
    }

    fn told(writers: &[(u128, u64)]) -> Announcement {
        Announcement {
            region: "eu".parse().unwrap(),
            writers: writers
                .iter()
                .map(|&(it, count)| (writer(it), count))
                .collect(),
        }
    }

    fn heard(announced: &Announced) -> Vec<(WriterKey, u64)> {
        let writers = announced.writers();
        writers
            .map(|(key, heard)| (key.clone(), heard.segments))
            .collect()
    }

    #[test]
    fn only_writers_and_segments_that_were_not_announced_before_are_news() {
        let now = Instant::now();
        let mut announced = Announced::default();
        assert!(!announced.hear("a", &told(&[]), now));
        assert!(announced.hear("a", &told(&[(1, 0)]), now));
        assert!(!announced.hear("a", &told(&[(1, 0)]), now));
        assert!(announced.hear("a", &told(&[(1, 3), (2, 0)]), now + SECOND));
        // One that comes late.
        assert!(!announced.hear("a", &told(&[(1, 2), (2, 0)]), now + 2 * SECOND));
        assert_eq!(heard(&announced), [(key(1), 3), (key(2), 0)]);
        let (_, first) = announced.writers().next().unwrap();
        assert_eq!((first.changed, first.at), (now + SECOND, now + 2 * SECOND));
        assert!(first.is_fresh(now + 11 * SECOND) && !first.is_fresh(now + 12 * SECOND));
        // It runs anew, and has another writer.
        assert!(announced.hear("a", &told(&[(3, 1)]), now));
        assert_eq!(heard(&announced), [(key(3), 1)]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = Instant::now();
        let mut announced = Announced::default();
        let many: Vec<_> = (0..1000).map(|number| (number, 1)).collect();
        for number in 0..2 * MEMBERS_MAX {
            announced.hear(&number.to_string(), &told(&many), now);
        }
        let most = MEMBERS_MAX * Announcement::WRITERS_MAX;
        assert_eq!(announced.writers().count(), most);
        announced.retain(|member| member == "7");
        assert_eq!(announced.writers().count(), Announcement::WRITERS_MAX);
    }

    #[test]
    fn a_takeover_ends_when_the_bucket_was_asked_for_the_end_of_each_writer_after_it_began() {
        let now = Instant::now();
        let mut announced = Announced::default();
        announced.hear("a", &told(&[(1, 3)]), now);
        announced.hear("b", &told(&[(2, 3)]), now);
        let others = || -> BTreeSet<WriterKey> { panic!("it has announced a writer") };
        let caught_up = announced.take_over("a", others, now + SECOND);
        assert_eq!(announced.taken_over(), BTreeSet::from([&key(1)]));
        assert!(announced.wants_list());
        // What was asked before says nothing of what was uploaded since.
        announced.followed(&key(1), now);
        announced.listed(&[], now);
        assert!(announced.finish().is_empty() && announced.wants_list());
        announced.followed(&key(1), now + SECOND);
        assert!(announced.finish().is_empty());
        // A writer that it had not announced yet.
        announced.listed(&[key(9)], now + SECOND);
        assert!(announced.finish().is_empty() && !announced.wants_list());
        assert_eq!(announced.taken_over(), BTreeSet::from([&key(9)]));
        assert!(!caught_up.is_done());
        announced.followed(&key(9), now + 2 * SECOND);
        assert_eq!(announced.finish(), [now + SECOND]);
        assert!(caught_up.is_done());
        assert!(announced.finish().is_empty());
    }

    #[test]
    fn where_a_lost_member_has_announced_no_writer_any_may_be_its() {
        let now = Instant::now();
        let mut announced = Announced::default();
        announced.hear("a", &told(&[]), now);
        for member in ["a", "b"] {
            let others = || BTreeSet::from([key(4), key(5)]);
            let caught_up = announced.take_over(member, others, now);
            assert_eq!(announced.taken_over().len(), 2, "{member}");
            announced.listed(&[], now);
            announced.followed(&key(4), now);
            announced.followed(&key(5), now);
            assert_eq!(announced.finish().len(), 1, "{member}");
            assert!(caught_up.is_done(), "{member}");
        }
    }

    #[tokio::test]
    async fn a_waiter_is_released_when_the_takeover_begins_anew() {
        let now = Instant::now();
        let mut announced = Announced::default();
        let first = announced.take_over("a", BTreeSet::new, now);
        assert!(!first.is_done());
        let second = announced.take_over("a", BTreeSet::new, now);
        assert!(first.is_done() && !second.is_done());
        first.done().await;
    }
}
