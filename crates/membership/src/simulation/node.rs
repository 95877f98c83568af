//! One simulated member: the decisions are the real ones (detector, election timer and pre-vote,
//! planner, state), raft under them is a model of it ([`raft`]), in memory.

mod raft;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::random::SplitMix64;
use openraft::{BasicNode, ChangeMembers, CommittedLeaderId, Membership, ServerState};

use super::log::{Config, Disk, Entry, Payload};
use super::message::Message;
use crate::detector::{self, Detector};
use crate::election::{Timer, defended, is_majority};
use crate::lease::{Grants, Lease};
use crate::member::{MemberInfo, Phase};
use crate::participant::leads;
use crate::reconcile::{Sighting, Step, next_step};
use crate::state::{Change, State};
use crate::types::{LogId, Metrics, RaftId, StoredMembership};

pub(super) const DECIDE: Duration = Duration::from_millis(100);
pub(super) const RECONCILE: Duration = Duration::from_millis(200);
pub(super) const JOIN: Duration = Duration::from_millis(500);
/// As short as the tests over sockets have it, so that a run is short.
pub(super) const REPLACE_VOTER_AFTER: Duration = Duration::from_secs(3);
pub(super) const CHANGE_DEADLINE: Duration = Duration::from_secs(1);
const STEP_DEADLINE: Duration = Duration::from_secs(5);

pub(super) fn detector_options() -> detector::Options {
    detector::Options {
        stable: Duration::from_secs(1),
        stable_max: Duration::from_secs(4),
    }
}

#[derive(Debug)]
enum Role {
    Follower,
    /// Asks for pre-votes, in which nothing is promised yet.
    Asking(BTreeSet<RaftId>),
    Candidate(BTreeSet<RaftId>),
    Leader(Leading),
}

#[derive(Debug, Default)]
pub(super) struct Leading {
    next: BTreeMap<RaftId, usize>,
    matched: BTreeMap<RaftId, usize>,
    /// When what was answered last had been sent.
    acked: BTreeMap<RaftId, Instant>,
    /// Where what is waited for stands in the log, and since when.
    pub(super) deciding: Option<(usize, Instant)>,
    reconciling: Option<(usize, Instant)>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) info: MemberInfo,
    pub(super) disk: Disk,
    role: Role,
    commit: usize,
    pub(super) applied: usize,
    pub(super) state: State,
    pub(super) heard: Instant,
    timer: Timer,
    pub(super) detector: Detector,
    pub(super) grants: Grants,
    pub(super) lease: Lease,
    pub(super) leader: Option<RaftId>,
    pub(super) asked: BTreeMap<RaftId, Instant>,
    /// What it says about itself while it leads.
    pub(super) wished: Option<Change>,
    pub(super) out: Vec<(RaftId, Message)>,
}

impl Node {
    pub(super) fn new(info: MemberInfo, disk: Disk, seed: u64, now: Instant) -> Self {
        Self {
            info,
            disk,
            role: Role::Follower,
            commit: 0,
            applied: 0,
            state: State::default(),
            heard: now,
            timer: Timer::new(SplitMix64::new(seed), now),
            detector: Detector::new(detector_options()),
            grants: Grants::new(seed),
            lease: Lease::default(),
            leader: None,
            asked: BTreeMap::new(),
            wished: None,
            out: Vec::new(),
        }
    }

    /// The log of a founder.
    pub(super) fn founded(info: &MemberInfo, now: Instant) -> Disk {
        let config = Config {
            voters: vec![BTreeSet::from([info.raft_id])],
            nodes: BTreeMap::from([(info.raft_id, BasicNode::new(&info.cluster_address))]),
        };
        let form = Change::Form {
            cluster: 1,
            founder: info.clone(),
            version: 0,
            down_after_ms: 1500,
        };
        let entry = |payload| Entry {
            term: 1,
            made: now,
            leader: info.raft_id,
            payload,
        };
        Disk {
            term: 1,
            voted: Some(info.raft_id),
            log: vec![
                entry(Payload::Config(Arc::new(config))),
                entry(Payload::Change(form)),
            ],
        }
    }

