//! Object stores: named blobs that are written whole and read in ranges.
//!
//! The contract is what S3 gives (and `suite` checks for every backend), so that a directory can
//! stand in for a bucket:
//!
//! - An object appears whole or not at all, and is durable once the write was acknowledged.
//! - A write, delete or list that was acknowledged is seen by every later read.
//! - Listing is in the byte order of keys.
//!
//! Two keys must not collide as file and directory (`a` and `a/b`): a backend may refuse the
//! second. Retries, limits and metrics are decorators, not part of a backend: [`open()`] puts them
//! around one: the meter innermost, so that it sees each attempt; then the limit, which each
//! attempt has to pass; and outermost the retries.

mod around;
pub mod body;
pub mod error;
#[cfg(any(test, feature = "test-util"))]
pub mod fault;
pub mod fs;
pub mod health;
pub mod key;
pub mod limit;
#[cfg(any(test, feature = "test-util"))]
pub mod memory;
pub mod meter;
pub mod open;
pub mod pieces;
pub mod probe;
pub mod retry;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "test-util-s3")]
pub mod s3_server;
#[cfg(any(test, feature = "test-util"))]
pub mod suite;
pub mod url;
mod watched;

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use fonn_base::boxed::BoxFuture;

pub use body::Body;
pub use error::{Operation, Refusal, StoreError, StoreErrorKind};
#[cfg(any(test, feature = "test-util"))]
pub use fault::FaultStore;
pub use fs::FsStore;
pub use key::ObjectKey;
pub use limit::LimitStore;
#[cfg(any(test, feature = "test-util"))]
pub use memory::MemoryStore;
pub use meter::MeterStore;
pub use open::{OpenError, Opened, StoreOptions, open};
pub use pieces::{Piece, Pieces};
pub use retry::RetryStore;
#[cfg(feature = "s3")]
pub use s3::S3Store;
pub use url::Location;
pub(crate) use watched::WatchedStore;

/// Most objects in a page of a list, as in S3.
pub const PAGE_MAX: usize = 1000;

/// The most bytes that one read loads into memory. A longer range is refused.
pub const READ_BYTES_MAX: u64 = 1 << 30;

/// The future of a call; boxed, since which backend is used is decided at start.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store of objects.
///
/// # Cancel safety
/// Dropping the future of a read loses nothing. Dropping that of a write or delete leaves open
/// whether it takes place; never does it take place in part.
pub trait ObjectStore: fmt::Debug + Send + Sync + 'static {
    /// Writes an object, replacing one of the same key.
    fn put<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()>;

    /// Writes an object unless there is one of that key.
    ///
    /// # Errors
    /// [`StoreErrorKind::AlreadyExists`]. After a retry that may be the caller's own first try:
    /// correctness must not rest on it.
    fn put_if_absent<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()>;

    /// Reads a whole object.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`]; [`StoreErrorKind::Invalid`] for one that is larger than
    /// [`READ_BYTES_MAX`].
    fn get<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Bytes>;

    /// Reads the bytes `range` of an object; an end beyond the object is cut to it.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`]; [`StoreErrorKind::OutOfRange`] for a range that begins at or
    /// behind the end; [`StoreErrorKind::Invalid`] for an empty one, and for one that selects more
    /// than [`READ_BYTES_MAX`]. An empty range of an absent object fails with either kind.
    fn get_range<'a>(&'a self, key: &'a ObjectKey, range: Range<u64>) -> StoreFuture<'a, Bytes>;

    /// Reads like [`ObjectStore::get_range`], with the same request, and hands the bytes over as
    /// they come: a [`Piece::Begin`], then the bytes in order, and once more from the beginning
    /// where it is tried again. After an error they are of no use. Gives the number of bytes after
    /// the last [`Piece::Begin`]. Stores that have the bytes together anyway need not implement it.
    ///
    /// # Errors
    /// Those of [`ObjectStore::get_range`], also after some of the bytes.
    fn stream_range<'a>(
        &'a self,
        key: &'a ObjectKey,
        range: Range<u64>,
        to: &'a Pieces,
    ) -> StoreFuture<'a, u64> {
        Box::pin(async move { to.all(key, self.get_range(key, range).await?).await })
    }

    /// Reads the last `len_bytes` of an object, or all of a shorter one, in one request and without
    /// knowing its size.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`]; [`StoreErrorKind::OutOfRange`] for an empty object;
    /// [`StoreErrorKind::Invalid`] for no bytes, and for more than [`READ_BYTES_MAX`].
    fn get_suffix<'a>(&'a self, key: &'a ObjectKey, len_bytes: u64) -> StoreFuture<'a, Suffix>;

    /// Tells size and age of an object.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`].
    fn head<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ObjectMeta>;

    /// Deletes an object; succeeds also when there is none.
    fn delete<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ()>;

    /// Lists objects whose key begins with `prefix` (any text, not only whole path segments), from
    /// the beginning or those behind `after`, in the byte order of keys. `after` need not be a key:
    /// a bucket may hold objects of others. A page has at most `limit` objects, and at most
    /// [`PAGE_MAX`]; it may have none and yet not be the last.
    ///
    /// # Errors
    /// [`StoreErrorKind::Invalid`] when the limit is 0.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> StoreFuture<'a, Page>;
}

/// What is known of an object without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Its key.
    pub key: ObjectKey,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Unix time in milliseconds of its last write, by the clock of the store.
    pub modified_ms: u64,
}

/// The end of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suffix {
    /// Its last bytes.
    pub bytes: Bytes,
    /// The size of the whole object in bytes.
    pub object_size_bytes: u64,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Objects in the byte order of their keys.
    pub objects: Vec<ObjectMeta>,
    /// Behind what the next page begins; `None` after the last.
    pub next: Option<String>,
}

/// The part of an object of `size` bytes that `range` selects, or how a request for it fails.
fn select(range: &Range<u64>, size: u64) -> Result<Range<u64>, StoreErrorKind> {
    if range.is_empty() {
        return Err(StoreErrorKind::Invalid);
    }
    if range.start >= size {
        return Err(StoreErrorKind::OutOfRange);
    }
    let end = range.end.min(size);
    if end - range.start > READ_BYTES_MAX {
        return Err(StoreErrorKind::Invalid);
    }
    Ok(range.start..end)
}

/// [`select`] for the last `len_bytes`.
fn select_suffix(len_bytes: u64, size: u64) -> Result<Range<u64>, StoreErrorKind> {
    if len_bytes == 0 {
        return Err(StoreErrorKind::Invalid);
    }
    // Not empty, also if the object is.
    let start = size.saturating_sub(len_bytes);
    select(&(start..size.max(start + 1)), size)
}
