//! The state of the streams by which a router follows the topology, and the choice of the members
//! that they follow. Pure.
//!
//! There are [`STREAMS`] of them, at different members. So a router learns of every change in time
//! although one of its members has fallen silent, or is cut off from the others and does not know
//! it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use fonn_base::random::SplitMix64;
use fonn_proto::grpc::v1::{ClusterMap, MemberState};

/// How many members a router follows at a time.
pub const STREAMS: usize = 2;

/// How long an address rests after its stream ended.
const REST: Duration = Duration::from_millis(500);

/// An address whose stream ended longer ago than this is as good as any other.
const FORGIVEN: Duration = Duration::from_secs(10);

/// How long all seeds have to refuse the router before it counts as one of another cluster.
const REFUSED_MIN: Duration = Duration::from_secs(10);

/// The state of all streams.
#[derive(Debug)]
pub(super) struct Streams {
    seeds: Vec<String>,
    /// Cluster addresses of the members, and whether they serve by the last topology.
    members: Vec<(String, bool)>,
    /// The cluster id; 0 before a member told it.
    cluster: u64,
    /// When the stream at an address ended last.
    ended: HashMap<String, Instant>,
    /// Since when an address has only said that it belongs to another cluster.
    refused: HashMap<String, Instant>,
    streams: [Stream; STREAMS],
    /// Since when no stream is live; `None` while one is.
    silent_since: Option<Instant>,
    /// Whether the log has been told of this silence.
    is_silence_told: bool,
}

/// One stream.
#[derive(Debug, Default)]
struct Stream {
    /// The member that it follows, or is about to.
    address: Option<String>,
    /// Since when the member tells.
    live_since: Option<Instant>,
    /// The epoch that it told last.
    epoch: u64,
}

/// The member that a stream follows next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// HOST:PORT of its cluster listener.
    pub(super) address: String,
    /// How long to wait before it is asked.
    pub(super) wait: Duration,
}

impl Streams {
    /// No stream is live. `seeds` are HOST:PORT of cluster listeners.
    pub(super) fn new(seeds: Vec<String>, now: Instant) -> Self {
        Self {
            seeds,
            members: Vec::new(),
            cluster: 0,
            ended: HashMap::new(),
            refused: HashMap::new(),
            streams: Default::default(),
            silent_since: Some(now),
            is_silence_told: false,
        }
    }

    /// The cluster id; 0 before a member told it.
    pub(super) const fn cluster(&self) -> u64 {
        self.cluster
    }

