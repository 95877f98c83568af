use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::checkpoint::SegmentState;
use crate::format::FormatError;

const DOC: &str = include_str!("../../../docs/formats/segment.md");

fn header() -> SegmentHeader {
    SegmentHeader {
        region: "eu-1".parse().unwrap(),
        writer: "01ARYZ6S4128T5CY4TQKFF04HM".parse().unwrap(),
        seq: 42,
        created_ms: 1_700_000_000_000,
    }
}

/// The frame of the value `snow`, as in `docs/formats/value-frame.md`.
const SNOW: &[u8] = b"\xf1\0\0\0\x04\0\0\0\x04\0\0\0\x16\x04\xd6\x7dsnow";

/// The segment of the document: a value and a tombstone.
fn example() -> SealedSegment {
    let mut builder = SegmentBuilder::new();
    let facts = Facts {
        flags: 7,
        expires_at_ms: 1_700_000_086_400,
        ..Facts::default()
    };
    builder
        .push(&Record {
            space: 16,
            key: b"k1",
            at: 5,
            fact: Fact::Put { facts, frame: SNOW },
        })
        .unwrap();
    builder
        .push(&Record {
            space: 16,
            key: b"k2",
            at: 6,
            fact: Fact::Tombstone,
        })
        .unwrap();
    let mark = FlushMark::of_space(32, 4);
    builder.finish(header(), &[mark])
}

fn complete(suffix: &[u8], object_len: u64) -> Footer {
    match decode_tail(suffix, object_len).unwrap() {
        Tail::Complete(footer) => footer,
        more @ Tail::NeedMore { .. } => panic!("{more:?}"),
    }
}

/// The bytes of a document's example: lines of an offset, two spaces and bytes.
pub(crate) fn example_in(document: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in document.lines() {
        let Some((offset, row)) = line
            .strip_prefix("    ")
            .and_then(|line| line.split_once("  "))
        else {
            continue;
        };
        if usize::from_str_radix(offset, 16) == Ok(bytes.len()) && offset.len() == 4 {
            let row = row.split("  ").next().unwrap();
            bytes.extend(
                row.split(' ')
                    .map(|byte| u8::from_str_radix(byte, 16).unwrap()),
            );
        }
    }
    bytes
}

/// Rows for a document, from an object.
pub(crate) fn rows(object: &[u8]) -> String {
    let mut text = String::new();
    for (index, row) in object.chunks(16).enumerate() {
        let bytes: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        let printable: String = row
            .iter()
            .map(|b| {
                if b.is_ascii_graphic() {
                    char::from(*b)
                } else {
                    '.'
                }
            })
            .collect();
        text += &format!(
            "    {:04x}  {:47}  {printable}\n",
            index * 16,
            bytes.join(" ")
        );
    }
    text
}

#[test]
fn the_documents_example_is_what_is_written_and_read() {
    let sealed = example();
    let object = sealed.to_bytes();
    let documented = example_in(DOC);
    // The footer's compressed bytes are free to differ with the version of zstd.
    let data_end = HEADER_LEN + sealed.footer.data_len as usize;
    assert!(
        documented.get(..data_end) == object.get(..data_end),
        "the document should have\n{}",
        rows(&object)
    );
    assert_eq!(verify(&documented), Ok(sealed.footer));
}

#[test]
fn a_footer_tells_offsets_flushes_and_facts() {
    let sealed = example();
    let object = sealed.to_bytes();
    assert_eq!(sealed.len, object.len() as u64);
    let footer = complete(&object, sealed.len);
    assert_eq!(footer, sealed.footer);
    for entry in &footer.entries {
        let start = entry.offset as usize;
        let record = Record::decode(&object[start..start + entry.len as usize]).unwrap();
        assert_eq!((record.key, record.at), (&*entry.key, entry.at));
        assert_eq!(record.is_tombstone(), entry.tombstone);
        assert_eq!(record.expires_at_ms(), entry.expires_at_ms);
    }
    assert_eq!(footer.flush_marks, [FlushMark::of_space(32, 4)]);
    let facts = footer.facts(sealed.len);
    assert_eq!(facts.name, header().name());
    assert_eq!(
        (facts.entries, facts.live_entries, facts.tombstones),
        (2, 2, 1)
    );
    // The tombstone is no value that could come back.
    assert_eq!((facts.min_version, facts.max_version), (5, 6));
    assert_eq!(facts.expires_max_ms, 1_700_000_086_400);
    assert_eq!(facts.live_bytes, footer.data_len);
    assert_eq!(facts.state, SegmentState::Live);
}

