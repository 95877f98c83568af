//! Batches of large values pass the kernel's page cache by (`O_DIRECT` of open(2)).
//!
//! The page cache takes a new page of memory for each 4 KiB that is written, and copies into it.
//! That was most of the processor time of a large write. What was written lies in the RAM tier as
//! well, so the copy in the page cache is of little use.
//!
//! The kernel wants memory, offset and length at borders of pages. So the bytes before the first
//! border and those behind the last one go through the page cache. Whole pages between them are
//! gathered in a buffer that begins at a border. Then no page is written both ways, and neither
//! way has to wait for the other.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The shortest batch that passes the page cache by. Each write waits for the device, which costs
/// more than the copy of a short batch.
const DIRECT_LEN_MIN: usize = 256 << 10;

/// A batch passes the page cache by if one of its values takes so many bytes at least. Values of
/// 64 KiB cost less through the page cache, and values of 256 KiB more.
const VALUE_LEN_MIN: usize = 128 << 10;

/// A border of memory, offset or length: no device and no file system of Linux asks for more.
const PAGE_LEN: usize = 4 << 10;

/// Length of the buffer: one `pwrite` hands so many bytes to the device.
const STAGE_LEN: usize = 1 << 20;

/// A device that takes fewer bytes a second is left to the page cache: that takes a burst and
/// writes it later.
const BYTES_PER_SEC_MIN: u64 = 256 << 20;

/// A slow device is tried again with one of so many batches.
const TRY_INTERVAL: u32 = 64;

/// A file, opened to pass the page cache by.
#[derive(Debug)]
pub(super) struct DirectFile {
    file: File,
    /// The file system took a flag that it cannot hold to.
    is_refused: AtomicBool,
}

impl DirectFile {
    /// None if the file system cannot do it.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let flags = rustix::fs::OFlags::DIRECT.bits();
        let flags = i32::try_from(flags).ok()?;
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path);
        Some(Self {
            file: file.ok()?,
            is_refused: AtomicBool::new(false),
        })
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.is_refused.load(Ordering::Relaxed)
    }
}

/// Writes large batches of one thread: gathers them, and knows how fast its device is.
#[derive(Debug, Default)]
pub(crate) struct DirectWriter {
    /// Empty before the first large batch.
    buffer: Vec<u8>,
    pace: Pace,
    written_bytes: u64,
}

impl DirectWriter {
    /// Bytes that passed the page cache by since the last call.
    pub(crate) fn take_written_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.written_bytes)
    }

    /// Whether a batch should pass the page cache by.
    pub(super) fn takes(&mut self, slices: &[IoSlice<'_>]) -> bool {
        let lens = || slices.iter().map(|slice| slice.len());
        lens().any(|len| len >= VALUE_LEN_MIN)
            && lens().sum::<usize>() >= DIRECT_LEN_MIN
            && self.pace.is_tried()
    }

    /// Writes the slices behind each other from `start` on, and returns where they end.
    pub(super) fn write(
        &mut self,
        cached: &File,
        direct: &DirectFile,
        slices: &[IoSlice<'_>],
        start: u64,
    ) -> io::Result<u64> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; STAGE_LEN + PAGE_LEN];
        }
        let begin = self.buffer.as_ptr().align_offset(PAGE_LEN);
        let Some(buffer) = self.buffer.get_mut(begin..begin + STAGE_LEN) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let mut gathered = Gathered {
            buffer,
            len: 0,
            // Up to the first border.
            len_max: match start % PAGE_LEN as u64 {
                0 => STAGE_LEN,
                behind => PAGE_LEN - behind as usize,
            },
            at: start,
            direct_len: 0,
            direct_time: Duration::ZERO,
        };
        for slice in slices {
            gathered.take(slice, cached, direct)?;
        }
        gathered.flush(cached, direct)?;
        self.written_bytes += gathered.direct_len;
        self.pace.note(gathered.direct_len, gathered.direct_time);
        Ok(gathered.at)
    }
}

/// Bytes that are not written yet.
struct Gathered<'b> {
    buffer: &'b mut [u8],
    len: usize,
    /// When they are written.
    len_max: usize,
    /// Where in the file they go.
    at: u64,
    direct_len: u64,
    direct_time: Duration,
}

impl Gathered<'_> {
    fn take(&mut self, mut bytes: &[u8], cached: &File, direct: &DirectFile) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.len_max - self.len));
            if let Some(place) = self.buffer.get_mut(self.len..self.len + now.len()) {
                place.copy_from_slice(now);
            }
            self.len += now.len();
            bytes = later;
            if self.len == self.len_max {
                self.flush(cached, direct)?;
                self.len_max = STAGE_LEN;
            }
        }
        Ok(())
    }

    fn flush(&mut self, cached: &File, direct: &DirectFile) -> io::Result<()> {
        let gathered = self.buffer.get(..self.len).unwrap_or(&[]);
        let is_at_border = self.at.is_multiple_of(PAGE_LEN as u64);
        let whole = match is_at_border && direct.is_usable() {
            true => self.len - self.len % PAGE_LEN,
            false => 0,
        };
        let (pages, rest) = gathered.split_at(whole);
        let began = Instant::now();
        let written = match write_all(&direct.file, pages, self.at) {
            Err(Errno::INVAL) => {
                direct.is_refused.store(true, Ordering::Relaxed);
                0
            }
            written => written.map(|()| pages.len())?,
        };
        if written > 0 {
            self.direct_len += written as u64;
            self.direct_time += began.elapsed();
            self.at += written as u64;
        } else {
            write_all(cached, pages, self.at)?;
            self.at += pages.len() as u64;
        }
        write_all(cached, rest, self.at)?;
        self.at += rest.len() as u64;
        self.len = 0;
        Ok(())
    }
}

