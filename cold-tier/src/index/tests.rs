use super::*;
use crate::checkpoint::IndexEntry;
use crate::names::WriterId;
use crate::segment::{
    FLUSHES_MAX, Fact, Facts, Footer, PURGES_MAX, Record, SegmentBuilder, SegmentHeader,
};

fn open(dir: &Path) -> Index {
    Index::open(dir, 1 << 20, 1 << 20).unwrap()
}

fn hash(key: &str) -> KeyHash {
    KeyHash::of(1, key.as_bytes())
}

/// A footer of puts, or tombstones where the key begins with `-`.
fn footer(seq: u64, records: &[(&str, u64)], marks: &[FlushMark]) -> (SegmentName, Footer) {
    let header = SegmentHeader {
        region: "eu".parse().unwrap(),
        writer: WriterId::mint(1, 2),
        seq,
        created_ms: 1000 + seq,
    };
    let name = header.name();
    let mut builder = SegmentBuilder::new();
    for (key, version) in records {
        let fact = if key.starts_with('-') {
            Fact::Tombstone
        } else {
            Fact::Put {
                facts: Facts::default(),
                frame: b"frame",
            }
        };
        let key = key.trim_start_matches('-').as_bytes();
        let record = Record {
            space: 1,
            key,
            at: *version,
            fact,
        };
        builder.push(&record).unwrap();
    }
    (name, builder.finish(header, marks).footer)
}

/// A version that the clock of no node has come to.
const UNBELIEVABLE: u64 = 1 << 60;

#[derive(Default)]
struct Listener(Mutex<Vec<(Vec<u8>, u64)>>);

impl ColdObserver for Listener {
    fn superseded(&self, newer: &[CopyRef<'_>]) {
        let newer = newer.iter().map(|copy| (copy.key.to_vec(), copy.at));
        self.0.lock().extend(newer);
    }

    fn flushed(&self, mark: &FlushMark) -> bool {
        self.0.lock().push((b"flush".to_vec(), mark.cutoff));
        mark.cutoff < UNBELIEVABLE
    }

    fn is_visible(&self, _: u32, _: u64) -> bool {
        true
    }
}

fn merge_in(index: &Index, seq: u64, records: &[(&str, u64)]) -> Vec<(Vec<u8>, u64)> {
    merge_with(index, seq, records, &[])
}

fn merge_with(
    index: &Index,
    seq: u64,
    records: &[(&str, u64)],
    marks: &[FlushMark],
) -> Vec<(Vec<u8>, u64)> {
    let (_, footer) = footer(seq, records, marks);
    let listener = Listener::default();
    let arrival = Arrival {
        size: 500,
        footer: &footer,
        cursor: Some(Cursor {
            next_seq: seq + 1,
            last_new_ms: 7,
        }),
        spilled: None,
    };
    index.merge(&arrival, Some(&listener)).unwrap();
    listener.0.into_inner()
}

fn live(index: &Index, seq: u64) -> u32 {
    let (name, _) = footer(seq, &[], &[]);
    let table = index.table();
    let id = table.number(&name).unwrap();
    table.facts(id).unwrap().live_entries
}

#[test]
fn the_newest_copy_counts_and_survives_reopening_in_any_order() {
    for order in [[0usize, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let dir = tempfile::tempdir().unwrap();
        let segments: [&[(&str, u64)]; 3] = [
            &[("a", 1), ("b", 2)],
            &[("a", 5), ("c", 6)],
            &[("-b", 7), ("c", 3)],
        ];
        {
            let index = open(dir.path());
            for seq in order {
                merge_in(&index, seq as u64, segments[seq]);
            }
        }
        let index = open(dir.path());
        let entry = |key| index.entry(hash(key)).unwrap().unwrap();
        assert_eq!((entry("a").at, entry("a").shadows), (5, true));
        assert_eq!((entry("b").at, entry("b").tombstone), (7, true));
        assert_eq!((entry("c").at, entry("c").shadows), (6, true));
        assert_eq!(
            [live(&index, 0), live(&index, 1), live(&index, 2)],
            [0, 2, 1]
        );
        let key = index.cursors().into_iter().next().unwrap();
        assert_eq!(key.1.next_seq, 3, "a cursor never goes back");
        assert_eq!(index.merged().segments, 3);
    }
}

#[test]
fn merging_again_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 0, &[("a", 1), ("b", 1)]);
    merge_in(&index, 1, &[("a", 2)]);
    let before = (index.entry(hash("a")).unwrap(), index.table().all());
    assert!(merge_in(&index, 0, &[("a", 1), ("b", 1)]).is_empty());
    assert!(merge_in(&index, 1, &[("a", 2)]).is_empty());
    assert_eq!(
        before,
        (index.entry(hash("a")).unwrap(), index.table().all())
    );
}

