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
use tonic::Status;

use fonn_proto::grpc::v1::{RaftEnds, RaftKind, RaftRequest, RaftResponse};

use super::belonging::Belonging;
use super::peers::Peers;
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
    /// Sends a message within the deadline that openraft sets, and returns what the target made of
    /// it.
    async fn call<T: DeserializeOwned, E: std::error::Error + DeserializeOwned>(
        &self,
        kind: RaftKind,
        payload: &impl Serialize,
        data: Vec<u8>,
        option: &RPCOption,
    ) -> Result<T, CallError<E>> {
        let Network { peers, belonging } = &self.network;
        let send = async {
            let request = request(belonging.ends(self.target), kind, payload)?;
            let request = RaftRequest { data, ..request };
            let call = peers.call(&self.address, option.hard_ttl(), |mut member| async move {
                member.raft(request).await
            });
            call.await
        };
        self.answer(send.await)
    }

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
        self.call(RaftKind::Append, &rpc, Vec::new(), &option).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<RaftId>,
        option: RPCOption,
    ) -> Result<VoteResponse<RaftId>, CallError<openraft::error::Infallible>> {
        self.call(RaftKind::Vote, &rpc, Vec::new(), &option).await
    }

    async fn install_snapshot(
        &mut self,
        mut rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<RaftId>, CallError<InstallSnapshotError>> {
        // JSON would make it four times as long.
        let data = std::mem::take(&mut rpc.data);
        self.call(RaftKind::Snapshot, &rpc, data, &option).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(UNREACHABLE_WAIT))
    }
}

/// A message of raft without a piece of a snapshot.
pub(super) fn request(
    ends: RaftEnds,
    kind: RaftKind,
    payload: &impl Serialize,
) -> Result<RaftRequest, Status> {
    Ok(RaftRequest {
        ends: Some(ends),
        version: PAYLOAD_VERSION,
        kind: kind.into(),
        payload: json(payload)?,
        data: Vec::new(),
    })
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
