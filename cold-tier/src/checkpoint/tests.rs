use proptest::prelude::*;

use super::*;
use crate::format::FormatError;
use crate::names::{CheckpointName, KeyHash, SegmentName, WriterId};
use crate::segment::{FlushMark, Version};

const DOC: &str = include_str!("../../../docs/formats/checkpoint.md");

fn entry(hash: u128) -> IndexEntry {
    IndexEntry {
        hash: KeyHash(hash.to_be_bytes()),
        space: 16,
        segment: 3,
        offset: 92,
        len: 70,
        at: 5,
        expires_at_ms: 0,
        tombstone: false,
        shadows: true,
    }
}

fn part(hashes: impl IntoIterator<Item = u128>) -> (Vec<u8>, PartFacts) {
    let mut builder = PartBuilder::new();
    for hash in hashes {
        builder.push(&entry(hash)).unwrap();
    }
    builder.finish().unwrap()
}

fn writer() -> WriterId {
    "01ARYZ6S4128T5CY4TQKFF04HM".parse().unwrap()
}

fn facts() -> SegmentFacts {
    SegmentFacts {
        name: SegmentName {
            region: "eu-1".parse().unwrap(),
            writer: writer(),
            seq: 42,
        },
        size: 400,
        data_len: 120,
        live_bytes: 70,
        entries: 2,
        live_entries: 1,
        tombstones: 1,
        min_version: 5,
        max_version: 6,
        expires_max_ms: u64::MAX,
        created_ms: 1_700_000_000_000,
        last_read_ms: 0,
        state: SegmentState::Doomed {
            since_ms: 1_700_000_100_000,
        },
    }
}

/// The manifest of the document.
fn manifest() -> Manifest {
    Manifest {
        name: CheckpointName {
            region: "eu-1".parse().unwrap(),
            id: writer(),
        },
        created_ms: 1_700_000_200_000,
        segments: vec![(3, facts())],
        cursors: vec![(facts().name.writer_key(), 43)],
        flush_marks: vec![FlushMark::of_space(32, 4)],
        parts: vec![part([1, 2]).1],
    }
}

#[test]
fn the_documents_example_is_what_is_written_and_read() {
    let (object, facts) = part([1, 2]);
    let documented = crate::segment::tests::example_in(DOC);
    assert!(
        !documented.is_empty(),
        "the document should have\n{}",
        crate::segment::tests::rows(&object)
    );
    // The compressed bytes are free to differ with the version of zstd; what they say is not.
    let facts = PartFacts {
        len: documented.len() as u64,
        ..facts
    };
    let entries: Vec<IndexEntry> = decode_part(&documented, &facts).unwrap().collect();
    assert_eq!(entries, [entry(1), entry(2)]);
    // A value's bytes.
    let value: Vec<String> = entry(1)
        .encode()
        .chunks(20)
        .map(|row| {
            let bytes: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("    {}\n", bytes.join(" "))
        })
        .collect();
    assert!(DOC.contains(&value.concat()), "{}", value.concat());
}

#[test]
fn every_changed_byte_of_a_part_is_found() {
    let (object, facts) = part(1..50);
    for index in 0..object.len() {
        for flip in [1, 0x80, 0xff] {
            let mut damaged = object.clone();
            damaged[index] ^= flip;
            assert!(decode_part(&damaged, &facts).is_err(), "byte {index}");
        }
    }
    for len in 0..object.len() {
        let facts = PartFacts {
            len: len as u64,
            ..facts
        };
        assert!(decode_part(&object[..len], &facts).is_err(), "cut to {len}");
    }
}

