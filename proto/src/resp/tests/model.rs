//! A store in memory that executes requests: just enough of the executor's contract to see replies.

use std::collections::BTreeMap;

use crate::command::{ArithOp, Command, ExpireCondition, ExpirySpec, StoreMode};
use crate::outcome::{Hit, Number, Outcome, Stored, Value};
use crate::request::{Body, Request, ServerCommand, ServerOutcome};
use crate::{Batch, BatchStep, Failure, Get, Out, Seen, Transfer};

/// The model's clock stands still at this Unix time, in ms.
pub(super) const NOW_MS: u64 = 1_750_000_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    value: Vec<u8>,
    expires_at_ms: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) entries: BTreeMap<(u8, Vec<u8>), Entry>,
    /// Commands on this key fail.
    pub(super) failing: Option<(Vec<u8>, Failure)>,
    /// What the server commands are answered with, where the store does not know.
    pub(super) server: Option<ServerOutcome>,
}

impl Model {
    pub(super) fn answer(&mut self, request: &mut Request<'_>, out: &mut Out) {
        match &request.body {
            Body::Data(commands) => {
                for command in commands {
                    let mut kept = Vec::new();
                    let outcome = self.execute(request.database, command, &mut kept);
                    request.reply.each(command, &outcome, out);
                }
                request.reply.finish(out);
            }
            Body::Server(command) => {
                let outcome = self.serve(request.database, command);
                request.reply.server(command, &outcome, out);
            }
            Body::Answer | Body::Queued(_) | Body::LogOut | Body::Close | Body::Broken => {
                request.reply.finish(out);
            }
        }
    }

    fn serve(&mut self, database: u8, command: &ServerCommand<'_>) -> ServerOutcome {
        if let Some(outcome) = self.server.clone() {
            return outcome;
        }
        let keys = self
            .entries
            .keys()
            .filter(|key| key.0 == database)
            .map(|key| key.1.clone());
        match command {
            ServerCommand::Flush { all_databases, .. } => {
                self.entries
                    .retain(|key, _| !all_databases && key.0 != database);
                ServerOutcome::Done
            }
            ServerCommand::Count => ServerOutcome::Integer(keys.count() as i64),
            ServerCommand::RandomKey => ServerOutcome::Key(keys.min()),
            ServerCommand::Scan { pattern, .. } => {
                let prefix = pattern
                    .and_then(|pattern| pattern.strip_suffix(b"*"))
                    .unwrap_or(b"");
                let keys = keys.filter(|key| key.starts_with(prefix)).collect();
                ServerOutcome::Scan { cursor: 0, keys }
            }
            ServerCommand::ConfigGet(patterns) if patterns == &[b"save"] => {
                ServerOutcome::Pairs(vec![("save".into(), String::new())])
            }
            ServerCommand::ConfigGet(_) => ServerOutcome::Pairs(Vec::new()),
            ServerCommand::Auth { .. } => ServerOutcome::AuthNotConfigured,
            ServerCommand::Time => ServerOutcome::Integer(NOW_MS as i64 * 1000 + 5),
            ServerCommand::Keys(_) => ServerOutcome::Scan {
                cursor: 0,
                keys: keys.collect(),
            },
            ServerCommand::Atomic(batch) => self.batch(database, batch),
            ServerCommand::ConfigSet(_) => ServerOutcome::Invalid("not here".to_owned()),
            ServerCommand::Info(_) => ServerOutcome::Text(String::new()),
            ServerCommand::ClientInfo
            | ServerCommand::Stats(_)
            | ServerCommand::ClusterView
            | ServerCommand::CountInSlot(_) => ServerOutcome::Done,
        }
    }

