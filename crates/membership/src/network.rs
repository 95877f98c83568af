//! Raft's messages over gRPC.

use std::time::Duration;

use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::transport::Channel;
use tonic::{Response, Status};

use fonn_proto::grpc::v1::raft_client::RaftClient;
use fonn_proto::grpc::v1::{RaftEnds, RaftRequest, RaftResponse, SnapshotRequest};

use super::belonging::Belonging;
use super::peers::{MESSAGE_LEN_MAX, Peers};
use super::types::{RaftId, TypeConfig};

/// Version of the payloads.
pub(super) const PAYLOAD_VERSION: u32 = 1;
/// Wait before a member that was not reached is tried again: less than a heartbeat that is missed.
const UNREACHABLE_WAIT: Duration = Duration::from_millis(200);

/// Makes the connections of one participant.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) peers: Peers,
    pub(super) belonging: Belonging,
}

/// A connection to one participant.
#[derive(Debug)]
pub(super) struct Connection {
    network: Network,
    target: RaftId,
    address: String,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: RaftId, node: &BasicNode) -> Connection {
        Connection {
            network: self.clone(),
            target,
            address: node.addr.clone(),
        }
    }
}

type CallError<E> = RPCError<RaftId, BasicNode, RaftError<RaftId, E>>;

impl Connection {
    fn ends(&self) -> RaftEnds {
        self.network.belonging.ends(self.target)
    }

    fn request(&self, payload: &impl Serialize) -> Result<RaftRequest, Status> {
        Ok(RaftRequest {
            ends: Some(self.ends()),
            version: PAYLOAD_VERSION,
            payload: json(payload)?,
        })
    }

    /// Sends a request within the deadline that openraft sets.
    async fn call<Q, A, F>(
        &self,
        request: Result<Q, Status>,
        option: &RPCOption,
        call: impl FnOnce(Channel, Q) -> F,
    ) -> Result<A, Status>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let request = request?;
        let call = |channel| call(channel, request);
        let peers = &self.network.peers;
        peers.call(&self.address, option.hard_ttl(), call).await
    }

    /// What the target made of a request.
    #[expect(
        clippy::result_large_err,
        reason = "the error is what openraft asks for"
    )]
    fn answer<T: DeserializeOwned, E: std::error::Error + DeserializeOwned>(
        &self,
        response: Result<RaftResponse, Status>,
    ) -> Result<T, CallError<E>> {
        let unreachable = |error: AnyError| RPCError::Unreachable(Unreachable::new(&error));
        let response = response.map_err(|status| unreachable(AnyError::new(&status)))?;
        let result: Result<T, RaftError<RaftId, E>> = serde_json::from_slice(&response.payload)
            .map_err(|error| unreachable(AnyError::new(&error)))?;
        result.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

impl RaftNetwork<TypeConfig> for Connection {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<RaftId>, CallError<openraft::error::Infallible>> {
        let request = self.request(&rpc);
        let call = |channel, request| async move { client(channel).append(request).await };
        self.answer(self.call(request, &option, call).await)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<RaftId>,
        option: RPCOption,
    ) -> Result<VoteResponse<RaftId>, CallError<openraft::error::Infallible>> {
        let request = self.request(&rpc);
        let call = |channel, request| async move { client(channel).vote(request).await };
        self.answer(self.call(request, &option, call).await)
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<RaftId>, CallError<InstallSnapshotError>> {
        let request = || {
            Ok(SnapshotRequest {
                ends: Some(self.ends()),
                version: PAYLOAD_VERSION,
                vote: json(&rpc.vote)?,
                meta: json(&rpc.meta)?,
                offset: rpc.offset,
                data: rpc.data.clone(),
                done: rpc.done,
            })
        };
        let call = |channel, request| async move { client(channel).snapshot(request).await };
        self.answer(self.call(request(), &option, call).await)
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(UNREACHABLE_WAIT))
    }
}

/// The client of the service over a connection.
pub(super) fn client(channel: tonic::transport::Channel) -> RaftClient<tonic::transport::Channel> {
    RaftClient::new(channel)
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX)
}

/// The JSON of a payload.
pub(super) fn json(value: &impl Serialize) -> Result<Vec<u8>, Status> {
    serde_json::to_vec(value).map_err(|error| Status::internal(format!("payload: {error}")))
}

/// The value that a payload is the JSON of.
pub(super) fn parse<T: DeserializeOwned>(version: u32, payload: &[u8]) -> Result<T, Status> {
    if version != PAYLOAD_VERSION {
        let why =
            format!("payload version {version} is not {PAYLOAD_VERSION}: upgrade the older member");
        return Err(Status::invalid_argument(why));
    }
    serde_json::from_slice(payload)
        .map_err(|error| Status::invalid_argument(format!("payload: {error}")))
}
