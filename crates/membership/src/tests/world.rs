//! Members in one process, each with its own directory, port and tasks.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fonn_base::device::DeviceWatch;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_proto::member::{Member, MemberState};
use fonn_replication::Status as SyncStatus;
use parking_lot::Mutex;
use tempfile::TempDir;

use super::faults::Links;
use crate::map::Map;
use crate::participant::Participant;
use crate::state::Change;
use crate::{ChangeError, Cluster, Options, Standing, Start, Status};

/// Everything ends long before; a machine under load is slow.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
/// How often unreported state is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(super) struct World {
    pub(super) links: Links,
    host: Ipv4Addr,
    dir: TempDir,
    /// Where members have their clients, by name: no client is served there.
    clients: Mutex<HashMap<String, TcpListener>>,
    /// The disks of the members' entries, by name.
    devices: Mutex<HashMap<String, Arc<DeviceWatch>>>,
}

pub(super) struct Node {
    pub(super) cluster: Cluster,
    pub(super) tasks: Tasks,
    id: String,
}

impl World {
    pub(super) fn new() -> Self {
        Self::at(1)
    }

    /// One of members that start again at the ports that they had: at an address of loopback that
    /// no other test has, so that no other process gets the port meanwhile.
    pub(super) fn at(host: u8) -> Self {
        Self {
            links: Links::default(),
            host: Ipv4Addr::new(127, 0, 0, host),
            dir: tempfile::tempdir().unwrap(),
            clients: Mutex::default(),
            devices: Mutex::default(),
        }
    }

    pub(super) fn dir(&self, id: &str) -> PathBuf {
        self.dir.path().join(id)
    }

    pub(super) fn device(&self, id: &str) -> Arc<DeviceWatch> {
        let mut devices = self.devices.lock();
        Arc::clone(devices.entry(id.to_owned()).or_default())
    }

    pub(super) fn options(&self, id: &str, start: Start) -> Options {
        let listen = SocketAddr::from((self.host, 0));
        let client_address = {
            let mut clients = self.clients.lock();
            let of = clients.entry(id.to_owned());
            let of = of.or_insert_with(|| TcpListener::bind("127.0.0.1:0").unwrap());
            of.local_addr().unwrap().to_string()
        };
        let mut options = Options::new(id, start, listen, &client_address, self.dir(id));
        // The times that are asserted are the default ones; this time is only waited for.
        options.detector.stable = Duration::from_secs(1);
        // Long enough that no member is replaced that stood still for a while.
        options.replace_voter_after = Duration::from_secs(20);
        options.faults = self.links.clone();
        options.device = Some(self.device(id));
        options
    }

    pub(super) async fn start(&self, options: Options) -> Node {
        let tasks = Tasks::new();
        let id = options.id.clone();
        let cluster = Cluster::start(options, &tasks).await.unwrap();
        let reports = report(cluster.clone(), id.clone());
        tasks.spawn("reports", OnShutdown::Abort, reports);
        Node { cluster, tasks, id }
    }

    pub(super) async fn found(&self, id: &str) -> Node {
        self.start(self.options(id, Start::Bootstrap)).await
    }

    pub(super) async fn join(&self, id: &str, at: &Node) -> Node {
        let start = Start::Join(vec![at.address()]);
        self.start(self.options(id, start)).await
    }

    /// A cluster of these members, all active, the first one founding it. The first three vote, if
    /// there are as many.
    pub(super) async fn form(&self, ids: &[&str]) -> Vec<Node> {
        let mut nodes = vec![self.found(ids[0]).await];
        for id in &ids[1..] {
            nodes.push(self.join(id, &nodes[0]).await);
            // The first ready member votes: each in its turn.
            nodes[0].sees(&[id], MemberState::Active).await;
            if nodes.len() == 3 {
                nodes[0].voters(&ids[..3]).await;
            }
        }
        for node in &nodes {
            node.sees(ids, MemberState::Active).await;
            // Until it knows that it belongs to a cluster it tells no client its map.
            node.status(|status| status.cluster != 0).await;
        }
        nodes
    }
}

