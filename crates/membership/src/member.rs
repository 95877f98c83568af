//! A member of the cluster, as all members know it.

use fonn_proto::member::{ADDRESS_LEN_MAX, MemberState, is_host_and_port};
use fonn_replication::Status;
use serde::{Deserialize, Serialize};

use super::types::RaftId;

/// Longest name of a member and of a zone, in bytes.
const NAME_LEN_MAX: usize = 64;
/// Longest address and version, in bytes.
const TEXT_LEN_MAX: usize = ADDRESS_LEN_MAX;

/// Whether it can be the name of a member or a zone: 1–64 letters, digits, `.`, `_`, `-`.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_LEN_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

/// What a member says of itself when it joins, and again at each of its starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its name (`--node-id`): what its slots depend on. 1–64 letters, digits, `.`, `_`, `-`.
    pub id: String,
    /// Which disk it runs on.
    pub raft_id: RaftId,
    /// Host and port for clients.
    pub client_address: String,
    /// Host and port for other members.
    pub cluster_address: String,
    /// Failure zone.
    pub zone: String,
    /// Its share of the slots relative to others; 0 owns none.
    pub weight: u16,
    /// The version of the software.
    pub version: String,
}

impl MemberInfo {
    /// Checks what arrived from outside.
    ///
    /// # Errors
    /// One sentence that names the field and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        for (field, text) in [("node id", &self.id), ("zone", &self.zone)] {
            if !is_name(text) {
                return Err(format!(
                    "{field} {text:?} must be 1 to {NAME_LEN_MAX} letters, digits, dots, underscores or hyphens"
                ));
            }
        }
        let addresses = [
            ("client address", &self.client_address),
            ("cluster address", &self.cluster_address),
        ];
        for (field, text) in addresses {
            if text.len() > TEXT_LEN_MAX || !is_host_and_port(text) {
                return Err(format!(
                    "{field} {text:?} must be HOST:PORT of at most {TEXT_LEN_MAX} bytes"
                ));
            }
        }
        if self.version.len() > TEXT_LEN_MAX {
            return Err(format!("version must be at most {TEXT_LEN_MAX} bytes"));
        }
        if self.raft_id == 0 {
            return Err("raft id must not be 0".to_owned());
        }
        Ok(())
    }
}

/// How far a member is in its life, as operators and the cluster itself decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Known, not yet following the log: owns nothing.
    Joining,
    /// Owns slots.
    Active,
    /// On its way out: owns nothing any more, still answers for what it has.
    Draining,
    /// To be removed. The leader takes it for a member that does not answer, and removes it when it
    /// is down.
    Leaving,
}

/// A member as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// What it said of itself.
    pub info: MemberInfo,
    /// By which layouts and the replication core name it. A number is given to another member when
    /// no layout has it any more.
    pub number: u8,
    /// How far it is.
    pub phase: Phase,
    /// Whether it is in sync, copies what it missed, or is down, and since when. A lease holds for
    /// members that have applied that epoch.
    pub sync: fonn_replication::Member,
    /// It has been down for so long that the next layout is without it.
    pub is_missed: bool,
}

impl Member {
    /// Phase and reachability in one.
    #[must_use]
    pub const fn state(&self) -> MemberState {
        match (self.phase, self.is_down()) {
            (Phase::Joining, _) => MemberState::Joining,
            (_, true) => MemberState::Down,
            (Phase::Active, false) => MemberState::Active,
            (Phase::Draining | Phase::Leaving, false) => MemberState::Draining,
        }
    }

    /// Whether it is declared down.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        matches!(self.sync.status, Status::Down)
    }

    /// Whether the leader grants it leases.
    #[must_use]
    pub const fn gets_leases(&self) -> bool {
        !self.is_down() && !self.is_leaving()
    }

    /// Whether it is to be removed.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving)
    }

    /// Whether it is declared down after it was up. A member that has just joined is down too.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.is_down() && self.sync.incarnation > 0
    }
}
