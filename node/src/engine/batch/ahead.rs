//! Long values of a batch: what is decoded, made or encoded of them before the locks are taken.
//!
//! All shards of a batch are locked while its steps are carried out. Megabytes that were decoded or
//! encoded there would keep other clients waiting for milliseconds. What is prepared ahead counts
//! only for an entry of the same version, as for single commands ([`Prepared`]). A value that a
//! step before has made is at hand as it was made. A step that grows it does so under the locks,
//! within the bound of [`super::growth`].

use bytes::Bytes;
use fonn_codec::CodecId;
use fonn_proto::command::StoreMode;
use fonn_proto::{Batch, BatchStep, Command, Transfer};

use super::super::prepare::{Long, LongStored, Prepared, SHORT_LEN_MAX};
use super::super::{Engine, Job, semantics};
use super::plan::{KeyPlan, Plan};
use super::turn::Turn;

/// Bytes up to which a step decodes, makes or encodes a value under the locks. There may be a
/// few hundred such steps.
pub(super) const STEP_SHORT_LEN_MAX: usize = SHORT_LEN_MAX / 32;

impl Engine {
    /// Prepares the long values of all steps, as far as they are known and as the turn of the batch
    /// allows. False if a value was left out.
    pub(super) fn prepare_ahead(
        &self,
        plan: &Plan<'_>,
        batch: &Batch<'_>,
        sources: &[Option<Bytes>],
        ahead: &mut [Prepared],
        turn: &mut Turn,
    ) -> bool {
        let mut is_all = true;
        for ((step, source), prepared) in batch.steps.iter().zip(sources).zip(ahead) {
            match step {
                BatchStep::Command(command) => {
                    if let Some(source) = source {
                        self.form_ahead(command, source, prepared);
                    }
                    if semantics::needs_value(command)
                        && let Some(it) = plan.known(plan.space, command.key())
                    {
                        is_all &= self.decode_ahead(it, command, prepared, turn);
                    }
                }
                BatchStep::Transfer(transfer) => {
                    is_all &= self.transfer_ahead(plan, transfer, prepared, turn);
                }
            }
        }
        is_all
    }

    /// Gives the value of a request the form of the RAM level.
    fn form_ahead(&self, command: &Command<'_>, source: &Bytes, prepared: &mut Prepared) {
        let is_put = match command {
            Command::Store(store) => !matches!(store.mode, StoreMode::Append | StoreMode::Prepend),
            _ => false,
        };
        let is_encoded = self.ram_codec.active().0.id() != CodecId::NONE;
        if is_put && is_encoded && prepared.request.is_none() {
            prepared.request = Some(self.formed(source.clone()));
        }
    }

    /// Decodes what a command reads, and makes what it makes of it. False if that is too long.
    fn decode_ahead(
        &self,
        it: &KeyPlan<'_>,
        command: &Command<'_>,
        prepared: &mut Prepared,
        turn: &mut Turn,
    ) -> bool {
        let (job, mut is_done) = (Job::own(it.space, command), true);
        if let Some(long) = self.long(it, prepared) {
            let (decoded_len, value_len) = self.lens(&long);
            let made_len = semantics::grown_len(command, value_len, self.rules(it.space));
            is_done = turn.may_make(decoded_len.saturating_add(made_len.unwrap_or(0)));
            if is_done {
                self.prepare(&job, Long::Stored(long), prepared);
            }
        }
        if let Some(fetched) = &it.fetched {
            self.prepare_fetched(fetched, prepared);
        }
        is_done
    }

    /// Decodes what a transfer copies, and gives the copy the form of the RAM level. False if it is
    /// too long.
    fn transfer_ahead(
        &self,
        plan: &Plan<'_>,
        transfer: &Transfer<'_>,
        prepared: &mut Prepared,
        turn: &mut Turn,
    ) -> bool {
        let known = plan.known(plan.space, transfer.from);
        let Some(long) = known.and_then(|it| self.long(it, prepared)) else {
            return true;
        };
        let (decoded_len, _) = self.lens(&long);
        let is_done = turn.may_make(decoded_len);
        if is_done {
            self.prepare_copy(long, prepared);
        }
        is_done
    }

