//! Metrics of the cluster.

use fonn_base::metrics::Snapshot;
use fonn_membership::Cluster;
use fonn_proto::member::MemberState;

/// The states that a map shows.
const STATES: [MemberState; 4] = [
    MemberState::Joining,
    MemberState::Active,
    MemberState::Draining,
    MemberState::Down,
];

/// Adds the samples of a scrape.
pub(super) fn cluster(snapshot: &mut Snapshot, cluster: &Cluster) {
    let (status, map) = (cluster.status(), cluster.map().borrow().clone());
    for state in STATES {
        let count = map.members.iter().filter(|it| it.state == state).count();
        snapshot.gauge(
            "fonn_cluster_members",
            "Members by the map that this node has, by state.",
            &[("state", state.name())],
            count as f64,
        );
    }
    let mut gauge = |name, help, value: f64| snapshot.gauge(name, help, &[], value);
    let flag = |is: bool| f64::from(u8::from(is));
    gauge(
        "fonn_cluster_epoch",
        "Version of the map that this node has; 0 before it has joined.",
        map.epoch as f64,
    );
    gauge(
        "fonn_cluster_is_moving",
        "1 while members copy slots for the next layout, one is due, or a member is to be removed.",
        flag(map.is_moving),
    );
    gauge(
        "fonn_cluster_is_leader",
        "1 while this node leads and a majority follows.",
        flag(status.is_leading),
    );
    gauge(
        "fonn_cluster_has_leader",
        "1 while this node hears a leader, or leads a majority: without one the map stays as it is.",
        flag(status.leader.is_some()),
    );
    gauge(
        "fonn_cluster_voters",
        "Members that vote.",
        status.voters.len() as f64,
    );
    gauge(
        "fonn_cluster_term",
        "Term of raft: it grows with each election.",
        status.term as f64,
    );
    gauge(
        "fonn_cluster_heartbeat_age_seconds",
        "How long ago this node heard a leader, 0 for the leader itself; since its start if it never did.",
        status.leader_silence.as_secs_f64(),
    );
}
