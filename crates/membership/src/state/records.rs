//! Namespaces and users: texts that are opaque to the state machine, within bounds.

use std::collections::BTreeMap;

use super::{Effect, Put, Record, RecordKind, Refusal, State, full};

/// Most records of each kind.
pub(super) const RECORDS_MAX: usize = 4096;
/// Longest name of a record, in bytes.
const RECORD_NAME_LEN_MAX: usize = 256;
/// Longest text of a record, in bytes.
pub(super) const RECORD_LEN_MAX: usize = 16 << 10;
/// Most bytes of all records of a kind, names included.
pub(super) const RECORDS_LEN_MAX: usize = 2 << 20;
/// Most records that are changed together.
pub(super) const TOGETHER_MAX: usize = 16;

impl State {
    pub(super) fn put_together(
        &mut self,
        revision: u64,
        puts: Vec<Put>,
    ) -> Result<Effect, Refusal> {
        if puts.len() > TOGETHER_MAX {
            return Err(full("records that change together", TOGETHER_MAX));
        }
        let is_so = |it: &Put| self.records(it.kind).get(&it.name) == it.record.as_ref();
        if puts.iter().all(is_so) {
            return Ok(Effect::Unseen);
        }
        if revision != self.users_revision {
            return Err(Refusal::Stale);
        }
        let mut changed = self.clone();
        for put in puts {
            changed.put(put)?;
        }
        *self = changed;
        Ok(Effect::Unseen)
    }

    fn put(&mut self, put: Put) -> Result<(), Refusal> {
        let Put { kind, name, record } = put;
        let old = self.records(kind).get(&name);
        if old == record.as_ref() {
            return Ok(());
        }
        if let Some(record) = &record {
            self.check_record(kind, &name, record)?;
        }
        let records = match kind {
            RecordKind::Namespace => &mut self.namespaces,
            RecordKind::User => &mut self.users,
        };
        match record {
            Some(record) => records.insert(name, record),
            None => records.remove(&name),
        };
        self.users_revision += 1;
        Ok(())
    }

    const fn records(&self, kind: RecordKind) -> &BTreeMap<String, Record> {
        match kind {
            RecordKind::Namespace => &self.namespaces,
            RecordKind::User => &self.users,
        }
    }

    /// Refuses what would not stay within bounds.
    fn check_record(&self, kind: RecordKind, name: &str, record: &Record) -> Result<(), Refusal> {
        let len = record.0.len();
        if name.is_empty() || name.len() > RECORD_NAME_LEN_MAX || len > RECORD_LEN_MAX {
            let why = format!(
                "a record has a name of 1 to {RECORD_NAME_LEN_MAX} bytes and a text of at most {RECORD_LEN_MAX}"
            );
            return Err(Refusal::Invalid(why));
        }
        let others = self
            .records(kind)
            .iter()
            .filter(|(other, _)| *other != name);
        let (count, bytes) = others.fold((0, 0), |(count, bytes), (name, record)| {
            (count + 1, bytes + name.len() + record.0.len())
        });
        if count >= RECORDS_MAX {
            return Err(full("records of a kind", RECORDS_MAX));
        }
        if bytes + name.len() + len > RECORDS_LEN_MAX {
            return Err(full("bytes of records of a kind", RECORDS_LEN_MAX));
        }
        Ok(())
    }
}
