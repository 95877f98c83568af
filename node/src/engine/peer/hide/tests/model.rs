//! Live writes, copies, hiding and feeds against a map, across restarts.

use std::collections::{BTreeMap, HashMap};

use fonn_disk_tier::Mark;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::engine::peer::feed::FeedError;

const KEYS: u64 = 6;

#[derive(Clone, Debug)]
enum Step {
    /// A write with a version above all others.
    Live {
        key: u64,
        is_tombstone: bool,
    },
    /// A copy from a member with a full copy: so much below what was hidden last.
    Copy {
        key: u64,
        below: u64,
        is_tombstone: bool,
    },
    /// Hides all but what has the latest versions.
    Hide {
        latest: u64,
    },
    /// The newest write of the key once more.
    Again {
        key: u64,
    },
    Get {
        key: u64,
    },
    Evict,
    Roll,
    Mark,
    /// The feed since a mark, the latest first.
    Feed {
        which: usize,
    },
    Reopen,
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    prop_oneof![
        10 => (key.clone(), any::<bool>())
            .prop_map(|(key, is_tombstone)| Step::Live { key, is_tombstone }),
        10 => (key.clone(), 0..40_u64, any::<bool>())
            .prop_map(|(key, below, is_tombstone)| Step::Copy { key, below, is_tombstone }),
        4 => (0..6_u64).prop_map(|latest| Step::Hide { latest }),
        6 => key.clone().prop_map(|key| Step::Again { key }),
        8 => key.prop_map(|key| Step::Get { key }),
        3 => Just(Step::Evict),
        1 => Just(Step::Roll),
        4 => Just(Step::Mark),
        6 => (0..4_usize).prop_map(|which| Step::Feed { which }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
    ]
}

/// What a key has: the version, whether it is a tombstone, and the step that took it last.
type Newest = (Version, bool, u64);

struct Model {
    rig: Rig,
    /// Counts the steps. The versions of live writes grow with it.
    now: u64,
    hidden_to: Option<Version>,
    newest: HashMap<u64, Newest>,
    marks: Vec<(Mark, u64)>,
}

impl Model {
    async fn take(&mut self, step: Step) {
        self.now += 1;
        let live = BASE + 1000 + self.now;
        let engine = self.rig.engine();
        match step {
            Step::Live { key, is_tombstone } => {
                let kept = put(engine, &entry(&name(key), live, is_tombstone)).await;
                assert_eq!(kept, Ok(true));
                self.newest.insert(key, (live, is_tombstone, self.now));
            }
            Step::Copy {
                key,
                below,
                is_tombstone,
            } => {
                let Some(hidden_to) = self.hidden_to else {
                    return;
                };
                let version = hidden_to - below;
                let known = self.newest.get(&key);
                let is_newer = known.is_none_or(|(newest, ..)| *newest < version);
                let mut acks = Acks::default();
                let key_name = name(key);
                let copied = entry(&key_name, version, is_tombstone);
                let kept = engine.put_copy(&copied, hidden_to, &mut acks).await;
                assert_eq!(kept, Ok(is_newer));
                assert_eq!(acks.wait().await, []);
                if is_newer {
                    self.newest.insert(key, (version, is_tombstone, self.now));
                }
            }
            Step::Hide { latest } => {
                let up_to = live - 1 - latest;
                hide(engine, up_to).await;
                self.newest.retain(|_, (version, ..)| *version > up_to);
                self.hidden_to = self.hidden_to.max(Some(up_to));
            }
            Step::Again { key } => {
                let Some((version, is_tombstone, taken)) = self.newest.get_mut(&key) else {
                    return;
                };
                let mut acks = Acks::default();
                let key_name = name(key);
                let again = entry(&key_name, *version, *is_tombstone);
                assert_eq!(
                    engine.put_replicated(&again, true, &mut acks).await,
                    Ok(false)
                );
                assert_eq!(acks.wait().await, []);
                *taken = self.now;
            }
            Step::Get { key } => self.check(key).await,
            Step::Evict => evict_all(engine),
            Step::Roll => roll(&self.rig).await,
            Step::Mark => self.marks.push((engine.mark().await.unwrap(), self.now)),
            Step::Feed { which } => self.check_feed(which).await,
            Step::Reopen => {
                self.rig.reopen();
                self.rig.engine().keep_tombstones();
            }
            Step::Kill => {
                self.rig.drop_and_open();
                self.rig.engine().keep_tombstones();
            }
        }
    }

    async fn check(&self, key: u64) {
        let newest = self.newest.get(&key);
        let expected = newest.filter(|(_, is_tombstone, _)| !is_tombstone);
        let expected = expected.map(|(version, ..)| value(*version));
        assert_eq!(self.rig.get(&name(key)).await, expected);
        let found = fetch(self.rig.engine(), &name(key)).await;
        let version = found.map(|found| found.meta.version);
        assert_eq!(version, newest.map(|(version, ..)| *version));
    }

    async fn check_feed(&self, which: usize) {
        let Some(&(mark, at)) = self.marks.iter().rev().nth(which) else {
            return;
        };
        let all = SlotSet::all();
        let engine = self.rig.engine();
        let page = engine.fetch_slots(&all, Some(mark), &[], 1 << 20).await;
        let Ok(page) = page else {
            // The only generation was empty, and a restart removed it.
            assert_eq!(page.err(), Some(FeedError::Lost));
            assert!(!engine.disk().unwrap().holds(&mark));
            return;
        };
        assert!(page.next.is_empty());
        let page = page.entries.page(&[]);
        let fed: BTreeMap<_, _> = page
            .iter()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.key.to_vec(), entry.version)
            })
            .collect();
        for (key, (version, _, taken)) in &self.newest {
            let fed = fed.get(name(*key).as_bytes());
            assert!(fed.is_none_or(|fed| fed == version));
            assert!(*taken <= at || fed.is_some(), "key {key} is missing");
        }
        let known = |key: &[u8]| self.newest.keys().any(|it| name(*it).as_bytes() == key);
        assert!(fed.keys().all(|key| known(key)), "what is hidden is named");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_hidden_stays_so_and_copies_come_in_below_it(steps in vec(step(), 1..80)) {
        block_on(async {
            let rig = Rig::new(Choice::default());
            // As a member of a cluster does at its start.
            rig.engine().keep_tombstones();
            let mut model = Model {
                rig,
                now: 0,
                hidden_to: None,
                newest: HashMap::new(),
                marks: Vec::new(),
            };
            for step in steps {
                model.take(step).await;
            }
            for key in 0..KEYS {
                model.check(key).await;
            }
            for which in 0..4 {
                model.check_feed(which).await;
            }
        });
    }
}
