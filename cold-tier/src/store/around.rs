//! What decorators have in common: something happens around each call of an inner store, the same
//! for all operations.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::{
    Body, ObjectKey, ObjectMeta, ObjectStore, Operation, Page, Pieces, StoreFuture, Suffix,
};

/// A decorator; it is an [`ObjectStore`] by the implementation below.
pub(super) trait Around: fmt::Debug + Send + Sync + 'static {
    /// The store below.
    fn inner(&self) -> &dyn ObjectStore;

    /// Whether the bytes of a read pass it unseen.
    fn lets_bytes_pass(&self) -> bool {
        true
    }

    /// Answers a call; `start` begins it, or begins it anew, in the store below.
    fn around<'a, T: Answer>(
        &'a self,
        call: Call<'a>,
        start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
    ) -> StoreFuture<'a, T>;
}

/// A call, before its answer is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub operation: Operation,
    /// The key or the prefix.
    pub subject: &'a str,
    /// Bytes of the body that is sent, or at most so many of an object that are asked for.
    pub bytes: u64,
}

/// A line of 1 MiB/s is waited for.
const SLOW_BYTES_PER_MS: u64 = 1 << 10;

impl Call<'_> {
    /// How long a slow line may take for the bytes of the call.
    pub(super) fn time_of_bytes(&self) -> Duration {
        Duration::from_millis(self.bytes / SLOW_BYTES_PER_MS)
    }
}

/// So long an object is taken for that is read as a whole, in bytes: its length is not known.
const WHOLE_BYTES: u64 = 64 << 20;

/// What a successful call gives.
pub(super) trait Answer: Send + 'static {
    /// How many bytes of an object came with it.
    fn received_bytes(&self) -> u64 {
        0
    }

    /// The same, to be damaged by a test.
    #[cfg(any(test, feature = "test-util"))]
    fn bytes_mut(&mut self) -> Option<&mut Bytes> {
        None
    }

    /// The page of a list, to be changed by a test.
    #[cfg(any(test, feature = "test-util"))]
    fn page_mut(&mut self) -> Option<&mut Page> {
        None
    }
}

impl Answer for () {}
impl Answer for ObjectMeta {}

impl Answer for Page {
    #[cfg(any(test, feature = "test-util"))]
    fn page_mut(&mut self) -> Option<&mut Page> {
        Some(self)
    }
}

/// The bytes of a stream.
impl Answer for u64 {
    fn received_bytes(&self) -> u64 {
        *self
    }
}

impl Answer for Bytes {
    fn received_bytes(&self) -> u64 {
        self.len() as u64
    }

    #[cfg(any(test, feature = "test-util"))]
    fn bytes_mut(&mut self) -> Option<&mut Bytes> {
        Some(self)
    }
}

impl Answer for Suffix {
    fn received_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    #[cfg(any(test, feature = "test-util"))]
    fn bytes_mut(&mut self) -> Option<&mut Bytes> {
        Some(&mut self.bytes)
    }
}

fn call(operation: Operation, subject: &str, bytes: u64) -> Call<'_> {
    Call {
        operation,
        subject,
        bytes,
    }
}

impl<D: Around> ObjectStore for D {
    fn put<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        let call = call(Operation::Put, key.as_str(), body.len());
        self.around(call, move || self.inner().put(key, body.clone()))
    }

    fn put_if_absent<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        let call = call(Operation::PutIfAbsent, key.as_str(), body.len());
        self.around(call, move || self.inner().put_if_absent(key, body.clone()))
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Bytes> {
        let call = call(Operation::Get, key.as_str(), WHOLE_BYTES);
        self.around(call, move || self.inner().get(key))
    }

    fn get_range<'a>(&'a self, key: &'a ObjectKey, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        let bytes = range.end.saturating_sub(range.start);
        let call = call(Operation::GetRange, key.as_str(), bytes);
        self.around(call, move || self.inner().get_range(key, range.clone()))
    }

    fn stream_range<'a>(
        &'a self,
        key: &'a ObjectKey,
        range: Range<u64>,
        to: &'a Pieces,
    ) -> StoreFuture<'a, u64> {
        if !self.lets_bytes_pass() {
            return Box::pin(async move { to.all(key, self.get_range(key, range).await?).await });
        }
        let bytes = range.end.saturating_sub(range.start);
        let call = call(Operation::GetRange, key.as_str(), bytes);
        self.around(call, move || {
            self.inner().stream_range(key, range.clone(), to)
        })
    }

    fn get_suffix<'a>(&'a self, key: &'a ObjectKey, len_bytes: u64) -> StoreFuture<'a, Suffix> {
        let call = call(Operation::GetSuffix, key.as_str(), len_bytes);
        self.around(call, move || self.inner().get_suffix(key, len_bytes))
    }

    fn head<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ObjectMeta> {
        let call = call(Operation::Head, key.as_str(), 0);
        self.around(call, move || self.inner().head(key))
    }

    fn delete<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ()> {
        let call = call(Operation::Delete, key.as_str(), 0);
        self.around(call, move || self.inner().delete(key))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> StoreFuture<'a, Page> {
        let call = call(Operation::List, prefix, 0);
        self.around(call, move || self.inner().list(prefix, after, limit))
    }
}
