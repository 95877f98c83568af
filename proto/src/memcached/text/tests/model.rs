//! A store of a few lines whose clock stands still: it executes requests, so that tests can hold
//! whole conversations against what memcached 1.6.18 said.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::command::{Arith, ArithOp, Command, Delete, ExpirySpec, Get, Store, StoreMode, Touch};
use crate::memcached::text::Parser;
use crate::outcome::{Hit, Number, Outcome, Stored, Value};
use crate::request::{Body, Limits, Request, ServerOutcome, StatsKind, Step};
use crate::{Out, ServerCommand};

/// The limit on values in conversations.
pub const VALUE_LEN_MAX: usize = 1000;

#[derive(Clone, Debug, Default)]
struct Entry {
    value: Vec<u8>,
    flags: u32,
    version: u64,
    ttl_ms: Option<u64>,
    fetched: bool,
    stale: bool,
    token_sent: bool,
}

#[derive(Debug, Default)]
struct Model {
    entries: BTreeMap<Vec<u8>, Entry>,
    version: u64,
}

/// Holds a conversation on a fresh store, and returns what the server said and whether it hung up.
pub fn converse(input: &[u8]) -> (Vec<u8>, bool) {
    let mut model = Model::default();
    let mut parser = Parser::new(Limits {
        value_len_max: VALUE_LEN_MAX,
    });
    let mut out = Out::new();
    let mut rest = input;
    loop {
        match parser.parse(rest) {
            Step::Need { .. } => return (out.to_vec(), false),
            Step::Skip { len } => rest = rest.get(len as usize..).unwrap_or_default(),
            Step::Request { mut request, len } => {
                model.answer(&mut request, &mut out);
                let is_last = matches!(request.body, Body::Close | Body::Broken);
                rest = &rest[len..];
                if is_last {
                    return (out.to_vec(), true);
                }
            }
        }
    }
}

/// As [`converse`], escaped and without the hanging up.
pub fn said(input: &[u8]) -> String {
    converse(input).0.escape_ascii().to_string()
}

fn is_over(expiry: ExpirySpec) -> bool {
    matches!(expiry, ExpirySpec::Immediately)
}

fn ttl_ms(expiry: ExpirySpec) -> Option<u64> {
    match expiry {
        ExpirySpec::Never | ExpirySpec::Keep | ExpirySpec::Immediately => None,
        ExpirySpec::InMs(ttl_ms) | ExpirySpec::AtMs(ttl_ms) => Some(ttl_ms),
    }
}

impl Model {
    fn answer(&mut self, request: &mut Request<'_>, out: &mut Out) {
        let Request { body, reply, .. } = request;
        match body {
            Body::Data(commands) => {
                for command in commands {
                    let outcome = self.execute(command);
                    reply.each(command, &outcome, out);
                }
                reply.finish(out);
            }
            Body::Server(command) => {
                let outcome = match command {
                    ServerCommand::Stats(StatsKind::Reset) => ServerOutcome::Done,
                    ServerCommand::Stats(StatsKind::Settings) => ServerOutcome::Pairs(vec![
                        ("maxbytes".into(), "1".into()),
                        ("version".into(), "a b".into()),
                    ]),
                    ServerCommand::Stats(_) => ServerOutcome::Pairs(Vec::new()),
                    ServerCommand::Flush { delay_s: 0, .. } => {
                        self.entries.clear();
                        ServerOutcome::Done
                    }
                    _ => ServerOutcome::Done,
                };
                reply.server(command, &outcome, out);
            }
            Body::Answer | Body::Queued(_) | Body::LogOut | Body::Close | Body::Broken => {
                reply.finish(out)
            }
        }
    }

