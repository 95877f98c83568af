//! What lies below the disk tier, as the disk tier sees it.

use fonn_base::entry::Space;
use fonn_cold_tier::Found;
use fonn_proto::Version;

use super::tail::TailPosition;

/// The tier below. Its methods are called by the disk tier's threads: they may read a local index,
/// and must neither wait for a network nor call back.
pub trait Below: Send + Sync {
    /// What it has of a key.
    fn find(&self, space: Space, key: &[u8]) -> Found;

    /// Whether it may have a value of this key, so that a deletion has to be written.
    fn may_have(&self, space: Space, key: &[u8]) -> bool;

    /// Up to where it has been told of everything. After a loss of power this may be beyond the end
    /// of the logs.
    fn passed(&self) -> TailPosition;

    /// Whether it has been told of everything before `end`.
    fn has_passed(&self, end: TailPosition) -> bool {
        self.passed() >= end
    }

    /// The oldest generation, which ends at `end`, shall be dropped. Asked again and again while
    /// the answer is [`Leave::Wait`].
    fn leave(&self, end: TailPosition) -> Leave;

    /// The newest records of these keys are about to be dropped although this tier may lack them.
    /// From now on it must not find anything older either, whatever happens to the process or the
    /// machine. False if it cannot remember that: the records must stay then.
    #[must_use]
    fn lost(&self, records: &[Leaving]) -> bool;
}

/// A record that is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Where its key lives.
    pub space: Space,
    /// Its key.
    pub key: Vec<u8>,
    /// Its version.
    pub version: Version,
}

/// Whether a generation may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The tier below has what it needs of it.
    Now,
    /// It is being read; writes may have to wait meanwhile.
    Wait,
    /// The tier below takes nothing at present: what it lacks is lost.
    Lossy,
}
