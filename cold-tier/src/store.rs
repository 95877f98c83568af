//! Object stores: named blobs that are written whole and read in ranges.
//!
//! The contract is what S3 gives (and [`suite`] checks for every backend), so that a directory can
//! stand in for a bucket:
//!
//! - An object appears whole or not at all, and is durable once the write was acknowledged.
//! - A write, delete or list that was acknowledged is seen by every later read.
//! - Listing is in the byte order of keys.
//!
//! Two keys must not collide as file and directory (`a` and `a/b`): a backend may refuse the second.
//! Retries, limits and metrics are decorators, not part of a backend.

pub mod error;
pub mod fs;
pub mod key;
pub mod memory;
#[cfg(any(test, feature = "test-util"))]
pub mod suite;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;

pub use error::{Operation, StoreError, StoreErrorKind};
pub use fs::FsStore;
pub use key::ObjectKey;
pub use memory::MemoryStore;

/// Most objects in a page of a list, as in S3.
pub const PAGE_MAX: usize = 1000;

/// The future of a call; boxed, since which backend is used is decided at start.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A store of objects.
///
/// # Cancel safety
/// Dropping the future of a read loses nothing. Dropping that of a write or delete leaves open
/// whether it takes place; never does it take place in part.
pub trait ObjectStore: fmt::Debug + Send + Sync + 'static {
    /// Writes an object, replacing one of the same key.
    fn put<'a>(&'a self, key: &'a ObjectKey, body: Bytes) -> StoreFuture<'a, ()>;

    /// Writes an object unless there is one of that key.
    ///
    /// # Errors
    /// [`StoreErrorKind::AlreadyExists`]. After a retry that may be the caller's own first try:
    /// correctness must not rest on it.
    fn put_if_absent<'a>(&'a self, key: &'a ObjectKey, body: Bytes) -> StoreFuture<'a, ()>;

    /// Reads a whole object.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`].
    fn get<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Bytes>;

    /// Reads the bytes `range` of an object; an end beyond the object is cut to it.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`]; [`StoreErrorKind::Invalid`] for an empty range and for one that
    /// begins at or behind the end.
    fn get_range<'a>(&'a self, key: &'a ObjectKey, range: Range<u64>) -> StoreFuture<'a, Bytes>;

    /// Tells size and age of an object.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`].
    fn head<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ObjectMeta>;

    /// Deletes an object; succeeds also when there is none.
    fn delete<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ()>;

    /// Lists objects whose key begins with `prefix` (any text, not only whole path segments), from
    /// the beginning or from where the last page ended. A page has at most `limit` objects, and at
    /// most [`PAGE_MAX`].
    ///
    /// # Errors
    /// [`StoreErrorKind::Invalid`] when the limit is 0.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<&'a Continuation>,
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

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Objects in the byte order of their keys.
    pub objects: Vec<ObjectMeta>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Continuation>,
}

/// Where a list goes on; meaningful only to the store that gave it, with the same prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation(String);

impl Continuation {
    /// A continuation from the store's own token.
    #[must_use]
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The store's own token.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.0
    }
}

/// The part of an object of `size` bytes that `range` selects; `None` when it selects nothing.
fn select(range: &Range<u64>, size: u64) -> Option<Range<u64>> {
    let end = range.end.min(size);
    (range.start < end).then_some(range.start..end)
}
