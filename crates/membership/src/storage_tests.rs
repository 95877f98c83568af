//! openraft's own conformance suite, and what it does not cover.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use fonn_base::pool::BlockingPool;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{BasicNode, CommittedLeaderId, EntryPayload, RaftLogReader, RaftSnapshotBuilder};
use tempfile::TempDir;

use super::file_error::FileError;
use super::journal::{Record, StoredSnapshot};
use super::log_store::LogStore;
use super::member::MemberInfo;
use super::minor_version::MinorVersion;
use super::state::Change;
use super::state_machine::StateMachine;
use super::types::{Entry, LogId, StorageError, TypeConfig, Vote};

fn pool() -> BlockingPool {
    BlockingPool::new("raft-test", NonZeroUsize::MIN, 64).unwrap()
}

fn open(dir: &Path) -> (LogStore, StateMachine) {
    let log = LogStore::open(dir, pool()).unwrap();
    let machine = StateMachine::open(dir, log.clone(), MinorVersion(0, 1)).unwrap();
    (log, machine)
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError> {
        let dir = tempfile::tempdir().unwrap();
        let (log, machine) = open(dir.path());
        Ok((dir, log, machine))
    }
}

#[test]
fn the_suite_of_openraft_passes() {
    Suite::test_all(Builder).unwrap();
}

fn log_id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(2, 5), index)
}

fn form() -> Entry {
    let founder = MemberInfo {
        id: "a".to_owned(),
        raft_id: 5,
        client_address: "127.0.0.1:1".to_owned(),
        cluster_address: "127.0.0.1:2".to_owned(),
        zone: "z".to_owned(),
        weight: 1,
        version: String::new(),
    };
    Entry {
        log_id: log_id(0),
        payload: EntryPayload::Normal(Change::Form {
            cluster: 3,
            founder,
            version: 0,
            down_after_ms: 1500,
        }),
    }
}

fn replicas(index: u64, replicas: u8) -> Entry {
    Entry {
        log_id: log_id(index),
        payload: EntryPayload::Normal(Change::SetReplicas(replicas)),
    }
}

#[tokio::test]
async fn log_vote_and_committed_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let vote = Vote::new_committed(2, 5);
    {
        let (mut log, _) = open(dir.path());
        log.save_vote(&vote).await.unwrap();
        let entries = [form(), replicas(1, 2), replicas(2, 3), replicas(3, 1)];
        log.blocking_append(entries).await.unwrap();
        log.truncate(log_id(3)).await.unwrap();
        log.purge(log_id(0)).await.unwrap();
        log.save_committed(Some(log_id(2))).await.unwrap();
    }
    let (mut log, _) = open(dir.path());
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    assert_eq!(log.read_committed().await.unwrap(), Some(log_id(2)));
    let state = log.get_log_state().await.unwrap();
    assert_eq!(
        (state.last_purged_log_id, state.last_log_id),
        (Some(log_id(0)), Some(log_id(2)))
    );
    let entries = log.try_get_log_entries(0..9).await.unwrap();
    assert_eq!(entries, [replicas(1, 2), replicas(2, 3)]);
}

#[tokio::test]
async fn the_state_is_what_the_snapshot_says_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (_, mut machine) = open(dir.path());
        machine.apply([form(), replicas(1, 2)]).await.unwrap();
        machine.build_snapshot().await.unwrap();
        machine.apply([replicas(2, 3)]).await.unwrap();
        assert_eq!(machine.subscribe().borrow().replicas, 3);
    }
    let (_, mut machine) = open(dir.path());
    assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(1)));
    assert_eq!(machine.subscribe().borrow().replicas, 2);
}

#[tokio::test]
async fn a_snapshot_that_comes_late_replaces_no_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    let (log, mut machine) = open(dir.path());
    machine.apply([form(), replicas(1, 2)]).await.unwrap();
    machine.build_snapshot().await.unwrap();
    let older = log.snapshot().unwrap();
    machine.apply([replicas(2, 3)]).await.unwrap();
    machine.build_snapshot().await.unwrap();
    let newer = log.snapshot();
    log.write(vec![Record::Snapshot(older)]).await.unwrap();
    assert_eq!(log.snapshot(), newer);
    drop((log, machine));
    // Also after a restart.
    let (_, mut machine) = open(dir.path());
    assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(2)));
    assert_eq!(machine.subscribe().borrow().replicas, 3);
}

#[tokio::test]
async fn a_batch_of_entries_leaves_the_state_of_each_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let (_, mut machine) = open(dir.path());
    let past = machine.past();
    let changes = (1..=9).map(|index| replicas(index, 1 + index as u8 % 2));
    machine
        .apply(std::iter::once(form()).chain(changes))
        .await
        .unwrap();
    let newest = machine.subscribe().borrow().epoch;
    let between = |from, before| -> Vec<(u64, u8)> {
        let states = past.between(from, before);
        states.iter().map(|it| (it.epoch, it.replicas)).collect()
    };
    assert_eq!(between(newest, newest), []);
    let replicas = |epoch| 1 + (epoch + 1) as u8 % 2;
    let last = [newest - 2, newest - 1].map(|epoch| (epoch, replicas(epoch)));
    assert_eq!(between(newest - 2, newest), last);
    let all = between(0, newest + 1);
    assert_eq!(all.len(), 8, "earlier ones are not known any more");
    let ceiling = 1 << 60;
    let extend = Entry {
        log_id: log_id(10),
        payload: EntryPayload::Normal(Change::ExtendVersions { ceiling }),
    };
    machine.apply([extend]).await.unwrap();
    let states = past.between(newest, newest + 1);
    assert_eq!(states[0].versions.ceiling, ceiling);
}