    /// The long value of a key, unless it is prepared.
    fn long(&self, it: &KeyPlan<'_>, prepared: &Prepared) -> Option<LongStored> {
        let shard = self.hot.ram.lock(it.hash);
        let (of, long) = match shard.find(it.hash, it.space, it.key) {
            Some(slot) => {
                let found = shard.get(slot);
                let of = found.meta.version;
                let value_len_max = self.settings.value_len_max;
                let long = LongStored::of_any(&found, value_len_max, STEP_SHORT_LEN_MAX);
                (of, long)
            }
            None => {
                let entry = it.fetched.as_ref()?.entry.as_ref()?;
                let of = entry.meta.version;
                let is_long = entry.value.len() > STEP_SHORT_LEN_MAX;
                let stored = || LongStored {
                    of,
                    stored: entry.value.clone(),
                    is_framed: false,
                };
                (of, is_long.then(stored))
            }
        };
        let is_prepared = prepared.decoded_of(of).is_some() || prepared.is_damaged(of);
        long.filter(|_| !is_prepared)
    }

    /// The bytes that are decoded to get at a value, and the length of the value.
    fn lens(&self, long: &LongStored) -> (usize, usize) {
        if !long.is_framed {
            // It is shared with the entry.
            return (0, long.stored.len());
        }
        let frame = fonn_codec::Frame::parse(&long.stored, self.settings.value_len_max);
        let len = frame.map_or(0, |frame| frame.original_len());
        (len, len)
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::request::ServerOutcome;
    use fonn_proto::{ExpirySpec, Failure, Get, Outcome, Store};

    use super::*;
    use crate::engine::Acks;
    use crate::engine::tests::{Choice, Rig, SPACE, block_on};

    const LEN: usize = 100_000;

    fn long(seed: u8) -> Vec<u8> {
        let line = format!("{seed} is said over and over, and shrinks;\n");
        line.bytes().cycle().take(LEN).collect()
    }

    fn rig(ram_codec: &str) -> Rig {
        Rig::new(Choice {
            ram_codec: ram_codec.parse().unwrap(),
            ram_bytes: 8 << 20,
            queue_bytes: 8 << 20,
            value_len_max: 20 * LEN,
            disk_value_len_max: 20 * LEN,
            ..Choice::default()
        })
    }

    fn get(key: &str) -> BatchStep<'_> {
        BatchStep::Command(Command::Get(Get::new(key.as_bytes())))
    }

    fn store<'a>(mode: StoreMode, key: &'a str, value: &'a [u8]) -> BatchStep<'a> {
        let store = Store::set(key.as_bytes(), value, 0, ExpirySpec::Never);
        BatchStep::Command(Command::Store(Store { mode, ..store }))
    }

    fn transfer<'a>(from: &'a str, to: &'a str, removes: bool) -> BatchStep<'a> {
        BatchStep::Transfer(Transfer {
            from: from.as_bytes(),
            to: to.as_bytes(),
            database: SPACE.database() as u8,
            removes,
            replaces: true,
        })
    }

    fn batch(steps: Vec<BatchStep<'_>>) -> Batch<'_> {
        Batch {
            steps,
            ..Batch::default()
        }
    }

    /// The values that the steps return; None for a step that returns none.
    fn values(outcome: ServerOutcome) -> Vec<Option<Vec<u8>>> {
        let ServerOutcome::Outcomes(outcomes) = outcome else {
            panic!("{outcome:?}");
        };
        let value = |outcome: &Outcome<'_>| match outcome {
            Outcome::Hit(hit) => Some(hit.value.as_slice().to_vec()),
            Outcome::Stored(_) | Outcome::Miss => None,
            other => panic!("{other:?}"),
        };
        outcomes.iter().map(value).collect()
    }

    #[test]
    fn steps_on_long_values_do_what_they_do_alone_wherever_the_values_are() {
        block_on(async {
            for ram_codec in ["none", "lz4"] {
                for is_on_disk_only in [false, true] {
                    let mut rig = rig(ram_codec);
                    rig.set("a", &long(1)).await;
                    rig.set("b", &long(2)).await;
                    if is_on_disk_only {
                        rig.reopen();
                    }
                    let three = long(3);
                    let steps = vec![
                        get("a"),
                        store(StoreMode::Append, "a", b"more"),
                        get("a"),
                        store(StoreMode::Set, "b", &three),
                        get("b"),
                        transfer("a", "c", false),
                        transfer("b", "d", true),
                        get("b"),
                        get("c"),
                        get("d"),
                    ];
                    let mut acks = Acks::default();
                    let batch = batch(steps);
                    let outcome = rig.engine().execute_batch(SPACE, &batch, &mut acks);
                    let got = values(outcome.await);
                    let (one, appended) = (long(1), [long(1), b"more".to_vec()].concat());
                    let want = [
                        Some(one),
                        None,
                        Some(appended.clone()),
                        None,
                        Some(three.clone()),
                        None,
                        None,
                        None,
                        Some(appended.clone()),
                        Some(three.clone()),
                    ];
                    assert!(got == want, "{ram_codec}, on disk only: {is_on_disk_only}");
                    assert!(acks.wait().await.is_empty());
                    rig.reopen();
                    for (key, want) in [("a", &appended), ("c", &appended), ("d", &three)] {
                        assert!(rig.get(key).await.as_ref() == Some(want), "{key}");
                    }
                    assert_eq!(rig.get("b").await, None);
                }
            }
        });
    }

