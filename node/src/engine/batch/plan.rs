//! What a batch will do: its keys, and what must be known of each before the locks are taken.

use std::collections::HashMap;

use fonn_base::entry::Space;
use fonn_proto::batch::BATCH_VALUES_LEN_MAX;
use fonn_proto::{Base, Batch, BatchStep, Command, WriterId};

use super::super::fetch::{Fetched, Need};
use super::super::prepare::SHORT_LEN_MAX;
use super::super::{Engine, semantics};
use super::growth::KeyIndex;

/// What one write costs in the disk's queue besides key and value, about.
const WRITE_COST: usize = 256;

/// A key of the batch.
pub(super) struct KeyPlan<'a> {
    pub(super) space: Space,
    pub(super) key: &'a [u8],
    pub(super) hash: u64,
    /// What must be known before the batch begins.
    pub(super) need: Option<Need>,
    /// Whether a step makes the key known to those behind it, whatever was there.
    pub(super) is_made: bool,
    pub(super) fetched: Option<Fetched>,
}

/// The keys of a step.
#[derive(Clone, Copy)]
pub(super) struct StepKeys {
    /// What the step reads or writes.
    pub(super) target: KeyIndex,
    /// Where a read looks that finds nothing in the space of the client.
    pub(super) base: Option<KeyIndex>,
    /// The source of a transfer.
    pub(super) from: Option<KeyIndex>,
}

impl StepKeys {
    fn of(target: KeyIndex) -> Self {
        Self {
            target,
            base: None,
            from: None,
        }
    }
}

/// What a batch will do, and what is known for it.
pub(super) struct Plan<'a> {
    pub(super) space: Space,
    base: Option<Base>,
    /// The identity that the batch is carried out for.
    pub(super) writer: WriterId,
    pub(super) keys: Vec<KeyPlan<'a>>,
    /// The keys of each step: none is looked up under the locks.
    pub(super) steps: Vec<StepKeys>,
    /// Whether a step makes a value longer.
    pub(super) grows: bool,
    /// Whether a step returns a value.
    pub(super) returns: bool,
    index: HashMap<(Space, &'a [u8]), KeyIndex>,
    /// Bytes that the disk's queue takes, about.
    pub(super) write_cost: usize,
    /// Bytes of values that were fetched.
    fetched_len: usize,
    /// Whether a long value was fetched that is not prepared.
    pub(super) has_long: bool,
}

impl<'a> Plan<'a> {
    /// The plan of a batch of which nothing is known.
    pub(super) fn new(engine: &Engine, space: Space, batch: &Batch<'a>) -> Self {
        let mut plan = Self {
            space,
            base: batch.base,
            writer: batch.writer,
            keys: Vec::with_capacity(batch.steps.len()),
            steps: Vec::with_capacity(batch.steps.len()),
            grows: false,
            returns: false,
            index: HashMap::with_capacity(batch.steps.len()),
            write_cost: 0,
            fetched_len: 0,
            has_long: false,
        };
        for watched in &batch.watched {
            let space = plan.database(watched.database);
            plan.add_read(engine, space, watched.key, Need::Value);
        }
        // A set needs to know nothing of its key, unless the key has to be absent.
        let blind_need = batch.all_absent.then_some(Need::Existence);
        for step in &batch.steps {
            let keys = match step {
                BatchStep::Command(command) if semantics::is_blind(command) => {
                    let target = plan.add(engine, space, command.key(), blind_need);
                    plan.keys[target].is_made = true;
                    StepKeys::of(target)
                }
                BatchStep::Command(command @ Command::Get(_)) => {
                    plan.add_read(engine, space, command.key(), Need::Value)
                }
                BatchStep::Command(command) => {
                    StepKeys::of(plan.add(engine, space, command.key(), Some(Need::Value)))
                }
                BatchStep::Transfer(transfer) => {
                    let from = plan.add(engine, space, transfer.from, Some(Need::Value));
                    let target = plan.database(transfer.database);
                    let need = (!transfer.replaces).then_some(Need::Existence);
                    StepKeys {
                        from: Some(from),
                        ..StepKeys::of(plan.add(engine, target, transfer.to, need))
                    }
                }
            };
            plan.steps.push(keys);
            if let BatchStep::Command(command) = step {
                plan.grows |= semantics::grows(command);
                plan.returns |= semantics::returns_value(command);
            }
            plan.write_cost += write_cost(step);
        }
        plan
    }

    /// The space of a database of the client.
    pub(super) fn database(&self, database: u8) -> Space {
        Space::new(self.space.namespace(), database)
    }

    fn add_read(&mut self, engine: &Engine, space: Space, key: &'a [u8], need: Need) -> StepKeys {
        let target = self.add(engine, space, key, Some(need));
        let base = self.base_of(space, key);
        StepKeys {
            base: base.map(|(base, key)| self.add(engine, base, key, Some(need))),
            ..StepKeys::of(target)
        }
    }

