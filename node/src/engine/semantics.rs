//! What each command does to one entry: pure functions of the entry that is there and of the time.
//!
//! The tiers find out what is there ([`Present`], or nothing) and carry out the [`Change`]; this
//! module decides. It is the one place where the rules for flags, CAS, expiry, staleness and
//! arithmetic live, whatever protocol a command came by. The rules are memcached's `protocol.txt`
//! and Redis's command reference.
//!
//! Invariant: a change always carries a version that is fresh, so that of two copies of an entry
//! the one with the higher version is the newer one. Where the CAS token must survive a change
//! (touch), the old token is kept as [`Meta::cas_override`].

use bytes::Bytes;
use fonn_base::entry::Meta;
use fonn_proto::{
    Arith, Command, Delete, ExpireCondition, ExpirySpec, Failure, Get, Hit, Outcome, SetBit,
    SetRange, Store, StoreMode, Stored, Touch, Version, WriterId, outcome::Value,
};

use super::number;

/// The entry that is there: visible, not expired.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    /// Its facts.
    pub meta: Meta,
    /// Its value, decoded; may be left empty for commands that do not build on it.
    pub value: &'a [u8],
    /// The allocation of that value, where it may be shared.
    pub shared: Option<&'a Bytes>,
    /// The value's length in bytes.
    pub value_len: usize,
    /// Whether it was read before.
    pub fetched: bool,
    /// Seconds since its last use.
    pub idle_s: u32,
}

impl Present<'_> {
    /// Whether a command that compares tokens may act on it.
    fn has_token(&self, compare: Option<Version>) -> bool {
        compare.is_none_or(|compare| compare == self.meta.cas())
    }
}

/// What a command does to the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Keep,
    /// Nothing durable: the recache token was given out.
    TokenSent,
    /// New facts, the same value.
    Meta(Meta),
    /// New facts and the value of the request, as it is.
    PutRequest(Meta),
    /// New facts and a short value that the command made.
    PutBuilt(Meta, Vec<u8>),
    /// New facts and the value that [`grown`] makes of the old one.
    PutGrown(Meta),
    /// Removes the entry.
    Remove(Version),
}

impl Change {
    /// Names the identity that wrote the value, if the change brings one. New facts of a value
    /// leave its writer.
    pub fn write_as(&mut self, writer: WriterId) {
        match self {
            Self::PutRequest(meta) | Self::PutBuilt(meta, _) | Self::PutGrown(meta) => {
                meta.writer = writer;
            }
            Self::Keep | Self::TokenSent | Self::Meta(_) | Self::Remove(_) => {}
        }
    }

    /// The version that the entry, or its tombstone, gets.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        match self {
            Self::Keep | Self::TokenSent => None,
            Self::Meta(meta)
            | Self::PutRequest(meta)
            | Self::PutBuilt(meta, _)
            | Self::PutGrown(meta) => Some(meta.version),
            Self::Remove(version) => Some(*version),
        }
    }
}

/// What bounds a command.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Wall clock, Unix time in milliseconds.
    pub now_ms: u64,
    /// Longest value in bytes.
    pub value_len_max: usize,
    /// How long an entry lives at most, in milliseconds, if its namespace says so.
    pub ttl_ms_max: Option<u64>,
}

/// Longest value, in bytes, that a short request may make of another.
pub const GROWN_LEN_MAX: usize = 1 << 20;

/// A longer value may be made by a request that brings this part of it.
const GROWN_PART: usize = 16;

impl Rules {
    /// The longest value that a request of `request_len` bytes may make of the one that is there,
    /// which is copied for it: the work stays in proportion to what the client sends.
    #[must_use]
    pub fn grown_len_max(&self, request_len: usize) -> usize {
        let len_max = request_len.saturating_mul(GROWN_PART).max(GROWN_LEN_MAX);
        len_max.min(self.value_len_max)
    }

