//! What the members of a cluster agree on, and the changes of it.
//!
//! [`State::apply`] is the state machine under raft: pure and the same everywhere, it never fails
//! but answers [`Outcome::Refused`], and a change that is applied a second time changes nothing.
//! Everything in a [`State`] is bounded, since every member holds all of it. Cached data is never
//! in here.
//!
//! Invariants:
//! - The epoch grows by one with each change that alters what [`Map`](super::map::Map) shows, and
//!   with no other.
//! - The ranges of versions of two epochs do not overlap, and grow (ADR 0038).

mod layouts;
mod records;
#[cfg(test)]
pub(super) mod settle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use fonn_base::hlc::{COUNT_RESERVE, COUNTER_BITS, VERSION_MAX, VersionRange};
use fonn_replication::{Change as SlotChange, Epoch, MemberId, Slot, StandIn, Status};
use serde::{Deserialize, Serialize};

use super::member::{Member, MemberInfo, Phase};
use super::minor_version::MinorVersion;
use super::placing::{Place, Placing};
use super::types::RaftId;

/// Most members, those removed not counted: as many as there are numbers for the replication core.
pub const MEMBERS_MAX: usize = fonn_replication::MemberSet::MEMBERS_MAX;
/// Most removed members that are remembered; the one removed first is forgotten first.
const REMOVED_MAX: usize = 128;

/// The leader raises the ceiling of versions when less than this is left above the clock, without
/// the reserve.
const VERSIONS_LOW: u64 = 10_000 << COUNTER_BITS;
/// How far above the clock it raises the ceiling, without the reserve.
const VERSIONS_AHEAD: u64 = 2 * VERSIONS_LOW;

/// What the silence may be after which a member is down. Two answers to a probe have to fit in.
pub const DOWN_AFTER_MS: RangeInclusive<u32> = 1_000..=60_000;

/// The state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Drawn when the cluster was formed; 0 before.
    pub cluster: u64,
    /// The version of the map.
    pub epoch: u64,
    /// The versions that members may give by this epoch.
    pub versions: VersionRange,
    /// Owners that each slot should have, 1 to 3; 0 only before the cluster is formed.
    pub replicas: u8,
    /// Silence after which a member is down, in milliseconds. Leases follow from it, so all members
    /// go by one. 0 only before the cluster is formed.
    pub down_after_ms: u32,
    /// What the layout in force follows from.
    pub placing: Placing,
    /// What the layout follows from that replaces it when its owners have copied their slots.
    pub next: Option<Placing>,
    /// The epoch at which the latest of the two layouts was proposed.
    pub proposed: Epoch,
    /// The slots of which no placed owner is in sync.
    pub stand_ins: BTreeMap<Slot, StandIn>,
    /// Members by name.
    pub members: BTreeMap<String, Member>,
    /// The last members that were removed, the first removed first. Their disks may not come back.
    removed: Vec<Removed>,
    /// Namespaces by name; what they are, `users` reads.
    pub namespaces: BTreeMap<String, Record>,
    /// Users by name; what they are, `users` reads.
    pub users: BTreeMap<String, Record>,
    /// Counts the changes of users and namespaces.
    pub users_revision: u64,
    /// The version that a member has to be of at least to understand this state: that with which
    /// the newest of the changes came that were made. A member of an older one is not taken in.
    #[serde(default, skip_serializing_if = "MinorVersion::is_first")]
    pub needs: MinorVersion,
}

/// A member that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Removed {
    id: String,
    raft_id: RaftId,
}

/// A text that is opaque to the state machine, and never shown: there are hashes of passwords in
/// it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Record(pub String);

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} bytes)", self.0.len())
    }
}

/// A record that is set, or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The kind.
    pub kind: RecordKind,
    /// The name.
    pub name: String,
    /// Its text; none removes it.
    pub record: Option<Record>,
}

