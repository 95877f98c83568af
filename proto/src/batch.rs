//! Several steps that the owner of their keys carries out as one (ADR 0003).
//!
//! `MULTI … EXEC`, `RENAME`, `COPY` and `MSETNX` of RESP become a [`Batch`]. No other client sees
//! the keys between two steps. The keys of a batch lie in one slot, except on a node that is in no
//! cluster. Those of `MSETNX` may also lie in several slots of one member.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use crate::{Base, Command, Outcome, Version, WriterId};

/// Most steps of one batch: the owner holds locks while it carries them out.
pub const BATCH_STEPS_MAX: usize = 512;

/// Most steps of a batch that needs all its keys absent: each key is looked up below RAM.
pub const ABSENT_STEPS_MAX: usize = 256;

/// Bytes of values that one batch returns at most. A single value may be longer.
pub const BATCH_VALUES_LEN_MAX: usize = 16 * 1024 * 1024;

/// Steps that are carried out in order, if every watched key is as it was.
///
/// Answered with one outcome a step. A step that fails stops none behind it, as in Redis. If all
/// keys have to be absent, it is all or nothing: a step that does not store takes back those before
/// it, and the batch fails.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<'a> {
    /// Where a read looks that finds nothing in its own space. The parser leaves this to the
    /// server.
    pub base: Option<Base>,
    /// The identity that it is carried out for. The parser leaves this to the server, and between
    /// members it is in the envelope.
    pub writer: WriterId,
    /// Whether the steps are carried out only if none of the keys has an entry in the client's own
    /// space (`MSETNX`). Each step is a set then.
    pub all_absent: bool,
    /// What must not have changed.
    pub watched: Vec<Watched<'a>>,
    /// What to do.
    pub steps: Vec<BatchStep<'a>>,
}

/// A key as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched<'a> {
    /// The database of the key, in the namespace of the client.
    pub database: u8,
    /// The key.
    pub key: &'a [u8],
    /// The entry, if there was one.
    pub seen: Option<Seen>,
}

/// What identifies a state of an entry: a write changes the version, `EXPIRE` changes the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The version that clients see.
    pub version: Version,
    /// Unix time in milliseconds; 0 for never.
    pub expires_at_ms: u64,
}

impl Seen {
    /// The entry that a read found, if there is one; None if the read tells nothing.
    #[must_use]
    pub fn of(outcome: &Outcome<'_>) -> Option<Option<Self>> {
        match outcome {
            Outcome::Hit(hit) => Some(Some(Self {
                version: hit.version,
                expires_at_ms: hit.expires_at_ms.unwrap_or(0),
            })),
            Outcome::Miss => Some(None),
            _ => None,
        }
    }
}

/// One step of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchStep<'a> {
    /// A command on one key.
    Command(Command<'a>),
    /// An entry goes to another key.
    Transfer(Transfer<'a>),
}

/// Copies an entry, with its expiry and client flags, to another key (RESP `COPY`, `RENAME`).
///
/// Answered with `Stored`, `NotFound` (no entry to copy) or `NotStored` (the target exists).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer<'a> {
    /// The key of the entry.
    pub from: &'a [u8],
    /// The other key.
    pub to: &'a [u8],
    /// The database of the other key, in the namespace of the client.
    pub database: u8,
    /// Whether the entry is removed where it was.
    pub removes: bool,
    /// Whether an entry of the other key is replaced.
    pub replaces: bool,
}

/// What came of each step of a batch.
///
/// The server may hold memory for the values, or a turn, until the outcomes are worded. Dropping
/// the last clone gives that back. Two outcomes are equal whatever is held for them.
#[derive(Clone, Debug, Default)]
pub struct StepOutcomes {
    each: Box<[Outcome<'static>]>,
    /// Boxed to be one word: a connection has room for each kind of answer.
    _held: Option<Arc<Box<dyn Any + Send + Sync>>>,
}

impl StepOutcomes {
    /// The same, which also keep `held` alive.
    #[must_use]
    pub fn holding(self, held: impl Any + Send + Sync) -> Self {
        let held: Box<dyn Any + Send + Sync> = Box::new(held);
        Self {
            _held: Some(Arc::new(held)),
            ..self
        }
    }
}

impl Deref for StepOutcomes {
    type Target = [Outcome<'static>];

    fn deref(&self) -> &Self::Target {
        &self.each
    }
}

impl From<Vec<Outcome<'static>>> for StepOutcomes {
    fn from(each: Vec<Outcome<'static>>) -> Self {
        Self {
            each: each.into_boxed_slice(),
            _held: None,
        }
    }
}

impl FromIterator<Outcome<'static>> for StepOutcomes {
    fn from_iter<I: IntoIterator<Item = Outcome<'static>>>(outcomes: I) -> Self {
        Self::from(Vec::from_iter(outcomes))
    }
}

impl PartialEq for StepOutcomes {
    fn eq(&self, other: &Self) -> bool {
        self.each == other.each
    }
}

impl<'a> Batch<'a> {
    /// All keys, those that are watched first. A key may come several times.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        let watched = self.watched.iter().map(|watched| watched.key);
        watched.chain(self.steps.iter().flat_map(BatchStep::keys))
    }

    /// The same batch on other keys. `keys` has one for each of [`Batch::keys`], in their order.
    #[must_use]
    pub fn on<'k>(&self, keys: &'k [Vec<u8>]) -> Batch<'k>
    where
        'a: 'k,
    {
        let mut keys = keys.iter().map(Vec::as_slice);
        let mut next = || keys.next().unwrap_or_default();
        let watched = self.watched.iter().map(|watched| Watched {
            key: next(),
            ..watched.clone()
        });
        let watched = watched.collect();
        let steps = self.steps.iter().map(|step| match step {
            BatchStep::Command(command) => BatchStep::Command(command.on(next())),
            BatchStep::Transfer(transfer) => BatchStep::Transfer(Transfer {
                from: next(),
                to: next(),
                ..transfer.clone()
            }),
        });
        Batch {
            base: self.base,
            writer: self.writer,
            all_absent: self.all_absent,
            watched,
            steps: steps.collect(),
        }
    }

    /// Whether a step may change anything.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.steps.iter().any(BatchStep::is_write)
    }

    /// The slot of all keys; None if there are several, or no key.
    #[must_use]
    pub fn slot(&self) -> Option<u16> {
        let mut slots = self.keys().map(crate::placement::slot);
        let first = slots.next()?;
        slots.all(|slot| slot == first).then_some(first)
    }
}

impl<'a> BatchStep<'a> {
    fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        let (first, second) = match self {
            Self::Command(command) => (command.key(), None),
            Self::Transfer(transfer) => (transfer.from, Some(transfer.to)),
        };
        std::iter::once(first).chain(second)
    }

    /// Whether the step may change anything.
    #[must_use]
    pub fn is_write(&self) -> bool {
        match self {
            Self::Command(command) => command.is_write(),
            Self::Transfer(_) => true,
        }
    }
}