#[test]
fn only_what_is_newer_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    assert_eq!(merge_in(&index, 0, &[("a", 5)]), [(b"a".to_vec(), 5)]);
    assert_eq!(
        merge_in(&index, 1, &[("a", 4), ("-b", 9)]),
        [(b"b".to_vec(), 9)]
    );
    // A copy that was moved is not newer.
    let old = index.entry(hash("a")).unwrap().unwrap().segment;
    assert!(merge_in(&index, 7, &[("a", 5)]).is_empty());
    assert_ne!(index.entry(hash("a")).unwrap().unwrap().segment, old);
    let mark = |cutoff| FlushMark::of_space(1, cutoff);
    let flush = merge_with(&index, 2, &[], &[mark(50)]);
    assert_eq!(flush, [(b"flush".to_vec(), 50)]);
    assert!(merge_with(&index, 3, &[], &[mark(40)]).is_empty());
    assert_eq!(index.cutoff((1, 0, 0)), 50);
    drop(index);
    assert_eq!(open(dir.path()).marks(), [mark(50)]);
}

#[test]
fn a_segment_of_very_many_entries_is_merged_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    let keys: Vec<String> = (0..BATCH_ENTRIES * 2 + 10)
        .map(|n| format!("k{n}"))
        .collect();
    let records: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    merge_in(&index, 0, &records);
    assert_eq!(live(&index, 0) as usize, keys.len());
    drop(index);
    let index = open(dir.path());
    assert_eq!(live(&index, 0) as usize, keys.len());
    assert!(index.entry(hash("k0")).unwrap().is_some());
}

#[test]
fn a_lost_segment_is_not_read_and_still_keeps_older_copies_away() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 1, &[("a", 5)]);
    let entry = index.entry(hash("a")).unwrap().unwrap();
    assert!(index.readable_segment(entry.segment).is_some());
    index
        .set_state(entry.segment, SegmentState::Lost { since_ms: 1 })
        .unwrap();
    assert!(index.readable_segment(entry.segment).is_none());
    merge_in(&index, 0, &[("a", 4)]);
    assert_eq!(index.entry(hash("a")).unwrap().unwrap().at, 5);
    // The same copy in another segment can be read.
    merge_in(&index, 2, &[("a", 5)]);
    let moved = index.entry(hash("a")).unwrap().unwrap();
    assert!(index.readable_segment(moved.segment).is_some());
    assert_eq!((live(&index, 1), live(&index, 2)), (0, 1));
}

#[test]
fn forgetting_spares_what_has_moved() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 0, &[("a", 1), ("b", 1)]);
    merge_in(&index, 1, &[("b", 1)]);
    let old = index.entry(hash("a")).unwrap().unwrap().segment;
    index.forget(old, [hash("a"), hash("b")]).unwrap();
    assert_eq!(index.entry(hash("a")).unwrap(), None);
    assert!(index.entry(hash("b")).unwrap().is_some());
    assert_eq!((live(&index, 0), live(&index, 1)), (0, 1));
    index.remove_segment(old).unwrap();
    drop(index);
    let index = open(dir.path());
    assert_eq!(index.table().all().len(), 1);
    assert_eq!(index.table().next(), 2, "numbers are not used again");
}

