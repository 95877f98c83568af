mod moves;

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use self::moves::{Move, moves};
use super::*;

#[test]
fn crc_has_the_check_value_of_xmodem() {
    assert_eq!(crc16(b"123456789"), 0x31C3);
    assert_eq!(crc16(b""), 0);
    assert_eq!(crc16(b"\0"), 0);
    assert_eq!(crc16(b"\xff"), 0x1EF0);
}

#[test]
fn slots_are_those_that_redis_computes() {
    // Answers of `CLUSTER KEYSLOT` of redis-server 7.0.15.
    let golden: [(&[u8], u16); 13] = [
        (b"", 0),
        (b"a", 15495),
        (b"foo", 12182),
        (b"hello", 866),
        (b"123456789", 12739),
        (b"foo{hash_tag}", 2515),
        (b"{user1000}.following", 3443),
        (b"foo{}{bar}", 8363),
        (b"foo{{bar}}zap", 4015),
        (b"foo{bar}{zap}", 5061),
        (b"foo{bar", 15278),
        (b"\0\xff\r\n", 6261),
        (b"sccache/a/b/c/0123456789abcdef", 720),
    ];
    for (key, expected) in golden {
        assert_eq!(slot(key), expected, "{}", key.escape_ascii());
    }
}

#[test]
fn only_the_first_tag_counts_and_an_empty_one_is_none() {
    assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
    assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
    assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
    assert_eq!(hash_tag(b"foo{bar}{zap}"), b"bar");
    assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
    assert_eq!(hash_tag(b"foo}bar{"), b"foo}bar{");
    assert_eq!(hash_tag(b"}{a}"), b"a");
}

#[test]
fn slots_of_many_keys_are_in_range_and_even() {
    let mut counts = vec![0_u32; usize::from(SLOT_COUNT)];
    for number in 0..SLOT_COUNT as u32 * 64 {
        counts[usize::from(slot(format!("key:{number}").as_bytes()))] += 1;
    }
    assert!(
        counts.iter().all(|&count| (16..160).contains(&count)),
        "64 a slot on average"
    );
}

/// Members of equal weight in `zones` zones.
struct Fleet {
    names: Vec<(String, String, u16)>,
}

impl Fleet {
    fn of(count: usize, zones: usize) -> Self {
        let name = |at| (format!("node-{at}"), format!("zone-{}", at % zones), 100);
        Self {
            names: (0..count).map(name).collect(),
        }
    }

    fn without(&self, at: usize) -> Self {
        let mut names = self.names.clone();
        names.remove(at);
        Self { names }
    }

    fn members(&self) -> Vec<Placed<'_>> {
        let members = self.names.iter().map(|(id, zone, weight)| Placed {
            id,
            zone,
            weight: *weight,
        });
        members.collect()
    }

    fn ids(&self) -> Vec<&str> {
        self.names.iter().map(|(id, ..)| id.as_str()).collect()
    }

    fn table(&self, replicas: usize) -> Table {
        Table::new(&self.members(), replicas).unwrap()
    }
}

fn loads(table: &Table, rank: usize) -> HashMap<u16, u64> {
    let mut loads = HashMap::new();
    for slot in 0..SLOT_COUNT {
        *loads
            .entry(table.owners(slot).positions()[rank])
            .or_default() += 1;
    }
    loads
}

#[test]
fn equal_members_own_equal_numbers_of_slots() {
    for count in [1, 2, 3, 5, 10, 30, 60, 100] {
        let loads = loads(&Fleet::of(count, 3).table(1), 0);
        let mean = f64::from(SLOT_COUNT) / count as f64;
        let max = loads.values().max().copied().unwrap() as f64;
        assert_eq!(loads.len(), count);
        assert!(max / mean <= 1.10, "{count} members: {}", max / mean);
    }
}