    #[test]
    fn a_batch_that_grows_a_long_value_again_and_again_is_refused_and_changes_nothing() {
        block_on(async {
            let rig = rig("lz4");
            rig.set("a", &long(1)).await;
            rig.set("b", &long(2)).await;
            let run = async |count: usize| {
                let mut steps = vec![store(StoreMode::Set, "b", b"short")];
                steps.extend((0..count).map(|_| store(StoreMode::Append, "a", b"+")));
                let mut acks = Acks::default();
                let batch = batch(steps);
                let outcome = rig.engine().execute_batch(SPACE, &batch, &mut acks).await;
                assert!(acks.wait().await.is_empty());
                outcome
            };
            // The first one is prepared ahead, and two more of 100,000 bytes are few enough.
            assert_eq!(run(4).await, ServerOutcome::Failed(Failure::TooLarge));
            assert!(rig.get("a").await == Some(long(1)) && rig.get("b").await == Some(long(2)));
            assert_eq!(values(run(3).await), [const { None::<Vec<u8>> }; 4]);
            assert!(rig.get("a").await == Some([&long(1)[..], b"+++"].concat()));
        });
    }

    #[test]
    fn a_batch_that_would_make_more_than_it_may_hold_is_refused_and_changes_nothing() {
        block_on(async {
            const KEYS: usize = 17;
            let rig = Rig::new(Choice {
                ram_bytes: 64 << 20,
                queue_bytes: 64 << 20,
                value_len_max: 1 << 20,
                disk_value_len_max: 1 << 20,
                ..Choice::default()
            });
            let keys: Vec<_> = (0..KEYS).map(|it| format!("k{it}")).collect();
            let value = vec![7; 1_000_000];
            for key in &keys {
                rig.set(key, &value).await;
            }
            // Each result is made ahead: 17 MB in all.
            let append = keys.iter().map(|key| store(StoreMode::Append, key, b"+"));
            let batch = batch(append.collect());
            let mut acks = Acks::default();
            let outcome = rig.engine().execute_batch(SPACE, &batch, &mut acks).await;
            assert_eq!(outcome, ServerOutcome::Failed(Failure::TooLarge));
            for key in &keys {
                assert!(rig.get(key).await.as_ref() == Some(&value), "{key}");
            }
        });
    }

    #[test]
    fn nothing_long_is_left_to_do_under_the_locks() {
        block_on(async {
            let rig = rig("lz4");
            for (seed, key) in [(1, "a"), (2, "b"), (3, "c")] {
                rig.set(key, &long(seed)).await;
            }
            let four = long(4);
            let batch = batch(vec![
                get("a"),
                store(StoreMode::Append, "b", b"more"),
                transfer("c", "d", false),
                store(StoreMode::Set, "e", &four),
            ]);
            let plan = Plan::new(rig.engine(), SPACE, &batch);
            let sources: Vec<_> = batch.steps.iter().map(super::super::source).collect();
            let mut ahead = vec![Prepared::default(); 4];
            let engine = rig.engine();
            let mut turn = Turn::none();
            assert!(turn.try_take(&engine.batch_turns));
            assert!(engine.prepare_ahead(&plan, &batch, &sources, &mut ahead, &mut turn));
            let is_left = |key: &str, step: usize| {
                let known = plan.known(SPACE, key.as_bytes()).unwrap();
                engine.long(known, &ahead[step]).is_some()
            };
            assert!(!is_left("a", 0) && !is_left("b", 1) && !is_left("c", 2));
            assert!(ahead[2].request.is_some() && ahead[3].request.is_some());
            // The values of other versions count for nothing.
            rig.set("a", &long(5)).await;
            assert!(is_left("a", 0));
        });
    }
}
