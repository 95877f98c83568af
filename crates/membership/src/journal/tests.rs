use openraft::{CommittedLeaderId, EntryPayload};
use proptest::prelude::*;

use super::*;
use crate::state::Change;

fn log_id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(1, 7), index)
}

fn entry(index: u64) -> Entry {
    Entry {
        log_id: log_id(index),
        payload: EntryPayload::Normal(Change::Drain {
            id: "x".repeat(index as usize % 50),
        }),
    }
}

/// A snapshot that covers the entries up to `index`.
fn snapshot(index: u64) -> Record {
    Record::Snapshot(StoredSnapshot {
        meta: SnapshotMeta {
            last_log_id: Some(log_id(index)),
            ..SnapshotMeta::default()
        },
        state: b"{\n}".to_vec(),
    })
}

fn reopen(dir: &Path) -> Contents {
    Journal::open(dir).unwrap().1
}

fn written(dir: &Path) -> Contents {
    let (mut journal, mut contents) = Journal::open(dir).unwrap();
    let mut records = vec![Record::Vote(Vote::new(3, 7))];
    records.extend((0..10).map(|index| Record::Entry(entry(index))));
    records.push(Record::Truncate(8));
    records.push(Record::Entry(entry(8)));
    records.push(snapshot(2));
    records.push(Record::Purge(log_id(2)));
    records.push(Record::Committed(log_id(7)));
    journal.append(&records).unwrap();
    assert!(records.into_iter().all(|record| contents.take(record)));
    contents
}

#[test]
fn what_was_written_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let contents = written(dir.path());
    assert_eq!(
        contents.entries.keys().copied().collect::<Vec<_>>(),
        [3, 4, 5, 6, 7, 8]
    );
    assert_eq!(contents.last(), Some(log_id(8)));
    assert_eq!(reopen(dir.path()), contents);
}

#[test]
fn a_rewritten_journal_says_the_same_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut contents = written(dir.path());
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    let before = journal.len;
    journal.rewrite(&contents).unwrap();
    assert!(journal.len < before);
    assert_eq!(reopen(dir.path()), contents);
    let path = dir.path().join("journal");
    let good = std::fs::read(&path).unwrap();
    let mut damaged = good.clone();
    damaged[MAGIC.len() + HEADER_LEN] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let opened = Journal::open(dir.path());
    assert!(
        matches!(opened, Err(FileError::Corrupt { .. })),
        "{opened:?}"
    );
    std::fs::write(&path, good).unwrap();
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    journal.append(&[Record::Entry(entry(9))]).unwrap();
    assert!(contents.take(Record::Entry(entry(9))));
    assert_eq!(reopen(dir.path()), contents);
}

#[test]
fn a_long_journal_shrinks_to_what_still_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, mut contents) = Journal::open(dir.path()).unwrap();
    let mut index = 0;
    while journal.len <= REWRITE_LEN {
        let records: Vec<Record> = (index..index + 500)
            .map(|it| Record::Entry(entry(it)))
            .collect();
        index += 500;
        journal.append(&records).unwrap();
        records
            .into_iter()
            .for_each(|record| assert!(contents.take(record)));
    }
    contents.take(Record::Purge(log_id(index - 3)));
    journal.append(&[Record::Purge(log_id(index - 3))]).unwrap();
    journal.shrink(&contents).unwrap();
    assert!(journal.len < 2000, "{}", journal.len);
    assert_eq!(reopen(dir.path()), contents);
}

#[test]
fn a_torn_end_is_cut_off_at_every_byte_and_the_journal_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    written(dir.path());
    let whole = std::fs::read(&path).unwrap();
    let (mut journal, mut before) = Journal::open(dir.path()).unwrap();
    journal.append(&[Record::Entry(entry(9))]).unwrap();
    let longer = std::fs::read(&path).unwrap();
    for len in whole.len()..longer.len() {
        std::fs::write(&path, &longer[..len]).unwrap();
        assert_eq!(reopen(dir.path()), before, "{len}");
        assert_eq!(std::fs::read(&path).unwrap(), whole, "{len}");
    }
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    journal.append(&[Record::Entry(entry(9))]).unwrap();
    assert!(before.take(Record::Entry(entry(9))));
    assert_eq!(reopen(dir.path()), before);
}

#[test]
fn a_torn_snapshot_leaves_the_one_before_it_and_an_older_one_replaces_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut contents = written(dir.path());
    let whole = std::fs::read(&path).unwrap();
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    journal.append(&[snapshot(7)]).unwrap();
    let longer = std::fs::read(&path).unwrap();
    for len in whole.len()..longer.len() {
        std::fs::write(&path, &longer[..len]).unwrap();
        assert_eq!(reopen(dir.path()), contents, "{len}");
    }
    // The entries that it covers are still there if nothing purged them.
    std::fs::write(&path, &longer).unwrap();
    assert!(contents.take(snapshot(7)));
    assert_eq!(reopen(dir.path()), contents);
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    journal.append(&[snapshot(5)]).unwrap();
    assert_eq!(reopen(dir.path()), contents);
    journal.rewrite(&contents).unwrap();
    assert_eq!(reopen(dir.path()), contents);
}