    /// Where a read of this space and key looks that finds nothing there.
    pub(super) fn base_of<'k>(&self, space: Space, key: &'k [u8]) -> Option<(Space, &'k [u8])> {
        let base = self.base?;
        let below = Space::new(base.space.namespace(), space.database() as u8);
        Some((below, base.key(key)))
    }

    /// Adds a key with what a step needs of it, unless a step before makes it known. A transfer
    /// does not: it does nothing to its target if there is no source.
    fn add(
        &mut self,
        engine: &Engine,
        space: Space,
        key: &'a [u8],
        need: Option<Need>,
    ) -> KeyIndex {
        let index = *self.index.entry((space, key)).or_insert_with(|| {
            self.keys.push(KeyPlan {
                space,
                key,
                hash: engine.hot.ram.hash(space, key),
                need: None,
                is_made: false,
                fetched: None,
            });
            self.keys.len() - 1
        });
        if let Some(plan) = self.keys.get_mut(index)
            && !plan.is_made
            && plan.need != Some(Need::Value)
        {
            plan.need = need.or(plan.need);
        }
        index
    }

    /// Bytes of values that were fetched for the other keys.
    fn others_len(&self, index: KeyIndex) -> usize {
        let fetched = self.keys.get(index).and_then(|it| it.fetched.as_ref());
        self.fetched_len - fetched.map_or(0, value_len)
    }

    /// Bytes of values that were fetched, once this is known of a key.
    pub(super) fn len_with(&self, index: KeyIndex, known: &Fetched) -> usize {
        self.others_len(index) + value_len(known)
    }

    /// Notes what was fetched. False if that is too much.
    pub(super) fn know(&mut self, index: KeyIndex, known: Fetched) -> bool {
        let (others, more) = (self.others_len(index), value_len(&known));
        let Some(plan) = self.keys.get_mut(index) else {
            return true;
        };
        self.has_long |= more > SHORT_LEN_MAX;
        self.fetched_len = others + more;
        plan.fetched = Some(known);
        // One value of any size is taken, as by a single command.
        others == 0 || more == 0 || self.fetched_len <= BATCH_VALUES_LEN_MAX
    }

    /// A key of the batch, and what is known of it.
    pub(super) fn known(&self, space: Space, key: &[u8]) -> Option<&KeyPlan<'a>> {
        self.keys.get(*self.index.get(&(space, key))?)
    }
}

fn value_len(known: &Fetched) -> usize {
    known.entry.as_ref().map_or(0, |entry| entry.value.len())
}

fn write_cost(step: &BatchStep<'_>) -> usize {
    match step {
        BatchStep::Command(command) if !command.is_write() => 0,
        BatchStep::Command(Command::Store(store)) => {
            WRITE_COST + store.key.len() + store.value.len()
        }
        BatchStep::Command(Command::SetRange(range)) => {
            WRITE_COST + range.key.len() + range.value.len()
        }
        BatchStep::Command(command) => WRITE_COST + command.key().len(),
        BatchStep::Transfer(transfer) => 2 * WRITE_COST + transfer.from.len() + transfer.to.len(),
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::command::StoreMode;
    use fonn_proto::{ExpirySpec, Store};

    use super::super::Blocked;
    use super::super::turn::Turn;
    use super::*;
    use crate::engine::Acks;
    use crate::engine::prepare::Prepared;
    use crate::engine::tests::{Choice, Rig, SPACE, block_on};

    const KEYS: usize = 100;

    /// A pass under the locks for each key would be work that grows with the square of the keys.
    #[test]
    fn one_pass_under_the_locks_names_all_keys_that_must_be_fetched() {
        block_on(async {
            let rig = Rig::new(Choice::default());
            rig.set("k0", b"v").await;
            let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
            let append = keys.iter().map(|key| Store {
                mode: StoreMode::Append,
                ..Store::set(key.as_bytes(), b"v", 0, ExpirySpec::Never)
            });
            let batch = Batch {
                steps: append
                    .map(|append| BatchStep::Command(Command::Store(append)))
                    .collect(),
                ..Batch::default()
            };
            let plan = Plan::new(rig.engine(), SPACE, &batch);
            let (sources, ahead) = (vec![None; KEYS], vec![Prepared::default(); KEYS]);
            let (mut acks, mut grown) = (Acks::default(), Vec::new());
            let given = (&sources[..], &ahead[..]);
            let (turn, engine) = (Turn::none(), rig.engine());
            let tried = engine.try_batch(&plan, &batch, given, (&mut acks, &turn), &mut grown);
            let Err(Blocked::Fetch(wanted)) = tried else {
                panic!("RAM knows the keys");
            };
            let indices: Vec<KeyIndex> = wanted.into_iter().map(|(index, _)| index).collect();
            assert_eq!(indices, (1..KEYS).collect::<Vec<_>>());
        });
    }
}
