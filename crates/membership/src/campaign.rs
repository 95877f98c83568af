//! The task that stands for election when no leader is heard; when, is up to
//! [`election`](super::election).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::ServerState;
use tokio::task::JoinSet;

use fonn_base::random::SplitMix64;
use fonn_proto::grpc::v1::RaftKind;

use super::election::{Timer, Turn, is_majority};
use super::network;
use super::participant::Participant;
use super::types::{Metrics, RaftId};

/// How long the other voters have for their answers.
const ANSWER_DEADLINE: Duration = Duration::from_millis(300);

/// Stands for election whenever that is due.
pub(super) async fn run(participant: Arc<Participant>) {
    let mut timer = Timer::new(SplitMix64::from_entropy(), Instant::now());
    let mut heard_changes = participant.heard.subscribe();
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(timer.due().into()) => {}
            changed = heard_changes.changed() => if changed.is_err() { return },
        }
        let metrics = participant.metrics();
        let heard = participant.heard(&metrics);
        if !timer.is_due(heard, turn(&metrics), Instant::now())
            || !may_stand(&metrics)
            || participant.gives_way(&metrics)
        {
            continue;
        }
        if is_wanted(&participant, &metrics).await {
            tracing::info!(
                term = metrics.current_term,
                "no leader is heard: standing for election"
            );
            if participant.raft.trigger().elect().await.is_err() {
                return;
            }
        }
    }
}

/// When it is this member's turn to ask.
fn turn(metrics: &Metrics) -> Turn {
    let voters = metrics.membership_config.membership().voter_ids();
    Turn::of(metrics.id, &voters.collect())
}

/// Whether this member votes and does not lead.
fn may_stand(metrics: &Metrics) -> bool {
    let membership = metrics.membership_config.membership();
    let is_voter = membership.voter_ids().any(|id| id == metrics.id);
    is_voter && metrics.state != ServerState::Leader
}

/// Whether a majority of the voters would vote for this member.
async fn is_wanted(participant: &Arc<Participant>, metrics: &Metrics) -> bool {
    let membership = metrics.membership_config.membership();
    let configs = membership.get_joint_config();
    let mut yes = BTreeSet::from([participant.raft_id()]);
    if is_majority(configs, &yes) {
        return true;
    }
    let last_log = participant.log.last();
    let voters: BTreeSet<RaftId> = membership.voter_ids().collect();
    let mut asked = JoinSet::new();
    for voter in voters {
        let Some(node) = membership.get_node(&voter) else {
            continue;
        };
        if voter == participant.raft_id() {
            continue;
        }
        let address = node.addr.clone();
        let ends = participant.identity.belonging().ends(voter);
        let Ok(request) = network::request(ends, RaftKind::PreVote, &last_log) else {
            return false;
        };
        let peers = participant.peers.clone();
        asked.spawn(async move {
            let answer = peers.call(&address, ANSWER_DEADLINE, |mut member| async move {
                member.raft(request).await
            });
            let answer = answer.await.ok()?;
            let granted: bool = serde_json::from_slice(&answer.payload).ok()?;
            granted.then_some(voter)
        });
    }
    while let Some(answer) = asked.join_next().await {
        yes.extend(answer.ok().flatten());
        if is_majority(configs, &yes) {
            return true;
        }
    }
    false
}