    fn batch(&mut self, database: u8, batch: &Batch<'_>) -> ServerOutcome {
        for watched in &batch.watched {
            let get = Command::Get(Get::facts(watched.key));
            let outcome = self
                .execute(watched.database, &get, &mut Vec::new())
                .into_owned();
            if Seen::of(&outcome) != Some(watched.seen) {
                return ServerOutcome::Changed;
            }
        }
        let mut keys = batch.keys().map(|key| (database, key.to_vec()));
        if batch.all_absent && keys.any(|key| self.entries.contains_key(&key)) {
            return ServerOutcome::Changed;
        }
        let step = |step: &BatchStep<'_>| match step {
            BatchStep::Command(command) => self
                .execute(database, command, &mut Vec::new())
                .into_owned(),
            BatchStep::Transfer(transfer) => self.transfer(database, transfer),
        };
        ServerOutcome::Outcomes(batch.steps.iter().map(step).collect())
    }

    fn transfer(&mut self, database: u8, transfer: &Transfer<'_>) -> Outcome<'static> {
        let (from, to) = (
            (database, transfer.from.to_vec()),
            (transfer.database, transfer.to.to_vec()),
        );
        let Some(entry) = self.entries.get(&from).cloned() else {
            return Outcome::NotFound;
        };
        if !transfer.replaces && self.entries.contains_key(&to) {
            return Outcome::NotStored(None);
        }
        if transfer.removes {
            self.entries.remove(&from);
        }
        let value_len = entry.value.len();
        self.entries.insert(to, entry);
        Outcome::Stored(Stored {
            version: 1,
            value_len,
            previous: None,
        })
    }

    fn execute<'v>(
        &mut self,
        database: u8,
        command: &Command<'_>,
        kept: &'v mut Vec<u8>,
    ) -> Outcome<'v> {
        if let Some((key, failure)) = &self.failing
            && key == command.key()
        {
            return Outcome::Failed(*failure);
        }
        let place = (database, command.key().to_vec());
        let found = self.entries.get(&place).cloned();
        let outcome = match command {
            Command::Get(get) => match found {
                None => Outcome::Miss,
                Some(entry) => {
                    *kept = entry.value.clone();
                    let mut expires_at_ms = entry.expires_at_ms;
                    if let Some(expiry) = get.touch {
                        expires_at_ms = resolve(expiry, expires_at_ms);
                    }
                    if let Some(entry) = self.entries.get_mut(&place) {
                        entry.expires_at_ms = expires_at_ms;
                    }
                    if get.delete {
                        self.entries.remove(&place);
                    }
                    Outcome::Hit(Hit {
                        value_len: kept.len(),
                        value: Value::Copied(if get.want_value { kept } else { &[] }),
                        flags: 0,
                        // Another value has another one, which is all that is asked of it here.
                        version: kept.iter().map(|byte| u64::from(*byte)).sum::<u64>() + 1,
                        ttl_ms: expires_at_ms.map(|at| at - NOW_MS),
                        expires_at_ms,
                        idle_s: 0,
                        fetched_before: false,
                        stale: false,
                        won: false,
                        lost: false,
                    })
                }
            },
            Command::Store(store) => {
                let previous = found.as_ref().map(|entry| entry.value.clone().into());
                let previous = previous.filter(|_| store.want_previous);
                let refused = match store.mode {
                    StoreMode::Add => found.is_some(),
                    StoreMode::Replace => found.is_none(),
                    StoreMode::Append | StoreMode::Prepend => {
                        found.is_none() && store.vivify.is_none()
                    }
                    StoreMode::Set => false,
                };
                if refused {
                    return Outcome::NotStored(previous);
                }
                let old = found.unwrap_or_default();
                let entry = match store.mode {
                    StoreMode::Append => Entry {
                        value: [&old.value, store.value].concat(),
                        ..old
                    },
                    _ => Entry {
                        value: store.value.to_vec(),
                        expires_at_ms: resolve(store.expiry, old.expires_at_ms),
                    },
                };
                let value_len = entry.value.len();
                self.entries.insert(place.clone(), entry);
                Outcome::Stored(Stored {
                    version: 1,
                    value_len,
                    previous,
                })
            }
            Command::Arith(arith) => {
                let old = found.unwrap_or_else(|| Entry {
                    value: b"0".to_vec(),
                    ..Entry::default()
                });
                let text = String::from_utf8_lossy(&old.value).into_owned();
                let text = match arith.op {
                    ArithOp::Signed(delta) => {
                        let Ok(number) = text.parse::<i64>() else {
                            return Outcome::NotANumber;
                        };
                        let Some(sum) = number.checked_add(delta) else {
                            return Outcome::Overflow;
                        };
                        sum.to_string()
                    }
                    ArithOp::Float(delta) => {
                        let Ok(number) = text.parse::<f64>() else {
                            return Outcome::NotANumber;
                        };
                        if !(number + delta).is_finite() {
                            return Outcome::Overflow;
                        }
                        (number + delta).to_string()
                    }
                    other => unreachable!("RESP has no {other:?}"),
                };
                let value = text.into_bytes();
                let number = Number {
                    text: value.as_slice().into(),
                    version: 1,
                    ttl_ms: old.expires_at_ms.map(|at| at - NOW_MS),
                };
                self.entries.insert(place.clone(), Entry { value, ..old });
                Outcome::Number(number)
            }
            Command::Delete(_) => match self.entries.remove(&place) {
                None => Outcome::NotFound,
                Some(_) => Outcome::Deleted { version: 0 },
            },
            Command::Touch(touch) => {
                let Some(entry) = self.entries.get_mut(&place) else {
                    return Outcome::NotFound;
                };
                let (old, new) = (
                    entry.expires_at_ms,
                    resolve(touch.expiry, entry.expires_at_ms),
                );
                let latest = |at: Option<u64>| at.unwrap_or(u64::MAX);
                let applies = match touch.condition {
                    ExpireCondition::Always => true,
                    ExpireCondition::IfNone => old.is_none(),
                    ExpireCondition::IfSome => old.is_some(),
                    ExpireCondition::IfLater => latest(new) > latest(old),
                    ExpireCondition::IfEarlier => latest(new) < latest(old),
                    ExpireCondition::IfSomeAndEarlier => old.is_some() && latest(new) < latest(old),
                };
                if !applies {
                    return Outcome::NotStored(None);
                }
                entry.expires_at_ms = new;
                Outcome::Touched { version: 1 }
            }
            Command::SetRange(range) => {
                let mut value = found.clone().unwrap_or_default().value;
                if !range.value.is_empty() {
                    let offset = range.offset as usize;
                    value.resize(value.len().max(offset + range.value.len()), 0);
                    value[offset..offset + range.value.len()].copy_from_slice(range.value);
                    let expires_at_ms = found.and_then(|entry| entry.expires_at_ms);
                    self.entries.insert(
                        place.clone(),
                        Entry {
                            value: value.clone(),
                            expires_at_ms,
                        },
                    );
                }
                Outcome::Stored(Stored {
                    version: 1,
                    value_len: value.len(),
                    previous: None,
                })
            }
            Command::SetBit(bit) => {
                let mut entry = found.unwrap_or_default();
                let at = (bit.offset / 8) as usize;
                entry.value.resize(entry.value.len().max(at + 1), 0);
                let mask = 0x80 >> (bit.offset % 8);
                let before = u8::from(entry.value[at] & mask != 0);
                match bit.is_set {
                    true => entry.value[at] |= mask,
                    false => entry.value[at] &= !mask,
                }
                self.entries.insert(place.clone(), entry);
                Outcome::Number(Number {
                    text: [b'0' + before].as_slice().into(),
                    version: 1,
                    ttl_ms: None,
                })
            }
        };
        self.entries
            .retain(|_, entry| entry.expires_at_ms.is_none_or(|at| at > NOW_MS));
        outcome
    }
}

fn resolve(expiry: ExpirySpec, present: Option<u64>) -> Option<u64> {
    match expiry {
        ExpirySpec::Never => None,
        ExpirySpec::Keep => present,
        ExpirySpec::InMs(ms) => Some(NOW_MS + ms),
        ExpirySpec::AtMs(at) => Some(at),
        ExpirySpec::Immediately => Some(NOW_MS),
    }
}
