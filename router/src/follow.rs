//! Following the topology that a router applies, and the users that members agreed on.
//!
//! The router keeps a stream open at two members (`streams`), and applies the newest topology and
//! the newest users that either tells. A silent member ends its stream within a second
//! ([`Liveness::Member`](fonn_admin::Liveness::Member)). The last topology stays in force
//! while no member is heard.
//!
//! Answers of members tell the router of a newer topology, but not of newer users. So a router that
//! follows users has one of its streams go on to another member every ten seconds.

mod streams;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_admin::{Channel, ChannelError};
use fonn_auth::Authenticator;
use fonn_auth::tls::Tls;
use fonn_base::random::SplitMix64;
use fonn_forward::{Map, Topology, TopologyError};
use fonn_proto::grpc::v1;
use fonn_proto::grpc::v1::members_client::MembersClient;
use fonn_proto::member::Member;
use fonn_proto::placement::rows;
use parking_lot::Mutex;
use thiserror::Error;
use tonic::Code;

use self::streams::{STREAMS, Streams};
use crate::users;

/// How long a member may take to accept a connection, and to send the topology first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a member that tells the topology may be behind others. A member that is cut off from
/// them still answers.
const BEHIND_MAX: Duration = Duration::from_millis(500);

/// How long a stream waits for a member that no other stream follows.
const IDLE: Duration = Duration::from_secs(1);

/// How long the last stream follows a member, if the router follows users.
const TURN: Duration = Duration::from_secs(10);

/// Largest message that a member may send: a topology with the users.
const MESSAGE_LEN_MAX: usize = 8 << 20;

/// Why a stream ended.
#[derive(Debug, Error)]
pub enum FollowError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ChannelError),
    /// The member refuses, or the connection ended.
    #[error("{}", .0.message())]
    Refused(#[from] tonic::Status),
    /// The member takes too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The member ended the stream.
    #[error("the member ended the stream")]
    Ended,
    /// Other members apply a newer topology.
    #[error("the member has not heard of the newest topology")]
    Behind,
    /// Another member is followed in turn.
    #[error("another member is followed in turn")]
    Turn,
    /// The topology breaks an invariant.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

impl FollowError {
    /// Whether the process at the address says that it belongs to another cluster.
    fn is_other_cluster(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code() == Code::FailedPrecondition)
    }
}

/// Follows the topology for a router.
#[derive(Debug)]
pub struct Follower {
    map: Arc<Map>,
    tls: Option<Arc<Tls>>,
    /// The users of the router, if they follow those that members agreed on.
    users: Option<Arc<Authenticator>>,
    streams: Mutex<Streams>,
}

/// How up to date a router is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// The cluster addresses of the members whose streams are live.
    pub followed: Vec<String>,
    /// For how long the router may have applied an older topology than members do: no member has
    /// been heard for so long, or a member told of a newer epoch so long ago. Zero if it is up to
    /// date.
    pub behind: Duration,
}

impl Follower {
    /// Follows the members named `seeds` (HOST:PORT of cluster listeners) and those in the topology
    /// that they tell. With `tls`, under TLS, and `users` take over what members agreed on. Without
    /// `tls` they do not, since any process could pose as a member.
    #[must_use]
    pub fn new(
        map: Arc<Map>,
        seeds: Vec<String>,
        tls: Option<Arc<Tls>>,
        users: Option<Arc<Authenticator>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            map,
            users: users.filter(|_| tls.is_some()),
            tls,
            streams: Mutex::new(Streams::new(seeds, Instant::now())),
        })
    }

    /// How up to date the router is.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        let now = Instant::now();
        let streams = self.streams.lock();
        Freshness {
            followed: streams.followed(),
            behind: streams.silence(now).max(self.map.lag(now)),
        }
    }

    /// Whether the members belong to another cluster now than the one that the router follows. It
    /// has to be restarted then: its topology, users and namespaces are those of the other one.
    #[must_use]
    pub fn is_disowned(&self) -> bool {
        self.streams.lock().is_disowned(Instant::now())
    }

    /// The topology in force.
    #[must_use]
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Runs all streams for ever.
    pub async fn run(self: Arc<Self>) {
        let streams = (0..STREAMS).map(|index| self.run_stream(index));
        futures_util::future::join_all(streams).await;
    }

    async fn run_stream(&self, index: usize) {
        let mut random = SplitMix64::from_entropy();
        loop {
            let choice = {
                let mut streams = self.streams.lock();
                streams.choose(index, Instant::now(), &mut random)
            };
            let Some(choice) = choice else {
                tokio::time::sleep(IDLE).await;
                continue;
            };
            tokio::time::sleep(choice.wait).await;
            let error = match self.follow(index, &choice.address).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            self.ended(index, &choice.address, &error);
        }
    }

    fn ended(&self, index: usize, address: &str, error: &FollowError) {
        let now = Instant::now();
        let (is_to_be_told, is_refusal) = {
            let mut streams = self.streams.lock();
            let is_to_be_told = streams.ended(index, now) && streams.tell_silence();
            let is_refusal = streams.refused(address, error.is_other_cluster(), now);
            (is_to_be_told, is_refusal)
        };
        if is_refusal {
            tracing::warn!(
                %address,
                %error,
                "a member refuses this router; if the cluster was formed anew, restart the router"
            );
        }
        tracing::debug!(%address, %error, "a stream of the topology ended");
        if !is_to_be_told {
            return;
        }
        if self.map.topology().is_some() {
            tracing::warn!(%address, %error, "no member is heard; the last topology stays in force");
        } else {
            tracing::warn!(
                %address,
                %error,
                "no member is heard yet; --cluster has to name a --cluster-listen; trying again"
            );
        }
    }

    /// Follows the topology at one member until that fails.
    async fn follow(
        &self,
        index: usize,
        address: &str,
    ) -> Result<std::convert::Infallible, FollowError> {
        let mut turn = pin!(self.turn(index));
        let request = v1::MapRequest {
            cluster: self.streams.lock().cluster(),
            with_users: self.users.is_some(),
        };
        let begin = async {
            let tls = self.tls.as_ref();
            let channel = Channel::connect_to_member(address, tls, ANSWER_TIMEOUT).await?;
            let origin = channel.origin();
            let client = MembersClient::with_origin(channel, origin);
            let mut client = client.max_decoding_message_size(MESSAGE_LEN_MAX);
            let mut told = client.map(request).await?.into_inner();
            let first = told.message().await?;
            Ok::<_, FollowError>((told, first))
        };
        let begun = tokio::time::timeout(ANSWER_TIMEOUT, begin).await;
        let (mut told, mut next) = begun.map_err(|_| FollowError::Timeout(ANSWER_TIMEOUT))??;
        loop {
            self.take(index, next.ok_or(FollowError::Ended)?).await?;
            // It may be long until something changes. Pings end the stream of a silent member, and
            // answers of other members tell of one that is behind.
            next = tokio::select! {
                next = told.message() => next?,
                () = self.map.behind(BEHIND_MAX) => return Err(FollowError::Behind),
                () = &mut turn => return Err(FollowError::Turn),
            };
        }
    }

    /// Waits until a stream should go on to another member. Only the last stream ever does, and
    /// only where users are followed.
    async fn turn(&self, index: usize) {
        if self.users.is_none() || index + 1 < STREAMS {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(TURN).await;
            if self.streams.lock().may_turn(index) {
                return;
            }
        }
    }

    /// Takes what a member told: the users first, so that a router with a topology knows them.
    async fn take(&self, index: usize, mut told: v1::ClusterMap) -> Result<(), FollowError> {
        if let (Some(users), Some(told)) = (&self.users, told.users.take()) {
            users::replicate(users, told).await;
        }
        let told = &told;
        let epoch = told.epoch;
        let old = self.map.topology();
        // The other stream may have told it.
        if old.as_ref().is_none_or(|it| it.epoch() < epoch) {
            let new = topology(told)?;
            let is_change = old.is_none_or(|old| members_differ(&old, &new));
            let members = new.members().len();
            // While members join, most epochs only move slots.
            if self.map.offer(new) {
                match is_change {
                    true => tracing::info!(epoch, members, "the members changed"),
                    false => tracing::debug!(epoch, members, "topology changed"),
                }
            }
        }
        self.streams.lock().told(index, told, Instant::now());
        Ok(())
    }
}

