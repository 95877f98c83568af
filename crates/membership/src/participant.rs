//! What the tasks and services of one member share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::ServerState;
use openraft::error::{ClientWriteError, RaftError};
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Status};

use fonn_base::hlc::{COUNTER_BITS, Hlc};
use fonn_base::pool::BlockingPool;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_proto::grpc::v1::ProposeRequest;

use super::detector::Detector;
use super::election::defended;
use super::identity::Identity;
use super::journal::CHANGE_LEN_MAX;
use super::lease::{Grants, Lease};
use super::log_store::LogStore;
use super::map::Map;
use super::member::MemberInfo;
use super::network::{PAYLOAD_VERSION, json};
use super::peers::Peers;
use super::reports::Reports;
use super::state::{Change, Outcome, Refusal, State};
use super::state_machine::Past;
use super::types::{LogId, Metrics, Raft, RaftId};
use super::{ChangeError, Options};

/// How far a ceiling of versions may be above the newest version that is believed: further than the
/// leader extends the range at a time.
const CEILING_MARGIN: u64 = 60_000 << COUNTER_BITS;
/// Wait before the leader is looked for again.
const LEADER_WAIT: Duration = Duration::from_millis(100);
/// A leader that a majority has answered within this time decides and promises. Past it, it may be
/// cut off.
pub(super) const QUORUM_FRESH: Duration = Duration::from_secs(1);

/// A write that waits for this part of the silence after which a member is down has stalled: both
/// together fit into the time in which a lost member is noticed.
const STALL_PART: u32 = 2;

/// One member: its raft participant and what is known around it.
pub(super) struct Participant {
    pub(super) options: Options,
    /// What it says of itself.
    pub(super) info: MemberInfo,
    pub(super) identity: Identity,
    pub(super) raft: Raft,
    /// What raft tells of itself.
    pub(super) reports: Mutex<Reports>,
    pub(super) log: LogStore,
    pub(super) pool: BlockingPool,
    pub(super) states: watch::Receiver<Arc<State>>,
    pub(super) maps: watch::Receiver<Arc<Map>>,
    pub(super) past: Past,
    pub(super) peers: Peers,
    /// Locked before the grants, where both are.
    pub(super) detector: Mutex<Detector>,
    /// What it promises while it leads.
    pub(super) grants: Mutex<Grants>,
    /// What it is promised.
    pub(super) lease: Mutex<Lease>,
    /// When a leader was last heard.
    pub(super) heard: watch::Sender<Instant>,
    /// Whether the last answer to its request to be admitted was a refusal.
    pub(super) is_refused: watch::Sender<bool>,
    /// Set when the member stops.
    pub(super) closing: watch::Sender<bool>,
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Participant")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Participant {
    /// What raft reported last; the time since a majority answered includes the age of that.
    pub(super) fn metrics(&self) -> Metrics {
        self.reports.lock().look(Instant::now())
    }

    /// Whether a write has waited for a disk of this member for too long. The member refuses probes
    /// then, so that it is declared down like a silent member. A disk that is full or fails gives
    /// an answer, and has not stalled.
    pub(super) fn is_stalled(&self) -> bool {
        let limit = self.state().down_after() / STALL_PART;
        let device = self.options.device.as_deref();
        self.log.has_waited(limit) || device.is_some_and(|device| device.has_waited(limit))
    }

