//! Names of members, slots, epochs and versions, and sets of members and slots.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A member, by its position in [`Topology::members`](crate::Topology::members).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId(pub u8);

/// A slot: the unit of ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u16);

impl Slot {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of slots.
pub type SlotSet = BTreeSet<Slot>;

/// The number of a topology. It only grows. Zero is before the first topology.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The version of an entry or tombstone. The higher version of a key wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A set of at most 128 members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemberSet(u128);

impl MemberSet {
    /// Most members of a cluster.
    pub const MEMBERS_MAX: usize = 128;

    /// Adds a member. Members above the limit are ignored.
    pub fn insert(&mut self, member: MemberId) {
        self.0 |= Self::bit(member);
    }

    /// Removes a member.
    pub fn remove(&mut self, member: MemberId) {
        self.0 &= !Self::bit(member);
    }

    /// Whether the member is in the set.
    #[must_use]
    pub fn contains(self, member: MemberId) -> bool {
        self.0 & Self::bit(member) != 0
    }

    /// The members of `self` that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The members of either set.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether no member is in the set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = MemberId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let index = u8::try_from(rest.trailing_zeros()).ok()?;
            (rest != 0).then(|| {
                rest &= rest - 1;
                MemberId(index)
            })
        })
    }

    fn bit(member: MemberId) -> u128 {
        1u128.checked_shl(u32::from(member.0)).unwrap_or_default()
    }
}

impl FromIterator<MemberId> for MemberSet {
    fn from_iter<I: IntoIterator<Item = MemberId>>(members: I) -> Self {
        let mut set = Self::default();
        for member in members {
            set.insert(member);
        }
        set
    }
}
