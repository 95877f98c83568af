//! Following the cluster's map, and showing that the process runs.

use std::sync::Arc;
use std::time::Duration;

use fonn_base::clock::Clock;
use fonn_base::hlc::Hlc;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_forward::{
    self as route, Forwarder, Member, MemberState, Topology, TopologyError, Upstreams,
};
use fonn_proto::peer::SlotSet;
use fonn_proto::placement::SLOT_COUNT;
use fonn_rpc::{Options, PeerMetrics};

use super::{OWNERS_WAIT, Sharing, flushes, handover, pulse, repair};
use crate::cluster::map::Map;
use crate::cluster::{Cluster, Standing, member};
use crate::engine::Engine;

/// From the arrival of a command to its answer, when another member has to answer it.
const FORWARD_TIMEOUT: Duration = OWNERS_WAIT.saturating_mul(2);

/// How often it is looked whether a leader was heard.
const TIME_LOOK: Duration = Duration::from_millis(10);

/// How other members are talked to.
#[derive(Debug)]
pub struct Peers {
    /// The newest version of the protocol that they are told.
    pub version: u16,
    /// Where it is counted.
    pub metrics: PeerMetrics,
}

/// Starts a member's part in the cluster's data: follows the map and takes slots over, until the
/// tasks end.
pub fn start(
    cluster: &Cluster,
    engine: &Arc<Engine>,
    clock: Clock,
    peers: Peers,
    tasks: &Tasks,
) -> Arc<Sharing> {
    // Older copies may come from others: what was deleted is remembered from now on.
    engine.keep_tombstones();
    let own = cluster.node_id();
    let upstreams = Upstreams::new(
        Arc::new(route::Map::default()),
        Options {
            tls: cluster.tls(),
            version: peers.version,
            ..Options::new("", own)
        },
        peers.metrics,
    );
    let forwarder = Forwarder::new(upstreams.of_member(own), FORWARD_TIMEOUT);
    let sharing = Arc::new(Sharing::new(own, forwarder, clock));
    sharing.doubt_by(engine);
    sharing.note_in(cluster.dir());
    // Before it goes by any map.
    sharing.beat(cluster.standing(0), &engine.versions());
    let it = || Arc::clone(&sharing);
    tasks.spawn(
        "sharing-map",
        OnShutdown::Abort,
        follow(it(), Arc::clone(engine), cluster.clone()),
    );
    tasks.spawn(
        "sharing-pulse",
        OnShutdown::Abort,
        beat(it(), engine.versions(), cluster.clone()),
    );
    let take_over = handover::run(it(), Arc::clone(engine));
    tasks.spawn("sharing-handover", OnShutdown::Abort, take_over);
    let flush = flushes::run(it(), Arc::clone(engine));
    tasks.spawn("sharing-flushes", OnShutdown::Abort, flush);
    let repair = repair::run(it(), Arc::clone(engine));
    tasks.spawn("sharing-repair", OnShutdown::Abort, repair);
    sharing
}

async fn follow(sharing: Arc<Sharing>, engine: Arc<Engine>, cluster: Cluster) {
    let mut maps = cluster.map();
    // The map of before the start comes first, however soon there are others: all that come are
    // gone by behind it, in turn.
    let mut before = Some(cluster.state_of_start());
    loop {
        wait_for_time(&cluster).await;
        let newest = Arc::clone(&maps.borrow_and_update());
        let after = before.as_ref().map_or(sharing.epoch(), |it| it.epoch);
        let mut missed: Vec<_> = before.take().into_iter().collect();
        // An owner of a slot for one map alone has to be asked too. The map of before the start
        // follows the one that is noted.
        if after != 0 {
            missed.extend(cluster.states_between(after, newest.epoch));
        }
        let (it, engine) = (Arc::clone(&sharing), Arc::clone(&engine));
        let applied = tokio::task::spawn_blocking(move || {
            for state in &missed {
                it.follow_map(&engine, &Map::new(state));
            }
            it.follow_map(&engine, &newest);
        });
        if applied.await.is_err() {
            return;
        }
        if maps.changed().await.is_err() {
            return;
        }
    }
}

impl Sharing {
    /// Shows that the process runs, and how it stands in the cluster. `versions` follow the clock
    /// as long as the slots of this member are certainly its own.
    pub fn beat(&self, mut standing: Standing, versions: &Hlc) {
        let topology = self.topology();
        if topology.is_some_and(|it| it.members().iter().all(|member| member.id == self.own)) {
            // No other member could take its slots over.
            standing.lease = None;
        }
        let now_ms = self.clock.coarse_monotonic_ms();
        if pulse::Pulse::is_promised(standing) {
            // Before the first write under the promise.
            versions.heed();
        }
        self.pulse.beat(now_ms, standing);
        match self.pulse.follows_clock_for(now_ms, standing) {
            Some(span) => versions.follow_for(Some(span)),
            None if standing.lease.is_none() => versions.follow_for(None),
            None => versions.stop_following(),
        }
    }

    /// Applies a map of the cluster. Milliseconds, and writes of the disk; not for a reactor.
    fn follow_map(&self, engine: &Engine, map: &Map) {
        match topology(map) {
            Ok(topology) => {
                // Before anything is written in its place: what it wrote is older, and comes back
                // with it.
                let old = self.topology();
                let since = |id: &str| map.member(id).map_or(u64::MAX, |member| member.since);
                let has_fallen = old
                    .as_ref()
                    .is_some_and(|old| has_fallen(&self.own, old, &topology));
                if let Some(old) = &old {
                    engine.take_over(lost(&self.own, old, &topology));
                }
                let own = topology.member(&self.own);
                let is_serving = own.is_some_and(|own| own.state.is_serving());
                if has_fallen || is_serving && self.is_surprised_by(&topology, &since) {
                    engine.pass_fallen();
                }
                let is_unbroken = since(&self.own) <= self.epoch();
                self.go_by_since(topology, is_unbroken, &since);
            }
            // Before there is a cluster.
            Err(error) => tracing::debug!(%error, epoch = map.epoch, "no map to go by"),
        }
    }
}