    /// Whether another voter is to lead, because this member has stalled.
    pub(super) fn gives_way(&self, metrics: &Metrics) -> bool {
        let membership = metrics.membership_config.membership();
        let has_other = membership.voter_ids().any(|id| id != self.raft_id());
        has_other && self.is_stalled()
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.states.borrow())
    }

    pub(super) const fn raft_id(&self) -> RaftId {
        self.identity.belonging().raft_id()
    }

    /// The other members, with their addresses.
    pub(super) fn others(&self) -> BTreeMap<RaftId, String> {
        let state = self.state();
        let others = state
            .members
            .values()
            .filter(|it| it.info.raft_id != self.raft_id());
        others
            .map(|it| (it.info.raft_id, it.info.cluster_address.clone()))
            .collect()
    }

    /// Starts a task that runs until the member stops.
    pub(super) fn run(
        self: &Arc<Self>,
        tasks: &Tasks,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let participant = Arc::clone(self);
        let until_closed = async move {
            tokio::select! {
                () = task => {}
                () = participant.closed() => {}
            }
        };
        tasks.spawn(name, OnShutdown::Abort, until_closed);
    }

    /// Waits until the member stops.
    pub(super) async fn closed(&self) {
        // An error means the same: no receiver is left to close it.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Notes that a leader was heard.
    pub(super) fn hear_leader(&self) {
        self.heard.send_replace(Instant::now());
    }

    /// When this member last heard a leader; now, if it is one itself that a majority follows.
    pub(super) fn heard(&self, metrics: &Metrics) -> Instant {
        match leads(metrics) {
            true => Instant::now(),
            false => *self.heard.borrow(),
        }
    }

    /// The newest version that this member knows of; 0 if it gives none.
    pub(super) fn newest_version(&self) -> u64 {
        let versions = self.options.versions.as_ref();
        versions.map_or(0, |versions| versions.newest())
    }

    /// Another member tells how far its versions are: a flush that is not finished must hide no
    /// later write of a member with a slower clock.
    pub(super) fn hear_version(&self, from: RaftId, version: u64) {
        let Some(versions) = &self.options.versions else {
            return;
        };
        if let Err(error) = versions.hear(version) {
            tracing::warn!(from, %error, "a member tells an impossible version");
        }
    }

    /// The end of its log, as far as its vote defends it.
    pub(super) async fn defended(&self) -> Option<LogId> {
        let (own, last_log) = (self.raft_id(), self.log.last());
        let known = self.raft.with_raft_state(move |state| {
            let known = &state.membership_state;
            let is_voter = known.effective().voter_ids().any(|id| id == own);
            defended(is_voter, last_log, *known.committed().log_id())
        });
        // An error means that raft has stopped, and votes no more.
        known.await.unwrap_or(last_log)
    }

    /// Raft id and address of the leader, if one is known.
    pub(super) fn leader(&self) -> Option<(RaftId, String)> {
        let metrics = self.metrics();
        let leader = metrics.current_leader?;
        let node = metrics.membership_config.membership().get_node(&leader)?;
        Some((leader, node.addr.clone()))
    }

    /// Changes what members agree on, through the leader, wherever it is.
    ///
    /// # Errors
    /// [`ChangeError::Refused`] for good; [`ChangeError::Unavailable`] if no leader took it within
    /// `deadline`, and it may or may not happen yet.
    pub(super) async fn propose(
        &self,
        change: Change,
        deadline: Duration,
    ) -> Result<u64, ChangeError> {
        let until = Instant::now() + deadline;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let why = match self.propose_once(&change, left).await {
                Err(ChangeError::Unavailable(why)) => why,
                done => return done,
            };
            // All changes can be made twice, so it is safe to ask again without having an answer.
            if until.saturating_duration_since(Instant::now()) <= LEADER_WAIT {
                return Err(ChangeError::Unavailable(why));
            }
            tokio::time::sleep(LEADER_WAIT).await;
        }
    }

    async fn propose_once(&self, change: &Change, left: Duration) -> Result<u64, ChangeError> {
        match self.leader() {
            None => Err(ChangeError::no_leader()),
            Some((id, _)) if id == self.raft_id() => self.propose_here(change.clone(), left).await,
            Some((_, address)) => {
                let request = ProposeRequest {
                    cluster: self.identity.belonging().cluster(),
                    version: PAYLOAD_VERSION,
                    change: json(change).map_err(refused_or_unavailable)?,
                };
                let call = self.peers.call(&address, left, |mut leader| async move {
                    leader.propose(request).await
                });
                let answer = call.await;
                Ok(answer.map_err(refused_or_unavailable)?.epoch)
            }
        }
    }

    /// Changes what members agree on, as the leader.
    pub(super) async fn propose_here(
        &self,
        change: Change,
        deadline: Duration,
    ) -> Result<u64, ChangeError> {
        if self.gives_way(&self.metrics()) {
            return Err(ChangeError::Unavailable(
                "the disk of the leader does not answer".to_owned(),
            ));
        }
        self.propose_at_once(change, deadline).await
    }

    /// The same, whether or not this member has stalled: an error
    /// [`Unavailable`](ChangeError::Unavailable) of a leader means that it may happen yet.
    pub(super) async fn propose_at_once(
        &self,
        change: Change,
        deadline: Duration,
    ) -> Result<u64, ChangeError> {
        // Not only when it is applied: a member may be older than what it says of itself, and is
        // not to find in its log what it does not know.
        let known = self.state().check_known(&change);
        known.map_err(|refusal| ChangeError::Refused(refusal.to_string()))?;
        // Raft stops at a change that no record can have, and so would the next leader.
        let len = json(&change).map_err(refused_or_unavailable)?.len();
        if len > CHANGE_LEN_MAX {
            let why = format!("the change has {len} bytes, at most {CHANGE_LEN_MAX} are possible");
            return Err(ChangeError::Refused(why));
        }
        if let Change::Sync { raft_id, .. } = &change {
            self.check_return(*raft_id)?;
        }
        if let Change::ExtendVersions { ceiling } = &change {
            self.check_ceiling(*ceiling)?;
        }
        let written = tokio::time::timeout(deadline, self.raft.client_write(change)).await;
        if matches!(written, Ok(Ok(_))) {
            // Followers learn with the next message what was agreed on: not only with the next
            // heartbeat that is due. An error means that raft has stopped, and was told above or
            // will be.
            let _ = self.raft.trigger().heartbeat().await;
        }
        match written {
            Err(_) => Err(ChangeError::Unavailable(format!(
                "no majority of the voters agreed within {deadline:?}"
            ))),
            Ok(Ok(written)) => match written.data {
                Outcome::Applied { epoch } => Ok(epoch),
                Outcome::Refused(refusal @ Refusal::Stale) => {
                    Err(ChangeError::Stale(refusal.to_string()))
                }
                Outcome::Refused(refusal) => Err(ChangeError::Refused(refusal.to_string())),
            },
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                Err(ChangeError::no_leader())
            }
            Ok(Err(error)) => Err(ChangeError::Unavailable(error.to_string())),
        }
    }

    /// Refuses, as the leader, the return of a member that has not answered for long enough, that
    /// is to be removed, or whose client address another member has. The member asks again and
    /// again, and the log is to have no entry for each request.
    fn check_return(&self, raft_id: RaftId) -> Result<(), ChangeError> {
        let state = self.state();
        let Some(member) = state.by_raft_id(raft_id) else {
            return Ok(());
        };
        let allowed = state.check_return(member);
        allowed.map_err(|refusal| ChangeError::Refused(refusal.to_string()))?;
        // A member that has just joined has not failed.
        if member.has_failed()
            && raft_id != self.raft_id()
            && self.detector.lock().is_down(raft_id, true, Instant::now())
        {
            let id = &member.info.id;
            let why = format!("member {id} has not answered for long enough yet");
            return Err(ChangeError::Unavailable(why));
        }
        Ok(())
    }

    /// Takes a member in, as the leader. The name of a member that answers goes to no other
    /// process: neither to one with another disk, nor to one elsewhere with a copy of the disk.
    ///
    /// # Errors
    /// A status for the caller.
    pub(super) async fn admit(
        &self,
        info: MemberInfo,
        newest_version: u64,
        deadline: Duration,
    ) -> Result<(), Status> {
        let state = self.state();
        self.make_room_for(newest_version, deadline).await?;
        if let Some(member) = state.members.get(&info.id)
            && (member.info.raft_id != info.raft_id
                || member.info.cluster_address != info.cluster_address)
        {
            let old = member.info.raft_id;
            let silence = self.detector.lock().silence(old, Instant::now());
            let silence_max = state.down_after();
            let grants = &self.grants;
            let may_fall = grants.lock().may_fall(old, silence_max, Instant::now());
            let is_alive = silence.is_some_and(|it| it < silence_max) || !may_fall;
            if is_alive || old == self.raft_id() {
                let why = format!(
                    "node {:?} runs at {}: stop it, or give this one another --node-id",
                    info.id, member.info.cluster_address
                );
                return Err(Status::already_exists(why));
            }
        }
        let joined = self.propose_here(Change::Join(info), deadline).await;
        joined.map(|_| ()).map_err(Into::into)
    }

    /// Refuses, as the leader, a ceiling that would use up the range of versions.
    fn check_ceiling(&self, ceiling: u64) -> Result<(), ChangeError> {
        let admits = |versions: &Arc<Hlc>| versions.admits(ceiling.saturating_sub(CEILING_MARGIN));
        if self.options.versions.as_ref().is_none_or(admits) {
            return Ok(());
        }
        Err(ChangeError::Refused(
            "the versions are more than a year ahead of the clock: correct the clocks of the members"
                .to_owned(),
        ))
    }

    /// Extends the range of versions past those that are on the disk of a joining member. What
    /// others write by the next epoch is above them.
    async fn make_room_for(&self, version: u64, deadline: Duration) -> Result<(), Status> {
        if version < self.state().versions.ceiling {
            return Ok(());
        }
        let ceiling = version.saturating_add(1);
        let change = Change::ExtendVersions { ceiling };
        self.propose_here(change, deadline).await?;
        Ok(())
    }
}

/// Whether it is a leader that a majority followed a moment ago.
pub(super) fn leads(metrics: &Metrics) -> bool {
    let fresh = |millis| Duration::from_millis(millis) <= QUORUM_FRESH;
    metrics.state == ServerState::Leader && metrics.millis_since_quorum_ack.is_some_and(fresh)
}

fn refused_or_unavailable(status: Status) -> ChangeError {
    let why = status.message().to_owned();
    match status.code() {
        Code::FailedPrecondition | Code::InvalidArgument => ChangeError::Refused(why),
        Code::Aborted => ChangeError::Stale(why),
        _ => ChangeError::Unavailable(why),
    }
}
