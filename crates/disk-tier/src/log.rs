//! The value log of a generation: an append-only file of records.
//!
//! It is the truth about its generation. The writer thread appends whole batches; a batch that
//! could not be written completely is cut off again, so records follow each other without gaps up
//! to [`Log::end`]. Reads may run at the same time from any thread.

mod damage;
mod direct;
mod records;

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use self::direct::DirectFile;
use super::directory::FILE_MODE;

pub(crate) use damage::Damage;
pub(crate) use direct::DirectWriter;
pub(crate) use records::{Records, Stored};

/// Slices that one system call takes (`IOV_MAX` of Linux).
const SLICES_MAX: usize = 1024;

/// Bytes that one system call takes. On a virtual machine with Linux 6.18 one call for 64 MiB took
/// 150 ms of processor time. The same bytes took 18 ms in pieces of this length.
const PIECE_LEN_MAX: usize = 1 << 20;

/// The first slices, as many as one system call takes; one of at least, which is shorter than a
/// piece.
fn fitting<'s, 'b>(slices: &'s [IoSlice<'b>]) -> &'s [IoSlice<'b>] {
    let mut len = 0;
    let fits = |slice: &&IoSlice<'_>| {
        len += slice.len();
        len <= PIECE_LEN_MAX
    };
    let count = slices.iter().take(SLICES_MAX).take_while(fits).count();
    slices.get(..count.max(1)).unwrap_or(slices)
}

/// An append-only file of records.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    /// The same file, for large batches; none if the file system cannot do it.
    direct: Option<DirectFile>,
    end: AtomicU64,
    /// Up to here the file system has room for it.
    reserved: AtomicU64,
    /// The file system has refused to reserve room.
    is_unreserved: AtomicBool,
    /// Written since the last sync began.
    dirty: AtomicBool,
    /// Whether a sync failed. Held during a sync.
    sync_failed: Mutex<bool>,
}

impl Log {
    /// Opens a log, creating it if there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(path)?;
        let end = file.metadata()?.len();
        // A kill leaves the room that was set aside behind it.
        file.set_len(end)?;
        Ok(Self {
            file,
            direct: DirectFile::open(path),
            end: AtomicU64::new(end),
            reserved: AtomicU64::new(end),
            is_unreserved: AtomicBool::new(false),
            // The process that wrote it may not have synced all of it.
            dirty: AtomicBool::new(end > 0),
            sync_failed: Mutex::new(false),
        })
    }

    /// Where the next record goes; the length of the log in bytes.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Bytes behind the end that the file system has room for.
    pub(crate) fn ahead(&self) -> u64 {
        let reserved = self.reserved.load(Ordering::Acquire);
        reserved.saturating_sub(self.end())
    }

    /// Has the file system set room aside for `len` bytes behind the end (`fallocate(2)`). Writes
    /// into it need no new blocks, and so do not wait for a sync that gives out blocks to what was
    /// written before. A file system that refuses once is not asked again.
    pub(crate) fn reserve(&self, len: u64) {
        if self.is_unreserved.load(Ordering::Relaxed) {
            return;
        }
        let end = self.end();
        let keep_len = rustix::fs::FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, keep_len, end, len) {
            Ok(()) => self.reserved.store(end + len, Ordering::Release),
            Err(_) => self.is_unreserved.store(true, Ordering::Relaxed),
        }
    }

    /// Appends the slices and returns where the first one went. Only one thread may append.
    ///
    /// # Errors
    /// The log is as it was before, unless cutting it failed too: then its end is behind
    /// [`Log::end`], which [`AppendError::torn`] tells.
    pub(crate) fn append(
        &self,
        writer: &mut DirectWriter,
        slices: &mut [IoSlice<'_>],
    ) -> Result<u64, AppendError> {
        let start = self.end();
        let written = match &self.direct {
            Some(direct) if direct.is_usable() && writer.takes(slices) => {
                writer.write(&self.file, direct, slices, start)
            }
            _ => self.write_all_at(slices, start),
        };
        match written {
            Ok(end) => {
                self.end.store(end, Ordering::Release);
                self.dirty.store(true, Ordering::Release);
                Ok(start)
            }
            Err(source) => Err(AppendError {
                source,
                torn: self.cut(start).is_err(),
            }),
        }
    }

    fn write_all_at(&self, mut slices: &mut [IoSlice<'_>], start: u64) -> io::Result<u64> {
        let mut at = start;
        IoSlice::advance_slices(&mut slices, 0);
        while let Some(first) = slices.first() {
            let piece = match first.get(..PIECE_LEN_MAX) {
                Some(piece) => rustix::io::pwrite(&self.file, piece, at),
                None => rustix::io::pwritev(&self.file, fitting(slices), at),
            };
            match piece {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut slices, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(at)
    }

    /// Cuts everything from `end` on.
    pub(crate) fn cut(&self, end: u64) -> io::Result<()> {
        self.file.set_len(end)?;
        self.reserved.store(end, Ordering::Release);
        self.end.store(end, Ordering::Release);
        Ok(())
    }

    /// Gives back what the file system has set aside behind the end.
    pub(crate) fn trim(&self) -> io::Result<()> {
        self.cut(self.end())
    }

    /// Makes everything that was written before the call survive a loss of power.
    ///
    /// # Errors
    /// If this sync or an earlier one fails. The kernel tells once that it could not write a page,
    /// and then takes the page for written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let mut has_failed = self.sync_failed.lock();
        if *has_failed {
            return Err(io::Error::other("an earlier sync of it failed"));
        }
        self.dirty.store(false, Ordering::Release);
        self.file.sync_data().inspect_err(|_| *has_failed = true)
    }

    /// Has every sync fail from now on.
    #[cfg(test)]
    pub(crate) fn fail_syncs(&self) {
        *self.sync_failed.lock() = true;
    }

    /// Has every sync wait until this is dropped.
    #[cfg(test)]
    pub(crate) fn hold_syncs(&self) -> parking_lot::MutexGuard<'_, bool> {
        self.sync_failed.lock()
    }

    /// Whether something was written since the last sync began. That sync may be running, or may
    /// have failed.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Reads `len` bytes at `offset`. One system call as a rule, no zeroing, no copy.
    pub(crate) fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        // An index that a loss of power left behind may name any length: do not allocate for it.
        if offset
            .checked_add(len as u64)
            .is_none_or(|end| end > self.end())
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let at = offset + out.len() as u64;
            match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut out), at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The allocator may have given more room than was asked for.
        out.truncate(len);
        Ok(out.into())
    }

    /// What is at `at`, where a walk met no intact record before the end.
    ///
    /// # Errors
    /// Of reading.
    pub(crate) fn damage(&self, at: u64) -> io::Result<Damage> {
        damage::look(self, at)
    }

    /// Walks the records from `offset` on, which is where one begins.
    pub(crate) fn records(&self, offset: u64) -> Records<'_> {
        Records::new(self, offset)
    }
}