/// A change that members agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Founds the cluster. The founder owns all slots at once.
    Form {
        /// A number drawn at random.
        cluster: u64,
        /// The first member.
        founder: MemberInfo,
        /// A version that is no lower than any that the founder has given.
        version: u64,
        /// Silence after which a member is down, in milliseconds: [`DOWN_AFTER_MS`].
        down_after_ms: u32,
    },
    /// Takes a member in, or notes what is new about one. Another raft id under a known name is a
    /// new one with an empty disk.
    Join(MemberInfo),
    /// Has a member get its slots by the next layout: one that joined and follows the log, or one
    /// that was draining. Refused for one that is to be removed.
    Activate(RaftId),
    /// A member does not answer, and its leases are over.
    Down(RaftId),
    /// A member has been down for so long that other members should get its slots, until it is
    /// back.
    Miss(RaftId),
    /// A member asks to sync: it was down, or it may have lost acknowledged writes. It asks itself,
    /// after it has applied the epoch at which it was declared down. Refused while another member
    /// has its client address.
    Sync {
        /// The member.
        raft_id: RaftId,
        /// The epoch that it had applied.
        applied: u64,
        /// The start of its process.
        started: u64,
    },
    /// A member has copied all its slots. It says so itself.
    InSync {
        /// The member.
        raft_id: RaftId,
        /// The epoch that it had applied.
        applied: u64,
    },
    /// The members should copy what the layout gives to them that follows from the active members
    /// and their weights. Where it is the layout in force, the next one is given up.
    ProposeLayout,
    /// The next layout replaces the one in force, if its owners have copied their slots.
    ReplaceLayout,
    /// Has the next layout be without a member, which goes on answering until then.
    Drain {
        /// The name.
        id: String,
    },
    /// Removes a member for good; it can come back only with an empty disk. One that is up is
    /// leaving from then on, and is removed by the same change when it is down.
    Remove {
        /// The name.
        id: String,
    },
    /// Sets a member's share of the slots, until the member starts again with another.
    SetWeight {
        /// The name.
        id: String,
        /// The share.
        weight: u16,
    },
    /// Sets the number of owners of each slot.
    SetReplicas(u8),
    /// Lets members give versions below this ceiling; a lower one than before changes nothing. The
    /// leader proposes it in time.
    ExtendVersions {
        /// The ceiling.
        ceiling: u64,
    },
    /// Sets and removes all of these records, or none if users or namespaces were changed since
    /// the caller looked at them: what is right beside those of then may be wrong beside others.
    PutTogether {
        /// The [`State::users_revision`] of then.
        revision: u64,
        /// The records.
        puts: Vec<Put>,
    },
    /// A kind that this version does not know, or a known one with something in it that it does not
    /// know. It stays in the log as it came, and changes nothing: a member that knows it refuses it
    /// too, because of this member.
    #[serde(untagged)]
    Unknown(serde_json::Value),
}

impl Change {
    /// The version with which this kind of change came. A change that adds a kind says so here; no
    /// kind ever gets a new field or another meaning, since older members would leave it out.
    const fn since(&self) -> MinorVersion {
        match self {
            Self::Form { .. }
            | Self::Join(_)
            | Self::Activate(_)
            | Self::Down(_)
            | Self::Miss(_)
            | Self::Sync { .. }
            | Self::InSync { .. }
            | Self::ProposeLayout
            | Self::ReplaceLayout
            | Self::Drain { .. }
            | Self::Remove { .. }
            | Self::SetWeight { .. }
            | Self::SetReplicas(_)
            | Self::ExtendVersions { .. }
            | Self::PutTogether { .. } => MinorVersion::FIRST,
            // A newer one than this, whichever.
            Self::Unknown(_) => MinorVersion(u16::MAX, u16::MAX),
        }
    }

    /// Whether this version does not know it.
    pub(super) const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    /// Whether it changes logins or rights.
    pub(super) const fn concerns_users(&self) -> bool {
        matches!(self, Self::PutTogether { .. })
    }
}

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordKind {
    /// [`State::namespaces`].
    Namespace,
    /// [`State::users`].
    User,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It holds, since now or before.
    Applied {
        /// The epoch behind it.
        epoch: u64,
    },
    /// It cannot be.
    Refused(Refusal),
}

/// Why a change cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Nothing can be changed before the cluster is formed.
    #[error("no cluster is formed yet: start one member with --bootstrap")]
    NotFormed,
    /// A cluster is formed once.
    #[error("the cluster is formed already: join it instead")]
    AlreadyFormed,
    /// No such member.
    #[error("there is no member {0:?}")]
    UnknownMember(String),
    /// No member runs by this raft id.
    #[error("no member has the raft id {0:x}: it was removed, or its disk was lost")]
    UnknownRaftId(RaftId),
    /// The member was removed together with its disk.
    #[error(
        "member {0:?} was removed: stop it and delete DATA_DIR/raft there to let it join again"
    )]
    Removed(String),
    /// No member would own the slots.
    #[error("member {0:?} is the last active one: activate another first")]
    LastActive(String),
    /// What the change was made for is not so any more.
    #[error("users were changed by another request at the same moment: look again")]
    Stale,
    /// A member would not understand the change.
    #[error(
        "member {id:?} runs version {version:?}, which does not know this change: upgrade it first"
    )]
    NotKnown {
        /// Its name.
        id: String,
        /// What it says it runs.
        version: String,
    },
    /// A value is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// A bound is reached.
    #[error("no more than {max} {what} are allowed: remove some first")]
    Full {
        /// Of what.
        what: String,
        /// The bound.
        max: usize,
    },
}