    fn execute(&mut self, command: &Command<'_>) -> Outcome<'static> {
        match command {
            Command::Get(get) => self.get(get),
            Command::Store(store) => self.store(store),
            Command::Arith(arith) => self.arith(arith),
            Command::Delete(delete) => self.delete(delete),
            Command::Touch(Touch { key, expiry, .. }) => match self.entries.get_mut(*key) {
                None => Outcome::NotFound,
                Some(entry) => {
                    entry.ttl_ms = ttl_ms(*expiry);
                    let version = entry.version;
                    self.expire(key, *expiry);
                    Outcome::Touched { version }
                }
            },
            Command::SetRange(_) | Command::SetBit(_) => panic!("memcached has neither"),
        }
    }

    fn next_version(&mut self, wanted: Option<u64>) -> u64 {
        self.version += 1;
        wanted.unwrap_or(self.version)
    }

    fn expire(&mut self, key: &[u8], expiry: ExpirySpec) {
        if is_over(expiry) {
            self.entries.remove(key);
        }
    }

    fn get(&mut self, get: &Get<'_>) -> Outcome<'static> {
        let mut won = false;
        if !self.entries.contains_key(get.key) {
            let Some(expiry) = get.vivify else {
                return Outcome::Miss;
            };
            let version = self.next_version(get.new_version);
            let entry = Entry {
                version,
                ttl_ms: ttl_ms(expiry),
                ..Entry::default()
            };
            self.entries.insert(get.key.to_vec(), entry);
            won = true;
        }
        let entry = self.entries.get_mut(get.key).unwrap();
        let is_low = |ttl_ms: u64| {
            get.recache_below_s
                .is_some_and(|s| ttl_ms < s as u64 * 1000)
        };
        let lost = entry.token_sent;
        won |= !lost && (entry.stale || entry.ttl_ms.is_some_and(is_low));
        entry.token_sent |= won;
        if let Some(expiry) = get.touch {
            entry.ttl_ms = ttl_ms(expiry);
        }
        let hit = Hit {
            value: Value::Shared(entry.value.clone().into()),
            value_len: entry.value.len(),
            flags: entry.flags,
            version: entry.version,
            ttl_ms: entry.ttl_ms,
            expires_at_ms: entry.ttl_ms,
            idle_s: 0,
            fetched_before: entry.fetched,
            stale: entry.stale,
            won,
            lost,
        };
        entry.fetched |= get.bump;
        for expiry in [get.touch, get.vivify.filter(|_| won)]
            .into_iter()
            .flatten()
        {
            self.expire(get.key, expiry);
        }
        Outcome::Hit(hit)
    }

    fn store(&mut self, store: &Store<'_>) -> Outcome<'static> {
        let old = self.entries.get(store.key).cloned();
        let mut stale = false;
        match (store.compare, &old) {
            (Some(_), None) => return Outcome::NotFound,
            (Some(compare), Some(old)) if compare != old.version => {
                stale = store.invalidate_if_older && compare < old.version;
                if !stale {
                    return Outcome::Exists;
                }
            }
            _ => {}
        }
        let (mut value, new) = (store.value.to_vec(), store.value);
        let mut facts = Entry {
            flags: store.flags,
            ttl_ms: ttl_ms(store.expiry),
            stale,
            ..Entry::default()
        };
        match (store.mode, old) {
            (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => {
                return Outcome::NotStored(None);
            }
            (StoreMode::Append | StoreMode::Prepend, None) => match store.vivify {
                None => return Outcome::NotStored(None),
                Some(expiry) => facts.ttl_ms = ttl_ms(expiry),
            },
            (StoreMode::Append, Some(old)) => {
                value = [&old.value, new].concat();
                facts = Entry { ..old };
            }
            (StoreMode::Prepend, Some(old)) => {
                value = [new, &old.value].concat();
                facts = Entry { ..old };
            }
            _ => {}
        }
        let version = self.next_version(store.new_version);
        let value_len = value.len();
        self.entries.insert(
            store.key.to_vec(),
            Entry {
                value,
                version,
                ..facts
            },
        );
        self.expire(store.key, store.expiry);
        Outcome::Stored(Stored {
            version,
            value_len,
            previous: None,
        })
    }

    fn arith(&mut self, arith: &Arith<'_>) -> Outcome<'static> {
        let Some(old) = self.entries.get(arith.key).cloned() else {
            let Some((initial, expiry)) = arith.initial else {
                return Outcome::NotFound;
            };
            return self.put_number(
                arith,
                initial,
                Entry {
                    ttl_ms: ttl_ms(expiry),
                    ..Entry::default()
                },
            );
        };
        if arith.compare.is_some_and(|compare| compare != old.version) {
            return Outcome::Exists;
        }
        let Some(number) = str::from_utf8(&old.value)
            .ok()
            .and_then(|text| text.parse().ok())
        else {
            return Outcome::NotANumber;
        };
        let sum = match arith.op {
            ArithOp::Increment(delta) => u64::wrapping_add(number, delta),
            ArithOp::Decrement(delta) => u64::saturating_sub(number, delta),
            _ => panic!("memcached counts with unsigned numbers"),
        };
        let ttl_ms = arith.touch.map_or(old.ttl_ms, ttl_ms);
        self.put_number(arith, sum, Entry { ttl_ms, ..old })
    }

    fn put_number(&mut self, arith: &Arith<'_>, number: u64, entry: Entry) -> Outcome<'static> {
        let text = number.to_string();
        let version = self.next_version(arith.new_version);
        let ttl_ms = entry.ttl_ms;
        let entry = Entry {
            value: text.clone().into(),
            version,
            ..entry
        };
        self.entries.insert(arith.key.to_vec(), entry);
        Outcome::Number(Number {
            text: SmallVec::from_slice(text.as_bytes()),
            version,
            ttl_ms,
        })
    }

    fn delete(&mut self, delete: &Delete<'_>) -> Outcome<'static> {
        let Some(mut entry) = self.entries.remove(delete.key) else {
            return Outcome::NotFound;
        };
        if delete
            .compare
            .is_some_and(|compare| compare != entry.version)
        {
            self.entries.insert(delete.key.to_vec(), entry);
            return Outcome::Exists;
        }
        if !delete.mark_stale && !delete.keep_entry {
            return Outcome::Deleted { version: 0 };
        }
        if delete.mark_stale {
            (entry.stale, entry.token_sent) = (true, false);
        }
        if delete.keep_entry {
            (entry.value, entry.flags) = (Vec::new(), 0);
        }
        entry.version = self.next_version(delete.new_version);
        entry.ttl_ms = delete.touch.map_or(entry.ttl_ms, ttl_ms);
        let version = entry.version;
        self.entries.insert(delete.key.to_vec(), entry);
        Outcome::Deleted { version }
    }
}
