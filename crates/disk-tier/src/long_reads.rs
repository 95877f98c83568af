//! Reads of long records: a queue in which namespaces take turns, and threads of its own.
//!
//! A long record takes a thread for milliseconds up to a second. So the threads that look keys up
//! leave it to others, and no short read waits behind it. Of the long reads, each namespace gets
//! one carried out in a round, and has bounded bytes waiting. A flood of long reads delays and
//! refuses those of its own namespace.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

use fonn_base::entry::Space;
use fonn_base::reactor::relayed;

use super::error::DiskError;
use super::reader::{self, Question};
use super::stats::add;
use super::transit::{taken, with_room};
use super::{DiskFound, DiskTier, Shared, asked};

/// Long reads that may wait, beside one for each namespace.
pub(crate) const LONG_READS_MAX: usize = 4096;

/// Bytes of records that may wait to be read for one namespace: about what a disk delivers before
/// clients give up. One read always may.
const NAMESPACE_BYTES_MAX: u64 = 2 << 30;

/// Threads for long reads, beside so many for all others.
pub(crate) fn threads(read_threads: usize) -> usize {
    (read_threads / 2).max(1)
}

/// Long reads that wait for a thread.
#[derive(Default)]
pub(crate) struct LongReads {
    waiting: Mutex<Turns>,
    filled: Condvar,
}

#[derive(Default)]
struct Turns {
    /// Namespaces with reads that wait. The first one has the next turn.
    lines: VecDeque<Line>,
    /// Reads in all lines.
    len: usize,
    is_closed: bool,
}

/// Reads of one namespace, at least one.
struct Line {
    namespace: u32,
    /// Each with the bytes of its record.
    reads: VecDeque<(u64, Question)>,
    bytes: u64,
}

impl Turns {
    fn push(&mut self, namespace: u32, read: (u64, Question)) -> Result<(), DiskError> {
        if self.is_closed {
            return Err(DiskError::Closed);
        }
        let bytes = read.0;
        let is_full = self.len >= LONG_READS_MAX;
        let known = self.lines.iter_mut().find(|it| it.namespace == namespace);
        match known {
            Some(line) if is_full || line.bytes.saturating_add(bytes) > NAMESPACE_BYTES_MAX => {
                return Err(DiskError::Busy);
            }
            Some(line) => {
                line.bytes += bytes;
                line.reads.push_back(read);
            }
            None => self.lines.push_back(Line {
                namespace,
                reads: VecDeque::from([read]),
                bytes,
            }),
        }
        self.len += 1;
        Ok(())
    }

    /// The next read. Its namespace has its next turn after all others.
    fn pop(&mut self) -> Option<Question> {
        let mut line = self.lines.pop_front()?;
        let (bytes, question) = line.reads.pop_front()?;
        self.len -= 1;
        line.bytes -= bytes;
        if !line.reads.is_empty() {
            self.lines.push_back(line);
        }
        Some(question)
    }
}

impl LongReads {
    /// Adds a read of a record of `bytes` bytes, unless too many wait, and wakes a thread for it.
    pub(crate) fn push(
        &self,
        namespace: u32,
        bytes: u64,
        question: Question,
    ) -> Result<(), DiskError> {
        self.waiting.lock().push(namespace, (bytes, question))?;
        self.filled.notify_one();
        Ok(())
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().len
    }

    /// Takes no more; what waits is not answered.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = Turns {
            is_closed: true,
            ..Turns::default()
        };
        self.filled.notify_all();
    }

    /// The next one, for a thread; waits for it. None once it is closed.
    pub(crate) fn take(&self) -> Option<Question> {
        let mut waiting = self.waiting.lock();
        while !waiting.is_closed {
            if let Some(question) = waiting.pop() {
                return Some(question);
            }
            self.filled.wait(&mut waiting);
        }
        None
    }
}

impl DiskTier {
    /// Reads a record of `len` bytes, on a thread for long reads. The newest record may be another
    /// one by then.
    pub(crate) async fn find_long(
        &self,
        space: Space,
        key: &[u8],
        len: u64,
    ) -> Result<DiskFound, DiskError> {
        let shared = &self.handle.shared;
        let key: Box<[u8]> = key.into();
        let (question, answered) = asked(with_room(move |shared: &Shared| {
            reader::find(shared, space, &key)
        }));
        shared
            .long_reads
            .push(space.namespace(), len, question)
            .inspect_err(|_| add(&shared.stats.reads_rejected, 1))?;
        let answer = relayed(answered).await.unwrap_or(Err(DiskError::Closed));
        answer.map(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read() -> Question {
        Box::new(|_| ())
    }

    /// The namespace of the read that is taken next, and the number of reads that its namespace
    /// has left.
    fn pop(turns: &mut Turns) -> Option<(u32, usize)> {
        let namespace = turns.lines.front()?.namespace;
        drop(turns.pop()?);
        let left = turns.lines.iter().find(|it| it.namespace == namespace);
        Some((namespace, left.map_or(0, |it| it.reads.len())))
    }

    #[test]
    fn namespaces_take_turns() {
        let mut turns = Turns::default();
        for namespace in [1, 1, 1, 2, 3, 3] {
            turns.push(namespace, (9, read())).unwrap();
        }
        assert_eq!(turns.len, 6);
        let popped: Vec<_> = std::iter::from_fn(|| pop(&mut turns)).collect();
        assert_eq!(popped, [(1, 2), (2, 0), (3, 1), (1, 1), (3, 0), (1, 0)]);
        assert_eq!(turns.len, 0);
    }

    #[test]
    fn one_namespace_cannot_take_the_room_of_others() {
        let mut turns = Turns::default();
        let (most, rest) = (NAMESPACE_BYTES_MAX - 5, 5);
        turns.push(1, (most, read())).unwrap();
        let busy = turns.push(1, (rest + 1, read()));
        assert!(matches!(busy, Err(DiskError::Busy)));
        turns.push(1, (rest, read())).unwrap();
        // One always may.
        turns.push(2, (2 * NAMESPACE_BYTES_MAX, read())).unwrap();
        assert_eq!(pop(&mut turns), Some((1, 1)));
        turns.push(1, (most, read())).unwrap();
    }

    #[test]
    fn when_many_wait_each_namespace_may_have_one() {
        let mut turns = Turns::default();
        for _ in 0..LONG_READS_MAX {
            turns.push(1, (1, read())).unwrap();
        }
        for namespace in [2, 3] {
            turns.push(namespace, (1, read())).unwrap();
        }
        for namespace in [1, 2, 3] {
            let busy = turns.push(namespace, (1, read()));
            assert!(matches!(busy, Err(DiskError::Busy)));
        }
    }

    #[test]
    fn what_is_closed_takes_nothing_and_gives_nothing() {
        let reads = LongReads::default();
        reads.push(1, 1, read()).unwrap();
        reads.close();
        assert_eq!(reads.len(), 0);
        assert!(reads.take().is_none());
        assert!(matches!(reads.push(1, 1, read()), Err(DiskError::Closed)));
    }
}