#[test]
fn a_member_that_comes_or_goes_moves_little_more_than_its_own_slots() {
    for count in [3, 4, 5, 10, 30, 60, 100] {
        let (mut moved, mut least) = (0, 0);
        let fleet = Fleet::of(count, 3);
        let table = fleet.table(1);
        for gone in (0..count).step_by(count.div_ceil(5)) {
            let rest = fleet.without(gone);
            let changes = moves((&table, &fleet.ids()), (&rest.table(1), &rest.ids()));
            moved += changes.len();
            least += loads(&table, 0)[&(gone as u16)] as usize;
        }
        let ratio = moved as f64 / least as f64;
        assert!(ratio <= 1.10, "{count} members: {ratio}");
    }
}

#[test]
fn replicas_stand_in_other_zones_and_are_balanced_too() {
    let fleet = Fleet::of(9, 3);
    let table = fleet.table(3);
    for slot in 0..SLOT_COUNT {
        let owners = table.owners(slot);
        let mut zones: Vec<u16> = owners.positions().iter().map(|it| it % 3).collect();
        zones.sort_unstable();
        assert_eq!(zones, [0, 1, 2]);
    }
    let mut total = HashMap::<u16, u64>::new();
    for rank in 0..3 {
        for (member, load) in loads(&table, rank) {
            *total.entry(member).or_default() += load;
        }
    }
    let mean = f64::from(SLOT_COUNT) * 3.0 / 9.0;
    assert!(total.values().all(|&load| load as f64 / mean <= 1.10));
    // With two zones, the third copy stands beside another rather than not at all.
    let narrow = Fleet::of(4, 2).table(3);
    assert!((0..SLOT_COUNT).all(|slot| narrow.owners(slot).positions().len() == 3));
    let lone = Fleet::of(2, 1).table(3);
    assert!((0..SLOT_COUNT).all(|slot| lone.owners(slot).positions().len() == 2));
}

#[test]
fn when_the_primary_is_gone_the_next_in_rank_takes_most_of_its_slots() {
    let fleet = Fleet::of(5, 1);
    let table = fleet.table(2);
    let rest = fleet.without(2);
    let after = rest.table(2);
    let (mut lost, mut kept) = (0, 0);
    for slot in 0..SLOT_COUNT {
        let [first, second] = *table.owners(slot).positions() else {
            panic!("two owners");
        };
        if first == 2 {
            lost += 1;
            let heir = rest.ids()[usize::from(after.owners(slot).positions()[0])];
            kept += u32::from(heir == fleet.ids()[usize::from(second)]);
        }
    }
    assert!(f64::from(kept) / f64::from(lost) > 0.8, "{kept} of {lost}");
}

#[test]
fn slots_follow_weights() {
    let member = |id, weight| Placed {
        id,
        zone: "z",
        weight,
    };
    let members = [
        member("a", 100),
        member("b", 200),
        member("c", 700),
        member("none", 0),
    ];
    let loads = loads(&Table::new(&members, 1).unwrap(), 0);
    for (at, share) in [(0, 0.1), (1, 0.2), (2, 0.7)] {
        let got = loads[&at] as f64 / f64::from(SLOT_COUNT);
        assert!((got / share - 1.0).abs() <= 0.10, "{at}: {got}");
    }
    assert!(!loads.contains_key(&3));
    assert_eq!(Table::new(&[member("none", 0)], 1), None);
    assert_eq!(Table::new(&[], 1), None);
}

#[test]
fn changes_tell_which_member_has_to_get_what() {
    let (old, new) = (Fleet::of(3, 1), Fleet::of(4, 1));
    let changes = moves((&old.table(2), &old.ids()), (&new.table(2), &new.ids()));
    assert!(changes.iter().any(Move::moves_primary));
    for change in &changes {
        assert!(
            change
                .receivers()
                .all(|id| !change.from.iter().any(|it| it == id))
        );
    }
    let newcomers = changes
        .iter()
        .flat_map(Move::receivers)
        .filter(|id| *id == "node-3");
    assert_eq!(
        newcomers.count() as u64,
        (0..2).map(|rank| loads(&new.table(2), rank)[&3]).sum()
    );
    assert!(moves((&old.table(2), &old.ids()), (&old.table(2), &old.ids())).is_empty());
}