/// A batch could not be appended.
#[derive(Debug)]
pub(crate) struct AppendError {
    pub(crate) source: io::Error,
    /// Part of the batch may still be in the file.
    pub(crate) torn: bool,
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use fonn_base::entry::Space;

    use super::*;
    use crate::record::{BOUND_FRAME_LEN, Fact, HEAD_LEN, Record, write_head};

    fn tombstone(key: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_head(&mut out, (Space(1), key), &Fact::Tombstone(5), &[], 0);
        out
    }

    /// The keys from a position on, and where the intact part ends.
    fn keys_from(log: &Log, offset: u64) -> (Vec<Vec<u8>>, u64) {
        let mut records = log.records(offset);
        let mut keys = Vec::new();
        while let Some(record) = records.next().unwrap() {
            keys.push(record.key().to_vec());
        }
        (keys, records.position())
    }

    #[test]
    fn appended_records_are_scanned_in_order_also_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("values");
        let (a, b) = (tombstone(b"a"), tombstone(b"bb"));
        let second;
        {
            let log = Log::open(&path).unwrap();
            assert_eq!(
                log.append(&mut DirectWriter::default(), &mut [IoSlice::new(&a)])
                    .unwrap(),
                0
            );
            second = log
                .append(
                    &mut DirectWriter::default(),
                    &mut [IoSlice::new(&b[..10]), IoSlice::new(&b[10..])],
                )
                .unwrap();
            assert_eq!(log.read(second, b.len()).unwrap(), b);
            assert!(log.is_dirty());
            log.sync().unwrap();
            assert!(!log.is_dirty());
        }
        let log = Log::open(&path).unwrap();
        assert_eq!(keys_from(&log, 0).0, [b"a".to_vec(), b"bb".to_vec()]);
        assert_eq!(keys_from(&log, second).0, [b"bb".to_vec()]);
    }

    #[test]
    fn a_sync_waits_for_the_one_that_runs_and_fails_if_an_earlier_one_failed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("values");
        let mut log = Log::open(&path).unwrap();
        std::thread::scope(|scope| {
            let running = log.sync_failed.lock();
            let (tx, synced) = std::sync::mpsc::sync_channel(1);
            let log = &log;
            scope.spawn(move || tx.send(log.sync().is_ok()));
            assert!(synced.recv_timeout(Duration::from_millis(20)).is_err());
            drop(running);
            assert!(synced.recv().unwrap());
        });
        // The system cannot sync a pipe.
        let (pipe, _writer) = std::io::pipe().unwrap();
        let file = std::mem::replace(&mut log.file, File::from(OwnedFd::from(pipe)));
        assert!(log.sync().is_err());
        log.file = file;
        assert!(log.sync().is_err());
        // What another process left unsynced is synced.
        std::fs::write(&path, b"left").unwrap();
        assert!(Log::open(&path).unwrap().is_dirty());
    }

    #[test]
    fn room_that_is_set_aside_changes_no_byte_and_is_given_back() {
        use std::os::unix::fs::MetadataExt as _;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("values");
        let disk_bytes = || std::fs::metadata(&path).unwrap().blocks() * 512;
        let log = Log::open(&path).unwrap();
        let record = tombstone(b"a");
        let append = || log.append(&mut DirectWriter::default(), &mut [IoSlice::new(&record)]);
        append().unwrap();
        log.reserve(1 << 20);
        if log.ahead() == 0 {
            // A file system without it.
            return;
        }
        assert!(disk_bytes() >= 1 << 20);
        append().unwrap();
        assert_eq!(log.ahead(), (1 << 20) - record.len() as u64);
        assert_eq!(log.read(0, 2 * record.len()).unwrap(), record.repeat(2));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), log.end());
        assert_eq!(keys_from(&log, 0).1, log.end(), "nothing follows");

        log.trim().unwrap();
        assert_eq!((log.ahead(), log.end()), (0, 2 * record.len() as u64));
        assert!(disk_bytes() < 1 << 16);
        log.reserve(1 << 20);
        log.cut(record.len() as u64).unwrap();
        assert_eq!((log.ahead(), log.end()), (0, record.len() as u64));
        assert!(disk_bytes() < 1 << 16);
    }

    #[test]
    fn slices_of_any_length_follow_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(&dir.path().join("values")).unwrap();
        let lens = [
            1,
            PIECE_LEN_MAX,
            3,
            2 * PIECE_LEN_MAX + 5,
            PIECE_LEN_MAX - 1,
            7,
        ];
        let long = lens.iter().zip(1..).map(|(len, byte)| vec![byte; *len]);
        let short = (0..2 * SLICES_MAX).map(|number| vec![number as u8]);
        let slices: Vec<_> = long.chain(short).collect();
        let mut borrowed: Vec<_> = slices.iter().map(|it| IoSlice::new(it)).collect();
        assert_eq!(
            log.append(&mut DirectWriter::default(), &mut borrowed)
                .unwrap(),
            0
        );
        let written = slices.concat();
        assert_eq!(log.end(), written.len() as u64);
        assert!(log.read(0, written.len()).unwrap() == written);
    }

    #[test]
    fn a_scan_stops_at_a_torn_tail_wherever_it_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (tombstone(b"a"), tombstone(b"bb"));
        for torn in 1..b.len() {
            let log = Log::open(&dir.path().join(torn.to_string())).unwrap();
            log.append(
                &mut DirectWriter::default(),
                &mut [IoSlice::new(&a), IoSlice::new(&b[..torn])],
            )
            .unwrap();
            let (keys, intact_end) = keys_from(&log, 0);
            assert_eq!(keys, [b"a".to_vec()]);
            assert_eq!(intact_end, a.len() as u64);
            assert_eq!(log.end(), (a.len() + torn) as u64);
        }
    }

    #[test]
    fn a_record_tells_whose_it_was_unless_its_head_or_key_is_damaged_and_is_never_unfinished() {
        let dir = tempfile::tempdir().unwrap();
        let mut put = Vec::new();
        let mut frame = Vec::new();
        fonn_codec::encode(fonn_codec::CodecSpec::none(), 0, b"a value", &mut frame).unwrap();
        let fact = Fact::Put(fonn_base::entry::Meta::new(7, 1, 2));
        let frame_len = u32::try_from(frame.len()).unwrap();
        write_head(&mut put, (Space(1), b"some key"), &fact, &frame, frame_len);
        put.extend_from_slice(&frame);
        let behind = tombstone(b"another key");
        for record in [put, tombstone(b"a key")] {
            for place in 0..record.len() {
                for change in [1, 0x80, 0xff] {
                    let path = dir.path().join("values");
                    let mut damaged = record.clone();
                    damaged[place] ^= change;
                    std::fs::write(&path, [&damaged[..], &behind].concat()).unwrap();
                    let context = format!("byte {place} by {change:#x}");
                    let log = Log::open(&path).unwrap();
                    assert!(log.records(0).next().unwrap().is_none(), "{context}");
                    let good = Record::parse(&record).unwrap();
                    let bound = HEAD_LEN + good.key.len() + good.frame.len().min(BOUND_FRAME_LEN);
                    let named = match log.damage(0).unwrap() {
                        Damage::Unknown if place < bound => continue,
                        Damage::Named(named) if place >= bound => named,
                        other => panic!("{context}: {other:?}"),
                    };
                    assert_eq!(
                        (named.key(), named.fact),
                        (good.key, good.fact),
                        "{context}"
                    );
                    assert_eq!(u64::from(named.len()), record.len() as u64, "{context}");
                }
            }
        }
    }

    #[test]
    fn more_slices_than_one_call_takes_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(&dir.path().join("values")).unwrap();
        let record = tombstone(b"k");
        let mut slices: Vec<_> = (0..3000).map(|_| IoSlice::new(&record)).collect();
        log.append(&mut DirectWriter::default(), &mut slices)
            .unwrap();
        assert_eq!(keys_from(&log, 0).0.len(), 3000);
    }

    #[test]
    fn reading_behind_the_end_is_an_error_and_allocates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(&dir.path().join("values")).unwrap();
        assert!(log.read(0, usize::MAX).is_err());
        assert!(log.read(u64::MAX, 8).is_err());
    }
}
