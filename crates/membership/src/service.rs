//! The services on `--cluster-listen`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, VoteRequest,
};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use fonn_proto::grpc::v1;
use fonn_proto::grpc::v1::members_server::Members;
use fonn_proto::placement::rows;

use super::election::Voter;
use super::journal::SNAPSHOT_LEN_MAX;
use super::map::Map;
use super::member::MemberInfo;
use super::network::{json, parse};
use super::participant::Participant;
use super::state::Change;
use super::types::{LogId, TypeConfig};
use super::users;

/// A request of a member that has to be agreed on takes at most this long.
const CHANGE_DEADLINE: Duration = Duration::from_secs(3);

/// The services of one member.
#[derive(Clone, Debug)]
pub(super) struct Service(pub(super) Arc<Participant>);

#[tonic::async_trait]
impl Members for Service {
    type MapStream = Maps;

    async fn raft(
        &self,
        request: Request<v1::RaftRequest>,
    ) -> Result<Response<v1::RaftResponse>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check(request.ends.as_ref())?;
        let payload = match request.kind() {
            v1::RaftKind::Append => self.append(request).await?,
            v1::RaftKind::Vote => self.vote(request).await?,
            v1::RaftKind::PreVote => self.pre_vote(request).await?,
            v1::RaftKind::Snapshot => self.install_snapshot(request).await?,
            v1::RaftKind::Unspecified => {
                return Err(Status::invalid_argument("unknown kind of raft message"));
            }
        };
        Ok(Response::new(v1::RaftResponse { payload }))
    }

    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let mut request = request.into_inner();
        let cluster = self.0.identity.belonging().check_wanted(request.cluster)?;
        let info = info(&request)?;
        match self.0.leader() {
            Some((leader, _)) if leader == self.0.raft_id() => {
                let newest = request.newest_version;
                self.0.admit(info, newest, CHANGE_DEADLINE).await?;
            }
            Some((_, address)) if !request.forwarded => {
                request.forwarded = true;
                let peers = &self.0.peers;
                let joined = peers.call(&address, CHANGE_DEADLINE, |mut leader| async move {
                    leader.join(request).await
                });
                joined.await?;
            }
            _ => return Err(no_leader()),
        }
        Ok(Response::new(v1::JoinResponse { cluster }))
    }

    async fn propose(
        &self,
        request: Request<v1::ProposeRequest>,
    ) -> Result<Response<v1::ProposeResponse>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check_cluster(request.cluster)?;
        let change: Change = parse(request.version, &request.change)?;
        if change.is_unknown() {
            return Err(Status::invalid_argument(
                "this member, which was asked as the leader, does not know the change: upgrade it first",
            ));
        }
        if change.concerns_users() && self.0.options.tls.is_none() {
            // They would come into force with the first certificate.
            return Err(Status::failed_precondition(
                "users are agreed on by members that know each other by certificates: --tls-client-ca",
            ));
        }
        let epoch = self.0.propose_here(change, CHANGE_DEADLINE).await?;
        Ok(Response::new(v1::ProposeResponse { epoch }))
    }

    async fn ping(
        &self,
        request: Request<v1::PingRequest>,
    ) -> Result<Response<v1::PingResponse>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check(request.ends.as_ref())?;
        let from = request.ends.as_ref().map_or(0, |ends| ends.source);
        self.0.hear_version(from, request.version);
        let silence = self.0.state().down_after();
        let mut lease = self.0.lease.lock();
        lease.hear(&request, silence, Instant::now());
        drop(lease);
        // Only now: a member that notes no leader takes itself for cut off, and answers without a
        // lease. A refusal is no answer, so its lease ends.
        // A member whose raft has stopped (its disk failed) follows no map any more.
        if let Err(error) = self.0.metrics().running_state {
            return Err(Status::unavailable(error.to_string()));
        }
        if self.0.is_stalled() {
            let why = "the disk of this member does not answer";
            return Err(Status::unavailable(why));
        }
        let version = self.0.newest_version();
        Ok(Response::new(v1::PingResponse { version }))
    }

    async fn announce(
        &self,
        request: Request<v1::AnnounceRequest>,
    ) -> Result<Response<v1::AnnounceResponse>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check(request.ends.as_ref())?;
        self.0.hear_announcement(&request)?;
        Ok(Response::new(v1::AnnounceResponse {}))
    }

    async fn map(
        &self,
        request: Request<v1::MapRequest>,
    ) -> Result<Response<Self::MapStream>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check_wanted(request.cluster)?;
        // Hashes of passwords go only to callers that have proved to be members or routers by a
        // certificate.
        let with_users = request.with_users && self.0.options.tls.is_some();
        let maps = WatchStream::new(self.0.maps.clone()).map(drop);
        let users = WatchStream::new(self.0.states.clone()).map(drop);
        let (participant, mut told) = (Arc::clone(&self.0), (0, None));
        let next = move |()| {
            let map = participant.maps.borrow().clone();
            let state = participant.state();
            let now = (map.epoch, with_users.then_some(state.users_revision));
            if map.epoch == 0 || now == told {
                return None;
            }
            let has_new_users = with_users && now.1 != told.1;
            told = now;
            Some(Ok::<_, Status>(v1::ClusterMap {
                users: has_new_users.then(|| users::message(&state)),
                ..message(&map)
            }))
        };
        let participant = Arc::clone(&self.0);
        let closed = async move { participant.closed().await };
        let messages = maps.merge(users).filter_map(next);
        let until_closed: Maps = Box::pin(stream::StreamExt::take_until(messages, closed));
        Ok(Response::new(until_closed))
    }
}

