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
use fonn_proto::grpc::v1::raft_server::Raft;
use fonn_proto::placement::rows;

use super::election::Voter;
use super::map::Map;
use super::member::MemberInfo;
use super::network::{json, parse};
use super::participant::{Participant, client};
use super::snapshot;
use super::state::Change;
use super::types::{LogId, TypeConfig};
use super::users;

/// A request of a member that has to be agreed on takes at most this long.
const CHANGE_DEADLINE: Duration = Duration::from_secs(3);

/// The services of one member.
#[derive(Clone, Debug)]
pub(super) struct Service(pub(super) Arc<Participant>);

#[tonic::async_trait]
impl Raft for Service {
    async fn append(
        &self,
        request: Request<v1::RaftRequest>,
    ) -> Result<Response<v1::RaftResponse>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check(request.ends.as_ref())?;
        let append: AppendEntriesRequest<TypeConfig> = parse(request.version, &request.payload)?;
        let result = self.0.raft.append_entries(append).await;
        if matches!(&result, Ok(response) if !matches!(response, AppendEntriesResponse::HigherVote(_)))
        {
            self.0.hear_leader();
        }
        answer(&result)
    }

    async fn vote(
        &self,
        request: Request<v1::RaftRequest>,
    ) -> Result<Response<v1::RaftResponse>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check(request.ends.as_ref())?;
        let mut vote: VoteRequest<u64> = parse(request.version, &request.payload)?;
        // Raft compares with all of the log, and is told what suffices where less is to be
        // defended. If the log grows meanwhile, it does not suffice any more.
        let last_log = self.0.log.last();
        if vote.last_log_id >= self.0.defended().await {
            vote.last_log_id = vote.last_log_id.max(last_log);
        }
        answer(&self.0.raft.vote(vote).await)
    }

    async fn pre_vote(
        &self,
        request: Request<v1::PreVoteRequest>,
    ) -> Result<Response<v1::PreVoteResponse>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check(request.ends.as_ref())?;
        let candidate: Option<LogId> = parse(request.version, &request.last_log)?;
        let voter = Voter {
            heard: self.0.heard(&self.0.metrics()),
            last_log: self.0.defended().await,
        };
        let granted = voter.would_vote(candidate, Instant::now());
        Ok(Response::new(v1::PreVoteResponse { granted }))
    }

    async fn snapshot(
        &self,
        request: Request<v1::SnapshotRequest>,
    ) -> Result<Response<v1::RaftResponse>, Status> {
        let request = request.into_inner();
        self.0.identity.belonging().check(request.ends.as_ref())?;
        // The offset becomes a length in memory.
        if request.offset.saturating_add(request.data.len() as u64) > snapshot::LEN_MAX {
            let why = format!("a snapshot is longer than {} bytes", snapshot::LEN_MAX);
            return Err(Status::invalid_argument(why));
        }
        let install = InstallSnapshotRequest {
            vote: parse(request.version, &request.vote)?,
            meta: parse(request.version, &request.meta)?,
            offset: request.offset,
            data: request.data,
            done: request.done,
        };
        let vote = install.vote;
        let result = self.0.raft.install_snapshot(install).await;
        if matches!(&result, Ok(response) if response.vote <= vote) {
            self.0.hear_leader();
        }
        answer(&result)
    }
}

/// The result of raft as an answer.
fn answer(result: &impl serde::Serialize) -> Result<Response<v1::RaftResponse>, Status> {
    let payload = json(result)?;
    Ok(Response::new(v1::RaftResponse { payload }))
}

#[tonic::async_trait]
impl Members for Service {
    type MapStream = Messages<v1::ClusterMap>;
    type UsersStream = Messages<v1::ClusterUsers>;

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
                let call = |channel| async move { client(channel).join(request).await };
                let peers = &self.0.peers;
                peers.call(&address, CHANGE_DEADLINE, call).await?;
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
        // A member whose raft has stopped (its disk failed) follows no map any more.
        if let Err(error) = self.0.metrics().running_state {
            return Err(Status::unavailable(error.to_string()));
        }
        self.0.hear_version(from, request.version);
        let silence = self.0.state().down_after();
        let mut lease = self.0.lease.lock();
        lease.hear(&request, silence, Instant::now());
        drop(lease);
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
        let wanted = request.into_inner().cluster;
        self.0.identity.belonging().check_wanted(wanted)?;
        let maps = WatchStream::new(self.0.maps.clone())
            .filter(|map| map.epoch > 0)
            .map(|map| message(&map));
        Ok(Response::new(self.until_closed(maps)))
    }

    async fn users(
        &self,
        request: Request<v1::UsersRequest>,
    ) -> Result<Response<Self::UsersStream>, Status> {
        let wanted = request.into_inner().cluster;
        self.0.identity.belonging().check_wanted(wanted)?;
        if self.0.options.tls.is_none() {
            let why = "members know each other by no certificate: start them with --tls-client-ca";
            return Err(Status::failed_precondition(why));
        }
        let mut told = None;
        let users = WatchStream::new(self.0.states.clone())
            .filter(move |state| {
                let is_new = state.cluster != 0 && told != Some(state.users_revision);
                told = Some(state.users_revision);
                is_new
            })
            .map(|state| users::message(&state));
        Ok(Response::new(self.until_closed(users)))
    }
}

/// What is sent one after the other.
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// A stream that ends with the member.
    fn until_closed<T: Send + 'static>(
        &self,
        messages: impl Stream<Item = T> + Send + 'static,
    ) -> Messages<T> {
        let participant = Arc::clone(&self.0);
        let closed = async move { participant.closed().await };
        Box::pin(stream::StreamExt::take_until(messages.map(Ok), closed))
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
    }
}