    /// The instant that an expiry means: Unix time in milliseconds, 0 for never, never 0 otherwise.
    /// It is within the time that an entry of the namespace lives at most.
    #[must_use]
    pub fn expires_at_ms(&self, expiry: ExpirySpec, present: Option<&Meta>) -> u64 {
        let asked = match expiry {
            ExpirySpec::Never => 0,
            ExpirySpec::Keep => present.map_or(0, |meta| meta.expires_at_ms),
            // The largest instants are as good as never; 48 bits is what entries have room for.
            ExpirySpec::InMs(ms) => self.now_ms.saturating_add(ms).clamp(1, EXPIRY_MS_MAX),
            ExpirySpec::AtMs(ms) => ms.clamp(1, EXPIRY_MS_MAX),
            ExpirySpec::Immediately => 1,
        };
        let Some(ttl_ms) = self.ttl_ms_max else {
            return asked;
        };
        let latest = self.now_ms.saturating_add(ttl_ms).clamp(1, EXPIRY_MS_MAX);
        match asked {
            0 => latest,
            asked => asked.min(latest),
        }
    }

    /// How long an entry lives from now on, if it does not live for ever.
    fn ttl_ms(&self, expires_at_ms: u64) -> Option<u64> {
        (expires_at_ms != 0).then(|| expires_at_ms.saturating_sub(self.now_ms))
    }

    /// A change that gives the entry these facts. If it has expired by them, it is removed instead.
    fn unless_expired(&self, meta: &Meta, change: Change) -> Change {
        match meta.is_expired(self.now_ms) {
            true => Change::Remove(meta.version),
            false => change,
        }
    }
}

/// The latest instant of expiry: the largest number of 48 bits.
pub const EXPIRY_MS_MAX: u64 = (1 << 48) - 1;