    pub(super) fn id(&self) -> RaftId {
        self.info.raft_id
    }

    pub(super) fn term(&self) -> u64 {
        self.disk.term
    }

    fn log_id(&self, len: usize) -> Option<LogId> {
        let entry = self.disk.log.get(len.checked_sub(1)?)?;
        Some(LogId::new(
            CommittedLeaderId::new(entry.term, entry.leader),
            len as u64,
        ))
    }

    fn config(&self) -> Arc<Config> {
        self.disk.config()
    }

    /// As [`Participant::defended`](crate::participant::Participant::defended).
    fn defended(&self) -> Option<LogId> {
        let (newest, before) = self.disk.configs();
        let agreed = newest.filter(|at| *at <= self.commit).or(before);
        let is_voter = self.voters().contains(&self.id());
        let last_log = self.log_id(self.disk.log.len());
        defended(is_voter, last_log, agreed.and_then(|at| self.log_id(at)))
    }

    pub(super) fn voters(&self) -> BTreeSet<RaftId> {
        self.config().voters.iter().flatten().copied().collect()
    }

    /// What openraft would tell, but for the membership.
    pub(super) fn metrics(&self, now: Instant) -> Metrics {
        let mut metrics = Metrics::new_initial(self.id());
        metrics.last_log_index = Some(self.disk.log.len() as u64);
        metrics.current_term = self.disk.term;
        metrics.last_applied = self.log_id(self.applied);
        if let Role::Leader(leading) = &self.role {
            let config = self.config();
            metrics.state = ServerState::Leader;
            // The youngest time by which a majority had answered.
            let mut times: Vec<Instant> = leading.acked.values().copied().chain([now]).collect();
            times.sort_unstable();
            let is_quorum = |since: &&Instant| {
                let recent = leading.acked.iter().filter(|(_, at)| **at >= **since);
                let yes = recent.map(|(id, _)| *id).chain([self.id()]).collect();
                is_majority(&config.voters, &yes)
            };
            let since = times.iter().rev().find(is_quorum);
            metrics.millis_since_quorum_ack = since.map(|at| (now - *at).as_millis() as u64);
        }
        metrics
    }

    /// All that it would tell.
    fn full_metrics(&self, now: Instant) -> Metrics {
        let (mut metrics, config) = (self.metrics(now), self.config());
        if let Role::Leader(leading) = &self.role {
            let matched = leading.matched.iter();
            metrics.replication = Some(matched.map(|(id, at)| (*id, self.log_id(*at))).collect());
        }
        let membership = Membership::new(config.voters.clone(), config.nodes.clone());
        metrics.membership_config = Arc::new(StoredMembership::new(None, membership));
        metrics
    }

    pub(super) const fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Whether it leads, and a majority follows.
    pub(super) fn is_leading(&self, now: Instant) -> bool {
        self.is_leader() && leads(&self.metrics(now))
    }

    pub(super) fn due(&self) -> Instant {
        self.timer.due()
    }

    pub(super) fn heard(&self, now: Instant) -> Instant {
        match self.is_leading(now) {
            true => now,
            false => self.heard,
        }
    }