#[test]
fn a_hole_is_a_tombstone_of_the_same_version() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 0, &[("a", 5)]);
    let entry = index.entry(hash("a")).unwrap().unwrap();
    index.make_hole(&entry).unwrap();
    let hole = index.entry(hash("a")).unwrap().unwrap();
    assert_eq!((hole.tombstone, hole.at), (true, 5));
    merge_in(&index, 1, &[("a", 6)]);
    index.make_hole(&entry).unwrap();
    assert!(!index.entry(hash("a")).unwrap().unwrap().tombstone);
}

#[test]
fn sweeping_removes_only_what_leads_nowhere_and_may_go() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 0, &[("a", 1), ("b", 1)]);
    merge_in(&index, 1, &[("c", 1)]);
    let segment = |key| index.entry(hash(key)).unwrap().unwrap().segment;
    let (first, second) = (segment("a"), segment("c"));
    let none = BTreeSet::new();
    assert_eq!(index.sweep(&none, |_| true).unwrap(), 0);
    index.remove_segment(first).unwrap();
    let is_a = |entry: &IndexEntry| entry.hash == hash("a");
    assert_eq!(index.sweep(&none, is_a).unwrap(), 1);
    assert_eq!(index.sweep(&none, |_| true).unwrap(), 1);
    // A lost segment may be there again, until it is missing for long.
    let lost = SegmentState::Lost { since_ms: 1 };
    index.set_state(second, lost).unwrap();
    assert_eq!(index.sweep(&none, |_| true).unwrap(), 0);
    let missing = BTreeSet::from([second]);
    assert_eq!(index.sweep(&missing, |_| false).unwrap(), 0);
    assert_eq!(index.sweep(&missing, |_| true).unwrap(), 1);
    assert_eq!(
        (index.entry(hash("c")).unwrap(), live(&index, 1)),
        (None, 0)
    );
}

#[test]
fn a_restored_index_is_the_one_that_was_frozen() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let index = open(from.path());
    merge_in(&index, 0, &[("a", 1), ("b", 1)]);
    merge_with(&index, 1, &[("b", 2)], &[FlushMark::of_space(3, 9)]);
    let frozen = index.freeze(&|_, _| true).unwrap().unwrap();
    merge_in(&index, 2, &[("a", 3)]);
    let entries: Vec<IndexEntry> = frozen.scan.page(None, 100).unwrap();
    assert_eq!(entries.len(), 2);
    {
        let restored = open(to.path());
        assert!(restored.is_blank());
        let rows = entries.iter().copied().map(Ok);
        let count = restored
            .restore(&frozen.segments, &frozen.cursors, &frozen.marks, rows)
            .unwrap();
        assert_eq!(count, Some(2));
    }
    let restored = open(to.path());
    assert!(!restored.is_blank() && !restored.is_complete());
    assert_eq!(restored.entry(hash("a")).unwrap().unwrap().at, 1);
    assert_eq!(restored.table().all(), frozen.segments);
    assert_eq!(restored.cutoff((3, 0, 0)), 9);
    assert_eq!(restored.table().next(), 2);
    // It goes on from there.
    merge_in(&restored, 2, &[("a", 3)]);
    assert_eq!(restored.entry(hash("a")).unwrap().unwrap().at, 3);
}

