//! The task by which the leader brings raft's voters and learners in line with the members, and
//! lets versions follow the clock.
//!
//! It takes one step at a time. Each is a pure function of what the leader sees, so the next leader
//! can continue.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::{BasicNode, ChangeMembers};
use tokio::time::MissedTickBehavior;

use super::detector::Detector;
use super::member::{Member, Phase};
use super::participant::{Participant, leads};
use super::state::{Change, State};
use super::types::{Metrics, RaftId};
use super::voters::{self, Candidate};

/// How often the leader looks.
const PERIOD: Duration = Duration::from_millis(200);
/// How long a step may take. One that was not done in time is begun anew, or finished by the next.
const STEP_DEADLINE: Duration = Duration::from_secs(5);
/// Entries that a log may be behind the leader's and still count as its copy.
const LAG_MAX: u64 = 100;

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// A change of voters and learners.
    Raft(ChangeMembers<RaftId, BasicNode>),
    /// A change of the state.
    State(Change),
}

/// What the leader sees of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// It answers, and its log is near the end of the leader's.
    is_ready: bool,
    /// It has not answered for so long that it should not vote.
    is_lost: bool,
}

/// Brings them in line, one step after the other.
pub(super) async fn run(participant: Arc<Participant>) {
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        let metrics = participant.metrics();
        if !leads(&metrics) {
            continue;
        }
        extend_versions(&participant).await;
        let sights = sights(&participant, &metrics);
        let Some(step) = next_step(&participant.state(), &metrics, &sights) else {
            continue;
        };
        tracing::debug!(?step, "voters and learners follow the members");
        let done = match step {
            Step::Raft(change) => {
                let changed = participant.raft.change_membership(change, true);
                match tokio::time::timeout(STEP_DEADLINE, changed).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err(format!("no agreement within {STEP_DEADLINE:?}")),
                }
            }
            Step::State(change) => {
                let proposed = participant.propose_here(change, STEP_DEADLINE).await;
                proposed.map(|_| ()).map_err(|error| error.to_string())
            }
        };
        if let Err(error) = done {
            tracing::warn!(
                error,
                "voters and learners do not follow the members yet; trying again"
            );
        }
    }
}

/// Lets versions follow the clock for a while longer.
async fn extend_versions(participant: &Participant) {
    let Some(versions) = &participant.options.versions else {
        return;
    };
    let Some(change) = participant.state().extension(versions.wanted()) else {
        return;
    };
    if let Err(error) = participant.propose_here(change, STEP_DEADLINE).await {
        tracing::warn!(%error, "the range of versions is not extended yet; trying again");
    }
}

fn sights(participant: &Participant, metrics: &Metrics) -> BTreeMap<RaftId, Sight> {
    let state = participant.state();
    let sighting = Sighting {
        metrics,
        replace_voter_after: participant.options.replace_voter_after,
        now: Instant::now(),
    };
    sighting.of(&state, &participant.detector.lock())
}

/// What the leader goes by when it looks at the members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sighting<'a> {
    /// The leader's.
    pub(super) metrics: &'a Metrics,
    /// Silence after which a member that is down is lost.
    pub(super) replace_voter_after: Duration,
    /// Now.
    pub(super) now: Instant,
}

impl Sighting<'_> {
    /// What it sees of all members.
    pub(super) fn of(self, state: &State, detector: &Detector) -> BTreeMap<RaftId, Sight> {
        let last = self.metrics.last_log_index.unwrap_or(0);
        let silence_max = state.down_after();
        let sight = |member: &Member| {
            let raft_id = member.info.raft_id;
            if raft_id == self.metrics.id {
                return Sight {
                    is_ready: true,
                    is_lost: false,
                };
            }
            let silence = detector.silence(raft_id, self.now).unwrap_or_default();
            let replicated = self.metrics.replication.as_ref();
            let matched = replicated.and_then(|all| all.get(&raft_id).copied().flatten());
            let is_near = matched.is_some_and(|matched| matched.index + LAG_MAX >= last);
            Sight {
                is_ready: is_near && !member.is_down() && silence < silence_max,
                is_lost: member.is_down() && silence >= self.replace_voter_after,
            }
        };
        state
            .members
            .values()
            .map(|member| (member.info.raft_id, sight(member)))
            .collect()
    }
}