#[test]
fn every_changed_byte_of_a_segment_is_found() {
    let object = example().to_bytes().to_vec();
    for index in 0..object.len() {
        for flip in [1, 0x80, 0xff] {
            let mut damaged = object.clone();
            damaged[index] ^= flip;
            assert!(verify(&damaged).is_err(), "byte {index} ^ {flip:#x}");
        }
    }
    for len in 0..object.len() {
        assert!(verify(&object[..len]).is_err(), "cut to {len}");
    }
    let mut longer = object;
    longer.push(0);
    assert!(verify(&longer).is_err());
}

#[test]
fn every_changed_byte_of_a_tail_is_found_without_the_rest() {
    let sealed = example();
    let object = sealed.to_bytes();
    let tail_start = HEADER_LEN + sealed.footer.data_len as usize;
    for index in tail_start..object.len() {
        let mut damaged = object[tail_start..].to_vec();
        damaged[index - tail_start] ^= 0x10;
        assert!(
            !matches!(decode_tail(&damaged, sealed.len), Ok(Tail::Complete(_))),
            "byte {index}"
        );
    }
}

#[test]
fn every_changed_byte_of_a_record_is_found() {
    let sealed = example();
    let object = sealed.to_bytes();
    for entry in &sealed.footer.entries {
        let start = entry.offset as usize;
        let record = &object[start..start + entry.len as usize];
        assert!(Record::decode(record).is_ok());
        for index in 0..record.len() {
            for flip in 1..=255 {
                let mut damaged = record.to_vec();
                damaged[index] ^= flip;
                assert!(Record::decode(&damaged).is_err(), "byte {index} ^ {flip}");
            }
        }
    }
}

#[test]
fn a_foreign_format_version_is_named() {
    let error = FormatError::Version {
        part: "segment",
        found: 9,
        known: FORMAT,
    };
    let object = example().to_bytes();
    let mut foreign = object.to_vec();
    foreign[8] = 9;
    assert_eq!(SegmentHeader::decode(&foreign), Err(error.clone()));
    let mut foreign = object.to_vec();
    let len = foreign.len();
    foreign[len - 12] = 9;
    assert_eq!(decode_tail(&foreign, len as u64), Err(error.clone()));
    let message = error.to_string();
    assert!(message.contains("version 9") && message.contains(&format!("version {FORMAT}")));
    // Bytes that are no segment at all are not taken for one of another version.
    assert!(matches!(
        SegmentHeader::decode(&[7; HEADER_LEN]),
        Err(FormatError::Magic { .. })
    ));
    assert!(matches!(
        decode_tail(&[7; 500], 500),
        Err(FormatError::Magic { .. })
    ));
}