/// Maps that are sent one after the other.
type Maps = Pin<Box<dyn Stream<Item = Result<v1::ClusterMap, Status>> + Send>>;

/// Messages of raft, and their answers as they are sent.
impl Service {
    async fn append(&self, request: v1::RaftRequest) -> Result<Vec<u8>, Status> {
        let append: AppendEntriesRequest<TypeConfig> = parse(request.version, &request.payload)?;
        let result = self.0.raft.append_entries(append).await;
        if matches!(&result, Ok(response) if !matches!(response, AppendEntriesResponse::HigherVote(_)))
        {
            self.0.hear_leader();
        }
        json(&result)
    }

    async fn vote(&self, request: v1::RaftRequest) -> Result<Vec<u8>, Status> {
        let mut vote: VoteRequest<u64> = parse(request.version, &request.payload)?;
        // Raft compares with all of the log, and is told what suffices where less is to be
        // defended. If the log grows meanwhile, it does not suffice any more.
        let last_log = self.0.log.last();
        if vote.last_log_id >= self.0.defended().await {
            vote.last_log_id = vote.last_log_id.max(last_log);
        }
        json(&self.0.raft.vote(vote).await)
    }

    async fn pre_vote(&self, request: v1::RaftRequest) -> Result<Vec<u8>, Status> {
        let candidate: Option<LogId> = parse(request.version, &request.payload)?;
        let voter = Voter {
            heard: self.0.heard(&self.0.metrics()),
            last_log: self.0.defended().await,
        };
        json(&voter.would_vote(candidate, Instant::now()))
    }

    async fn install_snapshot(&self, request: v1::RaftRequest) -> Result<Vec<u8>, Status> {
        let mut install: InstallSnapshotRequest<TypeConfig> =
            parse(request.version, &request.payload)?;
        install.data = request.data;
        // The offset becomes a length in memory.
        if install.offset.saturating_add(install.data.len() as u64) > SNAPSHOT_LEN_MAX as u64 {
            let why = format!("a snapshot is longer than {SNAPSHOT_LEN_MAX} bytes");
            return Err(Status::invalid_argument(why));
        }
        let vote = install.vote;
        let result = self.0.raft.install_snapshot(install).await;
        if matches!(&result, Ok(response) if response.vote <= vote) {
            self.0.hear_leader();
        }
        json(&result)
    }
}

fn no_leader() -> Status {
    Status::unavailable("the cluster has no leader at the moment: try again")
}

fn info(request: &v1::JoinRequest) -> Result<MemberInfo, Status> {
    let weight = u16::try_from(request.weight)
        .map_err(|_| Status::invalid_argument("the weight must be 0 to 65535"))?;
    let info = MemberInfo {
        id: request.id.clone(),
        raft_id: request.raft_id,
        client_address: request.client_address.clone(),
        cluster_address: request.cluster_address.clone(),
        zone: request.zone.clone(),
        weight,
        version: request.version.clone(),
    };
    info.validate().map_err(Status::invalid_argument)?;
    Ok(info)
}

/// A map as it is sent.
pub(super) fn message(map: &Map) -> v1::ClusterMap {
    v1::ClusterMap {
        cluster: map.cluster,
        epoch: map.epoch,
        replicas: map.replicas.into(),
        members: map.members.iter().map(Into::into).collect(),
        owners: rows::encode(map.owners.iter().copied()),
        users: None,
    }
}