#[test]
fn damage_before_the_last_record_refuses_to_open_at_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    written(dir.path());
    let good = std::fs::read(&path).unwrap();
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    journal.append(&[Record::Vote(Vote::new(4, 7))]).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for at in MAGIC.len()..good.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        std::fs::write(&path, &bytes).unwrap();
        let opened = Journal::open(dir.path());
        assert!(
            matches!(opened, Err(FileError::Corrupt { .. })),
            "{at}: {opened:?}"
        );
        assert_eq!(
            std::fs::read(&path).unwrap(),
            bytes,
            "{at}: nothing is changed"
        );
    }
}

#[test]
fn pages_of_unacknowledged_records_may_reach_the_disk_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let before = written(dir.path());
    let len = std::fs::read(&path).unwrap().len();
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    journal.append(&[Record::Committed(log_id(8))]).unwrap();
    journal
        .append(&[Record::Entry(entry(9)), Record::Entry(entry(10))])
        .unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[len..len + 10].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(reopen(dir.path()), before);
}

#[test]
fn a_file_of_another_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [&b""[..], b"FONNRJ0", b"hello, world"] {
        std::fs::write(dir.path().join("journal"), bytes).unwrap();
        let opened = Journal::open(dir.path());
        assert!(
            matches!(opened, Err(FileError::Corrupt { .. })),
            "{opened:?}"
        );
    }
    std::fs::write(dir.path().join("journal"), b"FONNRJ03").unwrap();
    let opened = Journal::open(dir.path());
    assert!(matches!(opened, Err(FileError::Newer { .. })), "{opened:?}");
}

#[test]
fn a_record_of_a_newer_version_is_refused_as_such_and_nothing_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    journal.append(&[Record::Entry(entry(0))]).unwrap();
    let path = dir.path().join("journal");
    let mut bytes = std::fs::read(&path).unwrap();
    let mut body = 2_u32.to_le_bytes().to_vec();
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(b"\x09{}");
    bytes.extend_from_slice(&MARK);
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    std::fs::write(&path, &bytes).unwrap();
    let opened = Journal::open(dir.path());
    assert!(matches!(opened, Err(FileError::Newer { .. })), "{opened:?}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn an_entry_of_an_unknown_kind_is_kept_as_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let written: Entry = serde_json::from_str(
        r#"{"log_id":{"leader_id":{"term":1,"node_id":1},"index":0},"payload":{"Normal":{"Paint":{"in":"red","coats":2}}}}"#,
    )
    .unwrap();
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    journal.append(&[Record::Entry(written.clone())]).unwrap();
    drop(journal);
    let read = reopen(dir.path()).entries;
    assert_eq!(read.get(&0), Some(&written));
    let text = serde_json::to_string(&written).unwrap();
    assert!(text.contains(r#"{"Normal":{"Paint":{"#), "{text}");
}

#[test]
fn an_entry_that_does_not_follow_is_corruption() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path()).unwrap();
    let records = [Record::Entry(entry(0)), Record::Entry(entry(2))];
    journal.append(&records).unwrap();
    assert!(matches!(
        Journal::open(dir.path()),
        Err(FileError::Corrupt { .. })
    ));
}

#[test]
fn too_long_a_record_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, contents) = Journal::open(dir.path()).unwrap();
    let id = "x".repeat(PAYLOAD_LEN_MAX);
    let payload = EntryPayload::Normal(Change::Drain { id });
    let long = Entry {
        log_id: log_id(1),
        payload,
    };
    let records = [Record::Entry(entry(0)), Record::Entry(long)];
    assert!(matches!(
        journal.append(&records),
        Err(FileError::TooLong { .. })
    ));
    assert_eq!(reopen(dir.path()), contents);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut contents = Contents::default();
        let read = read_all(&bytes, |record| contents.take(record));
        prop_assert!(read.len <= bytes.len());
    }

    #[test]
    fn any_payload_in_a_whole_record_is_read_without_a_panic(
        kind in 0..8u8,
        payload in "[\\[\\]{}\":,0-9a-z_]{0,60}",
    ) {
        let mut body = (payload.len() as u32).to_le_bytes().to_vec();
        body.extend_from_slice(&[0; 8]);
        body.push(kind);
        body.extend_from_slice(payload.as_bytes());
        let mut bytes = MARK.to_vec();
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        let mut contents = Contents::default();
        let read = read_all(&bytes, |record| contents.take(record));
        prop_assert_eq!(read.len == bytes.len(), !read.is_corrupt);
    }

    #[test]
    fn flipped_bits_never_give_other_records(at in 0usize..2000, bit in 0..8u32) {
        let mut bytes = Vec::new();
        for index in 0..10 {
            encode(&Record::Entry(entry(index)), 0, &mut bytes).unwrap();
        }
        let at = at % bytes.len();
        bytes[at] ^= 1u8 << bit;
        let mut seen = Vec::new();
        read_all(&bytes, |record| { seen.push(record); true });
        prop_assert!(seen.len() < 10);
        for (index, record) in seen.into_iter().enumerate() {
            prop_assert_eq!(record, Record::Entry(entry(index as u64)));
        }
    }
}