#[test]
fn a_short_suffix_asks_for_what_it_needs() {
    let mut builder = SegmentBuilder::new();
    for index in 0..2000_u64 {
        // Keys that do not compress.
        let key = crate::names::KeyHash::of(0, &index.to_le_bytes()).0;
        builder
            .push(&Record {
                space: 0,
                key: &key.repeat(8)[..100],
                at: index,
                fact: Fact::Tombstone,
            })
            .unwrap();
    }
    let sealed = builder.finish(header(), &[]);
    let object = sealed.to_bytes();
    let mut suffix_len = 10;
    let mut asked = Vec::new();
    let footer = loop {
        match decode_tail(&object[object.len() - suffix_len..], sealed.len).unwrap() {
            Tail::Complete(footer) => break footer,
            Tail::NeedMore { suffix_len: more } => {
                suffix_len = more as usize;
                asked.push(more);
            }
        }
    };
    assert_eq!(footer, sealed.footer);
    // First the usual guess (or all of a shorter object), then exactly what is there.
    let tail_len = sealed.len - HEADER_LEN as u64 - footer.data_len;
    assert_eq!(asked[0], TAIL_LEN_GUESS.min(sealed.len));
    assert!(asked.len() <= 2 && asked.last().is_some_and(|last| *last >= tail_len));
}

#[test]
fn an_empty_segment_carries_flush_marks() {
    let marks = [(1, 9), (3, 7)].map(|(space, cutoff)| FlushMark::of_space(space, cutoff));
    let sealed = SegmentBuilder::new().finish(header(), &marks);
    let footer = verify(&sealed.to_bytes()).unwrap();
    assert_eq!(footer.flush_marks, marks);
    assert_eq!(footer.facts(sealed.len).min_version, Version::MAX);
}

#[test]
fn long_frames_are_shared_in_pieces_and_short_ones_copied() {
    let long = Bytes::from(vec![1; 2 * CHUNK_LEN + 100]);
    let short = Bytes::from(vec![2; 1000]);
    let mut builder = SegmentBuilder::new();
    for (index, frame) in [&short, &long, &short].into_iter().enumerate() {
        let record = Record {
            space: 0,
            key: b"key",
            at: index as u64,
            fact: Fact::Put {
                facts: Facts::default(),
                frame,
            },
        };
        builder.push_shared(&record, frame).unwrap();
    }
    let sealed = builder.finish(header(), &[]);
    assert!(sealed.body.iter().all(|chunk| chunk.len() <= CHUNK_LEN));
    assert_eq!(
        sealed.body.iter().map(Bytes::len).sum::<usize>() as u64,
        sealed.len
    );
    let shared: usize = sealed
        .body
        .iter()
        .filter(|chunk| long.as_ptr_range().contains(&chunk.as_ptr()))
        .map(Bytes::len)
        .sum();
    assert_eq!(shared, long.len());
    let object = sealed.to_bytes();
    assert_eq!(verify(&object).unwrap(), sealed.footer);
    let data = &object[HEADER_LEN..][..sealed.footer.data_len as usize];
    let frames: Vec<&[u8]> = scan_records(data)
        .map(|record| record.unwrap().1.frame())
        .collect();
    assert!(frames == [&short[..], &long[..], &short[..]]);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut builder = SegmentBuilder::new();
    let key = vec![0; KEY_LEN_MAX + 1];
    let record = Record {
        space: 0,
        key: &key,
        at: 1,
        fact: Fact::Tombstone,
    };
    let len = KEY_LEN_MAX + 1;
    assert_eq!(
        builder.push(&record),
        Err(FormatError::TooLong { part: "key", len })
    );
    assert!(builder.is_empty());
    let record = Record {
        key: &key[..KEY_LEN_MAX],
        ..record
    };
    let mut pushed = 0;
    while builder.push(&record).is_ok() {
        pushed += 1;
    }
    assert!(matches!(
        builder.push(&record),
        Err(FormatError::Full { .. })
    ));
    // All marks still fit.
    let marks: Vec<FlushMark> = (0..1 << 16)
        .map(|space| FlushMark::of_space(space, 1))
        .collect();
    let sealed = builder.finish(header(), &marks);
    assert_eq!(sealed.footer.entries.len(), pushed);
    assert_eq!(complete(&sealed.to_bytes(), sealed.len), sealed.footer);
}

