//! R2 across regions: versions of one region that replace each other have rising clocks, so a write
//! of another region in between cannot make the order depend on the reader of the bucket.

use std::sync::Arc;
use std::time::Duration;

use fonn_replication::{
    Body, Change, Command, Config, Core, Disk, Epoch, Event, Hlc, Layout, Lease, MemberId, Message,
    Now, Rule, Rules, Slot, Topology, Version,
};

use super::bucket::Bucket;
use super::random::Random;
use super::store::Entry;

const SLOT: Slot = Slot(0);
const FAST: usize = 0;
const SLOW: usize = 1;

/// Two members, one owner a slot. The wall clock of the first one is 5 s ahead.
struct Pair {
    cores: Vec<Core<Entry>>,
    topology: Topology,
}

impl Pair {
    fn new(rules: Rules) -> Self {
        let layout = Layout::new(&[vec![MemberId(0), MemberId(1)]]).expect("one row");
        let config = |me| Config {
            me: MemberId(me),
            region: 1,
            slots_len: 1,
            pending_max: 8,
            copies_max: 1,
            tick: Duration::from_millis(100),
            suspect_after: Duration::from_secs(1),
            refuse_after: Duration::from_secs(3),
            clock_error_ms_max: 1_000,
            rules,
        };
        let mut pair = Self {
            cores: vec![Core::new(config(0)), Core::new(config(1))],
            topology: Topology::first(1, 2, Arc::new(layout)),
        };
        for member in [FAST, SLOW] {
            let start = Event::Start {
                disk: Disk::Empty,
                incarnation: 1,
                clock: Hlc(0),
            };
            pair.handle(member, 0, start);
            let (id, applied) = (MemberId(member as u8), pair.topology.epoch);
            pair.change(&Change::Sync {
                member: id,
                applied,
                incarnation: 1,
            });
            pair.learn(FAST, 0);
            pair.learn(SLOW, 0);
            let applied = pair.topology.epoch;
            pair.change(&Change::InSync {
                member: id,
                applied,
            });
            pair.learn(FAST, 0);
            pair.learn(SLOW, 0);
        }
        pair
    }

    fn change(&mut self, change: &Change) {
        self.topology = self.topology.after(change).expect("it has an effect");
    }

    fn handle(&mut self, member: usize, at_ms: u64, event: Event<Entry>) -> Vec<Command<Entry>> {
        let ahead_ms = if member == FAST { 5_000 } else { 0 };
        let now = Now {
            elapsed: Duration::from_millis(at_ms),
            wall_ms: 1_000_000 + at_ms + ahead_ms,
        };
        let mut out = Vec::new();
        self.cores[member].handle(now, event, &mut out);
        out
    }

    fn learn(&mut self, member: usize, at_ms: u64) {
        let topology = Arc::new(self.topology.clone());
        self.handle(member, at_ms, Event::Topology(topology));
        let lease = Lease::Until(Duration::from_millis(at_ms + 1_500));
        self.handle(member, at_ms, Event::Lease(lease));
    }

    /// Writes and returns the version.
    fn write(&mut self, member: usize, at_ms: u64, id: u32) -> Version {
        let event = Event::Write {
            request: u64::from(id),
            slot: SLOT,
            entry: Entry::Value { key: 0, id },
        };
        let out = self.handle(member, at_ms, event);
        let persisted = out.into_iter().find_map(|command| match command {
            Command::Persist { record, .. } => Some(record.version),
            _ => None,
        });
        persisted.expect("the member is the primary")
    }
}

/// What readers of the bucket see of three writes: one of a primary with a fast clock, one of its
/// successor, and one of another region with a clock that is a little before that of the first.
fn shown(rules: Rules) -> Vec<u32> {
    let mut pair = Pair::new(rules);
    let beat = Message {
        from: MemberId(FAST as u8),
        epoch: pair.topology.epoch,
        clock: pair.cores[FAST].clock(),
        body: Body::Status,
    };
    pair.handle(SLOW, 10, Event::Message(beat));
    let first = pair.write(FAST, 900, 1);
    pair.change(&Change::Down(MemberId(FAST as u8)));
    pair.learn(SLOW, 2_500);
    let second = pair.write(SLOW, 2_600, 2);
    let foreign = Version {
        region: 2,
        term: Epoch(1),
        clock: Hlc(first.clock.0 - 1),
    };
    let record = |version, id| fonn_replication::Record {
        version,
        epoch: Epoch(1),
        entry: Entry::Value { key: 0, id },
    };
    let mut bucket = Bucket::new(1);
    for (version, id) in [(first, 1), (second, 2), (foreign, 3)] {
        bucket.upload(vec![(SLOT, record(version, id))]);
    }
    let mut random = Random::new(1);
    let mut shown: Vec<u32> = (0..100)
        .filter_map(|_| bucket.find(SLOT, 0, None, &mut random))
        .map(Entry::id)
        .collect();
    shown.sort_unstable();
    shown.dedup();
    shown
}

#[test]
fn all_readers_of_a_bucket_agree_on_the_successors_write() {
    assert_eq!(shown(Rules::ALL), [2]);
}

#[test]
fn without_clocks_that_pass_each_other_readers_of_a_bucket_disagree() {
    let shown = shown(Rules::without(Rule::PassClocks));
    assert!(
        shown.contains(&1),
        "a reader sees the older write: {shown:?}"
    );
}
