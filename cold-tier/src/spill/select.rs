//! Which records of the queue belong into the bucket.
//!
//! Pure. What may be left out must not leave an older copy in the bucket as the newest.

use crate::segment::CopyVersion;

/// A record of the queue, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) at: CopyVersion,
    pub(crate) tombstone: bool,
    /// Unix time in milliseconds; 0 never.
    pub(crate) expires_at_ms: u64,
    /// Whether the node would serve it: false once it was flushed.
    pub(crate) is_visible: bool,
}

/// The copy of its key that the bucket has, or is about to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) at: CopyVersion,
    /// Whether it can be read, as far as anybody knows.
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
    use super::*;

    const NOW_MS: u64 = 1000;

    fn at(version: u64) -> CopyVersion {
        CopyVersion { epoch: 0, version }
    }

    fn put(version: u64) -> Candidate {
        Candidate {
            at: at(version),
            tombstone: false,
            expires_at_ms: 0,
            is_visible: true,
        }
    }

    fn known(version: u64, is_readable: bool) -> Option<Known> {
        let at = at(version);
        Some(Known { at, is_readable })
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
}