#[test]
fn a_checkpoint_does_not_hide_the_tombstone_of_a_lost_copy() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let index = open(from.path());
    merge_in(&index, 0, &[("a", 1)]);
    let frozen = index.freeze(&|_, _| true).unwrap().unwrap();
    let entries: Vec<IndexEntry> = frozen.scan.page(None, 100).unwrap();
    let blank = open(to.path());
    blank.lose(&[lost_copy("a", 2)]).unwrap();
    let rows = entries.into_iter().map(Ok);
    let restored = blank
        .restore(&frozen.segments, &frozen.cursors, &frozen.marks, rows)
        .unwrap();
    assert_eq!(restored, None);
    // The footers follow, and the tombstone waits for its segment.
    merge_in(&blank, 0, &[("a", 1)]);
    let entry = blank.entry(hash("a")).unwrap().unwrap();
    assert_eq!((entry.at, entry.tombstone), (2, true));
    assert!(blank.freeze(&|_, _| true).unwrap().is_none());
    drop(blank);
    assert!(Index::open(to.path(), 1 << 20, 1 << 20).is_ok());
}

#[test]
fn a_restore_that_was_cut_off_or_failed_is_not_taken_for_an_index() {
    let dir = tempfile::tempdir().unwrap();
    {
        let index = open(dir.path());
        let rows = [Err(IndexError::unreadable("part"))].into_iter();
        assert!(index.restore(&[], &[], &[], rows).is_err());
    }
    let reopened = Index::open(dir.path(), 1 << 20, 1 << 20);
    assert!(matches!(reopened, Err(IndexError::Broken(_))));
}

#[test]
fn another_format_is_refused_and_damage_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    {
        let index = open(dir.path());
        let mut batch = Batch::default();
        batch.put_meta(KEY_FORMAT, 9u64.to_le_bytes().to_vec());
        index.database.commit(batch).unwrap();
    }
    let other = Index::open(dir.path(), 1 << 20, 1 << 20);
    assert!(matches!(other, Err(IndexError::Format { found: 9, .. })));
    std::fs::write(dir.path().join("version"), b"FJL\x09").unwrap();
    let damaged = Index::open(dir.path(), 1 << 20, 1 << 20);
    assert!(matches!(damaged, Err(IndexError::Broken(_))));
}

#[test]
fn an_index_whose_files_are_cut_is_broken_and_not_an_io_error() {
    for len in [32, 0] {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()));
        let mut cut = 0;
        for keyspace in std::fs::read_dir(dir.path().join("keyspaces")).unwrap() {
            for file in std::fs::read_dir(keyspace.unwrap().path()).unwrap() {
                let file = file.unwrap();
                if file.file_name().to_str().unwrap().starts_with('v') {
                    let file = std::fs::File::options().write(true).open(file.path());
                    file.unwrap().set_len(len).unwrap();
                    cut += 1;
                }
            }
        }
        assert!(cut > 0);
        let damaged = Index::open(dir.path(), 1 << 20, 1 << 20);
        assert!(matches!(damaged, Err(IndexError::Broken(_))), "{len}");
    }
}

#[test]
fn bytes_of_entries_are_counted_by_segment() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    let entry = |key: &str, segment, expires_at_ms| IndexEntry {
        hash: hash(key),
        space: 1,
        segment,
        offset: 92,
        len: 10,
        at: 1,
        expires_at_ms,
        tombstone: false,
        shadows: false,
    };
    let mut batch = Batch::default();
    for (key, segment, expires_at_ms) in [("a", 1, 5), ("b", 1, 6), ("c", 1, 0), ("d", 2, 5)] {
        batch.put_entry(entry(key, segment, expires_at_ms));
    }
    index.database.commit(batch).unwrap();
    let expired = index.bytes_of(|entry| entry.is_expired(5)).unwrap();
    assert_eq!(expired, HashMap::from([(1, 10), (2, 10)]));
}

/// A copy of an index as a `kill -9` of its process would leave it: what is in the kernel's hands.
fn as_killed(from: &Path) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        for entry in std::fs::read_dir(from).unwrap() {
            let (from, to) = (
                entry.as_ref().unwrap().path(),
                to.join(entry.unwrap().file_name()),
            );
            if from.is_dir() {
                std::fs::create_dir(&to).unwrap();
                copy(&from, &to);
            } else {
                std::fs::copy(&from, &to).unwrap();
            }
        }
    }
    let to = tempfile::tempdir().unwrap();
    copy(from, to.path());
    to
}

