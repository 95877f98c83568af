//! The cold tier: what outlives every node, kept as objects in a bucket or a directory.
//!
//! This crate knows stores of immutable objects and what is written into them; it does not know
//! what a request, a reactor or a local disk tier is.
//!
//! - [`store`] has the bucket, as a trait with its backends and decorators.
//! - [`segment`], [`checkpoint`] and [`names`] are what is in it; [`mod@plan`] decides what may go.
//! - [`ColdTier`] is the engine: it spills a node's entries, reads them back, follows what others
//!   write, and collects garbage. The node stands behind two traits, [`SpillSource`] and
//!   [`ColdObserver`].
//!
//! The order of copies is that of [`segment::Version`]: whatever arrives in whatever order, the
//! highest wins. What an index cannot find in its own data is not asked of the bucket.

pub mod checkpoint;
mod checkpointer;
mod codec;
mod collect;
#[cfg(any(test, feature = "test-util"))]
pub mod crash;
mod error;
mod fetch;
mod flight;
mod follow;
mod footers;
mod format;
mod index;
mod inspect;
mod memory;
pub mod names;
mod observer;
mod options;
mod plan;
mod reads;
mod recent;
mod restore;
pub mod segment;
mod shared;
mod spill;
mod status;
pub mod store;
mod tier;
mod upload;

pub use codec::{FixedCodec, ValueCodec};
pub use error::ColdError;
pub use fetch::{Fetched, Found, Location, Reading};
pub use follow::announced::{Announcement, CatchUp};
pub use format::FormatError;
pub use index::IndexError;
#[cfg(any(test, feature = "test-util", feature = "test-util-s3"))]
pub use index::age_writers;
pub use inspect::{Comparison, Inspection, Progress, SegmentCheck};
pub use observer::{ColdObserver, CopyRef};
pub use options::{ColdOptions, RestoreFrom, SpillMode};
pub use segment::ColdEntry;
pub use spill::source::{
    Backlog, SpillBatch, SpillCursor, SpillFact, SpillRecord, SpillSource, SpillSourceError,
};
pub use status::{ColdStatus, Counts, FirstReading, RefusedFooter, SpillLoad};
pub use store::{ObjectKey, ObjectStore, StoreError, StoreErrorKind};
pub use tier::ColdTier;
