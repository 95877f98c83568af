//! Following the cluster's map, and showing that the process runs.

use std::sync::Arc;
use std::time::Duration;

use fonn_base::clock::Clock;
use fonn_base::hlc::{Hlc, VersionRange};
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
    sharing.beat(cluster.standing(0));
    engine.versions().enter(VersionRange::default());
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
    /// Shows that the process runs, and how it stands in the cluster.
    pub fn beat(&self, mut standing: Standing) {
        let topology = self.topology();
        if topology.is_some_and(|it| it.members().iter().all(|member| member.id == self.own)) {
            // No other member could take its slots over.
            standing.lease = None;
        }
        self.pulse.beat(self.clock.coarse_monotonic_ms(), standing);
    }

    /// Applies a map of the cluster. Milliseconds, and writes of the disk; not for a reactor.
    fn follow_map(&self, engine: &Engine, map: &Map) {
        match topology(map) {
            Ok(topology) => {
                // Before anything is written by the new map.
                engine.enter_versions(map.versions);
                let since = |id: &str| map.member(id).map_or(u64::MAX, |member| member.since);
                if let Some(old) = &self.topology() {
                    engine.take_over(lost(&self.own, old, &topology));
                }
                let is_unbroken = since(&self.own) <= self.epoch();
                self.go_by_since(topology, is_unbroken, &since);
            }
            // Before there is a cluster.
            Err(error) => tracing::debug!(%error, epoch = map.epoch, "no map to go by"),
        }
    }
}

async fn beat(sharing: Arc<Sharing>, versions: Arc<Hlc>, cluster: Cluster) {
    let mut ticks = tokio::time::interval(pulse::BEAT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let epoch = sharing.epoch();
        sharing.beat(cluster.standing(epoch));
        if let Some(range) = cluster.versions_of(epoch) {
            versions.enter(range);
        }
    }
}

/// The members other than `own` that may have written by the old map, that cannot be asked any more
/// by the new one, and that were not drained before.
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