/// What to do next, if anything.
pub(super) fn next_step(
    state: &State,
    metrics: &Metrics,
    sights: &BTreeMap<RaftId, Sight>,
) -> Option<Step> {
    // Before the cluster is formed its founder is the only voter, and no member.
    if state.cluster == 0 {
        return None;
    }
    let membership = metrics.membership_config.membership();
    let configs = membership.get_joint_config();
    let nodes: BTreeMap<RaftId, &BasicNode> =
        membership.nodes().map(|(id, it)| (*id, it)).collect();
    let wanted: BTreeMap<RaftId, BasicNode> = state
        .members
        .values()
        .map(|it| (it.info.raft_id, BasicNode::new(&it.info.cluster_address)))
        .collect();
    let sight = |id: RaftId| sights.get(&id).copied().unwrap_or_default();

    if let [voters] = configs.as_slice() {
        let new = wanted.iter().find(|(id, _)| !nodes.contains_key(id));
        if let Some((id, node)) = new {
            let added = BTreeMap::from([(*id, node.clone())]);
            return Some(Step::Raft(ChangeMembers::AddNodes(added)));
        }
        let moved = wanted
            .iter()
            .find(|(id, node)| nodes.get(id).is_some_and(|known| known != node));
        if let Some((id, node)) = moved {
            // A new member at an old address is not taken for the old one: messages name their
            // target.
            let set = BTreeMap::from([(*id, node.clone())]);
            return Some(Step::Raft(ChangeMembers::SetNodes(set)));
        }
        let gone: BTreeSet<RaftId> = nodes
            .keys()
            .filter(|id| !wanted.contains_key(id) && !voters.contains(id))
            .copied()
            .collect();
        if !gone.is_empty() {
            return Some(Step::Raft(ChangeMembers::RemoveNodes(gone)));
        }
    }
    // A change of voters that was left half done has two sets; planning on brings it to one.
    let current: BTreeSet<RaftId> = configs.last().cloned().unwrap_or_default();
    let candidates: Vec<Candidate<'_>> = state
        .members
        .values()
        .map(|member| {
            let Sight { is_ready, is_lost } = sight(member.info.raft_id);
            Candidate {
                raft_id: member.info.raft_id,
                zone: &member.info.zone,
                is_active: member.phase == Phase::Active,
                is_draining: matches!(member.phase, Phase::Draining | Phase::Leaving),
                is_ready,
                is_lost,
            }
        })
        .collect();
    let planned = voters::plan(&candidates, &current, metrics.id);
    if !planned.is_empty() && (planned != current || configs.len() > 1) {
        return Some(Step::Raft(ChangeMembers::ReplaceAllVoters(planned)));
    }
    let joined = state
        .members
        .values()
        .find(|it| it.phase == Phase::Joining && sight(it.info.raft_id).is_ready);
    let activate = joined.map(|joined| Change::Activate(joined.info.raft_id));
    let mut members = state.members.values();
    let left = members.find(|it| it.is_leaving() && it.is_down());
    let remove = left.map(|left| Change::Remove {
        id: left.info.id.clone(),
    });
    let lost = state.members.values().find(|it| {
        let is_placed = it.phase == Phase::Active && !it.is_missed;
        is_placed && sight(it.info.raft_id).is_lost
    });
    let miss = lost.map(|lost| Change::Miss(lost.info.raft_id));
    activate
        .or(remove)
        .or(miss)
        .or_else(|| state.next_layout_change())
        .map(Step::State)
}