#[tokio::test]
async fn an_installed_snapshot_replaces_state_and_file() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, mut source) = open(from.path());
    source.apply([form(), replicas(1, 3)]).await.unwrap();
    let snapshot = source.build_snapshot().await.unwrap();
    {
        let (_, mut machine) = open(to.path());
        let states = machine.subscribe();
        machine
            .install_snapshot(&snapshot.meta, snapshot.snapshot)
            .await
            .unwrap();
        assert_eq!(*states.borrow(), *source.subscribe().borrow());
    }
    let (_, machine) = open(to.path());
    assert_eq!(machine.subscribe().borrow().replicas, 3);
}

#[tokio::test]
async fn a_snapshot_that_is_none_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, mut machine) = open(dir.path());
    machine.apply([form()]).await.unwrap();
    let before = Arc::clone(&machine.subscribe().borrow());
    let mut snapshot = machine.build_snapshot().await.unwrap();
    *snapshot.snapshot = std::io::Cursor::new(b"{\"cluster\": -1}".to_vec());
    machine
        .install_snapshot(&snapshot.meta, snapshot.snapshot)
        .await
        .unwrap_err();
    assert_eq!(*machine.subscribe().borrow(), before);
}

fn unknown(index: u64) -> Entry {
    let change = serde_json::from_str(r#"{"Paint":"red"}"#).unwrap();
    Entry {
        log_id: log_id(index),
        payload: EntryPayload::Normal(change),
    }
}

fn join(index: u64, version: &str) -> Entry {
    let EntryPayload::Normal(Change::Form { founder, .. }) = form().payload else {
        panic!("the founder");
    };
    let info = MemberInfo {
        version: version.to_owned(),
        ..founder
    };
    Entry {
        log_id: log_id(index),
        payload: EntryPayload::Normal(Change::Join(info)),
    }
}

#[tokio::test]
async fn an_unknown_change_is_passed_over_while_others_refuse_it_and_else_nothing_is_applied_any_more()
 {
    let dir = tempfile::tempdir().unwrap();
    let (_, mut machine) = open(dir.path());
    machine.apply([form(), join(1, "0.1.0")]).await.unwrap();
    let state = machine.subscribe();
    let before = Arc::clone(&state.borrow());
    machine.apply([unknown(2)]).await.unwrap();
    assert_eq!(*state.borrow(), before);
    assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(2)));
    // It said so, and was started as an older one since.
    machine.apply([join(3, "0.2.0")]).await.unwrap();
    let before = Arc::clone(&state.borrow());
    let stopped = machine
        .apply([unknown(4), replicas(5, 3)])
        .await
        .unwrap_err();
    assert!(
        stopped.to_string().contains("start the newer one again"),
        "{stopped}"
    );
    assert_eq!(*state.borrow(), before);
    assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(3)));
}

#[tokio::test]
async fn a_snapshot_that_needs_a_newer_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (log, mut machine) = open(dir.path());
    machine.apply([form()]).await.unwrap();
    let snapshot = machine.build_snapshot().await.unwrap();
    let mut state = (**machine.subscribe().borrow()).clone();
    state.needs = MinorVersion(0, 2);
    state.replicas = 3;
    let newer = serde_json::to_vec(&state).unwrap();
    let refused = machine
        .install_snapshot(
            &snapshot.meta,
            Box::new(std::io::Cursor::new(newer.clone())),
        )
        .await;
    assert!(refused.unwrap_err().to_string().contains("0.2 or newer"));
    assert_eq!(machine.subscribe().borrow().replicas, 1);
    for state in [newer, b"{\"phases\":7}".to_vec()] {
        let meta = snapshot.meta.clone();
        let snapshot = StoredSnapshot { meta, state };
        log.write(vec![Record::Snapshot(snapshot)]).await.unwrap();
        let opened = StateMachine::open(dir.path(), log.clone(), MinorVersion(0, 1));
        assert!(matches!(opened, Err(FileError::Newer { .. })), "{opened:?}");
    }
}

#[test]
fn entries_keep_their_encoding() {
    let nodes = std::collections::BTreeMap::from([(5, BasicNode::new("h:1"))]);
    let membership = openraft::Membership::new(vec![std::iter::once(5).collect()], nodes);
    let entry = Entry {
        log_id: log_id(7),
        payload: EntryPayload::Membership(membership),
    };
    let json = r#"{"log_id":{"leader_id":{"term":2,"node_id":5},"index":7},"payload":{"Membership":{"configs":[[5]],"nodes":{"5":{"addr":"h:1"}}}}}"#;
    assert_eq!(serde_json::to_string(&entry).unwrap(), json);
    assert_eq!(serde_json::from_str::<Entry>(json).unwrap(), entry);
    let json = r#"{"log_id":{"leader_id":{"term":2,"node_id":5},"index":1},"payload":{"Normal":{"SetReplicas":2}}}"#;
    assert_eq!(serde_json::to_string(&replicas(1, 2)).unwrap(), json);
}