/// What every party computes, for ever: a change here is a new version of the map.
#[test]
fn golden_vectors() {
    let fleet = Fleet::of(5, 3);
    let table = fleet.table(3);
    let ranked = |slot| table.owners(slot).positions().to_vec();
    let got: Vec<_> = [0, 1, 2, 866, 8_191, 12_182, 16_383].map(ranked).to_vec();
    let expected = [
        [2, 3, 4],
        [4, 2, 0],
        [0, 4, 2],
        [2, 1, 3],
        [0, 1, 2],
        [2, 4, 0],
        [0, 4, 2],
    ];
    assert_eq!(got, expected);
}

/// Members of these weights, spread over zones in turn.
fn weighted(weights: &[u16], zones: usize) -> Fleet {
    let mut fleet = Fleet::of(weights.len(), zones);
    for (name, weight) in fleet.names.iter_mut().zip(weights) {
        name.2 = *weight;
    }
    fleet
}

/// Slots of each member, of all ranks.
fn loads_of_all(table: &Table, replicas: usize) -> HashMap<u16, u64> {
    let mut all = HashMap::new();
    for rank in 0..replicas {
        for (member, load) in loads(table, rank) {
            *all.entry(member).or_default() += load;
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn members_of_any_number_weight_and_zone_own_their_share_apart_and_keep_it(
        weights in proptest::collection::vec(50_u16..=400, 4..=100),
        zones in 1_usize..=5,
        replicas in 1_usize..=3,
        gone in any::<prop::sample::Index>(),
    ) {
        let fleet = weighted(&weights, zones);
        let table = fleet.table(replicas);
        let zones = zones.min(weights.len());
        for slot in 0..SLOT_COUNT {
            let owners = table.owners(slot).positions().to_vec();
            prop_assert_eq!(owners.len(), replicas);
            let members: HashSet<u16> = owners.iter().copied().collect();
            prop_assert_eq!(members.len(), replicas, "slot {}: {:?}", slot, owners);
            let apart: HashSet<usize> = owners.iter().map(|it| usize::from(*it) % zones).collect();
            prop_assert_eq!(apart.len(), replicas.min(zones), "slot {}: {:?}", slot, owners);
        }
        // The first owner has the load. Further ones may have to stand in a zone whose members are
        // full.
        let total: f64 = weights.iter().map(|it| f64::from(*it)).sum();
        for (member, load) in loads(&table, 0) {
            let share = f64::from(SLOT_COUNT) * f64::from(weights[usize::from(member)]) / total;
            prop_assert!(load as f64 <= share * 1.10, "member {}: {} of {}", member, load, share);
        }
        // What one that goes had is taken over by others, and little else changes hands.
        let gone = gone.index(weights.len());
        let rest = fleet.without(gone);
        let changes = moves((&table, &fleet.ids()), (&rest.table(replicas), &rest.ids()));
        let taken: usize = changes.iter().map(|it| it.receivers().count()).sum();
        let least = loads_of_all(&table, replicas).get(&(gone as u16)).copied().unwrap_or(0) as usize;
        prop_assert!(taken >= least, "{} taken, {} had to be", taken, least);
        // Of more owners, those in zones or of members that are too heavy to have their share push
        // others around.
        if replicas == 1 {
            let most = least + least / 3 + usize::from(SLOT_COUNT) / 100;
            prop_assert!(taken <= most, "{} taken, {} had to be", taken, least);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_order_of_the_list_does_not_matter(
        weights in proptest::collection::vec(0_u16..500, 1..8),
        turn in 0_usize..8,
        replicas in 1_usize..4,
    ) {
        let mut fleet = Fleet::of(weights.len(), 2);
        for (name, weight) in fleet.names.iter_mut().zip(&weights) {
            name.2 = *weight;
        }
        let mut turned = Fleet { names: fleet.names.clone() };
        turned.names.rotate_left(turn % weights.len());
        match (Table::new(&fleet.members(), replicas), Table::new(&turned.members(), replicas)) {
            (Some(a), Some(b)) => prop_assert!(moves((&a, &fleet.ids()), (&b, &turned.ids())).is_empty()),
            (None, None) => prop_assert!(weights.iter().all(|&it| it == 0)),
            _ => prop_assert!(false),
        }
    }
}