    /// Chooses the member that stream `index` follows next: one that no other stream follows, that
    /// serves, and whose last stream did not end lately. Among those, the stream follows the member
    /// that was not followed for the longest time. The seeds are for the time when no member is
    /// heard. `None` if there is no such member.
    pub(super) fn choose(
        &mut self,
        index: usize,
        now: Instant,
        random: &mut SplitMix64,
    ) -> Option<Choice> {
        let is_taken = |address: &String| {
            let mut others = self.streams.iter().enumerate();
            others.any(|(at, it)| at != index && it.address.as_ref() == Some(address))
        };
        let seeds = self.seeds.iter().filter(|_| self.silent_since.is_some());
        let members = self
            .members
            .iter()
            .map(|(address, serves)| (address, *serves));
        let all = members.chain(seeds.map(|seed| (seed, false)));
        let free = all.filter(|(address, _)| !is_taken(address));
        let (address, _) = free.min_by_key(|(address, serves)| {
            let ended = self.ended.get(*address).copied();
            let lately = ended.filter(|at| now.saturating_duration_since(*at) < FORGIVEN);
            (lately, Reverse(*serves), ended, random.next_u64())
        })?;
        let rested = self.ended.get(address).map(|at| *at + REST);
        let choice = Choice {
            address: address.clone(),
            wait: rested.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)),
        };
        let stream = self.streams.get_mut(index)?;
        *stream = Stream {
            address: Some(choice.address.clone()),
            ..Stream::default()
        };
        Some(choice)
    }

    /// Whether stream `index` may go on to another member: another stream is live, and there is a
    /// member that serves and that no stream follows.
    pub(super) fn may_turn(&self, index: usize) -> bool {
        let mut others = self.streams.iter().enumerate();
        let is_free = |(address, serves): &(String, bool)| {
            let mut followed = self.streams.iter().filter_map(|it| it.address.as_ref());
            *serves && followed.all(|it| it != address)
        };
        others.any(|(at, it)| at != index && it.live_since.is_some())
            && self.members.iter().any(is_free)
    }

    /// Stream `index` told a topology.
    pub(super) fn told(&mut self, index: usize, map: &ClusterMap, now: Instant) {
        self.cluster = map.cluster;
        self.silent_since = None;
        self.is_silence_told = false;
        self.refused.clear();
        let is_newest = self.streams.iter().all(|it| it.epoch <= map.epoch);
        if is_newest {
            let members = map.members.iter();
            let members = members.filter(|it| !it.cluster_address.is_empty());
            self.members = members
                .map(|it| {
                    let serves = matches!(it.state(), MemberState::Active | MemberState::Draining);
                    (it.cluster_address.clone(), serves)
                })
                .collect();
            let (members, seeds) = (&self.members, &self.seeds);
            self.ended.retain(|address, _| {
                seeds.contains(address) || members.iter().any(|(known, _)| known == address)
            });
        }
        if let Some(stream) = self.streams.get_mut(index) {
            stream.live_since.get_or_insert(now);
            stream.epoch = map.epoch;
        }
    }

    /// Stream `index` ended. Returns whether no stream is live any more.
    pub(super) fn ended(&mut self, index: usize, now: Instant) -> bool {
        if let Some(stream) = self.streams.get_mut(index) {
            let ended = std::mem::take(stream);
            if let Some(address) = ended.address {
                self.ended.insert(address, now);
            }
        }
        let is_silent = self.streams.iter().all(|it| it.live_since.is_none());
        if is_silent {
            self.silent_since.get_or_insert(now);
        }
        is_silent
    }

    /// The stream at an address ended; `is_refusal` if the process there belongs to another
    /// cluster. Returns whether that is the first such refusal while no member is heard.
    pub(super) fn refused(&mut self, address: &str, is_refusal: bool, now: Instant) -> bool {
        if !is_refusal || self.silent_since.is_none() {
            self.refused.remove(address);
            return false;
        }
        let is_first = self.refused.is_empty();
        self.refused.entry(address.to_owned()).or_insert(now);
        is_first
    }

    /// Whether the cluster was formed anew: no member is heard, and all seeds have said for a while
    /// that they belong to another cluster.
    pub(super) fn is_disowned(&self, now: Instant) -> bool {
        let is_long = |at: &Instant| now.saturating_duration_since(*at) >= REFUSED_MIN;
        let refuses = |seed: &String| self.refused.get(seed).is_some_and(is_long);
        !self.seeds.is_empty() && self.seeds.iter().all(refuses)
    }

    /// Whether the log is to be told now that no member is heard. It is told once for each silence.
    /// Before the first topology, every seed has to fail first.
    pub(super) fn tell_silence(&mut self) -> bool {
        let is_silent = self.silent_since.is_some();
        let has_asked_all =
            !self.members.is_empty() || self.seeds.iter().all(|it| self.ended.contains_key(it));
        is_silent && has_asked_all && !std::mem::replace(&mut self.is_silence_told, true)
    }

    /// For how long no member has been heard; zero while a stream is live.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        let since = self.silent_since;
        since.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }

    /// The addresses of the members that are followed.
    pub(super) fn followed(&self) -> Vec<String> {
        let live = self.streams.iter().filter(|it| it.live_since.is_some());
        live.filter_map(|it| it.address.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::grpc::v1::ClusterMember;

    use super::*;

    fn map(epoch: u64, members: &[(&str, MemberState)]) -> ClusterMap {
        let member = |(address, state): &(&str, MemberState)| ClusterMember {
            cluster_address: (*address).to_owned(),
            state: (*state).into(),
            ..ClusterMember::default()
        };
        ClusterMap {
            cluster: 7,
            epoch,
            members: members.iter().map(member).collect(),
            ..ClusterMap::default()
        }
    }

    struct Rig {
        streams: Streams,
        random: SplitMix64,
        now: Instant,
    }

    impl Rig {
        fn new(seeds: &[&str]) -> Self {
            let now = Instant::now();
            let seeds = seeds.iter().map(|it| (*it).to_owned()).collect();
            Self {
                streams: Streams::new(seeds, now),
                random: SplitMix64::new(5),
                now,
            }
        }

        fn choose(&mut self, index: usize) -> Option<(String, u128)> {
            let choice = self.streams.choose(index, self.now, &mut self.random)?;
            Some((choice.address, choice.wait.as_millis()))
        }

        fn told(&mut self, index: usize, map: &ClusterMap) {
            self.streams.told(index, map, self.now);
        }

        fn pass(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
        }
    }

    use MemberState::{Active, Down};

    #[test]
    fn two_streams_follow_different_members_that_serve() {
        let mut rig = Rig::new(&["a:1"]);
        assert_eq!(rig.choose(0), Some(("a:1".to_owned(), 0)));
        assert_eq!(rig.choose(1), None, "the only seed is taken");
        rig.told(
            0,
            &map(1, &[("a:1", Active), ("b:1", Down), ("c:1", Active)]),
        );
        assert_eq!(rig.choose(1), Some(("c:1".to_owned(), 0)));
    }

    #[test]
    fn a_silent_member_is_asked_again_after_all_others() {
        let mut rig = Rig::new(&["a:1"]);
        rig.choose(0);
        rig.told(
            0,
            &map(1, &[("a:1", Active), ("b:1", Active), ("c:1", Active)]),
        );
        let second = rig.choose(1).unwrap().0;
        rig.told(
            1,
            &map(1, &[("a:1", Active), ("b:1", Active), ("c:1", Active)]),
        );
        assert!(!rig.streams.ended(0, rig.now), "the other one is live");
        let third = ["b:1", "c:1"].into_iter().find(|it| *it != second).unwrap();
        assert_eq!(rig.choose(0), Some((third.to_owned(), 0)));
        rig.pass(10);
        rig.streams.ended(0, rig.now);
        // Both other members failed: the one that failed first comes first, after a rest.
        assert_eq!(rig.choose(0), Some(("a:1".to_owned(), 490)));
    }

    #[test]
    fn a_lone_member_is_asked_again_after_a_rest_and_seeds_only_while_no_member_is_heard() {
        let mut rig = Rig::new(&["alias:1"]);
        rig.choose(0);
        rig.told(0, &map(1, &[("a:1", Active)]));
        assert_eq!(rig.choose(1), Some(("a:1".to_owned(), 0)));
        rig.told(1, &map(1, &[("a:1", Active)]));
        assert_eq!(rig.streams.silence(rig.now), Duration::ZERO);
        rig.streams.ended(0, rig.now);
        assert!(
            rig.choose(0).is_none(),
            "the seed is for the time of silence"
        );
        assert!(rig.streams.ended(1, rig.now));
        rig.pass(200);
        assert_eq!(rig.streams.silence(rig.now), Duration::from_millis(200));
        let chosen = [rig.choose(0).unwrap(), rig.choose(1).unwrap()];
        assert_eq!(chosen.map(|it| it.1), [300, 300]);
    }

    #[test]
    fn each_silence_is_told_once_and_the_first_when_every_seed_has_failed() {
        let mut rig = Rig::new(&["a:1", "b:1"]);
        let (first, second) = (rig.choose(0).unwrap().0, rig.choose(1).unwrap().0);
        assert_ne!(first, second);
        rig.streams.ended(0, rig.now);
        assert!(!rig.streams.tell_silence(), "the other seed may answer");
        rig.streams.ended(1, rig.now);
        assert!(rig.streams.tell_silence());
        rig.choose(0);
        rig.streams.ended(0, rig.now);
        assert!(!rig.streams.tell_silence(), "it was told");
        rig.choose(0);
        rig.told(0, &map(1, &[("a:1", Active), ("b:1", Active)]));
        assert!(!rig.streams.tell_silence(), "a member is heard");
        rig.streams.ended(0, rig.now);
        assert!(rig.streams.tell_silence());
        assert!(!rig.streams.tell_silence(), "it was told");
    }

    #[test]
    fn a_router_is_of_another_cluster_when_all_seeds_say_so_for_a_while() {
        let mut rig = Rig::new(&["a:1", "b:1"]);
        let all = map(1, &[("a:1", Active), ("b:1", Active), ("c:1", Active)]);
        rig.choose(0);
        rig.told(0, &all);
        assert!(!rig.streams.refused("b:1", true, rig.now), "one is heard");
        rig.streams.ended(0, rig.now);
        assert!(rig.streams.refused("a:1", true, rig.now));
        rig.pass(1_000);
        assert!(!rig.streams.refused("b:1", true, rig.now), "not the first");
        // A member that does not answer is no seed.
        rig.streams.refused("c:1", false, rig.now);
        rig.pass(9_000);
        assert!(!rig.streams.is_disowned(rig.now), "one has just begun");
        rig.pass(1_000);
        assert!(rig.streams.is_disowned(rig.now));
        rig.streams.refused("b:1", false, rig.now);
        assert!(!rig.streams.is_disowned(rig.now), "one may be a member yet");
        rig.streams.refused("b:1", true, rig.now);
        rig.pass(10_000);
        assert!(rig.streams.is_disowned(rig.now));
        rig.choose(0);
        rig.told(0, &all);
        assert!(!rig.streams.is_disowned(rig.now));
    }

    #[test]
    fn in_turn_a_stream_follows_each_other_member() {
        let mut rig = Rig::new(&["a:1"]);
        rig.choose(0);
        let mut members = ["a:1", "b:1", "c:1", "d:1", "e:1"].map(|it| (it, Active));
        members[4].1 = Down;
        let all = map(1, &members);
        assert!(!rig.streams.may_turn(1), "no stream is live");
        rig.told(0, &all);
        let mut followed = Vec::new();
        for _ in 0..6 {
            let (address, wait) = rig.choose(1).unwrap();
            assert_eq!(wait, 0, "{address}");
            followed.push(address);
            rig.told(1, &all);
            rig.pass(10_000);
            assert!(rig.streams.may_turn(1));
            assert!(!rig.streams.ended(1, rig.now));
        }
        let mut first = followed[..3].to_vec();
        assert_eq!(first[..], followed[3..]);
        first.sort();
        assert_eq!(first, ["b:1", "c:1", "d:1"]);
        rig.choose(1);
        rig.told(1, &map(2, &[("a:1", Active), ("e:1", Down)]));
        assert!(!rig.streams.may_turn(1), "no other member serves");
    }

    #[test]
    fn the_members_of_live_streams_are_followed() {
        let mut rig = Rig::new(&["a:1"]);
        rig.choose(0);
        rig.told(0, &map(1, &[("a:1", Active), ("b:1", Active)]));
        rig.choose(1);
        rig.told(1, &map(2, &[("a:1", Active), ("b:1", Active)]));
        assert_eq!(rig.streams.followed(), ["a:1", "b:1"]);
        rig.streams.ended(1, rig.now);
        assert_eq!(rig.streams.followed(), ["a:1"]);
    }

    #[test]
    fn members_of_an_older_topology_do_not_replace_those_of_a_newer_one() {
        let mut rig = Rig::new(&["a:1"]);
        rig.choose(0);
        rig.told(0, &map(2, &[("a:1", Active), ("b:1", Active)]));
        rig.choose(1);
        rig.told(
            1,
            &map(1, &[("a:1", Active), ("b:1", Active), ("x:1", Active)]),
        );
        rig.streams.ended(1, rig.now);
        assert_eq!(rig.choose(1), Some(("b:1".to_owned(), 500)));
    }
}
