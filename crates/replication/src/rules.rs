//! The rules that the core keeps. Tests switch single rules off to show that the proof notices.

/// A rule, named as in `docs/replication.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// R1: a write is answered when all owners and learners have it (`write.rs`).
    AllOwners,
    /// R1: owners refuse writes and primaries refuse acknowledgements of another epoch (`core.rs`).
    SameEpoch,
    /// R1: a pending write is sent again to all owners under each new epoch (`write.rs`).
    Resend,
    /// R1: a write that was executed under an earlier epoch is stored again under the present one
    /// (`write.rs`).
    StoreAgain,
    /// R1: a write that was executed before the member lost the slot is refused (`write.rs`).
    Interrupted,
    /// R2: versions stay in the range of the applied epoch (the shell).
    Range,
    /// R3: a successor that was not in sync raises its floor (`slot.rs`).
    Floor,
    /// R4: a learner copies a slot before it reports that it is in sync (`sync.rs`).
    Copy,
    /// R4: the feed starts at the last epoch in which the member was in sync for this slot
    /// (`sync.rs`).
    SlotEpoch,
    /// R4: the primary refuses a feed from an epoch since which its log was evicted (`sync.rs`).
    CompleteFeed,
    /// R4: a learner clears what it has before it copies a slot in full (`sync.rs`).
    CopyFloor,
    /// R4: a learner asks for a full copy when the old content is gone, not before (`sync.rs`).
    Clear,
    /// R4: a write is answered when no former owner can answer reads any more (`write.rs`).
    FormerOwners,
    /// R5: a member that was declared down syncs before it owns again (`slot.rs`).
    Return,
    /// R5: a member that may have lost acknowledged writes syncs (`core.rs`).
    CleanStart,
    /// R5: that holds after further starts, too, until the members have agreed on it (`core.rs`).
    SavedFitness,
    /// R5: such a member owns nothing until the members have agreed that it syncs (`core.rs`).
    Agreed,
    /// R6: a member answers only while it holds a lease (`rights.rs`, `write.rs`).
    Lease,
}

/// The rules in force: all of them, in everything that ships.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    #[cfg(feature = "mutations")]
    off: Option<Rule>,
}

impl Rules {
    /// All rules.
    pub const ALL: Self = Self {
        #[cfg(feature = "mutations")]
        off: None,
    };

    /// All rules but one.
    #[cfg(feature = "mutations")]
    #[must_use]
    pub fn without(rule: Rule) -> Self {
        Self { off: Some(rule) }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn hold(self, rule: Rule) -> bool {
        self.off != Some(rule)
    }

    #[cfg(not(feature = "mutations"))]
    #[inline(always)]
    pub(crate) const fn hold(self, _: Rule) -> bool {
        true
    }
}