    /// Brings voters in line with members, as the leader.
    pub(super) fn reconcile(&mut self, now: Instant) {
        if !self.is_leading(now) || self.is_waiting(now, STEP_DEADLINE, |it| &mut it.reconciling) {
            return;
        }
        let metrics = self.full_metrics(now);
        let sighting = Sighting {
            metrics: &metrics,
            replace_voter_after: REPLACE_VOTER_AFTER,
            now,
        };
        let sights = sighting.of(&self.state, &self.detector);
        let Some(step) = next_step(&self.state, &metrics, &sights) else {
            return;
        };
        // Raft takes no other configuration before the newest is agreed on.
        if matches!(step, Step::Raft(_)) && self.disk.configs().0 > Some(self.commit) {
            return;
        }
        let mut config = Config::clone(&self.config());
        let payload = match step {
            Step::State(change) => Payload::Change(change),
            Step::Raft(change) => {
                match change {
                    ChangeMembers::AddNodes(added) | ChangeMembers::SetNodes(added) => {
                        config.nodes.extend(added);
                    }
                    ChangeMembers::RemoveNodes(gone) => {
                        config.nodes.retain(|id, _| !gone.contains(id))
                    }
                    ChangeMembers::ReplaceAllVoters(planned) => {
                        let current = config.voters.pop().unwrap_or_default();
                        config.voters = match current == planned {
                            true => vec![planned],
                            false => vec![current, planned],
                        };
                    }
                    other => panic!("the planner asks for {other:?}"),
                }
                Payload::Config(Arc::new(config))
            }
        };
        let at = self.append(payload, now);
        self.wait_for(at, now, |it| &mut it.reconciling);
    }

    pub(super) fn wait_for(
        &mut self,
        at: usize,
        now: Instant,
        of: fn(&mut Leading) -> &mut Option<(usize, Instant)>,
    ) {
        if let Role::Leader(leading) = &mut self.role {
            *of(leading) = Some((at, now));
        }
        self.heartbeat(now);
    }

    pub(super) fn is_waiting(
        &mut self,
        now: Instant,
        limit: Duration,
        of: fn(&mut Leading) -> &mut Option<(usize, Instant)>,
    ) -> bool {
        let commit = self.commit;
        let Role::Leader(leading) = &mut self.role else {
            return false;
        };
        of(leading).is_some_and(|(at, since)| at > commit && now - since < limit)
    }

    /// Whether it has to ask to be taken in.
    pub(super) fn wants_in(&self) -> bool {
        self.state.by_raft_id(self.id()).is_none()
    }

    pub(super) fn receive(&mut self, from: RaftId, message: Message, now: Instant) {
        match message {
            Message::PreVote { last } => self.asked_to_pre_vote(from, last, now),
            Message::PreVoted { granted } => self.pre_voted(from, granted, now),
            Message::Vote { term, last } => self.asked_to_vote(from, term, last, now),
            Message::Voted { term, granted } => self.voted(from, term, granted, now),
            Message::Append(append) => self.append_from(from, append, now),
            Message::Appended {
                term,
                matched,
                sent,
            } => self.appended(from, (term, matched, sent), now),
            Message::Ping { sent, question } => self.answer(sent, &question, now),
            Message::Pong { sent, sequence } => self.answered(from, (sent, sequence), now),
            Message::Propose(change) => self.propose_status(change, now),
            Message::Join(info) => self.admit(info, now),
        }
    }

    /// Takes a member in, as the leader.
    fn admit(&mut self, info: MemberInfo, now: Instant) {
        if !self.is_leading(now) {
            return;
        }
        let known = self.state.members.get(&info.id);
        if let Some(member) = known.filter(|it| it.info.raft_id != info.raft_id) {
            let silence = self.detector.silence(member.info.raft_id, now);
            if silence.is_some_and(|it| it < self.state.down_after()) {
                return;
            }
        }
        let change = Payload::Change(Change::Join(info));
        let is_asked = self.disk.log[self.commit..]
            .iter()
            .any(|it| it.payload == change);
        if !is_asked {
            self.append(change, now);
            self.heartbeat(now);
        }
    }

    /// Members that own slots or would, and are not held for down.
    pub(super) fn active(&self) -> BTreeSet<String> {
        let live = self
            .state
            .members
            .values()
            .filter(|it| it.phase == Phase::Active && !it.is_down());
        live.map(|it| it.info.id.clone()).collect()
    }
}