#[test]
fn no_more_marks_are_given_out_than_a_footer_has_room_for() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    let (flushes, purges) = (0..=FLUSHES_MAX as u32, 0..=PURGES_MAX as u64);
    let flushes = flushes.map(|space| ((space, 0, 0), 10 + u64::from(space)));
    let purges = purges.map(|since| ((0, 7, since), 10 + since));
    index.marks.write().extend(flushes.chain(purges));
    let marks = index.marks();
    assert_eq!(marks.len(), FLUSHES_MAX + PURGES_MAX);
    // The oldest ones are left out.
    assert!(marks.iter().all(|mark| mark.cutoff > 10));
    let (_, footer) = footer(0, &[("a", 1)], &marks);
    assert_eq!(footer.flush_marks, marks);
}

/// The open rows of lost copies, by page.
fn lost_pages(index: &Index, is_visible: IsVisible<'_>) -> Vec<Vec<LostRow>> {
    let mut pages = Vec::new();
    let mut next: Option<Vec<u8>> = Some(Vec::new());
    while let Some(after) = next {
        let page = index.lost(&after, is_visible).unwrap();
        pages.push(page.rows);
        next = page.next;
    }
    pages
}

fn lost_copy(key: &str, at: u64) -> CopyRef<'_> {
    CopyRef {
        space: 1,
        key: key.as_bytes(),
        at,
    }
}

#[test]
fn what_was_merged_or_lost_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 0, &[("a", 1), ("b", 1)]);
    merge_in(&index, 1, &[("a", 2)]);
    index.set_spilled(&SpillCursor::new(&b"queue"[..])).unwrap();
    let copies = [lost_copy("b", 3), lost_copy("a", 2)];
    assert_eq!(index.lose(&copies).unwrap(), 1);
    let killed = as_killed(dir.path());
    let killed = open(killed.path());
    assert_eq!(killed.entry(hash("a")).unwrap().unwrap().at, 2);
    let lost = killed.entry(hash("b")).unwrap().unwrap();
    assert_eq!((lost.at, lost.tombstone, lost.space), (3, true, 1));
    assert_eq!(lost_pages(&killed, &|_, _| true).concat().len(), 1);
    assert_eq!(killed.spilled().as_bytes(), b"queue");
}

#[test]
fn rows_of_lost_copies_come_in_pages_that_are_bounded_in_number_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    let short = (0..5000).map(|number| format!("{number:05}"));
    let long = (0..100).map(|number| format!("long{number:020000}"));
    let keys: Vec<String> = short.chain(long).collect();
    let copies: Vec<_> = keys.iter().map(|key| lost_copy(key, 2)).collect();
    index.lose(&copies).unwrap();
    let pages = lost_pages(&index, &|_, _| true);
    for page in &pages {
        let bytes: usize = page.iter().map(|row| row.key.len()).sum();
        assert!(page.len() <= 4096 && bytes <= (1 << 20) + 20_004);
    }
    let found: Vec<_> = pages.concat().into_iter().map(|row| row.key).collect();
    assert!(found.iter().eq(keys.iter().map(String::as_bytes)));

    // A flush hides all but the last.
    let seen = std::cell::Cell::new(0);
    let is_last_visible = |_, _| seen.replace(seen.get() + 1) + 1 == keys.len();
    assert!(index.freeze(&is_last_visible).unwrap().is_none());
    assert_eq!(lost_pages(&index, &|_, _| true).concat().len(), 1);
}

#[test]
fn a_copy_that_is_told_twice_is_lost_once() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 0, &[("a", 1), ("b", 1)]);
    let copies = [lost_copy("a", 2), lost_copy("a", 2)];
    assert_eq!(index.lose(&copies).unwrap(), 1);
    let segments = index.table().all().into_iter();
    let live: Vec<_> = segments.map(|(_, facts)| facts.live_entries).collect();
    assert_eq!(live, [1]);
}

