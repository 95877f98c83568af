//! The disk tier against a map: what it returns is the newest version, or a miss; never older,
//! never other bytes, never what was deleted.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::compaction;

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        len: usize,
    },
    Delete {
        key: u8,
    },
    Get {
        key: u8,
    },
    /// Values under keys of their own, which push older ones out.
    Fill {
        bytes: usize,
    },
    Keep {
        key: u8,
    },
    Forget {
        key: u8,
    },
    Roll,
    /// Compacts a sealed generation.
    Compact {
        which: usize,
    },
    Reopen,
    Kill,
}

/// The bytes of a key; every fourth one is long.
fn bytes_of(key: u8) -> Vec<u8> {
    let len = if key.is_multiple_of(4) { 500 } else { 1 };
    [&vec![b'k'; len - 1][..], &[key]].concat()
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..24_u8;
    prop_oneof![
        30 => (key.clone(), 0..60_000_usize).prop_map(|(key, len)| Step::Put { key, len }),
        12 => key.clone().prop_map(|key| Step::Delete { key }),
        30 => key.clone().prop_map(|key| Step::Get { key }),
        12 => (1..1_500_000_usize).prop_map(|bytes| Step::Fill { bytes }),
        4 => key.clone().prop_map(|key| Step::Keep { key }),
        3 => key.prop_map(|key| Step::Forget { key }),
        3 => Just(Step::Roll),
        4 => (0..8_usize).prop_map(|which| Step::Compact { which }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
    ]
}

struct Model {
    rig: Rig,
    newest: HashMap<u8, (Version, usize)>,
    version: Version,
}

impl Model {
    async fn take(&mut self, step: Step) {
        self.version += 1;
        let version = self.version;
        match step {
            Step::Put { key, len } => {
                self.rig
                    .put(&bytes_of(key), version, noise(version, len))
                    .await;
                self.newest.insert(key, (version, len));
            }
            Step::Delete { key } => {
                self.rig.delete(&bytes_of(key), version).await;
                self.newest.remove(&key);
            }
            Step::Get { key } => self.check(key).await,
            Step::Fill { bytes } => {
                for part in 0..bytes / 50_000 {
                    let key = format!("fill {version} {part}");
                    self.rig
                        .put(key.as_bytes(), version, noise(version, 50_000))
                        .await;
                }
            }
            Step::Keep { key } => {
                self.rig.witness.kept.lock().insert(bytes_of(key));
            }
            Step::Forget { key } => {
                self.rig.witness.kept.lock().remove(&bytes_of(key));
            }
            Step::Roll => self.rig.roll().await,
            Step::Compact { which } => {
                let shared = self.rig.shared();
                let mut sealed = shared.generations.snapshot().to_vec();
                sealed.retain(|it| it.is_sealed());
                if !sealed.is_empty() {
                    let source = sealed.swap_remove(which % sealed.len());
                    drop(sealed);
                    // Whether it is worth it or not, and however often: reads must not notice.
                    if let Ok(target) = compaction::rewrite(shared, &source, 0) {
                        let _ = compaction::switch(shared, &source, target);
                    }
                }
            }
            Step::Reopen => self.rig.reopen(),
            Step::Kill => {
                let left = self.rig.options.dir.clone();
                self.rig.kill(|_| ());
                std::fs::remove_dir_all(left).unwrap();
            }
        }
    }

    async fn check(&self, key: u8) {
        if let Some(entry) = self.rig.get(&bytes_of(key)).await {
            let Some(&(version, len)) = self.newest.get(&key) else {
                panic!("key {key} is deleted, got version {}", entry.meta.version);
            };
            assert_eq!(entry.meta.version, version, "key {key}");
            assert_eq!(entry.value, noise(version, len), "key {key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_get_is_the_newest_version_or_a_miss(steps in proptest::collection::vec(step(), 100..400)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let rig = Rig::with(|options| {
                options.budget_bytes = BUDGET_BYTES_MIN;
                options.fresh = "lz4".parse().unwrap();
                options.compacted = "zstd:1".parse().unwrap();
            });
            let mut model = Model { rig, newest: HashMap::new(), version: 0 };
            for step in steps {
                model.take(step).await;
            }
            for key in 0..24 {
                model.check(key).await;
            }
        });
    }
}
