//! The tasks that probe all members, and record changes.
//!
//! Every voter probes, so that the next leader already knows which members are silent. Only the
//! leader decides. Its probes carry its leases ([`lease`](super::lease)), so it probes as long as
//! it leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use fonn_proto::grpc::v1::PingRequest;

use super::ChangeError;
use super::detector::{ANSWER_DEADLINE, Detector, PERIOD};
use super::lease::{Grants, Role};
use super::member::Member;
use super::participant::{Participant, leads};
use super::state::{Change, State};
use super::types::RaftId;

/// How often the leader looks for what changed.
const DECIDE_PERIOD: Duration = Duration::from_millis(100);
/// How long an agreement on it may take.
const CHANGE_DEADLINE: Duration = Duration::from_secs(1);

/// Asks all members, each period.
pub(super) async fn ask(participant: Arc<Participant>) {
    let mut period = tokio::time::interval(PERIOD);
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
                    let silence = participant.state().down_after();
                    detector.watch(&targets.keys().copied().collect(), silence, now);
                    detector.tick(now);
                    let is_there = |id| id == participant.raft_id() || targets.contains_key(&id);
                    participant.grants.lock().watch(is_there);
                }
                for (raft_id, address) in targets {
                    // One question at a time to each: a silent member costs no more than others.
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
                // A member that is to be removed is taken for one that does not answer.
                let state = participant.state();
                let is_leaving = state.by_raft_id(raft_id).is_some_and(Member::is_leaving);
                if answered && !is_leaving {
                    participant.detector.lock().answered(raft_id, Instant::now());
                }
            }
        }
    }
}

/// The members that this member asks, if it votes, or leads without a vote while it is drained: all
/// others.
fn targets(participant: &Participant) -> BTreeMap<RaftId, String> {
    let metrics = participant.metrics();
    let mut voters = metrics.membership_config.membership().voter_ids();
    let votes = voters.any(|id| id == participant.raft_id());
    if !votes && Role::of(&metrics).leads.is_none() {
        return BTreeMap::new();
    }
    participant.others()
}

async fn ping(participant: Arc<Participant>, raft_id: RaftId, address: String) -> (RaftId, bool) {
    let sent = Instant::now();
    let role = Role::of(&participant.metrics());
    let (epoch, sequence, granted) = {
        let mut grants = participant.grants.lock();
        // Only now: a member that is not failing any more is down in it.
        let state = participant.state();
        let member = state.by_raft_id(raft_id);
        let gets_leases = member.is_some_and(Member::gets_leases);
        let granted = role.promises() && gets_leases;
        let granted = granted.then(|| grants.granted(raft_id));
        let since = member.map_or(state.epoch, |it| it.sync.since.0);
        (since, grants.question(), granted.unwrap_or(0))
    };
    let request = PingRequest {
        ends: Some(participant.identity.belonging().ends(raft_id)),
        version: participant.newest_version(),
        sequence,
        granted,
        is_leading: role.promises(),
        epoch,
    };
    let peers = &participant.peers;
    let answer = peers.call(&address, ANSWER_DEADLINE, |mut member| async move {
        member.ping(request).await
    });
    let answer = answer.await;
    if let Ok(answer) = &answer {
        participant.hear_version(raft_id, answer.version);
        // One that comes later, to a process that was stopped, promises nothing: others may lead by
        // then.
        if sent.elapsed() <= ANSWER_DEADLINE {
            participant.grants.lock().answered(raft_id, sequence);
        }
    }
    (raft_id, answer.is_ok())
}

/// Notes which members failed and returned, while this member leads.
pub(super) async fn decide(participant: Arc<Participant>) {
    let mut period = tokio::time::interval(DECIDE_PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        // In this order: an entry of another leader ends that this one leads, before that is looked
        // at.
        let last = participant.log.last().map(|it| it.leader_id.node_id);
        let metrics = participant.metrics();
        let (now, ends) = (Instant::now(), (participant.raft_id(), last));
        let role = Role::of(&metrics);
        participant.grants.lock().look(role, ends, now);
        // Without its heartbeats the other voters elect another leader.
        let beats = !participant.gives_way(&metrics);
        participant.raft.runtime_config().heartbeat(beats);
        // A leader that is cut off hears no member; what it found out then must not hold later. One
        // that gives way leaves it to the next.
        if !beats || !leads(&metrics) {
            continue;
        }
        // One after the other: a member that is named later may be heard again meanwhile.
        while let Some(change) = next_change(&participant) {
            tracing::info!(?change, "a member does not answer, or is to be removed");
            let Change::Down(raft_id) = change else {
                break;
            };
            // Also if the disk has just stalled: a member that falls gets no lease before this is
            // agreed on, so it has to be proposed.
            let proposed = participant.propose_at_once(change, CHANGE_DEADLINE).await;
            // One that is not refused may be agreed on yet: nothing is promised until it is seen.
            if !matches!(proposed, Err(ChangeError::Unavailable(_))) {
                participant.grants.lock().settle(raft_id);
            }
            if let Err(error) = proposed {
                tracing::warn!(%error, "the state of a member is not agreed on; trying again");
                break;
            }
        }
    }
}

fn next_change(participant: &Participant) -> Option<Change> {
    let state = participant.state();
    let own = state.by_raft_id(participant.raft_id());
    let leaves = own.is_some_and(|own| own.is_leaving() && !own.is_down());
    let left = || participant.lease.lock().left(u64::MAX, Instant::now());
    if leaves && left().is_zero() {
        return Some(Change::Down(participant.raft_id()));
    }
    let mut detector = participant.detector.lock();
    let mut grants = participant.grants.lock();
    let watched = (&mut *detector, &mut *grants);
    failed(&state, participant.raft_id(), watched, Instant::now())
}

/// A member that is not declared down yet and does not answer, as the leader `own` sees it. It gets
/// no lease from here on.
pub(super) fn failed(
    state: &State,
    own: RaftId,
    (detector, grants): (&mut Detector, &mut Grants),
    now: Instant,
) -> Option<Change> {
    // After a pause of this process, this may be looked at before any member is asked again.
    detector.tick(now);
    for member in state.members.values() {
        let raft_id = member.info.raft_id;
        let is_down = raft_id != own && detector.is_down(raft_id, member.is_down(), now);
        if member.is_down() {
            grants.settle(raft_id);
        } else if is_down && grants.may_fall(raft_id, state.down_after(), now) {
            grants.fall(raft_id);
            return Some(Change::Down(raft_id));
        }
    }
    None
}