/// Says of a member what its replication would if no member had any entries.
async fn report(cluster: Cluster, id: String) {
    let states = cluster.state();
    loop {
        let state = states.borrow().clone();
        let own = state.members.get(&id);
        if let Some(member) = own {
            let raft_id = member.info.raft_id;
            let applied = state.epoch;
            let change = match member.sync.status {
                SyncStatus::Down => Some(Change::Sync {
                    raft_id,
                    applied,
                    started: 1,
                }),
                SyncStatus::InSync if state.next.is_none() || member.sync.ready => None,
                SyncStatus::Syncing | SyncStatus::InSync => {
                    Some(Change::InSync { raft_id, applied })
                }
            };
            if let Some(change) = change {
                // It is tried again.
                let _ = cluster.propose(change, LOOK_EVERY * 50).await;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Node {
    pub(super) fn address(&self) -> String {
        self.cluster.participant.info.cluster_address.clone()
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Waits for a map.
    pub(super) async fn map(&self, wanted: impl Fn(&Map) -> bool) -> Arc<Map> {
        let mut maps = self.cluster.map();
        let found = tokio::time::timeout(PATIENCE, maps.wait_for(|map| wanted(map))).await;
        match found {
            Ok(map) => Arc::clone(&map.unwrap()),
            Err(_) => {
                let shown = |it: &Member| format!("{}: {:?}", it.id, it.state);
                let map = self.cluster.map().borrow().clone();
                let members: Vec<String> = map.members.iter().map(shown).collect();
                panic!("{} sees {members:?}, {:?}", self.id, self.cluster.status());
            }
        }
    }

    /// Waits until this member sees these members in that state.
    pub(super) async fn sees(&self, ids: &[&str], state: MemberState) -> Arc<Map> {
        let is_so = |map: &Map, id: &str| map.member(id).is_some_and(|it| it.state == state);
        self.map(|map| ids.iter().all(|id| is_so(map, id))).await
    }

    /// Waits for a status.
    pub(super) async fn status(&self, wanted: impl Fn(&Status) -> bool) -> Status {
        let mut metrics = self.cluster.participant.raft.metrics();
        let found = async {
            loop {
                metrics.borrow_and_update();
                let status = self.cluster.status();
                if wanted(&status) {
                    return status;
                }
                // Not all of it is told of there.
                let changed = tokio::time::timeout(LOOK_EVERY, metrics.changed()).await;
                if let Ok(changed) = changed {
                    changed.unwrap();
                }
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(status) => status,
            Err(_) => panic!("{}: {:?}", self.id, self.cluster.status()),
        }
    }

    /// Waits until it is agreed that exactly these vote. (While voters change, a majority
    /// of the old ones is needed too.)
    pub(super) async fn voters(&self, ids: &[&str]) {
        let is_settled = || {
            let metrics = self.cluster.participant.metrics();
            let stored = metrics.membership_config;
            let is_uniform = stored.membership().get_joint_config().len() == 1;
            is_uniform && metrics.last_applied >= *stored.log_id()
        };
        self.status(|status| {
            let mut voters = status.voters.clone();
            voters.sort();
            voters == ids && is_settled()
        })
        .await;
    }

    /// Waits until it stands so, by the newest map.
    pub(super) async fn standing(&self, wanted: impl Fn(Standing) -> bool) {
        let begun = Instant::now();
        loop {
            let standing = self.cluster.standing(u64::MAX);
            if wanted(standing) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{}: {standing:?}", self.id);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(super) async fn propose(&self, change: Change) -> Result<u64, ChangeError> {
        self.cluster.propose(change, PATIENCE).await
    }

    /// Stops without a word to the others, and waits until its directory is free.
    pub(super) async fn stop(self) {
        let participant: Weak<Participant> = Arc::downgrade(&self.cluster.participant);
        self.cluster.stop().await;
        let late = self.tasks.finish(Instant::now() + PATIENCE).await;
        assert_eq!(late, Vec::<&str>::new(), "{}", self.id);
        drop(self.cluster);
        let until = Instant::now() + PATIENCE;
        while participant.strong_count() > 0 {
            assert!(Instant::now() < until, "{} is still used", self.id);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Waits until all of them know that these vote.
pub(super) async fn voters(nodes: &[Node], ids: &[&str]) {
    for node in nodes {
        node.voters(ids).await;
    }
}

/// The position of the leader.
pub(super) async fn leader(nodes: &[Node]) -> usize {
    let begun = Instant::now();
    loop {
        let name = nodes[0].cluster.status().leader;
        let position = nodes
            .iter()
            .position(|node| Some(&node.id) == name.as_ref());
        // It may have lost the lead since, or not know of it yet.
        if let Some(position) = position.filter(|at| nodes[*at].cluster.status().is_leading) {
            return position;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody leads");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Does something; how long a leader was silent meanwhile at most, for any of these members.
pub(super) async fn watched<T>(nodes: &[&Node], work: impl Future<Output = T>) -> (T, Duration) {
    let mut silence_max = Duration::ZERO;
    // Between two looks the silence of a leader grows by no more than the time between them.
    let watching = async {
        let mut last = (Instant::now(), Duration::ZERO);
        loop {
            let silences = nodes.iter().map(|it| it.cluster.status().leader_silence);
            let silence = silences.max().unwrap_or_default();
            silence_max = silence_max.max(last.1 + last.0.elapsed()).max(silence);
            last = (Instant::now(), silence);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let done = tokio::select! {
        done = work => done,
        () = watching => panic!("it watches for ever"),
    };
    (done, silence_max)
}

pub(super) fn remove_dir(dir: &Path) {
    std::fs::remove_dir_all(dir).unwrap();
}
