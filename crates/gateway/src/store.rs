//! What the gateway stands on: entries by key, and the memory that requests may take.

use std::future::Future;

use bytes::Bytes;
use fonn_auth::Source;
use fonn_proto::{Failure, Version};
use fonn_server::{Event, Scope, Tuning};

/// What a store does with an entry that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Replaces it.
    Replace,
    /// Keeps it.
    Keep,
    /// Replaces it if it has this version. What another client stored meanwhile is kept.
    Over(Version),
}

/// What became of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It was stored.
    Stored,
    /// There is an entry, which was kept: as the caller asked, or as its namespace keeps first
    /// values.
    Kept,
}

/// What the bytes of an entry are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The value.
    #[default]
    Value,
    /// The list of the chunks of a long value. Clients of other protocols do not see the entry.
    Manifest,
    /// A blob as the stream of zstd that a client sent, with its length. Clients of other protocols
    /// do not see the entry.
    Packed,
}

/// An entry that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The value, what lists its chunks, or what it is made of.
    pub bytes: Bytes,
    /// Which of these.
    pub form: Form,
    /// The version of the entry.
    pub version: Version,
}

impl Found {
    /// The value; `None` if the entry has it in another form.
    #[must_use]
    pub fn value(self) -> Option<Bytes> {
        match self.form {
            Form::Value => Some(self.bytes),
            Form::Manifest | Form::Packed => None,
        }
    }
}

/// What is known of an entry without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// How many bytes it has.
    pub len: usize,
    /// What they are.
    pub form: Form,
}

/// Memory that is charged for one request that is arriving; given back when dropped.
pub trait Charge: Send {
    /// Charges `bytes` more. Waits a while for them; false if they are not there.
    fn grow(&mut self, bytes: usize) -> impl Future<Output = bool> + Send;
}

/// Entries by key. Clones are the same store.
///
/// A read ([`Store::get`], [`Store::probe`]) may be dropped at any time, and ends with its client.
/// A change is not cancel safe: the gateway runs each to its end, also when its client has gone.
pub trait Store: Clone + Send + Sync + 'static {
    /// Memory for a request that is arriving.
    type Charge<'s>: Charge;

    /// Longest value in bytes.
    fn value_len_max(&self) -> usize;

    /// The entry of `key`.
    ///
    /// # Errors
    /// Why it is not known whether there is one.
    fn get(
        self,
        scope: Scope,
        key: Bytes,
    ) -> impl Future<Output = Result<Option<Found>, Failure>> + Send;

    /// The length of the entry of `key`. Asking counts as a use of the entry.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn probe(
        self,
        scope: Scope,
        key: Bytes,
    ) -> impl Future<Output = Result<Option<Probed>, Failure>> + Send;

    /// What can be told of entries without waiting, in the order of `keys`: as [`Store::probe`].
    /// An entry of which nothing is told may be there.
    fn probe_at_once(&self, scope: Scope, keys: &[Bytes]) -> Vec<Option<Probed>>;

    /// Stores bytes, which the store may keep as they are.
    ///
    /// # Errors
    /// Why it was not stored.
    fn put(
        self,
        scope: Scope,
        key: Bytes,
        bytes: Bytes,
        form: Form,
        mode: PutMode,
    ) -> impl Future<Output = Result<PutOutcome, Failure>> + Send;

    /// Removes the entry of `key`; false if there is none.
    ///
    /// # Errors
    /// Why it was not removed.
    fn delete(self, scope: Scope, key: Bytes)
    -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Charges the first `bytes` of a request from `source`. Waits a while for them; `None` if they
    /// are not there.
    fn charge(
        &self,
        source: Source,
        bytes: usize,
    ) -> impl Future<Output = Option<Self::Charge<'_>>> + Send;

    /// Whether requests wait for memory.
    fn is_contended(&self) -> bool;

    /// How patient the server is with a client.
    fn tuning(&self) -> &Tuning;

    /// Bytes of responses that clients may leave unread, all together.
    fn unread_max(&self) -> usize;

    /// Counts bytes of responses that clients have not read.
    fn hold(&self, bytes: usize);

    /// Takes back what [`Store::hold`] counted.
    fn let_go(&self, bytes: usize);

    /// Counts an event.
    fn count(&self, event: Event, n: u64);

    /// Counts a connection against those of the process. False if there are as many as there may
    /// be.
    fn take_place(&self) -> bool;

    /// Takes back what [`Store::take_place`] counted.
    fn give_back_place(&self);
}
