//! The cold tier in the node: a bucket below the disk tier.
//!
//! [`fonn_cold_tier`] knows segments and buckets. Here is what ties it to this node: its queue is
//! the disk tier's value logs ([`queue`]), no generation is dropped before what it holds is in the
//! bucket or counted as lost ([`gate`]), and what other nodes wrote voids older copies here
//! ([`observer`]).
//!
//! Invariant: a copy in the bucket is served only if it is the newest there is. RAM and disk are
//! asked first; what leaves the disk is in the bucket's index by then, as a copy or as a tombstone.

mod codec;
mod gate;
mod observer;
mod queue;
mod takeover;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fonn_base::hlc::Hlc;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_cold_tier::store::ObjectStore;
use fonn_cold_tier::{ColdError, ColdOptions, ColdTier, SpillMode};
use fonn_disk_tier::levels::LevelCodec;
use fonn_disk_tier::{Below, DiskTier};
use fonn_proto::peer::SlotSet;

use self::codec::SpillCodec;
use self::gate::Gate;
use self::observer::Superseder;
use self::queue::LogQueue;
pub(crate) use self::takeover::{TakeoverStatus, Takeovers};
use crate::engine::Hot;

/// How to open the cold tier.
#[derive(Clone, Debug)]
pub struct ColdSetup {
    /// The tier's own settings; their codec is replaced.
    pub options: ColdOptions,
    /// The codec of the level.
    pub codec: Arc<LevelCodec>,
    /// The bucket.
    pub store: Arc<dyn ObjectStore>,
}

/// The cold tier of a node.
pub struct Cold {
    tier: ColdTier,
    codec: Arc<LevelCodec>,
    gate: Arc<Gate>,
    superseder: Arc<Superseder>,
    mode: SpillMode,
    read_timeout: Duration,
    has_caught_up: AtomicBool,
    takeovers: Takeovers,
}

impl Cold {
    /// Opens the local index; the bucket is not asked. Blocks on the disk.
    ///
    /// # Errors
    /// What the index cannot be opened for.
    pub fn open(setup: ColdSetup, hot: &Arc<Hot>) -> Result<Self, ColdError> {
        let (mode, read_timeout) = (setup.options.spill_age, setup.options.read_timeout);
        let superseder = Arc::new(Superseder::new(Arc::clone(hot)));
        let observer = Arc::clone(&superseder);
        let options = ColdOptions {
            codec: Arc::new(SpillCodec(Arc::clone(&setup.codec))),
            ..setup.options
        };
        let tier = ColdTier::open(options, setup.store, observer)?;
        Ok(Self {
            gate: Arc::new(Gate::new(tier.clone())),
            tier,
            codec: setup.codec,
            superseder,
            mode,
            read_timeout,
            has_caught_up: AtomicBool::new(false),
            takeovers: Takeovers::default(),
        })
    }

    /// What the disk tier has to know of it.
    #[must_use]
    pub fn below(&self) -> Arc<dyn Below> {
        Arc::clone(&self.gate) as Arc<dyn Below>
    }

    /// Tells it the disk tier that it lies under, and the clock that has to be ahead of what it
    /// holds.
    pub(crate) fn attach(&self, disk: &DiskTier, hlc: &Arc<Hlc>) {
        self.superseder.attach(disk.clone(), Arc::clone(hlc));
        self.superseder
            .catch_up(self.tier.version_max(), &self.tier.flush_marks());
    }

    /// Begins to spill, follow and collect, in tasks on the current runtime. `hlc` gives the
    /// versions.
    pub fn start(&self, disk: &DiskTier, hlc: Arc<Hlc>, tasks: &Tasks) {
        let is_on_evict = matches!(self.mode, SpillMode::OnEvict);
        let queue = LogQueue::new(disk.clone(), Arc::clone(&self.gate), hlc, is_on_evict);
        self.tier.start(Arc::new(queue), tasks);
        let choose = codec::choose(self.tier.clone(), Arc::clone(&self.codec), self.mode);
        tasks.spawn("cold-codec", OnShutdown::Abort, choose);
    }

    /// The codec of what is spilled. Changing it concerns entries to come.
    #[must_use]
    pub fn codec(&self) -> &LevelCodec {
        &self.codec
    }

    /// How long a command waits for the bucket, however often it has to ask.
    pub(crate) fn read_timeout(&self) -> Duration {
        self.read_timeout
    }

    /// The tier itself.
    #[must_use]
    pub fn tier(&self) -> &ColdTier {
        &self.tier
    }

    /// A member of the cluster is lost, which was the last to own `slots`: what it had brought into
    /// the bucket is read at once, and lookups of these slots wait for that, for a time that is
    /// bounded.
    pub(crate) fn take_over(&self, member: &str, slots: SlotSet, now: tokio::time::Instant) {
        let caught_up = self.tier.take_over(member);
        self.takeovers.begin(member, slots, caught_up, now);
    }

    /// The takeovers that are under way.
    pub(crate) fn takeovers(&self) -> &Takeovers {
        &self.takeovers
    }

    /// Brings what is not in the bucket yet there, until `deadline` at most; for a node that stops.
    /// False if there was not enough time. In the mode `on-evict` the disk is where entries are
    /// durable, so there is nothing to do.
    pub async fn drain(&self, deadline: Instant) -> bool {
        match self.mode {
            SpillMode::WriteBehind(_) => self.tier.drain(deadline.into()).await,
            SpillMode::OnEvict => true,
        }
    }

    /// Once the index is complete, takes over what it found in the bucket.
    pub fn catch_up_once(&self) {
        if self.tier.is_ready() && !self.has_caught_up.swap(true, Ordering::AcqRel) {
            let (version, marks) = (self.tier.version_max(), self.tier.flush_marks());
            self.superseder.catch_up(version, &marks);
        }
    }
}
