//! Values that were read and that their readers have not taken yet.
//!
//! A reader counts the memory of a value once it has it. Until then the value counts here. Threads
//! begin no read while values have much memory, so a flood of reads takes no more than that and a
//! value for each thread. Readers take what comes at once; a reader that is not polled holds others
//! up for a bounded time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::error::DiskError;
use super::reader::Lookup;
use super::{DiskFound, DiskProbed, Shared};

/// A thread waits so long for readers at most. They take microseconds, unless something is wrong.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// What may hold values.
pub(crate) trait HoldsValues {
    /// Bytes of memory that the values take.
    fn bytes(&self) -> usize;
}

impl HoldsValues for DiskFound {
    fn bytes(&self) -> usize {
        match self {
            Self::Entry(entry) => {
                let frame_len = entry.frame.as_ref().map_or(0, bytes::Bytes::len);
                entry.value.len() + frame_len
            }
            Self::Absent | Self::Below(_) => 0,
        }
    }
}

impl HoldsValues for DiskProbed {
    fn bytes(&self) -> usize {
        match self {
            Self::Facts(_) => 0,
            Self::Found(found) => found.bytes(),
        }
    }
}

impl<T: HoldsValues> HoldsValues for Lookup<T> {
    fn bytes(&self) -> usize {
        match self {
            Self::Found(found) => found.bytes(),
            Self::Long(_) => 0,
        }
    }
}

/// The values under way to their readers.
pub(crate) struct Transit {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Threads that wait.
    waiting: Mutex<usize>,
    left: Condvar,
}

impl Transit {
    /// No thread begins a read while values have `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            bytes_max,
            waiting: Mutex::new(0),
            left: Condvar::new(),
        })
    }

    /// Bytes of all values.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) >= self.bytes_max
    }

    /// Waits until there is room for a value; false if there is none within `wait_max`.
    fn wait_for_room(&self, wait_max: Duration) -> bool {
        if !self.is_full() {
            return true;
        }
        let mut waiting = self.waiting.lock();
        *waiting += 1;
        let is_full = |_: &mut usize| self.is_full();
        let waited = self.left.wait_while_for(&mut waiting, is_full, wait_max);
        *waiting -= 1;
        !waited.timed_out()
    }

    /// Counts a value, until what is returned is dropped.
    fn enter(self: &Arc<Self>, bytes: usize) -> Passage {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        Passage {
            transit: Arc::clone(self),
            bytes,
        }
    }
}

/// Counts a value that is under way.
pub(crate) struct Passage {
    transit: Arc<Transit>,
    bytes: usize,
}

impl Drop for Passage {
    fn drop(&mut self) {
        let transit = &self.transit;
        let before = transit.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        let is_room = before - self.bytes < transit.bytes_max;
        if before >= transit.bytes_max && is_room {
            // A thread that has looked sleeps by now.
            drop(transit.waiting.lock());
            transit.left.notify_all();
        }
    }
}

/// A read of what may be a value, once there is room for it.
pub(crate) fn with_room<T: HoldsValues>(
    read: impl FnOnce(&Shared) -> Result<T, DiskError>,
) -> impl FnOnce(&Shared) -> Result<(T, Passage), DiskError> {
    move |shared| {
        // Without room it goes on all the same: a reader has forgotten a value.
        let _ = shared.transit.wait_for_room(WAIT_MAX);
        let found = read(shared)?;
        let passage = shared.transit.enter(found.bytes());
        Ok((found, passage))
    }
}

/// The reader has it now.
pub(crate) fn taken<T>((found, _): (T, Passage)) -> T {
    found
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_read_waits_until_values_are_taken() {
        let transit = Transit::new(10);
        let first = transit.enter(9);
        assert!(transit.wait_for_room(Duration::ZERO));
        let second = transit.enter(7);
        assert!(!transit.wait_for_room(Duration::ZERO));
        let waits = {
            let transit = Arc::clone(&transit);
            thread::spawn(move || transit.wait_for_room(LONG))
        };
        while *transit.waiting.lock() == 0 {
            thread::yield_now();
        }
        drop(second);
        assert!(waits.join().unwrap());
        drop(first);
        assert_eq!(transit.bytes(), 0);
    }
}
