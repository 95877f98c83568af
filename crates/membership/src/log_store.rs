//! Raft's log and vote: in memory to read, in the [`Journal`] to keep.
//!
//! Every write runs on the one thread of a pool and is on disk before it is acknowledged, so writes
//! keep their order.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;

use fonn_base::pool::{BlockingPool, run_blocking};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{AnyError, RaftLogReader, StorageIOError};
use parking_lot::Mutex;

use super::journal::{Contents, Journal, JournalError, Record};
use super::types::{Entry, LogId, RaftId, StorageError, TypeConfig, Vote};

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
}

impl LogStore {
    /// Opens the journal in `dir`; blocks. `pool` must have one thread.
    pub(super) fn open(dir: &Path, pool: BlockingPool) -> Result<Self, JournalError> {
        let (journal, contents) = Journal::open(dir)?;
        let shared = Shared {
            journal: Mutex::new(journal),
            contents: Mutex::new(contents),
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

    /// Runs `job` with the journal, off the reactor.
    async fn write(
        &self,
        job: impl FnOnce(&mut Journal, &Mutex<Contents>) -> Result<(), JournalError> + Send + 'static,
    ) -> Result<(), AnyError> {
        let shared = Arc::clone(&self.shared);
        let job = move || job(&mut shared.journal.lock(), &shared.contents);
        match run_blocking(&self.pool, job).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(AnyError::new(&error)),
            Err(error) => Err(AnyError::new(&error)),
        }
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
        let vote = *vote;
        let job = move |journal: &mut Journal, contents: &Mutex<Contents>| {
            journal.append(&[Record::Vote(vote)])?;
            contents.lock().vote = Some(vote);
            Ok(())
        };
        let written = self.write(job).await;
        written.map_err(|error| StorageIOError::write_vote(error).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.shared.contents.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let Some(committed) = committed else {
            return Ok(());
        };
        let job = move |journal: &mut Journal, contents: &Mutex<Contents>| {
            // Not worth a wait: it only says how much of the log may be applied before any member
            // is asked. A lower one than the true one costs nothing but an older map at the start.
            journal.append_lazily(&[Record::Committed(committed)])?;
            contents.lock().committed = Some(committed);
            Ok(())
        };
        let written = self.write(job).await;
        written.map_err(|error| StorageIOError::write(error).into())
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
        let entries: Vec<Entry> = entries.into_iter().collect();
        let job = move |journal: &mut Journal, contents: &Mutex<Contents>| {
            let records: Vec<Record> = entries.iter().cloned().map(Record::Entry).collect();
            journal.append(&records)?;
            let entries = entries.into_iter().map(|entry| (entry.log_id.index, entry));
            contents.lock().entries.extend(entries);
            Ok(())
        };
        match self.write(job).await {
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(error) => Err(StorageIOError::write_logs(error).into()),
        }
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let job = move |journal: &mut Journal, contents: &Mutex<Contents>| {
            journal.append(&[Record::Truncate(log_id.index)])?;
            contents.lock().entries.split_off(&log_id.index);
            Ok(())
        };
        let written = self.write(job).await;
        written.map_err(|error| StorageIOError::write_logs(error).into())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let job = move |journal: &mut Journal, contents: &Mutex<Contents>| {
            journal.append(&[Record::Purge(log_id)])?;
            let contents = {
                let mut contents = contents.lock();
                contents.entries = contents.entries.split_off(&log_id.index.saturating_add(1));
                contents.purged = Some(log_id);
                contents.clone()
            };
            journal.shrink(&contents)
        };
        let written = self.write(job).await;
        written.map_err(|error| StorageIOError::<RaftId>::write_logs(error).into())
    }
}
