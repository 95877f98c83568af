//! The tasks that ask everybody whether they are there, and note what changed.
//!
//! Every voter asks, so that whoever leads next knows already who is silent; the leader alone decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use fonn_proto::grpc::v1::PingRequest;

use super::detector::Detector;
use super::participant::{Participant, client, leads};
use super::state::{Change, State};
use super::types::RaftId;

/// How long a member has for its answer: two fit into the silence after which it is down.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);
/// How often the leader looks for what changed.
const DECIDE_PERIOD: Duration = Duration::from_millis(100);
/// How long an agreement on it may take.
const CHANGE_DEADLINE: Duration = Duration::from_secs(1);

/// Asks everybody, each period; runs until the member stops.
pub(super) async fn ask(participant: Arc<Participant>) {
    let mut period = tokio::time::interval(participant.options.detector.period);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked: JoinSet<(RaftId, bool)> = JoinSet::new();
    let mut waiting = BTreeSet::new();
    loop {
        tokio::select! {
            _ = period.tick() => {
                let targets = targets(&participant);
                let now = Instant::now();
                {
                    let mut detector = participant.detector.lock();
                    detector.watch(&targets.keys().copied().collect(), now);
                    detector.tick(now);
                }
                for (raft_id, address) in targets {
                    // One question at a time to each: who is silent costs no more than who is not.
                    if waiting.insert(raft_id) {
                        asked.spawn(ping(Arc::clone(&participant), raft_id, address));
                    }
                }
            }
            Some(answer) = asked.join_next() => {
                let Ok((raft_id, answered)) = answer else {
                    // A question that panicked leaves its name in `waiting`; all are asked anew.
                    waiting.clear();
                    continue;
                };
                waiting.remove(&raft_id);
                if answered {
                    participant.detector.lock().answered(raft_id, Instant::now());
                }
            }
            () = participant.closed() => return,
        }
    }
}

/// Whom this member asks, if it votes: everybody else.
fn targets(participant: &Participant) -> BTreeMap<RaftId, String> {
    let metrics = participant.metrics();
    let mut voters = metrics.membership_config.membership().voter_ids();
    if !voters.any(|id| id == participant.raft_id()) {
        return BTreeMap::new();
    }
    let state = participant.state();
    let others = state
        .live()
        .filter(|it| it.info.raft_id != participant.raft_id());
    others
        .map(|it| (it.info.raft_id, it.info.cluster_address.clone()))
        .collect()
}

async fn ping(participant: Arc<Participant>, raft_id: RaftId, address: String) -> (RaftId, bool) {
    let request = PingRequest {
        ends: Some(participant.belonging.ends(raft_id)),
    };
    let call = |channel| async move { client(channel).ping(request).await };
    let answer = participant
        .peers
        .call(&address, ANSWER_DEADLINE, call)
        .await;
    (raft_id, answer.is_ok())
}

/// Notes who fell and who returned, while this member leads; runs until it stops.
pub(super) async fn decide(participant: Arc<Participant>) {
    let mut period = tokio::time::interval(DECIDE_PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = period.tick() => {}
            () = participant.closed() => return,
        }
        // A leader that is cut off hears nobody; what it found out then must not hold later.
        if !leads(&participant.metrics()) {
            continue;
        }
        for change in changes(&participant) {
            tracing::info!(?change, "the state of a member changes");
            if let Err(error) = participant.propose_here(change, CHANGE_DEADLINE).await {
                tracing::warn!(%error, "the state of a member is not agreed on; trying again");
                break;
            }
        }
    }
}

fn changes(participant: &Participant) -> Vec<Change> {
    let state = participant.state();
    let mut detector = participant.detector.lock();
    falls_and_returns(&state, participant.raft_id(), &mut detector, Instant::now())
}

/// Whom the leader `own` holds for something else than what was agreed on.
pub(super) fn falls_and_returns(
    state: &State,
    own: RaftId,
    detector: &mut Detector,
    now: Instant,
) -> Vec<Change> {
    let mut changes = Vec::new();
    for member in state.live() {
        let raft_id = member.info.raft_id;
        let is_down = raft_id != own && detector.is_down(raft_id, member.is_down, now);
        if is_down != member.is_down {
            changes.push(Change::SetDown {
                id: member.info.id.clone(),
                raft_id,
                is_down,
            });
        }
    }
    changes
}
