//! Raft's log, vote and snapshot: in memory to read, in the [`Journal`] to keep.
//!
//! Every write runs on the one thread of a pool and is on disk before it is acknowledged, so writes
//! keep their order.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fonn_base::device::DeviceWatch;
use fonn_base::pool::{BlockingPool, run_blocking};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{AnyError, RaftLogReader, StorageIOError};
use parking_lot::Mutex;

use super::file_error::FileError;
use super::journal::{Contents, Journal, Record, StoredSnapshot};
use super::types::{Entry, LogId, StorageError, TypeConfig, Vote};

/// Most bytes of entries in one message to another member; a first entry goes alone if it is
/// longer.
const BATCH_LEN_MAX: usize = 1 << 20;

/// The log of one participant; clones are the same log.
#[derive(Clone, Debug)]
pub(super) struct LogStore {
    shared: Arc<Shared>,
    pool: BlockingPool,
}

#[derive(Debug)]
struct Shared {
    journal: Mutex<Journal>,
    contents: Mutex<Contents>,
    /// The writes, from when they are asked for.
    device: DeviceWatch,
}

impl LogStore {
    /// Opens the journal in `dir`; blocks. `pool` must have one thread.
    pub(super) fn open(dir: &Path, pool: BlockingPool) -> Result<Self, FileError> {
        let (journal, contents) = Journal::open(dir)?;
        let shared = Shared {
            journal: Mutex::new(journal),
            contents: Mutex::new(contents),
            device: DeviceWatch::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            pool,
        })
    }

    /// The end of the log.
    pub(super) fn last(&self) -> Option<LogId> {
        self.shared.contents.lock().last()
    }

    /// The last snapshot, if there is one.
    pub(super) fn snapshot(&self) -> Option<StoredSnapshot> {
        self.shared.contents.lock().snapshot.clone()
    }

    /// Whether a write has waited for the disk for as long as `limit`, and still does.
    pub(super) fn has_waited(&self, limit: Duration) -> bool {
        self.shared.device.has_waited(limit)
    }

    /// Appends records to the journal, off the reactor, and then takes them in.
    pub(super) async fn write(&self, records: Vec<Record>) -> Result<(), StorageError> {
        // The thread may not have come to the write yet.
        let _call = self.shared.device.begin(0);
        let shared = Arc::clone(&self.shared);
        let job = move || -> Result<(), FileError> {
            let mut journal = shared.journal.lock();
            journal.append(&records)?;
            let purges = records.iter().any(|it| matches!(it, Record::Purge(_)));
            let purged = {
                let mut contents = shared.contents.lock();
                records.into_iter().for_each(|record| contents.put(record));
                purges.then(|| contents.clone())
            };
            purged.map_or(Ok(()), |contents| journal.shrink(&contents))
        };
        let error = match run_blocking(&self.pool, job).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => AnyError::new(&error),
            Err(error) => AnyError::new(&error),
        };
        Err(StorageIOError::write(error).into())
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, StorageError> {
        let contents = self.shared.contents.lock();
        Ok(contents
            .entries
            .range(range)
            .map(|(_, it)| it.clone())
            .collect())
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        let contents = self.shared.contents.lock();
        let mut bytes = 0;
        let mut entries = Vec::new();
        for (_, entry) in contents.entries.range(start..end) {
            // The length is only estimated by what the entry takes in the log.
            bytes += serde_json::to_vec(entry).map_or(0, |json| json.len());
            if bytes > BATCH_LEN_MAX && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let contents = self.shared.contents.lock();
        Ok(LogState {
            last_purged_log_id: contents.purged,
            last_log_id: contents.last(),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        self.write(vec![Record::Vote(*vote)]).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.shared.contents.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let records = committed.map(Record::Committed);
        self.write(records.into_iter().collect()).await
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        let contents = self.shared.contents.lock();
        // After a loss of power the log may end before it.
        Ok(contents.committed.min(contents.last()))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<TypeConfig>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let records = entries.into_iter().map(Record::Entry).collect();
        self.write(records).await?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.write(vec![Record::Truncate(log_id.index)]).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.write(vec![Record::Purge(log_id)]).await
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::thread;

    use super::*;

    #[test]
    fn a_write_that_does_not_return_is_seen_until_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let pool = BlockingPool::new("test", NonZeroUsize::MIN, 8).unwrap();
        let log = LogStore::open(dir.path(), pool).unwrap();
        assert!(!log.has_waited(Duration::ZERO));
        // What a disk that does not answer does to the thread of the pool.
        let stalled = log.shared.journal.lock();
        let written = {
            let log = log.clone();
            thread::spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let written = log.write(vec![Record::Vote(Vote::new(1, 5))]);
                runtime.build().unwrap().block_on(written).is_ok()
            })
        };
        while !log.has_waited(Duration::ZERO) {
            thread::yield_now();
        }
        assert!(!log.has_waited(Duration::from_secs(3600)));
        drop(stalled);
        assert!(written.join().unwrap());
        assert!(!log.has_waited(Duration::ZERO));
    }
}