/// Waits, after a start, until the clock is with those of others, or there is no leader that could
/// tell: a member that applies a map by which another one failed takes what it acknowledged for
/// older than the clock and a margin.
async fn wait_for_time(cluster: &Cluster) {
    let is_told = async {
        let mut ticks = tokio::time::interval(TIME_LOOK);
        while !cluster.is_told_the_time() {
            ticks.tick().await;
        }
    };
    let _ = tokio::time::timeout(pulse::LEADER_WAIT, is_told).await;
}

async fn beat(sharing: Arc<Sharing>, versions: Arc<Hlc>, cluster: Cluster) {
    let mut ticks = tokio::time::interval(pulse::BEAT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        sharing.beat(cluster.standing(sharing.epoch()), &versions);
    }
}

/// Whether another member than `own` that may have written by the old map cannot be asked any more
/// by the new one, and was not drained before.
fn has_fallen(own: &str, old: &Topology, new: &Topology) -> bool {
    fallen(own, old, new).next().is_some()
}

/// Those members.
fn fallen<'a>(
    own: &'a str,
    old: &'a Topology,
    new: &'a Topology,
) -> impl Iterator<Item = &'a Member> {
    let others = old.members().iter().filter(move |it| it.id != own);
    others.filter(|before| {
        let is_now = new.member(&before.id).map(|member| member.state);
        match (before.state, is_now) {
            (MemberState::Active | MemberState::Draining, Some(MemberState::Down)) => true,
            // Another one of its name has come in, with another disk; or it was removed as it was.
            (MemberState::Active, Some(MemberState::Joining) | None) => true,
            _ => false,
        }
    })
}

/// The members that have fallen, each with the slots that it owned, and of which no owner by the
/// old map is left.
fn lost(own: &str, old: &Topology, new: &Topology) -> Vec<(String, SlotSet)> {
    let fallen: Vec<&str> = fallen(own, old, new).map(|it| it.id.as_str()).collect();
    let is_left = |id: &str| {
        let member = new.member(id);
        !fallen.contains(&id) && member.is_some_and(|it| it.state.is_serving())
    };
    let slots_of = |id: &str| {
        let is_lost = |slot: &u16| {
            let mut owners = old.owners(*slot).map(|owner| owner.id.as_str());
            let mut before = old.owners(*slot).map(|owner| owner.id.as_str());
            owners.any(|owner| owner == id) && !before.any(is_left)
        };
        (0..SLOT_COUNT).filter(is_lost).collect()
    };
    let lost = fallen.iter().map(|id| ((*id).to_owned(), slots_of(id)));
    lost.collect()
}

/// The map as routers have it.
fn topology(map: &Map) -> Result<Topology, TopologyError> {
    let table = map.table.as_ref().ok_or(TopologyError::NoOwners)?;
    let members = map.members.iter().map(|member| Member {
        id: member.id.clone(),
        address: member.client_address.clone(),
        cluster_address: member.cluster_address.clone(),
        zone: member.zone.clone(),
        weight: u32::from(member.weight),
        share: u32::from(member.share),
        state: match member.state {
            member::MemberState::Active => MemberState::Active,
            member::MemberState::Draining => MemberState::Draining,
            member::MemberState::Joining => MemberState::Joining,
            member::MemberState::Down | member::MemberState::Removed => MemberState::Down,
        },
    });
    let owners = (0..SLOT_COUNT).map(|slot| table.owners(slot)).collect();
    Topology::new(map.epoch, members.collect(), owners)
}

#[cfg(test)]
mod tests {
    use fonn_forward::MemberState::{Active, Down, Draining};

    use super::*;
    use crate::sharing::tests::maps::map;

    #[test]
    fn the_slots_of_a_lost_member_are_those_that_no_other_owner_is_left_of() {
        let up = [("a", Active), ("b", Active), ("c", Active)];
        let down = [("a", Active), ("b", Active), ("c", Down)];
        let owned = |map: &Topology, slot: u16| map.owners(slot).any(|it| it.id == "c");
        let alone = map(1, 1, &up);
        let found = lost("a", &alone, &map(2, 1, &down));
        let [(member, slots)] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(member, "c");
        for slot in 0..SLOT_COUNT {
            assert_eq!(slots.contains(slot), owned(&alone, slot), "slot {slot}");
        }
        assert!(!slots.is_empty());
        // The other owner has all of it.
        let found = lost("a", &map(1, 2, &up), &map(2, 2, &down));
        assert!(found.iter().all(|(_, slots)| slots.is_empty()), "{found:?}");
        // Unless it is lost, too.
        let both = [("a", Active), ("b", Down), ("c", Down)];
        let shared = map(1, 2, &up);
        for (member, slots) in lost("a", &shared, &map(2, 2, &both)) {
            let is_of_both = |slot: &u16| shared.owners(*slot).all(|it| it.id != "a");
            let expected = (0..SLOT_COUNT).filter(is_of_both).count();
            assert_eq!(slots.len() as usize, expected, "{member}");
        }
        // What is drained was handed over.
        let drained = [("a", Active), ("b", Active), ("c", Draining)];
        assert!(lost("a", &alone, &map(2, 1, &drained)).is_empty());
        assert!(lost("c", &alone, &map(2, 1, &down)).is_empty());
    }
}
