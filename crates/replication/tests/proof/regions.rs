//! R2 across regions: all readers of a shared bucket agree, whatever the clocks say. The clock
//! alone decides between two regions, and the number of the region decides between equal versions.

use std::sync::Arc;
use std::time::Duration;

use fonn_base::hlc::at_ms;
use fonn_replication::{
    Change, Config, Core, Disk, Epoch, Event, Layout, MemberId, Record, Rule, Rules, Slot, Version,
};

use super::bucket::Bucket;
use super::raft::{Agreed, first_topology};
use super::random::Random;
use super::store::{Entry, Store};

const SLOT: Slot = Slot(0);
const FAST: usize = 0;
const SLOW: usize = 1;

/// Two members, one owner a slot. The wall clock of the first one is 5 s ahead.
struct Pair {
    cores: Vec<Core<Entry>>,
    stores: Vec<Store>,
    agreed: Agreed,
    rules: Rules,
}

impl Pair {
    fn new(rules: Rules) -> Self {
        let layout = Layout::new(
            &[vec![MemberId(0)]],
            [0, 1].map(MemberId).into_iter().collect(),
        )
        .expect("one row");
        let config = |me| Config {
            me: MemberId(me),
            slots_len: 1,
            copies_max: 1,
            tick: Duration::from_millis(100),
            refuse_after: Duration::from_secs(3),
            rules,
        };
        let mut pair = Self {
            cores: vec![Core::new(config(0)), Core::new(config(1))],
            stores: vec![Store::new(1), Store::new(1)],
            agreed: Agreed::first(first_topology(2, Arc::new(layout))),
            rules,
        };
        for member in [FAST, SLOW] {
            let start = Event::Start {
                disk: Disk::Empty,
                incarnation: 1,
            };
            pair.handle(member, 0, start);
            let (id, applied) = (MemberId(member as u8), pair.agreed.topology.epoch);
            pair.change(&Change::Sync {
                member: id,
                applied,
                incarnation: 1,
            });
            let applied = pair.agreed.topology.epoch;
            pair.change(&Change::InSync {
                member: id,
                applied,
            });
        }
        pair.extend(1_006_000);
        pair
    }

    fn change(&mut self, change: &Change) {
        self.agree(self.agreed.after(change).expect("it has an effect"));
    }

    /// The leader extends the range up to a time of the wall clock.
    fn extend(&mut self, wall_ms: u64) {
        self.agree(self.agreed.extended(version_of(wall_ms)));
    }

    fn agree(&mut self, agreed: Agreed) {
        self.agreed = agreed;
        self.learn(FAST, 0);
        self.learn(SLOW, 0);
    }

    fn handle(&mut self, member: usize, at_ms: u64, event: Event<Entry>) {
        let mut out = Vec::new();
        self.cores[member].handle(Duration::from_millis(at_ms), event, &mut out);
    }

    fn learn(&mut self, member: usize, at_ms: u64) {
        self.stores[member].follow(&self.agreed, self.rules);
        self.stores[member].enter();
        let topology = Arc::clone(&self.agreed.topology);
        self.handle(member, at_ms, Event::Topology(topology));
        let lease = Duration::from_millis(at_ms + 1_500);
        self.handle(member, at_ms, Event::Lease(lease));
    }

    /// Writes and returns what the store has.
    fn write(&mut self, member: usize, at_ms: u64, id: u32) -> Record<Entry> {
        let ahead_ms = if member == FAST { 5_000 } else { 0 };
        let wall_ms = 1_000_000 + at_ms + ahead_ms;
        let entry = Entry::Value { key: 0, id };
        let applied = self.cores[member].applied();
        let record = self.stores[member].execute(SLOT, applied, entry, (wall_ms, 0));
        record.expect("the range is not used up")
    }
}

fn version_of(wall_ms: u64) -> Version {
    Version(at_ms(wall_ms))
}

fn next(version: Version) -> Version {
    Version(version.0 + 1)
}

fn foreign(version: Version) -> Record<Entry> {
    Record {
        slot: SLOT,
        version,
        epoch: Epoch(1),
        entry: Entry::Value { key: 0, id: 99 },
    }
}

/// What readers of a bucket see that fold its records in any order. The records are those of one
/// region, and one record of another region.
fn shown(own: [Record<Entry>; 2], foreign: Option<Record<Entry>>) -> Vec<u32> {
    let mut bucket = Bucket::new(1);
    bucket.upload(0, own.into());
    bucket.upload(1, foreign.into_iter().collect());
    let mut random = Random::new(1);
    let mut shown: Vec<u32> = (0..100)
        .filter_map(|_| bucket.find(SLOT, 0, &mut random))
        .map(|record| record.entry.id())
        .collect();
    shown.sort_unstable();
    shown.dedup();
    shown
}

/// A write of a primary with a fast clock, and one of its successor.
fn two_primaries(rules: Rules) -> [Record<Entry>; 2] {
    let mut pair = Pair::new(rules);
    let first = pair.write(FAST, 900, 1);
    pair.change(&Change::Down(MemberId(FAST as u8)));
    let second = pair.write(SLOW, 2_600, 2);
    [first, second]
}

#[test]
fn all_readers_of_a_bucket_agree_on_the_successors_write() {
    let own = two_primaries(Rules::ALL);
    let between = foreign(next(own[0].version));
    assert_eq!(shown(own, Some(between)), [2]);
}

#[test]
fn all_readers_of_a_bucket_agree_on_the_later_write_of_another_region() {
    let own = two_primaries(Rules::ALL);
    let later = foreign(next(own[1].version));
    assert_eq!(shown(own, Some(later)), [99]);
}

#[test]
fn all_readers_of_a_bucket_agree_on_two_regions_that_assigned_the_same_version() {
    let own = two_primaries(Rules::ALL);
    let same = foreign(own[1].version);
    assert_eq!(shown(own, Some(same)), [99]);
}

#[test]
fn without_ranges_readers_of_a_bucket_see_the_write_of_the_failed_primary() {
    assert_eq!(shown(two_primaries(Rules::without(Rule::Range)), None), [1]);
}

#[test]
fn a_write_gets_above_what_another_region_wrote_when_the_leader_has_extended_the_range() {
    let mut pair = Pair::new(Rules::ALL);
    let far_ahead = foreign(version_of(2_000_000));
    pair.stores[FAST].clock.hear(far_ahead.version);
    assert!(pair.write(FAST, 900, 1).version < far_ahead.version);
    let noted = |store: &Store| store.clock.wanted();
    let noted = pair.stores.iter().map(noted).max().expect("two members");
    pair.agree(pair.agreed.extended(Version(noted.0 + at_ms(6_000))));
    assert!(pair.write(FAST, 901, 2).version > far_ahead.version);
}
