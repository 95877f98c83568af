//! `fonn.v1.Membership`, and the cluster's part of the status.

use std::sync::Arc;
use std::time::Duration;

use fonn_proto::grpc::v1;
use fonn_proto::grpc::v1::membership_server;
use fonn_proto::member::{Member, MemberState};
use fonn_proto::peer::hello::cluster_text;
use tonic::{Request, Response, Status, async_trait};

use super::Admin;
use fonn_membership::map::Map;
use fonn_membership::state::{Change, DOWN_AFTER_MS};
use fonn_membership::{ChangeError, Cluster};

/// How long an agreement may take: an election and then some.
const CHANGE_DEADLINE: Duration = Duration::from_secs(10);
/// How long the caller waits until this member knows what was agreed on, slots are copied, and a
/// member whose lease is over has left.
const FOLLOW_DEADLINE: Duration = Duration::from_secs(2);

// A change is answered before its caller gives up, also where members may be silent the longest.
const _: () = assert!(
    CHANGE_DEADLINE.as_secs() + FOLLOW_DEADLINE.as_secs() + *DOWN_AFTER_MS.end() as u64 / 1000
        < fonn_admin::ANSWER_TIMEOUT.as_secs()
);

/// The service.
pub(super) struct MembershipService(pub Admin);

impl MembershipService {
    fn cluster(&self) -> Result<&Cluster, Status> {
        let cluster = self.0.node()?.cluster.as_ref();
        cluster.ok_or_else(|| {
            Status::failed_precondition(
                "this node is in no cluster; start it with --node-id, --cluster-listen, and --bootstrap or \
                 --join",
            )
        })
    }

    /// Refuses to take its slots from a member while no other one that is up could own them:
    /// without owners there is no map, and all members would go on by the last map.
    fn check_slots_stay(&self, node: &str) -> Result<(), Status> {
        let map = self.cluster()?.map().borrow().clone();
        let could_own = |it: &Member| it.weight > 0 && it.state == MemberState::Active;
        let is_owner = map.member(node).is_some_and(|it| it.share > 0);
        if !is_owner || map.members.iter().any(|it| it.id != node && could_own(it)) {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "no member but {node} is up, active and of a weight above 0, so its slots would have no owner; have another \
             member join or come back, or give one a weight first"
        )))
    }

    /// Has a change agreed on; answers when this member knows it too and the slots have moved, with
    /// what `tell` says of its map. Where slots are still copied after two seconds it says so. A
    /// member that is removed goes on until its lease is over, and has that time in addition.
    async fn change(
        &self,
        change: Change,
        tell: impl FnOnce(&Map) -> String,
    ) -> Result<Response<v1::MembershipChangeResponse>, Status> {
        let cluster = self.cluster()?;
        tracing::info!(?change, "asked for by the admin service");
        let follow_max = match &change {
            // The cluster has agreed on it; --down-after of this process may be another one.
            Change::Remove { .. } => FOLLOW_DEADLINE + cluster.state().borrow().down_after(),
            _ => FOLLOW_DEADLINE,
        };
        let agreed = cluster.propose(change, CHANGE_DEADLINE).await;
        let epoch = agreed.map_err(without_majority)?;
        let mut maps = cluster.map();
        let follow = maps.wait_for(|map| map.epoch >= epoch && !map.is_moving);
        // What there is at the end is told either way.
        let _ = tokio::time::timeout(follow_max, follow).await;
        let map = Arc::clone(&maps.borrow());
        let message = match (map.epoch >= epoch, map.is_moving) {
            (true, false) => tell(&map),
            (true, true) => format!(
                "{}; this is not over yet: fonnctl map shows what each member owns",
                tell(&map)
            ),
            (false, _) => "agreed on; this member does not know the new map yet".to_owned(),
        };
        Ok(Response::new(v1::MembershipChangeResponse {
            epoch,
            message,
        }))
    }
}

/// The error of a change, which says what its last attempt failed for.
fn without_majority(error: ChangeError) -> ChangeError {
    match error {
        ChangeError::Unavailable(why) => ChangeError::Unavailable(format!(
            "no leader with a majority of the voters answers; the last attempt: {why}"
        )),
        refused => refused,
    }
}

/// How the node stands in its cluster.
pub(super) fn status(cluster: &Cluster) -> v1::ClusterStatus {
    let (status, map) = (cluster.status(), cluster.map().borrow().clone());
    let own = map.member(cluster.node_id());
    let up = map.members.iter().filter(|it| it.state.is_serving());
    v1::ClusterStatus {
        node: cluster.node_id().to_owned(),
        cluster: cluster_text(status.cluster),
        epoch: map.epoch,
        leader: status.leader.unwrap_or_default(),
        voters: status.voters,
        state: own
            .map_or(v1::MemberState::Unspecified, |it| it.state.into())
            .into(),
        members_up: up.count() as u32,
        members: map.members.len() as u32,
    }
}