/// What a command does, and what its client is told.
type Decision = (Change, Outcome<'static>);

/// Decides what `command` does, given what is there.
///
/// `fresh` gives a version higher than all before. A [`Hit`] leaves without its value: the caller,
/// which knows where the bytes are, fills it in if it was asked for.
pub fn apply(
    command: &Command<'_>,
    present: Option<Present<'_>>,
    rules: Rules,
    fresh: impl FnOnce() -> Version,
) -> (Change, Outcome<'static>) {
    let deciding = Deciding {
        present,
        rules,
        fresh,
    };
    match command {
        Command::Get(get) => deciding.get(get),
        Command::Store(store) => deciding.store(store),
        Command::Arith(arith) => deciding.arith(arith),
        Command::Delete(delete) => deciding.delete(delete),
        Command::Touch(touch) => deciding.touch(touch),
        Command::SetRange(range) => deciding.set_range(range),
        Command::SetBit(bit) => deciding.set_bit(bit),
    }
}

/// Whether a command builds on the bytes that are there.
#[must_use]
pub fn needs_value(command: &Command<'_>) -> bool {
    match command {
        Command::Get(get) => get.want_value,
        Command::Store(store) => {
            store.want_previous || matches!(store.mode, StoreMode::Append | StoreMode::Prepend)
        }
        Command::Arith(_) | Command::SetRange(_) | Command::SetBit(_) => true,
        Command::Delete(_) | Command::Touch(_) => false,
    }
}

/// Whether a command returns a value.
#[must_use]
pub fn returns_value(command: &Command<'_>) -> bool {
    match command {
        Command::Get(get) => get.want_value,
        Command::Store(store) => store.want_previous,
        _ => false,
    }
}

/// Whether a command's result is independent of what is there, so that the disk need not be asked.
#[must_use]
pub fn is_blind(command: &Command<'_>) -> bool {
    matches!(command, Command::Store(store)
        if store.mode == StoreMode::Set
            && store.compare.is_none()
            && !store.want_previous
            && store.expiry != ExpirySpec::Keep)
}

/// The facts of a hit, without the value.
#[must_use]
pub fn hit(present: &Present<'_>, now_ms: u64) -> Hit<'static> {
    let Present {
        meta,
        value_len,
        fetched,
        idle_s,
        ..
    } = present;
    let expires = (meta.expires_at_ms != 0).then_some(meta.expires_at_ms);
    Hit {
        value: Value::Copied(&[]),
        value_len: *value_len,
        flags: meta.flags,
        version: meta.cas(),
        ttl_ms: expires.map(|at| at.saturating_sub(now_ms)),
        expires_at_ms: expires,
        idle_s: *idle_s,
        fetched_before: *fetched,
        stale: meta.stale,
        won: false,
        lost: false,
    }
}

/// What a command is decided by.
struct Deciding<'p, F> {
    present: Option<Present<'p>>,
    rules: Rules,
    fresh: F,
}

impl<F: FnOnce() -> Version> Deciding<'_, F> {
    fn get(self, get: &Get<'_>) -> Decision {
        let Some(present) = self.present else {
            return match get.vivify {
                Some(expiry) => self.vivify(get, expiry),
                None => (Change::Keep, Outcome::Miss),
            };
        };
        let mut hit = hit(&present, self.rules.now_ms);
        if get.delete {
            return (Change::Remove((self.fresh)()), Outcome::Hit(hit));
        }
        if get.claim {
            let due = get.recache_below_s.is_some_and(|below| {
                hit.ttl_ms
                    .is_some_and(|ttl| ttl < u64::from(below).saturating_mul(1000))
            });
            hit.won = (present.meta.stale || due) && !present.meta.token_sent;
            hit.lost = present.meta.token_sent;
        }
        let change = match get.touch {
            Some(expiry) => {
                let expires_at_ms = self.rules.expires_at_ms(expiry, Some(&present.meta));
                hit.expires_at_ms = (expires_at_ms != 0).then_some(expires_at_ms);
                hit.ttl_ms = self.rules.ttl_ms(expires_at_ms);
                self.retime(&present.meta, expires_at_ms, hit.won)
            }
            None if hit.won => Change::TokenSent,
            None => Change::Keep,
        };
        (change, Outcome::Hit(hit))
    }

    /// Meta `N`: an empty entry whose creator holds the right to fill it.
    fn vivify(self, get: &Get<'_>, expiry: ExpirySpec) -> Decision {
        let expires_at_ms = self.rules.expires_at_ms(expiry, None);
        let meta = Meta {
            cas_override: get.new_version,
            token_sent: true,
            ..Meta::new((self.fresh)(), 0, expires_at_ms)
        };
        let present = Present {
            meta,
            value: &[],
            shared: None,
            value_len: 0,
            fetched: false,
            idle_s: 0,
        };
        let created = Hit {
            won: true,
            ..hit(&present, self.rules.now_ms)
        };
        (Change::PutBuilt(meta, Vec::new()), Outcome::Hit(created))
    }

    /// The change that gives an entry another expiry and leaves its CAS token alone.
    fn retime(self, meta: &Meta, expires_at_ms: u64, token_sent: bool) -> Change {
        let meta = Meta {
            version: (self.fresh)(),
            cas_override: Some(meta.cas()),
            expires_at_ms,
            token_sent: meta.token_sent || token_sent,
            ..*meta
        };
        self.rules.unless_expired(&meta, Change::Meta(meta))
    }

    fn store(self, store: &Store<'_>) -> Decision {
        let (present, rules) = (self.present, self.rules);
        let previous = || {
            let it = present.filter(|_| store.want_previous)?;
            Some(match it.shared {
                Some(shared) => shared.clone(),
                None => Bytes::copy_from_slice(it.value),
            })
        };
        if let Some(compare) = store.compare {
            match present {
                Some(it) if it.meta.cas() == compare => {}
                // Meta `I` with an older version: the value is replaced, and what says that it is
                // not good enough stays: the expiry, the stale mark, and the holder of the recache
                // token (memcached's `do_store_item`).
                Some(it) if store.invalidate_if_older && compare < it.meta.cas() => {
                    return self.put(store, previous(), |version| Meta {
                        stale: true,
                        token_sent: it.meta.token_sent,
                        ..Meta::new(version, store.flags, it.meta.expires_at_ms)
                    });
                }
                Some(_) => return (Change::Keep, Outcome::Exists),
                // Without an entry these have their own outcomes.
                None if matches!(
                    store.mode,
                    StoreMode::Add | StoreMode::Append | StoreMode::Prepend
                ) => {}
                None => return (Change::Keep, Outcome::NotFound),
            }
        }
        let expiry = match (store.mode, present) {
            (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => {
                return (Change::Keep, Outcome::NotStored(previous()));
            }
            (StoreMode::Append | StoreMode::Prepend, Some(it)) => {
                let Some(value_len) = store_grown_len(store, it.value_len, rules) else {
                    return (Change::Keep, Outcome::Failed(Failure::TooLarge));
                };
                let meta = Meta {
                    version: (self.fresh)(),
                    cas_override: store.new_version,
                    stale: false,
                    token_sent: false,
                    ..it.meta
                };
                let stored = Stored {
                    version: meta.cas(),
                    value_len,
                    previous: previous(),
                };
                return (Change::PutGrown(meta), Outcome::Stored(stored));
            }
            (StoreMode::Append | StoreMode::Prepend, None) => match store.vivify {
                Some(expiry) => expiry,
                None => return (Change::Keep, Outcome::NotStored(None)),
            },
            (StoreMode::Set | StoreMode::Add | StoreMode::Replace, _) => store.expiry,
        };
        let expires_at_ms = rules.expires_at_ms(expiry, present.map(|it| it.meta).as_ref());
        self.put(store, previous(), |version| {
            Meta::new(version, store.flags, expires_at_ms)
        })
    }

    /// Puts the value of a request in the place of what is there. `meta` makes its facts of its
    /// version.
    fn put(
        self,
        store: &Store<'_>,
        previous: Option<Bytes>,
        meta: impl FnOnce(Version) -> Meta,
    ) -> Decision {
        let value_len = store.value.len();
        if value_len > self.rules.value_len_max {
            return (Change::Keep, Outcome::Failed(Failure::TooLarge));
        }
        let meta = Meta {
            cas_override: store.new_version,
            ..meta((self.fresh)())
        };
        let stored = Outcome::Stored(Stored {
            version: meta.cas(),
            value_len,
            previous,
        });
        // Stored and expired in one: what was there before is gone as well.
        let change = self.rules.unless_expired(&meta, Change::PutRequest(meta));
        (change, stored)
    }

    fn arith(self, arith: &Arith<'_>) -> Decision {
        let (old, text, expiry) = match self.present {
            None => match arith.initial {
                Some((initial, expiry)) => (None, number::decimal(initial), expiry),
                None if arith.absent_is_zero => match number::add(&arith.op, b"0") {
                    Ok(text) => (None, text, arith.touch.unwrap_or(ExpirySpec::Never)),
                    Err(error) => return (Change::Keep, error.into()),
                },
                None => return (Change::Keep, Outcome::NotFound),
            },
            // Memcached looks at the length of the value before it compares tokens.
            Some(it) if it.value_len == 0 || it.value_len > number::TEXT_LEN_MAX => {
                return (Change::Keep, Outcome::NotANumber);
            }
            Some(it) if !it.has_token(arith.compare) => return (Change::Keep, Outcome::Exists),
            Some(it) => match number::add(&arith.op, it.value) {
                Ok(text) => (Some(it.meta), text, arith.touch.unwrap_or(ExpirySpec::Keep)),
                Err(error) => return (Change::Keep, error.into()),
            },
        };
        let version = (self.fresh)();
        let meta = Meta {
            version,
            cas_override: arith.new_version,
            expires_at_ms: self.rules.expires_at_ms(expiry, old.as_ref()),
            ..old.unwrap_or(Meta::new(version, 0, 0))
        };
        let change = Change::PutBuilt(meta, text.to_vec());
        let number = Outcome::Number(fonn_proto::Number {
            text,
            version: meta.cas(),
            ttl_ms: self.rules.ttl_ms(meta.expires_at_ms),
        });
        (self.rules.unless_expired(&meta, change), number)
    }

    fn delete(self, delete: &Delete<'_>) -> Decision {
        let Some(present) = self.present else {
            return (Change::Keep, Outcome::NotFound);
        };
        if !present.has_token(delete.compare) {
            return (Change::Keep, Outcome::Exists);
        }
        let version = (self.fresh)();
        if !delete.mark_stale && !delete.keep_entry {
            return (Change::Remove(version), Outcome::Deleted { version: 0 });
        }
        let expiry = delete.touch.unwrap_or(ExpirySpec::Keep);
        let meta = Meta {
            version,
            cas_override: delete.new_version,
            flags: if delete.keep_entry {
                0
            } else {
                present.meta.flags
            },
            expires_at_ms: self.rules.expires_at_ms(expiry, Some(&present.meta)),
            stale: present.meta.stale || delete.mark_stale,
            token_sent: present.meta.token_sent && !delete.mark_stale,
            writer: present.meta.writer,
        };
        let change = match delete.keep_entry {
            true => Change::PutBuilt(meta, Vec::new()),
            false => Change::Meta(meta),
        };
        let version = meta.cas();
        let change = self.rules.unless_expired(&meta, change);
        (change, Outcome::Deleted { version })
    }

    fn touch(self, touch: &Touch<'_>) -> Decision {
        let Some(present) = self.present else {
            return (Change::Keep, Outcome::NotFound);
        };
        let touched = Outcome::Touched {
            version: present.meta.cas(),
        };
        if touch.expiry == ExpirySpec::Keep {
            return (Change::Keep, touched);
        }
        let old = present.meta.expires_at_ms;
        let new = self.rules.expires_at_ms(touch.expiry, Some(&present.meta));
        let met = match touch.condition {
            ExpireCondition::Always => true,
            ExpireCondition::IfNone => old == 0,
            ExpireCondition::IfSome => old != 0,
            ExpireCondition::IfLater => old != 0 && (new == 0 || new > old),
            ExpireCondition::IfEarlier => new != 0 && (old == 0 || new < old),
            ExpireCondition::IfSomeAndEarlier => old != 0 && new != 0 && new < old,
        };
        if !met {
            return (Change::Keep, Outcome::NotStored(None));
        }
        (self.retime(&present.meta, new, false), touched)
    }

    fn set_range(self, range: &SetRange<'_>) -> Decision {
        let old_len = self.present.map_or(0, |it| it.value_len);
        let stored = |version, value_len| {
            Outcome::Stored(Stored {
                version,
                value_len,
                previous: None,
            })
        };
        if range.value.is_empty() {
            let version = self.present.map_or(0, |it| it.meta.cas());
            return (Change::Keep, stored(version, old_len));
        }
        let Some(len) = range_grown_len(range, old_len, self.rules) else {
            return (Change::Keep, Outcome::Failed(Failure::TooLarge));
        };
        let meta = self.grown_meta();
        (Change::PutGrown(meta), stored(meta.cas(), len))
    }

    fn set_bit(self, bit: &SetBit<'_>) -> Decision {
        let old = self.present.map_or(&[][..], |it| it.value);
        if bit_grown_len(bit, old.len(), self.rules).is_none() {
            return (Change::Keep, Outcome::Failed(Failure::TooLarge));
        }
        let (at, mask) = bit_at(bit);
        let before = old.get(at).is_some_and(|byte| byte & mask != 0);
        let meta = self.grown_meta();
        let outcome = Outcome::Number(fonn_proto::Number {
            text: number::decimal(u64::from(before)),
            version: meta.cas(),
            ttl_ms: None,
        });
        (Change::PutGrown(meta), outcome)
    }

    /// The facts of what [`grown`] makes.
    fn grown_meta(self) -> Meta {
        let version = (self.fresh)();
        let expires_at_ms = self.rules.expires_at_ms(ExpirySpec::Never, None);
        let new = Meta::new(version, 0, expires_at_ms);
        Meta {
            version,
            cas_override: None,
            ..self.present.map_or(new, |it| it.meta)
        }
    }
}

/// Whether a command makes a longer value of the one that is there: [`grown`] has it.
#[must_use]
pub fn grows(command: &Command<'_>) -> bool {
    match command {
        Command::Store(store) => matches!(store.mode, StoreMode::Append | StoreMode::Prepend),
        Command::SetRange(_) | Command::SetBit(_) => true,
        _ => false,
    }
}

/// The length of what [`grown`] makes of a value of `old_len` bytes. None if the command makes
/// nothing of it, or too long a value.
#[must_use]
pub fn grown_len(command: &Command<'_>, old_len: usize, rules: Rules) -> Option<usize> {
    match command {
        Command::Store(store) if grows(command) => store_grown_len(store, old_len, rules),
        Command::SetRange(range) => range_grown_len(range, old_len, rules),
        Command::SetBit(bit) => bit_grown_len(bit, old_len, rules),
        _ => None,
    }
}

fn store_grown_len(store: &Store<'_>, old_len: usize, rules: Rules) -> Option<usize> {
    let len = old_len.checked_add(store.value.len())?;
    (len <= rules.grown_len_max(store.value.len())).then_some(len)
}

fn range_grown_len(range: &SetRange<'_>, old_len: usize, rules: Rules) -> Option<usize> {
    let offset = usize::try_from(range.offset).ok()?;
    let len = offset.checked_add(range.value.len())?.max(old_len);
    (len <= rules.grown_len_max(range.value.len())).then_some(len)
}

fn bit_grown_len(bit: &SetBit<'_>, old_len: usize, rules: Rules) -> Option<usize> {
    let len = usize::try_from(bit.offset / 8).ok()?.checked_add(1)?;
    let len = len.max(old_len);
    (len <= rules.grown_len_max(1)).then_some(len)
}

/// The byte that has a bit, and the bit in it: bit 0 is the highest of the first byte.
fn bit_at(bit: &SetBit<'_>) -> (usize, u8) {
    let at = usize::try_from(bit.offset / 8).unwrap_or(usize::MAX);
    (at, 0x80 >> (bit.offset % 8))
}

/// The value that a command makes of the one that is there: what [`Change::PutGrown`] stores. Empty
/// for other commands. Copies both values.
#[must_use]
pub fn grown(command: &Command<'_>, old: &[u8]) -> Vec<u8> {
    match command {
        Command::Store(store) if store.mode == StoreMode::Append => [old, store.value].concat(),
        Command::Store(store) if store.mode == StoreMode::Prepend => [store.value, old].concat(),
        Command::SetRange(range) => {
            let offset = usize::try_from(range.offset).unwrap_or(usize::MAX);
            let end = offset.saturating_add(range.value.len());
            let mut value = Vec::with_capacity(end.max(old.len()));
            value.extend_from_slice(old);
            value.resize(end.max(old.len()), 0);
            if let Some(part) = value.get_mut(offset..end) {
                part.copy_from_slice(range.value);
            }
            value
        }
        Command::SetBit(bit) => {
            let (at, mask) = bit_at(bit);
            let len = at.saturating_add(1).max(old.len());
            let mut value = Vec::with_capacity(len);
            value.extend_from_slice(old);
            value.resize(len, 0);
            if let Some(byte) = value.get_mut(at) {
                match bit.is_set {
                    true => *byte |= mask,
                    false => *byte &= !mask,
                }
            }
            value
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