#[test]
fn a_scan_ends_at_the_first_damage() {
    let sealed = example();
    let object = sealed.to_bytes();
    let mut data = object[HEADER_LEN..][..sealed.footer.data_len as usize].to_vec();
    assert_eq!(scan_records(&data).count(), 2);
    data[60] ^= 1;
    let all: Vec<_> = scan_records(&data).collect();
    assert!(matches!(
        all.as_slice(),
        [Err(FormatError::Checksum { .. })]
    ));
}

#[derive(Clone, Debug)]
struct Owned {
    space: u32,
    key: Vec<u8>,
    at: Version,
    value: Option<(Facts, Vec<u8>)>,
}

impl Owned {
    fn record(&self) -> Record<'_> {
        Record {
            space: self.space,
            key: &self.key,
            at: self.at,
            fact: match &self.value {
                Some((facts, frame)) => Fact::Put {
                    facts: *facts,
                    frame,
                },
                None => Fact::Tombstone,
            },
        }
    }
}

prop_compose! {
    fn any_facts()(
        flags: u32,
        expires_at_ms: u64,
        cas_override: Option<u64>,
        stale: bool,
        token_sent: bool,
    ) -> Facts {
        Facts { flags, expires_at_ms, cas_override, stale, token_sent, writer: flags }
    }
}

prop_compose! {
    fn any_record()(
        space: u32,
        key in prop::collection::vec(any::<u8>(), 0..80),
        version: u64,
        value in prop::option::of((any_facts(), prop::collection::vec(any::<u8>(), 0..300))),
    ) -> Owned {
        Owned { space, key, at: version, value }
    }
}

proptest! {
    #[test]
    fn records_come_back(owned in any_record()) {
        let record = owned.record();
        let mut bytes = vec![9];
        record.encode_into(&mut bytes);
        prop_assert_eq!(bytes.len(), 1 + record.encoded_len());
        prop_assert_eq!(Record::decode(&bytes[1..]), Ok(record));
        prop_assert_eq!(record::Head::parse(&bytes[1..]).unwrap().record_len(), record.encoded_len());
    }

    #[test]
    fn segments_come_back(
        records in prop::collection::vec(any_record(), 0..40),
        marks in prop::collection::btree_map(any::<u32>(), any::<u64>(), 0..5),
        shared: bool,
    ) {
        let mut builder = SegmentBuilder::new();
        for owned in &records {
            match (&owned.value, shared) {
                (Some((facts, frame)), true) => {
                    let (facts, frame) = (*facts, Bytes::from(frame.clone()));
                    let fact = Fact::Put { facts, frame: &frame };
                    builder.push_shared(&Record { fact, ..owned.record() }, &frame)
                }
                _ => builder.push(&owned.record()),
            }
            .unwrap();
        }
        let before_tail = builder.len();
        let marks: Vec<FlushMark> =
            marks.into_iter().map(|(space, cutoff)| FlushMark::of_space(space, cutoff)).collect();
        let sealed = builder.finish(header(), &marks);
        let object = sealed.to_bytes();
        let footer = verify(&object).unwrap();
        prop_assert_eq!(&footer.flush_marks, &marks);
        prop_assert_eq!(HEADER_LEN as u64 + footer.data_len, before_tail);
        let tail = &object[before_tail as usize..];
        prop_assert_eq!(complete(tail, sealed.len), footer);
        let back: Vec<Record<'_>> = scan_records(&object[HEADER_LEN..before_tail as usize])
            .map(|record| record.unwrap().1)
            .collect();
        let pushed: Vec<Record<'_>> = records.iter().map(Owned::record).collect();
        prop_assert_eq!(back, pushed);
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        object_len: u64,
        patch in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let _ = Record::decode(&bytes);
        let _ = SegmentHeader::decode(&bytes);
        let _ = decode_tail(&bytes, object_len);
        let _ = scan_records(&bytes).count();
        let mut object = example().to_bytes().to_vec();
        for (index, byte) in patch {
            let index = index.index(object.len());
            object[index] = byte;
        }
        let _ = decode_tail(&object, object_len);
        let _ = verify(&object);
    }
}