/// The members with what each owns.
fn entries(map: &Map) -> Vec<v1::MapEntry> {
    let mut owned = vec![(0, 0); map.members.len()];
    for owners in map.owners.iter().flatten() {
        for (rank, position) in owners.positions().iter().enumerate() {
            if let Some((first, any)) = owned.get_mut(usize::from(*position)) {
                *first += u32::from(rank == 0);
                *any += 1;
            }
        }
    }
    let members = map.members.iter().zip(owned);
    let entry = |(member, (slots_first, slots)): (&Member, (u32, u32))| v1::MapEntry {
        member: Some(member.into()),
        slots_first,
        slots,
    };
    members.map(entry).collect()
}

fn other_owners(map: &Map, node: &str) -> usize {
    let others = map.members.iter().filter(|it| it.id != node);
    others.filter(|it| it.share > 0).count()
}

fn slots(map: &Map, node: &str) -> u32 {
    let entries = entries(map).into_iter();
    let mut of_node = entries.filter(|it| it.member.as_ref().is_some_and(|it| it.id == node));
    of_node.next().map_or(0, |it| it.slots)
}

#[async_trait]
impl membership_server::Membership for MembershipService {
    async fn map(
        &self,
        _: Request<v1::MembershipMapRequest>,
    ) -> Result<Response<v1::MembershipMapResponse>, Status> {
        let cluster = self.cluster()?;
        let map = cluster.map().borrow().clone();
        Ok(Response::new(v1::MembershipMapResponse {
            status: Some(status(cluster)),
            replicas: map.replicas.into(),
            members: entries(&map),
        }))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::MembershipChangeResponse>, Status> {
        let v1::DrainRequest { node, undo } = request.into_inner();
        if !undo {
            self.check_slots_stay(&node)?;
        } else {
            let state = self.cluster()?.state().borrow().clone();
            let known = state.members.values().find(|member| member.info.id == node);
            let Some(member) = known else {
                return Err(Status::failed_precondition(format!(
                    "there is no member `{node}`"
                )));
            };
            let change = Change::Activate(member.info.raft_id);
            return self
                .change(change, |map| {
                    format!("{node} owns {} slots again", slots(map, &node))
                })
                .await;
        }
        let change = Change::Drain { id: node.clone() };
        self.change(change, |map| {
            let others = match other_owners(map, &node) {
                1 => "1 other owns".to_owned(),
                others => format!("{others} others own"),
            };
            format!(
                "{node} owns {} slots now, {others} the rest",
                slots(map, &node)
            )
        })
        .await
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveRequest>,
    ) -> Result<Response<v1::MembershipChangeResponse>, Status> {
        let node = request.into_inner().node;
        self.check_slots_stay(&node)?;
        let change = Change::Remove { id: node.clone() };
        self.change(change, |map| match (map.member(&node), map.members.len()) {
            (None, left) => {
                let left = match left {
                    1 => "1 member is left".to_owned(),
                    left => format!("{left} members are left"),
                };
                format!("{node} is gone, {left}; stop it if it still runs")
            }
            (Some(_), _) => format!("{node} goes as soon as its last lease is over"),
        })
        .await
    }

    async fn set_weight(
        &self,
        request: Request<v1::SetWeightRequest>,
    ) -> Result<Response<v1::MembershipChangeResponse>, Status> {
        let v1::SetWeightRequest { node, weight } = request.into_inner();
        let Ok(weight) = u16::try_from(weight) else {
            let why = format!(
                "a weight of {weight} cannot be; weights are 0 to {}",
                u16::MAX
            );
            return Err(Status::invalid_argument(why));
        };
        if weight == 0 {
            self.check_slots_stay(&node)?;
        }
        let change = Change::SetWeight {
            id: node.clone(),
            weight,
        };
        self.change(change, |map| {
            format!(
                "{node} owns {} slots, until it starts again with another --weight",
                slots(map, &node)
            )
        })
        .await
    }

    async fn set_replicas(
        &self,
        request: Request<v1::SetReplicasRequest>,
    ) -> Result<Response<v1::MembershipChangeResponse>, Status> {
        let replicas = request.into_inner().replicas;
        let Ok(replicas) = u8::try_from(replicas) else {
            return Err(Status::invalid_argument(format!(
                "{replicas} replicas are not possible: set 1, 2 or 3"
            )));
        };
        self.change(Change::SetReplicas(replicas), |map| {
            let owners = map.owners(0).count();
            format!("each slot has {owners} owners now, {replicas} are wanted")
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_without_a_majority_says_so_with_the_last_cause() {
        let error = ChangeError::Unavailable("tcp connect error".to_owned());
        let status = Status::from(without_majority(error));
        assert_eq!(status.code(), tonic::Code::Unavailable);
        for part in ["a majority of the voters", "tcp connect error"] {
            assert!(status.message().contains(part), "{status:?}");
        }
        let refused = ChangeError::Refused("no member".to_owned());
        assert_eq!(without_majority(refused.clone()), refused);
    }
}