/// Whether there are other members than before, or one of them is in another state.
fn members_differ(old: &Topology, new: &Topology) -> bool {
    let stand = |it: &Member| (it.id.clone(), it.state);
    let (old, new) = (old.members().iter(), new.members().iter());
    !old.map(stand).eq(new.map(stand))
}

/// What a map in a message says.
///
/// # Errors
/// If it breaks an invariant.
pub fn topology(map: &v1::ClusterMap) -> Result<Topology, TopologyError> {
    let members = map.members.iter().map(Into::into).collect();
    let owners = rows::decode(&map.owners)?;
    Ok(Topology::new(map.epoch, members, owners)?.of_cluster(map.cluster))
}

#[cfg(test)]
mod tests {
    use fonn_proto::placement::{Owners, SLOT_COUNT};

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
            owners: rows::encode((0..SLOT_COUNT).map(|_| Owners::new(&[0]))),
            users: None,
            members: vec![
                member("a", 1, v1::MemberState::Active, 100),
                member("b", 2, v1::MemberState::Draining, 0),
                member("c", 3, v1::MemberState::Down, 0),
            ],
        }
    }

    #[test]
    fn slots_are_of_the_owners_in_the_message() {
        let topology = topology(&message(4)).unwrap();
        assert_eq!(topology.epoch(), 4);
        let served = |slot| topology.serving(slot).map(|member| member.id.as_str());
        assert!((0..16_384).all(|slot| served(slot) == Some("a")));
    }

    #[test]
    fn a_map_whose_owners_are_cut_off_or_no_members_is_refused() {
        let mut cut = message(4);
        cut.owners.pop();
        assert!(matches!(topology(&cut), Err(TopologyError::Rows(_))));
        let mut unknown = message(4);
        unknown.owners = rows::encode((0..SLOT_COUNT).map(|_| Owners::new(&[3])));
        assert!(topology(&unknown).is_err());
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
    fn members_differ_by_name_and_state_and_not_by_what_they_own() {
        let first = topology(&message(4)).unwrap();
        let mut moved = message(5);
        moved.members[0].share = 50;
        assert!(!members_differ(&first, &topology(&moved).unwrap()));
        let mut down = message(5);
        down.members[1].state = v1::MemberState::Down.into();
        assert!(members_differ(&first, &topology(&down).unwrap()));
        let mut fewer = message(5);
        fewer.members.pop();
        assert!(members_differ(&first, &topology(&fewer).unwrap()));
    }

    #[test]
    fn only_a_newer_map_is_taken() {
        let map = Map::default();
        assert!(map.topology().is_none());
        assert!(map.offer(topology(&message(4)).unwrap()));
        assert!(!map.offer(topology(&message(4)).unwrap()));
        assert!(!map.offer(topology(&message(3)).unwrap()));
        assert_eq!((map.epoch(), map.topology().unwrap().epoch()), (4, 4));
        assert!(map.offer(topology(&message(5)).unwrap()));
        assert_eq!((map.epoch(), map.topology().unwrap().epoch()), (5, 5));
    }
}