#[test]
fn a_part_is_not_taken_for_another() {
    let (object, facts) = part(1..50);
    for wrong in [
        PartFacts {
            entries: 48,
            ..facts
        },
        PartFacts {
            len: facts.len + 1,
            ..facts
        },
        PartFacts {
            first: entry(0).hash,
            ..facts
        },
        PartFacts {
            last: entry(50).hash,
            ..facts
        },
    ] {
        assert!(decode_part(&object, &wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn parts_take_entries_in_order_and_are_bounded() {
    let mut builder = PartBuilder::new();
    builder.push(&entry(5)).unwrap();
    for hash in [5, 4] {
        assert_eq!(builder.push(&entry(hash)), Err(FormatError::Order));
    }
    assert_eq!(builder.entries(), 1);
    assert!(PartBuilder::new().finish().is_none());
    // Entries of which nothing compresses.
    let mut builder = PartBuilder::new();
    let mut hash = 0_u128;
    let full = loop {
        hash += 1 << 100;
        let noise = u128::from_be_bytes(KeyHash::of(0, &hash.to_le_bytes()).0);
        let noisy = IndexEntry {
            offset: noise as u64,
            expires_at_ms: (noise >> 64) as u64,
            ..entry(hash | (noise >> 28))
        };
        if let Err(error) = builder.push(&noisy) {
            break error;
        }
    };
    assert!(matches!(full, FormatError::Full { .. }), "{full}");
    let (object, facts) = builder.finish().unwrap();
    assert!(object.len() <= PART_LEN_MAX);
    let entries = decode_part(&object, &facts).unwrap();
    assert_eq!(entries.count(), facts.entries as usize);
}

#[test]
fn every_changed_byte_of_a_manifest_is_found() {
    let object = manifest().encode().unwrap();
    assert_eq!(Manifest::decode(&object), Ok(manifest()));
    for index in 0..object.len() {
        for flip in 1..=255 {
            let mut damaged = object.clone();
            damaged[index] ^= flip;
            assert!(Manifest::decode(&damaged).is_err(), "byte {index} ^ {flip}");
        }
    }
    for len in 0..object.len() {
        assert!(Manifest::decode(&object[..len]).is_err(), "cut to {len}");
    }
}

#[test]
fn a_manifest_out_of_order_is_not_written() {
    let two = manifest();
    let mut segments = two.clone();
    segments.segments.push((3, facts()));
    let mut marks = two.clone();
    marks.flush_marks.push(FlushMark::of_space(1, 0));
    let mut parts = two;
    parts.parts.push(part([2, 3]).1);
    for wrong in [segments, marks, parts] {
        assert!(matches!(wrong.encode(), Err(FormatError::Field { .. })));
    }
}

#[test]
fn a_foreign_format_version_is_named() {
    let mut object = manifest().encode().unwrap();
    object[8] = 9;
    let message = Manifest::decode(&object).unwrap_err().to_string();
    assert!(message.contains("version 9") && message.contains(&format!("version {FORMAT}")));
    let mut value = entry(1).encode();
    value[0] = 9;
    assert!(matches!(
        IndexEntry::decode(entry(1).hash, &value),
        Err(FormatError::Version {
            found: 9,
            known: 4,
            ..
        })
    ));
}

#[test]
fn a_moved_copy_wins_and_a_dropped_one_stays_dropped() {
    let put = entry(1);
    let moved = IndexEntry { segment: 1, ..put };
    let tombstone = IndexEntry {
        tombstone: true,
        segment: 0,
        ..put
    };
    // By the time of the segment, not by its local number.
    assert_eq!(put.merge(10, moved, 11).segment, 1);
    assert_eq!(moved.merge(11, put, 10).segment, 1);
    // A tombstone of the same version, whenever it was written.
    assert!(put.merge(10, tombstone, 5).tombstone);
    assert!(tombstone.merge(5, put, 10).tombstone);
}

#[test]
fn a_value_that_hides_an_older_one_knows_it() {
    let old = IndexEntry {
        shadows: false,
        ..entry(1)
    };
    let at = 6;
    let new = IndexEntry { at, ..old };
    assert!(old.merge(1, new, 1).shadows);
    assert!(new.merge(1, old, 1).shadows);
    // A tombstone is nothing to hide, but what it hides stays hidden.
    let tombstone = IndexEntry {
        tombstone: true,
        ..old
    };
    assert!(!new.merge(1, tombstone, 1).shadows);
    let hiding = IndexEntry {
        shadows: true,
        ..tombstone
    };
    assert!(new.merge(1, hiding, 1).shadows);
    // Of a value and the tombstone it was dropped for, what comes later hides the value.
    let dropped = IndexEntry {
        tombstone: true,
        ..old
    };
    assert!(dropped.merge(1, old, 1).merge(1, new, 1).shadows);
    // The same copy again is not an older one.
    assert!(!new.merge(1, new, 1).shadows);
}

/// Few, so that copies of one version meet.
const VERSIONS: std::ops::Range<Version> = 0..12;

prop_compose! {
    fn any_entry()(
        space: u32,
        segment: u32,
        offset: u64,
        len: u32,
        at in VERSIONS,
        expires_at_ms: u64,
        tombstone: bool,
        shadows: bool,
    ) -> IndexEntry {
        let hash = entry(1).hash;
        IndexEntry { hash, space, segment, offset, len, at, expires_at_ms, tombstone, shadows }
    }
}

prop_compose! {
    fn any_facts()(
        region in "[a-z0-9-]{1,32}",
        random: u128,
        numbers: [u64; 9],
        counts: [u32; 4],
        at in VERSIONS,
        state in 0..3,
    ) -> SegmentFacts {
        let since_ms = numbers[0];
        SegmentFacts {
            name: SegmentName {
                region: region.parse().unwrap(),
                writer: WriterId::mint(numbers[1], random),
                seq: numbers[2],
            },
            size: numbers[3],
            data_len: numbers[4],
            live_bytes: numbers[5],
            entries: counts[0],
            live_entries: counts[1],
            tombstones: counts[2],
            min_version: at,
            max_version: at + u64::from(counts[3]),
            expires_max_ms: numbers[6],
            created_ms: numbers[7],
            last_read_ms: numbers[8],
            state: match state {
                0 => SegmentState::Live,
                1 => SegmentState::Doomed { since_ms },
                _ => SegmentState::Lost { since_ms },
            },
        }
    }
}

proptest! {
    #[test]
    fn entries_come_back(entry in any_entry()) {
        prop_assert_eq!(IndexEntry::decode(entry.hash, &entry.encode()), Ok(entry));
    }

    #[test]
    fn merging_is_free_of_order_and_repetition(
        // Segments as a bucket has them: one time and one place for each copy.
        copies in prop::collection::vec((VERSIONS, any::<bool>()), 1..6),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
    ) {
        let copies: Vec<(IndexEntry, u64)> = copies
            .into_iter()
            .enumerate()
            .map(|(index, (at, tombstone))| {
                let segment = index as u32;
                let copy = IndexEntry { at, tombstone, segment, shadows: false, ..entry(1) };
                (copy, u64::from(segment % 3))
            })
            .collect();
        let merge = |order: &[usize]| {
            let mut winner = copies[order[0]];
            for index in order {
                let (copy, created_ms) = copies[*index];
                let merged = winner.0.merge(winner.1, copy, created_ms);
                winner = (merged, copies[merged.segment as usize].1);
            }
            winner.0
        };
        let straight: Vec<usize> = (0..copies.len()).collect();
        let mut shuffled: Vec<usize> =
            order.iter().map(|index| index.index(copies.len())).collect();
        shuffled.extend(straight.iter().rev());
        let merged = merge(&straight);
        prop_assert_eq!(merge(&shuffled), merged);
        prop_assert_eq!(merged.at, copies.iter().map(|(copy, _)| copy.at).max().unwrap());
        let hides = copies.iter().any(|(copy, _)| {
            !copy.tombstone && (copy.at < merged.at || merged.tombstone)
        });
        prop_assert_eq!(merged.shadows, hides);
    }

    #[test]
    fn parts_come_back(
        entries in prop::collection::btree_map(any::<u128>(), any_entry(), 1..300),
    ) {
        let entries: Vec<IndexEntry> = entries
            .into_iter()
            .map(|(hash, entry)| IndexEntry { hash: KeyHash(hash.to_be_bytes()), ..entry })
            .collect();
        let mut builder = PartBuilder::new();
        for entry in &entries {
            builder.push(entry).unwrap();
        }
        let (object, facts) = builder.finish().unwrap();
        prop_assert_eq!(facts.entries as usize, entries.len());
        let back: Vec<IndexEntry> = decode_part(&object, &facts).unwrap().collect();
        prop_assert_eq!(back, entries);
    }

    #[test]
    fn manifests_come_back(
        segments in prop::collection::btree_map(any::<u32>(), any_facts(), 0..20),
        cursors in prop::collection::vec(any_facts(), 0..5),
        marks in prop::collection::btree_map(any::<u32>(), any::<u64>(), 0..5),
    ) {
        let manifest = Manifest {
            segments: segments.into_iter().collect(),
            cursors: cursors
                .into_iter()
                .map(|facts| (facts.name.writer_key(), facts.name.seq))
                .collect(),
            flush_marks: marks
                .into_iter()
                .map(|(space, cutoff)| FlushMark::of_space(space, cutoff))
                .collect(),
            ..manifest()
        };
        for (_, facts) in &manifest.segments {
            let mut bytes = Vec::new();
            facts.encode_into(&mut bytes);
            prop_assert_eq!(&SegmentFacts::decode(&bytes).unwrap(), facts);
        }
        let object = manifest.encode().unwrap();
        prop_assert_eq!(Manifest::decode(&object), Ok(manifest));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        entries: u32,
    ) {
        let _ = Manifest::decode(&bytes);
        let _ = SegmentFacts::decode(&bytes);
        let _ = IndexEntry::decode(entry(1).hash, &bytes);
        let facts = PartFacts { len: bytes.len() as u64, entries, ..part([1]).1 };
        let _ = decode_part(&bytes, &facts);
    }
}