#[test]
fn an_index_with_an_open_tombstone_of_a_lost_copy_makes_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 0, &[("a", 1)]);
    index.lose(&[lost_copy("a", 2)]).unwrap();
    assert!(index.freeze(&|_, _| true).unwrap().is_none());
    // The tombstone is in the bucket now.
    merge_in(&index, 1, &[("-a", 2)]);
    assert!(index.freeze(&|_, _| true).unwrap().is_some());
    assert!(index.entry(hash("a")).unwrap().unwrap().shadows);
}

#[test]
fn an_open_tombstone_that_a_flush_hides_holds_no_checkpoint_up() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    merge_in(&index, 0, &[("a", 1)]);
    index.lose(&[lost_copy("a", 2), lost_copy("b", 9)]).unwrap();
    // The flush hides the versions below 5.
    let is_visible = |_, at| at >= 5;
    assert!(index.freeze(&is_visible).unwrap().is_none());
    assert!(index.entry(hash("a")).unwrap().is_none());
    assert_eq!(lost_pages(&index, &is_visible).concat().len(), 1);
    // That of `b` is in the bucket now.
    merge_in(&index, 1, &[("-b", 9)]);
    assert!(index.freeze(&is_visible).unwrap().is_some());
}

#[test]
fn a_flush_that_the_node_does_not_believe_hides_no_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    let mark = |cutoff| FlushMark::of_space(1, cutoff);
    let told = merge_with(&index, 0, &[], &[mark(UNBELIEVABLE)]);
    assert_eq!(told, [(b"flush".to_vec(), UNBELIEVABLE)]);
    assert_eq!(index.marks(), []);
    assert!(index.raise_cutoff(mark(50)).unwrap());
    assert_eq!(index.marks(), [mark(50)]);
}

/// Waits in the middle of a merge until the test lets it go on.
struct Waiting {
    calls: Mutex<Vec<usize>>,
    entered: std::sync::mpsc::SyncSender<()>,
    release: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl ColdObserver for Waiting {
    fn superseded(&self, newer: &[CopyRef<'_>]) {
        self.calls.lock().push(newer.len());
        self.entered.send(()).unwrap();
        self.release.lock().recv().unwrap();
    }

    fn flushed(&self, _: &FlushMark) -> bool {
        true
    }

    fn is_visible(&self, _: u32, _: u64) -> bool {
        true
    }
}

#[test]
fn readers_of_positions_wait_for_no_merge_and_the_observer_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    let (_, footer) = footer(0, &[("a", 1), ("b", 1), ("c", 1)], &[]);
    let (entered, has_entered) = std::sync::mpsc::sync_channel(1);
    let (go_on, release) = std::sync::mpsc::sync_channel(1);
    let observer = Waiting {
        calls: Mutex::default(),
        entered,
        release: Mutex::new(release),
    };
    let (read, has_read) = std::sync::mpsc::sync_channel(1);
    let in_time = std::thread::scope(|scope| {
        scope.spawn(|| {
            let arrival = Arrival {
                size: 500,
                footer: &footer,
                cursor: None,
                spilled: None,
            };
            index.merge(&arrival, Some(&observer)).unwrap();
        });
        has_entered.recv().unwrap();
        scope.spawn(|| {
            let positions = (index.cursors(), index.spilled(), index.merged());
            read.send((positions, index.is_complete())).unwrap();
        });
        let in_time = has_read.recv_timeout(std::time::Duration::from_secs(30));
        // Both threads end, whatever came of it.
        go_on.send(()).unwrap();
        in_time.is_ok()
    });
    assert!(in_time, "they wait for the merge");
    assert_eq!(observer.calls.into_inner(), [3]);
}