/// What a change altered.
enum Effect {
    /// Nothing that the map shows.
    Unseen,
    /// The map.
    Map,
}

impl State {
    /// Applies a change.
    pub fn apply(&mut self, change: Change) -> Outcome {
        match self.change(change) {
            Ok(Effect::Unseen) => {}
            Ok(Effect::Map) => self.begin_epoch(),
            Err(refusal) => return Outcome::Refused(refusal),
        }
        Outcome::Applied { epoch: self.epoch }
    }

    /// Every version of the new epoch is above every one that a member can give by an earlier
    /// epoch. That includes a member that does not hear of the new one.
    fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.versions = self.versions.next_epoch();
    }

    /// The change by which the leader lets versions follow the clock, if that is due. `newest` is
    /// the newest version that it knows, or that its clock allows.
    #[must_use]
    pub fn extension(&self, newest: u64) -> Option<Change> {
        let follows = self.versions.ceiling.saturating_sub(COUNT_RESERVE);
        let is_due = self.cluster != 0 && follows.saturating_sub(newest) < VERSIONS_LOW;
        is_due.then(|| Change::ExtendVersions {
            ceiling: newest.saturating_add(VERSIONS_AHEAD + COUNT_RESERVE),
        })
    }

    /// Silence after which a member is down.
    #[must_use]
    pub fn down_after(&self) -> Duration {
        Duration::from_millis(self.down_after_ms.max(*DOWN_AFTER_MS.start()).into())
    }

    /// The member that runs as `raft_id`.
    #[must_use]
    pub fn by_raft_id(&self, raft_id: RaftId) -> Option<&Member> {
        let mut members = self.members.values();
        members.find(|member| member.info.raft_id == raft_id)
    }

    /// The lowest version of all members, those that are down among them.
    #[must_use]
    pub fn lowest(&self) -> MinorVersion {
        let members = self.members.values();
        members
            .map(|member| MinorVersion::of(&member.info.version))
            .min()
            .unwrap_or_default()
    }

    /// Refuses a change that not every member knows. The leader asks before it proposes one, and
    /// all members when they apply it: an older member may have been taken in between.
    pub(super) fn check_known(&self, change: &Change) -> Result<(), Refusal> {
        self.check_version(change.since())
    }

    fn check_version(&self, since: MinorVersion) -> Result<(), Refusal> {
        let is_older = |member: &&Member| MinorVersion::of(&member.info.version) < since;
        match self.members.values().find(is_older) {
            None => Ok(()),
            Some(member) => Err(Refusal::NotKnown {
                id: member.info.id.clone(),
                version: member.info.version.clone(),
            }),
        }
    }

    fn change(&mut self, change: Change) -> Result<Effect, Refusal> {
        let since = change.since();
        self.check_version(since)?;
        let effect = self.change_known(change)?;
        self.needs = self.needs.max(since);
        Ok(effect)
    }

    fn change_known(&mut self, change: Change) -> Result<Effect, Refusal> {
        if let Change::Form {
            cluster,
            founder,
            version,
            down_after_ms,
        } = change
        {
            return self.form(cluster, founder, (version, down_after_ms));
        }
        if self.cluster == 0 {
            return Err(Refusal::NotFormed);
        }
        match change {
            Change::Form { .. } => Err(Refusal::AlreadyFormed),
            Change::Join(info) => self.join(info),
            Change::Activate(raft_id) => self.activate(raft_id),
            Change::Down(raft_id) => {
                let member = MemberId(self.running(raft_id)?.number);
                Ok(self.change_slots(&SlotChange::Down(member)))
            }
            Change::Miss(raft_id) => {
                let member = self.running(raft_id)?;
                let is_missed = member.is_down();
                Ok(set(&mut member.is_missed, is_missed))
            }
            Change::Sync {
                raft_id,
                applied,
                started,
            } => {
                let member = self.by_raft_id(raft_id);
                let member = member.ok_or(Refusal::UnknownRaftId(raft_id))?;
                self.check_return(member)?;
                let change = SlotChange::Sync {
                    member: MemberId(member.number),
                    applied: Epoch(applied),
                    incarnation: started,
                };
                Ok(self.change_slots(&change))
            }
            Change::InSync { raft_id, applied } => {
                let change = SlotChange::InSync {
                    member: MemberId(self.running(raft_id)?.number),
                    applied: Epoch(applied),
                };
                Ok(self.change_slots(&change))
            }
            Change::ProposeLayout => Ok(self.propose_layout()),
            Change::ReplaceLayout => Ok(self.change_slots(&SlotChange::ReplaceLayout)),
            Change::Drain { id } => self.drain(&id),
            Change::Remove { id } => self.remove(&id),
            Change::SetWeight { id, weight } => Ok(set(&mut self.member(&id)?.info.weight, weight)),
            Change::SetReplicas(replicas @ 1..=3) => Ok(set(&mut self.replicas, replicas)),
            Change::SetReplicas(replicas) => {
                let why = format!("{replicas} replicas are not possible: set 1, 2 or 3");
                Err(Refusal::Invalid(why))
            }
            Change::ExtendVersions { ceiling } => {
                let ceiling = ceiling.min(VERSION_MAX);
                self.versions.ceiling = self.versions.ceiling.max(ceiling);
                Ok(Effect::Unseen)
            }
            Change::PutTogether { revision, puts } => self.put_together(revision, puts),
            Change::Unknown(_) => Err(Refusal::Invalid("a change of a newer version".to_owned())),
        }
    }

    fn form(
        &mut self,
        cluster: u64,
        founder: MemberInfo,
        (version, down_after_ms): (u64, u32),
    ) -> Result<Effect, Refusal> {
        let again = self.members.get(&founder.id);
        if self.cluster != 0 {
            let same = self.cluster == cluster
                && again.is_some_and(|member| member.info.raft_id == founder.raft_id);
            return if same {
                Ok(Effect::Unseen)
            } else {
                Err(Refusal::AlreadyFormed)
            };
        }
        founder.validate().map_err(Refusal::Invalid)?;
        if cluster == 0 {
            return Err(Refusal::Invalid("cluster id must not be 0".to_owned()));
        }
        if !DOWN_AFTER_MS.contains(&down_after_ms) {
            let why = format!("{down_after_ms} ms are no time after which a member may be down");
            return Err(Refusal::Invalid(why));
        }
        self.cluster = cluster;
        self.versions.ceiling = version.min(VERSION_MAX);
        self.down_after_ms = down_after_ms;
        self.replicas = 1;
        let place = Place {
            number: 0,
            id: founder.id.clone(),
            zone: founder.zone.clone(),
            weight: founder.weight.max(1),
        };
        self.placing = Placing::new(1, vec![place]);
        // What it has is all that there is. It is up, so it has failed when it is down.
        let sync = fonn_replication::Member {
            incarnation: 1,
            ..fonn_replication::Member::new(Status::InSync, Epoch(1))
        };
        let member = Member {
            number: 0,
            phase: Phase::Active,
            sync,
            is_missed: false,
            info: founder,
        };
        self.members.insert(member.info.id.clone(), member);
        Ok(Effect::Map)
    }

    fn join(&mut self, info: MemberInfo) -> Result<Effect, Refusal> {
        info.validate().map_err(Refusal::Invalid)?;
        if MinorVersion::of(&info.version) < self.needs {
            let why = format!(
                "version {:?} does not understand what this cluster has agreed on: start the node with {} or newer",
                info.version, self.needs
            );
            return Err(Refusal::Invalid(why));
        }
        let is_removed = |it: &Removed| it.raft_id == info.raft_id;
        if self.removed.iter().any(is_removed) {
            return Err(Refusal::Removed(info.id));
        }
        if self
            .by_raft_id(info.raft_id)
            .is_some_and(|it| it.info.id != info.id)
        {
            let why =
                "its raft directory belongs to a member of another name: start it under that one";
            return Err(Refusal::Invalid(why.to_owned()));
        }
        self.check_address(&info)?;
        let known = self.members.get(&info.id);
        if known.is_some_and(|member| member.info.raft_id == info.raft_id) {
            return Ok(set(&mut self.member(&info.id.clone())?.info, info));
        }
        let number = match known {
            Some(member) => member.number,
            None => self.free_number().ok_or(full("members", MEMBERS_MAX))?,
        };
        let member = Member {
            number,
            // A lost disk changes no layout: the member copies its slots again. Only the member
            // with the old disk was to be removed.
            phase: match known.map(|it| it.phase) {
                None => Phase::Joining,
                Some(Phase::Leaving) => Phase::Active,
                Some(phase) => phase,
            },
            sync: fonn_replication::Member::new(Status::Down, Epoch(self.epoch + 1)),
            is_missed: false,
            info,
        };
        self.stand_ins
            .retain(|_, stand_in| stand_in.member != MemberId(number));
        self.members.insert(member.info.id.clone(), member);
        Ok(self.choose_stand_ins())
    }

    /// Refuses the return of a member that is to be removed, or whose client address another member
    /// has.
    pub(super) fn check_return(&self, member: &Member) -> Result<(), Refusal> {
        match member.is_leaving() {
            true => Err(Refusal::Removed(member.info.id.clone())),
            false => self.check_address(&member.info),
        }
    }

    /// Refuses a member that joins or returns at the client address of another member. Members and
    /// routers apply no map in which two members serve at one address. The address of a member
    /// that has failed may be that of another member by now.
    fn check_address(&self, info: &MemberInfo) -> Result<(), Refusal> {
        let is_taken = |it: &&Member| {
            let is_same = it.info.client_address == info.client_address;
            is_same && it.info.id != info.id && !it.has_failed()
        };
        let Some(other) = self.members.values().find(is_taken) else {
            return Ok(());
        };
        Err(Refusal::Invalid(format!(
            "clients reach member {:?} at {}: give this node another --listen or --advertise-client, or \
             remove that member",
            other.info.id, info.client_address
        )))
    }

    /// A number that no member and no layout has.
    fn free_number(&self) -> Option<u8> {
        let placings = std::iter::once(&self.placing).chain(&self.next);
        let placed = placings.flat_map(|it| it.places.iter().map(|place| place.number));
        let members = self.members.values().map(|it| it.number);
        let taken: BTreeSet<u8> = members.chain(placed).collect();
        (0..MEMBERS_MAX as u8).find(|number| !taken.contains(number))
    }

    fn activate(&mut self, raft_id: RaftId) -> Result<Effect, Refusal> {
        let member = self.running(raft_id)?;
        if member.is_leaving() {
            return Err(Refusal::Removed(member.info.id.clone()));
        }
        Ok(set(&mut member.phase, Phase::Active))
    }

    fn drain(&mut self, id: &str) -> Result<Effect, Refusal> {
        self.keep_an_active_one(id)?;
        let member = self.member(id)?;
        if member.is_leaving() {
            return Ok(Effect::Unseen);
        }
        Ok(set(&mut member.phase, Phase::Draining))
    }

    fn remove(&mut self, id: &str) -> Result<Effect, Refusal> {
        let is_known = self.members.contains_key(id);
        if !is_known && self.removed.iter().any(|it| it.id == id) {
            return Ok(Effect::Unseen);
        }
        self.keep_an_active_one(id)?;
        let member = self.member(id)?;
        if !member.is_down() {
            return Ok(set(&mut member.phase, Phase::Leaving));
        }
        if let Some(Member { info, .. }) = self.members.remove(id) {
            self.removed.push(Removed {
                id: info.id,
                raft_id: info.raft_id,
            });
        }
        if self.removed.len() > REMOVED_MAX {
            self.removed.remove(0);
        }
        Ok(Effect::Map)
    }

    /// Refuses to take its slots from the only member that has any.
    fn keep_an_active_one(&self, id: &str) -> Result<(), Refusal> {
        let is_active = |member: &&Member| member.phase == Phase::Active;
        let mut active = self.members.values().filter(is_active);
        match (active.next(), active.next()) {
            (Some(only), None) if only.info.id == id => Err(Refusal::LastActive(id.to_owned())),
            _ => Ok(()),
        }
    }

    fn member(&mut self, id: &str) -> Result<&mut Member, Refusal> {
        let member = self.members.get_mut(id);
        member.ok_or_else(|| Refusal::UnknownMember(id.to_owned()))
    }

    fn running(&mut self, raft_id: RaftId) -> Result<&mut Member, Refusal> {
        let mut members = self.members.values_mut();
        let member = members.find(|it| it.info.raft_id == raft_id);
        member.ok_or(Refusal::UnknownRaftId(raft_id))
    }
}

/// Sets a value that the map shows.
fn set<T: PartialEq>(place: &mut T, value: T) -> Effect {
    if *place == value {
        return Effect::Unseen;
    }
    *place = value;
    Effect::Map
}

fn full(what: &str, max: usize) -> Refusal {
    Refusal::Full {
        what: what.to_owned(),
        max,
    }
}
