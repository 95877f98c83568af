//! Following the map that a router serves by, and who else follows it: from any member; the last map is kept when nobody
//! can be asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_proto::grpc::v1;
use fonn_proto::grpc::v1::members_client::MembersClient;
use fonn_proto::placement::{Placed, Table};
use fonn_runtime::backoff::Backoff;
use fonn_runtime::http::{Channel, ChannelError};
use fonn_runtime::random::SplitMix64;
use fonn_runtime::route::{Map, Member, MemberState, Topology, TopologyError};
use fonn_runtime::tls::Tls;
use thiserror::Error;

use crate::routers::Routers;

/// How long a member may take to accept, and to send the map first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the member that tells the map may be behind others: cut off from them, it still answers us.
const BEHIND_MAX: Duration = Duration::from_millis(500);

/// How long the other routers count while no member tells of them.
const ROUTERS_KEPT: Duration = Duration::from_secs(3);

/// Between tries, when no member answers.
const RETRY: Backoff = Backoff {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(2),
    attempts_max: u32::MAX,
};

/// Why there is no map from a member.
#[derive(Debug, Error)]
pub enum FollowError {
    /// Nobody accepts at the address.
    #[error(transparent)]
    Connect(#[from] ChannelError),
    /// The member refuses, or the connection ended.
    #[error("{}", .0.message())]
    Refused(#[from] tonic::Status),
    /// The member takes too long.
    #[error("no map within {ANSWER_TIMEOUT:?}")]
    Timeout,
    /// The stream ended.
    #[error("the member ended the stream")]
    Ended,
    /// Other members go by a newer map.
    #[error("the member has not heard of the newest map")]
    Behind,
    /// The map breaks an invariant.
    #[error(transparent)]
    Map(#[from] TopologyError),
}

/// Follows the map, and who else follows it, for ever: from the members named `seeds` (HOST:PORT of their cluster
/// listeners), and from those in the last map. With `tls`, by which members are known, under TLS.
pub async fn follow(
    map: Arc<Map>,
    routers: Arc<Routers>,
    seeds: Vec<String>,
    tls: Option<Arc<Tls>>,
) {
    let mut random = SplitMix64::from_entropy();
    let mut following = Following::default();
    let mut turn = 0_usize;
    let mut failures = 0;
    loop {
        let all: Vec<&String> = seeds.iter().chain(&following.members).collect();
        let Some(&address) = all.get(turn % all.len().max(1)) else {
            return;
        };
        turn += 1;
        let address = address.clone();
        let before = map.generation();
        let tls = tls.as_deref();
        let error = follow_one(&map, &routers, &address, tls, &mut following).await;
        // Others may have come and gone since a member said who there is.
        let silent_since = *following.silent_since.get_or_insert_with(Instant::now);
        if silent_since.elapsed() >= ROUTERS_KEPT {
            routers.forget();
        }
        if map.generation() == before {
            failures += 1;
        } else {
            failures = 0;
        }
        tracing::debug!(%address, %error, "no map from a member any more");
        // Every member has its turn before anybody is asked again.
        let round = seeds.len() + following.members.len();
        if failures % round.max(1) as u32 == 0 {
            if failures as usize == round.max(1) {
                tracing::warn!(%address, %error, "no member tells the map; going by the last one");
            }
            let attempt = failures / round.max(1) as u32;
            if let Some(delay) = RETRY.delay(attempt, &mut random) {
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// What is kept from member to member.
#[derive(Debug, Default)]
struct Following {
    cluster: u64,
    /// The cluster addresses of the members by the last map.
    members: Vec<String>,
    /// Since when no member has told anything; none while one does.
    silent_since: Option<Instant>,
}

/// Follows the map from one member until that fails.
async fn follow_one(
    map: &Map,
    routers: &Routers,
    address: &str,
    tls: Option<&Tls>,
    following: &mut Following,
) -> FollowError {
    match try_follow(map, routers, address, tls, following).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

async fn try_follow(
    map: &Map,
    routers: &Routers,
    address: &str,
    tls: Option<&Tls>,
    following: &mut Following,
) -> Result<std::convert::Infallible, FollowError> {
    let config = tls.and_then(Tls::client);
    let channel = Channel::connect_by(address, config, ANSWER_TIMEOUT).await?;
    let origin = channel.origin();
    let mut client = MembersClient::with_origin(channel, origin);
    let request = v1::MapRequest {
        cluster: following.cluster,
        router: routers.own().unwrap_or_default().to_owned(),
    };
    let asked = tokio::time::timeout(ANSWER_TIMEOUT, client.map(request)).await;
    let mut maps = asked.map_err(|_| FollowError::Timeout)??.into_inner();
    let mut is_first = true;
    loop {
        let next = match is_first {
            true => tokio::time::timeout(ANSWER_TIMEOUT, maps.message())
                .await
                .map_err(|_| FollowError::Timeout)??,
            // It may be long until something changes; the connection's pings find a dead member, and other
            // members' answers one that is behind.
            false => tokio::select! {
                next = maps.message() => next?,
                () = map.behind(BEHIND_MAX) => return Err(FollowError::Behind),
            },
        };
        is_first = false;
        let told = next.ok_or(FollowError::Ended)?;
        following.cluster = told.cluster;
        following.silent_since = None;
        following.members = told
            .members
            .iter()
            .map(|member| member.cluster_address.clone())
            .filter(|address| !address.is_empty())
            .collect();
        let epoch = told.epoch;
        // Where only routers came or went, owners are not computed again.
        let is_known = map.topology().is_some_and(|it| it.epoch() >= epoch);
        if !is_known && map.offer(topology(&told)?) {
            tracing::info!(epoch, members = told.members.len(), "map changed");
        }
        routers.told(epoch, &told.routers);
    }
}

/// What a map in a message says.
///
/// # Errors
/// If it breaks an invariant.
pub fn topology(map: &v1::ClusterMap) -> Result<Topology, TopologyError> {
    let members: Vec<Member> = map
        .members
        .iter()
        .map(|member| Member {
            id: member.id.clone(),
            address: member.client_address.clone(),
            cluster_address: member.cluster_address.clone(),
            zone: member.zone.clone(),
            weight: member.weight,
            share: member.share,
            state: match member.state() {
                v1::MemberState::Active => MemberState::Active,
                v1::MemberState::Draining => MemberState::Draining,
                v1::MemberState::Joining | v1::MemberState::Unspecified => MemberState::Joining,
                v1::MemberState::Down | v1::MemberState::Removed => MemberState::Down,
            },
        })
        .collect();
    let placed: Vec<Placed<'_>> = members
        .iter()
        .map(|member| Placed {
            id: &member.id,
            zone: &member.zone,
            weight: u16::try_from(member.share).unwrap_or(u16::MAX),
        })
        .collect();
    let table = Table::new(&placed, usize::try_from(map.replicas).unwrap_or(1));
    let table = table.ok_or(TopologyError::NoOwners)?;
    let owners = (0..fonn_proto::placement::SLOT_COUNT)
        .map(|slot| table.owners(slot))
        .collect();
    Topology::new(map.epoch, members, owners)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(epoch: u64) -> v1::ClusterMap {
        let member = |id: &str, port: u16, state: v1::MemberState, share| v1::ClusterMember {
            id: id.to_owned(),
            client_address: format!("127.0.0.1:{port}"),
            share,
            weight: 100,
            state: state.into(),
            ..v1::ClusterMember::default()
        };
        v1::ClusterMap {
            cluster: 7,
            epoch,
            replicas: 1,
            routers: Vec::new(),
            members: vec![
                member("a", 1, v1::MemberState::Active, 100),
                member("b", 2, v1::MemberState::Draining, 0),
                member("c", 3, v1::MemberState::Down, 0),
            ],
        }
    }

    #[test]
    fn slots_are_placed_by_the_shares_of_the_message() {
        let topology = topology(&message(4)).unwrap();
        assert_eq!(topology.epoch(), 4);
        let served = |slot| topology.serving(slot).map(|member| member.id.as_str());
        assert!((0..16_384).all(|slot| served(slot) == Some("a")));
    }

    #[test]
    fn a_map_of_whom_nobody_owns_anything_is_refused() {
        let mut message = message(4);
        message.members.iter_mut().for_each(|it| it.share = 0);
        assert_eq!(topology(&message), Err(TopologyError::NoOwners));
    }

    #[test]
    fn a_member_in_a_state_of_a_newer_version_is_asked_for_nothing() {
        let mut message = message(4);
        message.members[1].state = 99;
        let topology = topology(&message).unwrap();
        assert!(!topology.members()[1].state.is_serving());
        assert!(topology.members()[0].state.is_serving());
    }

    #[test]
    fn only_a_newer_map_is_taken() {
        let map = Map::default();
        assert!(map.topology().is_none());
        assert!(map.offer(topology(&message(4)).unwrap()));
        assert!(!map.offer(topology(&message(4)).unwrap()));
        assert!(!map.offer(topology(&message(3)).unwrap()));
        assert_eq!(map.generation(), 1);
        assert!(map.offer(topology(&message(5)).unwrap()));
        assert_eq!(map.topology().unwrap().epoch(), 5);
    }
}
