//! Which records of the queue belong into the bucket.
//!
//! Pure. What may be left out must not leave an older copy in the bucket as the newest.

use crate::segment::Version;

/// A record of the queue, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) at: Version,
    pub(crate) tombstone: bool,
    /// Unix time in milliseconds; 0 never.
    pub(crate) expires_at_ms: u64,
    /// Whether the node would serve it: false once it was flushed.
    pub(crate) is_visible: bool,
}

/// The copy of its key that the bucket has, or is about to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) at: Version,
    /// Whether it can be read, as far as this node knows.
    pub(crate) is_readable: bool,
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// It is written.
    Write,
    /// A tombstone of its version is written: it hides an older copy.
    WriteTombstone,
    /// It need not be written.
    Skip,
}

pub(crate) fn choose(candidate: &Candidate, known: Option<Known>, now_ms: u64) -> Choice {
    // Flushes are in the bucket themselves, and hide older copies just as well.
    if !candidate.is_visible {
        return Choice::Skip;
    }
    if let Some(known) = known {
        let is_there = known.at == candidate.at && known.is_readable;
        if known.at > candidate.at || is_there {
            return Choice::Skip;
        }
    }
    let is_expired = candidate.expires_at_ms != 0 && candidate.expires_at_ms <= now_ms;
    match (candidate.tombstone, is_expired, known) {
        (true, ..) | (false, false, _) => Choice::Write,
        (false, true, Some(_)) => Choice::WriteTombstone,
        (false, true, None) => Choice::Skip,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW_MS: u64 = 1000;

    fn put(version: u64) -> Candidate {
        Candidate {
            at: version,
            tombstone: false,
            expires_at_ms: 0,
            is_visible: true,
        }
    }

    fn known(version: u64, is_readable: bool) -> Option<Known> {
        Some(Known {
            at: version,
            is_readable,
        })
    }

    #[test]
    fn what_is_new_is_written_and_what_is_there_is_not() {
        assert_eq!(choose(&put(5), None, NOW_MS), Choice::Write);
        assert_eq!(choose(&put(5), known(4, true), NOW_MS), Choice::Write);
        assert_eq!(choose(&put(5), known(5, true), NOW_MS), Choice::Skip);
        assert_eq!(choose(&put(5), known(6, false), NOW_MS), Choice::Skip);
        // Its segment vanished: the copy here is the only one.
        assert_eq!(choose(&put(5), known(5, false), NOW_MS), Choice::Write);
    }

    #[test]
    fn a_tombstone_is_written_even_if_no_copy_is_known() {
        let delete = Candidate {
            tombstone: true,
            ..put(5)
        };
        assert_eq!(choose(&delete, None, NOW_MS), Choice::Write);
        assert_eq!(choose(&delete, known(5, true), NOW_MS), Choice::Skip);
    }

    #[test]
    fn what_has_expired_still_hides_what_it_overwrote() {
        let expired = Candidate {
            expires_at_ms: NOW_MS,
            ..put(5)
        };
        assert_eq!(choose(&expired, None, NOW_MS), Choice::Skip);
        assert_eq!(
            choose(&expired, known(4, true), NOW_MS),
            Choice::WriteTombstone
        );
        assert_eq!(choose(&expired, known(4, true), NOW_MS - 1), Choice::Write);
    }

    #[test]
    fn what_was_flushed_stays_out() {
        let flushed = Candidate {
            is_visible: false,
            ..put(5)
        };
        assert_eq!(choose(&flushed, known(4, true), NOW_MS), Choice::Skip);
    }

    /// What happens to a key.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// A value is stored, which expires so much later; 0 never.
        Put {
            ttl_ms: u64,
        },
        Delete,
        Flush,
        /// Time passes.
        Wait {
            ms: u64,
        },
        /// The queue is read: in order, and of each key only what is the newest by then.
        Spill,
        /// The segment of the newest copy vanishes, and a reader notices.
        Vanish,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => (0u64..4).prop_map(|ttl| Event::Put { ttl_ms: ttl * 100 }),
            2 => Just(Event::Delete),
            1 => Just(Event::Flush),
            2 => (1u64..200).prop_map(|ms| Event::Wait { ms }),
            4 => Just(Event::Spill),
            1 => Just(Event::Vanish),
        ];
        proptest::collection::vec(event, 1..40)
    }

    /// A copy in the bucket.
    #[derive(Clone, Copy, Debug)]
    struct Copy {
        version: u64,
        expires_at_ms: u64,
        is_value: bool,
        is_readable: bool,
    }

    /// A key, its queue, and its copies in the bucket.
    #[derive(Default)]
    struct Model {
        now_ms: u64,
        version: u64,
        cutoff: u64,
        newest: Option<Candidate>,
        queue: Option<Candidate>,
        bucket: Vec<Copy>,
    }

    impl Model {
        fn write(&mut self, tombstone: bool, ttl_ms: u64) {
            self.version += 1;
            let expires_at_ms = if ttl_ms == 0 { 0 } else { self.now_ms + ttl_ms };
            let record = Candidate {
                at: self.version,
                tombstone,
                expires_at_ms,
                is_visible: true,
            };
            self.newest = Some(record);
            self.queue = Some(record);
        }

        fn newest_copy(&self) -> Option<&Copy> {
            self.bucket.iter().max_by_key(|copy| copy.version)
        }

        fn spill(&mut self) {
            let Some(record) = self.queue.take() else {
                return;
            };
            let candidate = Candidate {
                is_visible: record.at >= self.cutoff,
                ..record
            };
            let known = self.newest_copy().map(|copy| Known {
                at: copy.version,
                is_readable: copy.is_readable,
            });
            let is_value = match choose(&candidate, known, self.now_ms) {
                Choice::Skip => return,
                Choice::Write => !record.tombstone,
                Choice::WriteTombstone => false,
            };
            self.bucket.retain(|copy| copy.version != record.at);
            self.bucket.push(Copy {
                version: record.at,
                expires_at_ms: record.expires_at_ms,
                is_value,
                is_readable: true,
            });
        }

        fn is_live(&self, version: u64, expires_at_ms: u64) -> bool {
            let is_expired = expires_at_ms != 0 && expires_at_ms <= self.now_ms;
            version >= self.cutoff && !is_expired
        }

        /// What a node that has nothing but the bucket serves.
        fn served(&self) -> Option<u64> {
            let copy = self.newest_copy()?;
            let is_there = copy.is_value && copy.is_readable;
            let is_live = self.is_live(copy.version, copy.expires_at_ms);
            (is_there && is_live).then_some(copy.version)
        }

        /// What it should.
        fn expected(&self) -> Option<u64> {
            let newest = self.newest.filter(|record| !record.tombstone)?;
            let version = newest.at;
            self.is_live(version, newest.expires_at_ms)
                .then_some(version)
        }
    }

    proptest! {
        #[test]
        fn once_the_queue_is_read_the_bucket_serves_the_newest_or_nothing(events in events()) {
            let mut model = Model { now_ms: NOW_MS, ..Model::default() };
            let mut may_lack = false;
            for event in events {
                match event {
                    Event::Put { ttl_ms } => model.write(false, ttl_ms),
                    Event::Delete => model.write(true, 0),
                    Event::Flush => {
                        model.version += 1;
                        model.cutoff = model.version;
                    }
                    Event::Wait { ms } => model.now_ms += ms,
                    Event::Spill => model.spill(),
                    Event::Vanish => {
                        let newest = model.newest_copy().map(|copy| copy.version);
                        for copy in &mut model.bucket {
                            if Some(copy.version) == newest {
                                copy.is_readable = false;
                            }
                        }
                    }
                }
                if model.queue.is_some() {
                    continue;
                }
                // A copy that vanished is a miss, until it is written anew.
                may_lack = model.newest_copy().is_some_and(|copy| !copy.is_readable);
                match model.served() {
                    None => prop_assert!(may_lack || model.expected().is_none()),
                    served => prop_assert_eq!(served, model.expected()),
                }
            }
            // The queue has it still, as after a restart: then it comes back.
            if may_lack && model.queue.is_none() {
                model.queue = model.newest;
                model.spill();
                prop_assert_eq!(model.served(), model.expected());
            }
        }
    }
}
