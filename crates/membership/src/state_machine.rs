//! The state machine under raft: a [`State`] in memory, and its last snapshot in the journal.
//!
//! The next start applies the log behind the snapshot again, as far as it was known to hold. So a
//! member knows its last map before it reaches another member.

use std::collections::VecDeque;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use openraft::storage::RaftStateMachine;
use openraft::{AnyError, EntryPayload, OptionalSend, RaftSnapshotBuilder, StorageIOError};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::file_error::FileError;
use super::journal::{self, Record, StoredSnapshot};
use super::log_store::LogStore;
use super::minor_version::MinorVersion;
use super::state::{Outcome, State};
use super::types::{
    Entry, LogId, Snapshot, SnapshotMeta, StorageError, StoredMembership, TypeConfig,
};

/// States of past epochs that are kept for members that follow the map step by step.
const PAST_MAX: usize = 8;

/// The state machine of one participant; clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct StateMachine {
    shared: Arc<Mutex<Applied>>,
    published: Arc<watch::Sender<Arc<State>>>,
    past: Past,
    /// Where the snapshot is.
    log: LogStore,
    /// Of this software.
    version: MinorVersion,
}

/// The states of the last epochs, one each, with the range of versions that the epoch had last: a
/// reader of the newest alone may miss some.
#[derive(Clone, Debug, Default)]
pub(super) struct Past(Arc<Mutex<VecDeque<Arc<State>>>>);

impl Past {
    fn note(&self, state: &State) {
        let mut past = self.0.lock();
        match past.back_mut() {
            Some(last) if last.epoch == state.epoch => {
                if last.versions != state.versions {
                    Arc::make_mut(last).versions = state.versions;
                }
            }
            _ => {
                if past.len() == PAST_MAX {
                    past.pop_front();
                }
                past.push_back(Arc::new(state.clone()));
            }
        }
    }

    /// The states from an epoch on and before another one, in order, as far as they are known.
    pub(super) fn between(&self, from: u64, before: u64) -> Vec<Arc<State>> {
        let past = self.0.lock();
        let wanted = past.iter().filter(|it| (from..before).contains(&it.epoch));
        wanted.cloned().collect()
    }
}

/// The state and how far it is.
#[derive(Clone, Debug, Default)]
struct Applied {
    last: Option<LogId>,
    membership: StoredMembership,
    state: State,
}

impl StateMachine {
    /// Takes over the snapshot in the `log` of `dir` as software of `version`.
    pub(super) fn open(
        dir: &Path,
        log: LogStore,
        version: MinorVersion,
    ) -> Result<Self, FileError> {
        let applied = match log.snapshot() {
            None => Applied::default(),
            Some(stored) => {
                // Its checksum was right.
                let newer = |_| FileError::Newer {
                    path: dir.join(journal::NAME),
                };
                Applied {
                    last: stored.meta.last_log_id,
                    membership: stored.meta.last_membership,
                    state: read(&stored.state, version).map_err(newer)?,
                }
            }
        };
        let published = watch::Sender::new(Arc::new(applied.state.clone()));
        let past = Past::default();
        past.note(&applied.state);
        Ok(Self {
            shared: Arc::new(Mutex::new(applied)),
            published: Arc::new(published),
            past,
            log,
            version,
        })
    }

    /// The state after each batch of entries that was applied.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<State>> {
        self.published.subscribe()
    }

    /// The states of the last epochs.
    pub(super) fn past(&self) -> Past {
        self.past.clone()
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let applied = self.shared.lock();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut applied = self.shared.lock();
        let mut outcomes = Vec::new();
        for entry in entries {
            if let EntryPayload::Normal(change) = &entry.payload
                && change.is_unknown()
                && applied.state.lowest() > self.version
            {
                // By what was agreed on all members know it, so the others have made it.
                let why = "the cluster agreed on what this version does not know: start the newer one again";
                let why = AnyError::error(why);
                return Err(StorageIOError::apply(entry.log_id, why).into());
            }
            applied.last = Some(entry.log_id);
            outcomes.push(match entry.payload {
                EntryPayload::Normal(change) => {
                    let outcome = applied.state.apply(change);
                    self.past.note(&applied.state);
                    outcome
                }
                EntryPayload::Blank => unchanged(&applied.state),
                EntryPayload::Membership(membership) => {
                    applied.membership = StoredMembership::new(Some(entry.log_id), membership);
                    unchanged(&applied.state)
                }
            });
        }
        let state = &applied.state;
        self.published.send_if_modified(|published| {
            let is_new = **published != *state;
            if is_new {
                *published = Arc::new(state.clone());
            }
            is_new
        });
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::new(Cursor::new(Vec::new())))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let data = data.into_inner();
        let state = read(&data, self.version).map_err(|error| {
            StorageIOError::read_snapshot(Some(meta.signature()), AnyError::error(error))
        })?;
        let stored = StoredSnapshot {
            meta: meta.clone(),
            state: data,
        };
        self.log.write(vec![Record::Snapshot(stored)]).await?;
        let published = Arc::new(state.clone());
        *self.shared.lock() = Applied {
            last: meta.last_log_id,
            membership: meta.last_membership.clone(),
            state,
        };
        self.published.send_replace(published);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        Ok(self.log.snapshot().map(|stored| Snapshot {
            meta: stored.meta,
            snapshot: Box::new(Cursor::new(stored.state)),
        }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        let applied = self.shared.lock().clone();
        let state = serde_json::to_vec(&applied.state)
            .map_err(|error| StorageIOError::read_state_machine(AnyError::new(&error)))?;
        let position = applied.last.map_or(0, |log_id| log_id.index);
        let term = applied.last.map_or(0, |log_id| log_id.leader_id.term);
        let meta = SnapshotMeta {
            last_log_id: applied.last,
            last_membership: applied.membership,
            // Unique: what is applied up to a log id is the same everywhere.
            snapshot_id: format!("{term}-{position}"),
        };
        let stored = StoredSnapshot {
            meta: meta.clone(),
            state: state.clone(),
        };
        self.log.write(vec![Record::Snapshot(stored)]).await?;
        Ok(Snapshot {
            meta,
            snapshot: Box::new(Cursor::new(state)),
        })
    }
}

/// The state that a snapshot has the JSON of, if software of that version understands all of it.
fn read(json: &[u8], version: MinorVersion) -> Result<State, String> {
    let state: State = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if state.needs > version {
        let needs = state.needs;
        return Err(format!(
            "the cluster needs version {needs} or newer, not {version}"
        ));
    }
    Ok(state)
}

/// The answer to an entry that is not a change.
fn unchanged(state: &State) -> Outcome {
    Outcome::Applied { epoch: state.epoch }
}