fn write_all(file: &File, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            // As a full file system may answer.
            Ok(0) => return Err(Errno::NOSPC),
            Ok(written) => {
                at += written as u64;
                bytes = bytes.get(written..).unwrap_or(&[]);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How fast the device was lately.
#[derive(Debug, Default)]
struct Pace {
    bytes: u64,
    time: Duration,
    /// Batches since the device was tried last.
    untried: u32,
}

impl Pace {
    fn is_fast(bytes: u64, time: Duration) -> bool {
        let needed = u128::from(BYTES_PER_SEC_MIN) * time.as_nanos();
        u128::from(bytes) * 1_000_000_000 >= needed
    }

    /// Whether the next batch goes to the device.
    fn is_tried(&mut self) -> bool {
        self.untried += 1;
        let is_tried = Self::is_fast(self.bytes, self.time) || self.untried >= TRY_INTERVAL;
        if is_tried {
            self.untried = 0;
        }
        is_tried
    }

    /// Older batches weigh less and less, and none once the device is fast again.
    fn note(&mut self, bytes: u64, time: Duration) {
        if !Self::is_fast(self.bytes, self.time) && Self::is_fast(bytes, time) {
            *self = Self::default();
        }
        self.bytes = self.bytes / 8 * 7 + bytes;
        self.time = self.time / 8 * 7 + time;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::Log;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn large_and_small_batches_of_any_slices_follow_each_other(
            batches in prop::collection::vec(
                prop::collection::vec(1_usize..3 * STAGE_LEN / 2, 1..4),
                1..5,
            ),
            small in 1_usize..3 * PAGE_LEN,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let log = Log::open(&dir.path().join("values")).unwrap();
            let (mut writer, mut written) = (DirectWriter::default(), Vec::new());
            let mut append = |lens: &[usize]| {
                let slices: Vec<Vec<u8>> = lens
                    .iter()
                    .map(|len| (0..*len).map(|at| (at * 31 + len) as u8).collect())
                    .collect();
                let mut borrowed: Vec<_> = slices.iter().map(|it| IoSlice::new(it)).collect();
                assert_eq!(log.append(&mut writer, &mut borrowed).unwrap(), written.len() as u64);
                written.extend(slices.concat());
                assert!(log.read(0, written.len()).unwrap() == written);
            };
            for lens in batches {
                append(&[small]);
                append(&lens);
            }
        }
    }

    #[test]
    fn a_large_batch_passes_the_page_cache_by_where_the_file_system_can() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("values");
        let log = Log::open(&path).unwrap();
        let mut writer = DirectWriter::default();
        let batch = vec![7; DIRECT_LEN_MIN + PAGE_LEN];
        log.append(&mut writer, &mut [IoSlice::new(&batch[1..100])])
            .unwrap();
        assert_eq!(writer.take_written_bytes(), 0);
        log.append(&mut writer, &mut [IoSlice::new(&batch)])
            .unwrap();
        let expected = match DirectFile::open(&path) {
            // All but the bytes up to the first border, and those behind the last one.
            Some(_) => DIRECT_LEN_MIN as u64,
            None => 0,
        };
        assert_eq!(writer.take_written_bytes(), expected);
    }

    #[test]
    fn a_large_batch_of_small_values_goes_through_the_page_cache() {
        let value = vec![7; 64 << 10];
        let batch = vec![IoSlice::new(&value); 16];
        let mut writer = DirectWriter::default();
        assert!(!writer.takes(&batch));
        let long = vec![7; VALUE_LEN_MIN];
        assert!(writer.takes(&[&batch[..], &[IoSlice::new(&long)]].concat()));
        assert!(!writer.takes(&[IoSlice::new(&long)]));
    }

    #[test]
    fn a_slow_device_is_left_to_the_page_cache_until_a_try_finds_it_fast() {
        let mut pace = Pace::default();
        assert!(pace.is_tried(), "it is not known yet");
        pace.note(1 << 20, Duration::from_millis(1));
        assert!(pace.is_tried());
        pace.note(1 << 20, Duration::from_millis(100));
        for _ in 1..TRY_INTERVAL {
            assert!(!pace.is_tried());
        }
        assert!(pace.is_tried(), "now and then");
        pace.note(1 << 20, Duration::from_millis(20));
        assert!(!pace.is_tried(), "it is still slow");
        pace.note(1 << 20, Duration::from_millis(1));
        assert!(pace.is_tried(), "one fast batch is enough");
    }
}
