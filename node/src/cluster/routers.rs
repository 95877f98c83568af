//! The known routers: those that follow the map at any member.
//!
//! A router sends its address with its request for the map. It counts as long as that stream lives,
//! and a moment longer, because it may be on its way to another member. Members exchange their
//! routers with the pings. The answering member names the routers that follow the map there. The
//! asking voter names its own routers and those of all answers. So no member repeats what a third
//! one told it. A router that is gone is forgotten everywhere, because entries from pings expire
//! without further pings.
//!
//! A list is repeated until the other end confirms it, since it seldom changes. There is no
//! agreement: routers that do not know of each other serve all the same.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_proto::cluster::{ROUTERS_MAX, is_loopback, is_router_address};
use fonn_proto::grpc::v1::{RaftEnds, RouterList, RouterNews};
use fonn_runtime::random::SplitMix64;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::participant::Participant;
use super::types::RaftId;

/// How long a router counts after its stream ended.
const LINGER: Duration = Duration::from_secs(1);
/// How long what another member said counts: it is said again with each ping.
const HEARD_MAX: Duration = Duration::from_secs(3);

/// Addresses in order, each once.
type Addresses = Arc<[String]>;

/// The routers that one member knows of.
#[derive(Debug)]
pub(super) struct Routers {
    /// The cluster is on one machine: only then routers on its loopback are to be found by others.
    is_local: bool,
    known: Mutex<Known>,
    all: watch::Sender<Addresses>,
}

/// A router that follows the map here; until it is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Attached {
    routers: Arc<Routers>,
    address: String,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.routers
            .known
            .lock()
            .detach(&self.address, Instant::now());
    }
}

impl Routers {
    /// None yet, at the member with that cluster address.
    pub(super) fn new(cluster_address: &str) -> Arc<Self> {
        Arc::new(Self {
            is_local: is_loopback(cluster_address),
            known: Mutex::new(Known::new(SplitMix64::from_entropy().next_u64())),
            all: watch::Sender::new(Addresses::default()),
        })
    }

    /// A router follows the map here. None if it is not to be told to others: it names no address
    /// that they could reach, or there are too many.
    pub(super) fn attach(self: &Arc<Self>, address: &str) -> Option<Attached> {
        let is_found = is_router_address(address) && (self.is_local || !is_loopback(address));
        if !is_found || !self.known.lock().attach(address) {
            return None;
        }
        self.refresh(Instant::now());
        Some(Attached {
            routers: Arc::clone(self),
            address: address.to_owned(),
        })
    }

    /// All that are known, whichever member they follow the map at.
    pub(super) fn all(&self) -> watch::Receiver<Addresses> {
        self.all.subscribe()
    }

    /// Forgets those that are gone. To be called several times a second.
    pub(super) fn refresh(&self, now: Instant) {
        let mut known = self.known.lock();
        known.refresh(now);
        self.all.send_if_modified(|all| {
            let is_new = **all != *known.all;
            if is_new {
                *all = Arc::clone(&known.all);
            }
            is_new
        });
    }

    /// What is told with a ping to a member.
    pub(super) fn question(&self, to: RaftId) -> Option<RouterNews> {
        Some(self.known.lock().question(to))
    }

    /// Takes what a member told in its answer to a ping.
    pub(super) fn answered(&self, from: RaftId, news: Option<&RouterNews>) {
        let Some(news) = news else { return };
        let now = Instant::now();
        self.known.lock().answered(from, news, now);
        self.refresh(now);
    }
}

impl Participant {
    /// Takes what came with a ping, and makes what is told with its answer: nothing to a member
    /// that told nothing, or is no member.
    pub(super) fn hear_routers(
        &self,
        ends: Option<&RaftEnds>,
        news: Option<&RouterNews>,
    ) -> Option<RouterNews> {
        let (from, news) = (ends?.source, news?);
        let state = self.state();
        state.live().find(|it| it.info.raft_id == from)?;
        let now = Instant::now();
        let answer = self.routers.known.lock().asked(from, news, now);
        self.routers.refresh(now);
        Some(answer)
    }
}

/// What is known: pure.
#[derive(Debug)]
struct Known {
    /// Routers that follow the map here.
    here: BTreeMap<String, Here>,
    /// By member.
    others: BTreeMap<RaftId, Other>,
    /// What answers tell: those here.
    answers: List,
    /// What questions tell: those, and what was answered.
    questions: List,
    /// These, and what was asked.
    all: Addresses,
}

/// A router that follows the map here.
#[derive(Debug, Default)]
struct Here {
    streams: usize,
    /// When the last stream ended.
    ended: Option<Instant>,
}

/// What another member told.
#[derive(Debug, Default)]
struct Other {
    answered: Option<Heard>,
    asked: Option<Heard>,
    /// Which list of questions it has.
    has_questions: u64,
}

#[derive(Debug)]
struct Heard {
    revision: u64,
    addresses: Addresses,
    at: Instant,
}

/// A list that is told, with a number of its own.
#[derive(Debug)]
struct List {
    revision: u64,
    addresses: Addresses,
}

impl List {
    fn set(&mut self, addresses: Addresses) {
        if self.addresses != addresses {
            // 0 is no list.
            self.revision = self.revision.wrapping_add(1).max(1);
            self.addresses = addresses;
        }
    }

    /// The list for a member that has `has`.
    fn news(&self, has: u64, heard: Option<&Heard>) -> RouterNews {
        let list = || RouterList {
            addresses: self.addresses.to_vec(),
        };
        RouterNews {
            revision: self.revision,
            list: (has != self.revision).then(list),
            heard: heard.map_or(0, |it| it.revision),
        }
    }
}

/// Takes what was told. What is meant by a revision that is not here comes with the next ping.
fn learn(heard: &mut Option<Heard>, news: &RouterNews, now: Instant) {
    match (&news.list, heard) {
        (Some(list), heard) => {
            let addresses = list.addresses.iter().filter(|it| is_router_address(it));
            *heard = Some(Heard {
                revision: news.revision,
                addresses: in_order(addresses),
                at: now,
            });
        }
        (None, Some(known)) if known.revision == news.revision => known.at = now,
        (None, _) => {}
    }
}

fn in_order<'a>(addresses: impl Iterator<Item = &'a String>) -> Addresses {
    let mut addresses: Vec<String> = addresses.cloned().collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(ROUTERS_MAX);
    addresses.into()
}

impl Known {
    /// Nothing yet. The lists are numbered from `first` on.
    fn new(first: u64) -> Self {
        let list = || List {
            revision: first.max(1),
            addresses: Addresses::default(),
        };
        Self {
            here: BTreeMap::new(),
            others: BTreeMap::new(),
            answers: list(),
            questions: list(),
            all: Addresses::default(),
        }
    }

    /// False if there are too many already.
    fn attach(&mut self, address: &str) -> bool {
        if !self.here.contains_key(address) && self.here.len() >= ROUTERS_MAX {
            return false;
        }
        let here = self.here.entry(address.to_owned()).or_default();
        here.streams += 1;
        here.ended = None;
        true
    }

    fn detach(&mut self, address: &str, now: Instant) {
        if let Some(here) = self.here.get_mut(address) {
            here.streams = here.streams.saturating_sub(1);
            if here.streams == 0 {
                here.ended = Some(now);
            }
        }
    }

    fn refresh(&mut self, now: Instant) {
        let since = |at: Instant| now.saturating_duration_since(at);
        self.here
            .retain(|_, it| it.ended.is_none_or(|at| since(at) < LINGER));
        let is_old = |it: &mut Heard| since(it.at) >= HEARD_MAX;
        for other in self.others.values_mut() {
            other.answered.take_if(is_old);
            other.asked.take_if(is_old);
        }
        self.others
            .retain(|_, it| it.answered.is_some() || it.asked.is_some());
        self.answers.set(in_order(self.here.keys()));
        let others = || self.others.values();
        let answered = others().flat_map(|it| &it.answered);
        let answered = answered.flat_map(|it| it.addresses.iter());
        let questions = in_order(self.answers.addresses.iter().chain(answered));
        let asked = others().flat_map(|it| &it.asked);
        let asked = asked.flat_map(|it| it.addresses.iter());
        let all = in_order(questions.iter().chain(asked));
        self.questions.set(questions);
        if self.all != all {
            self.all = all;
        }
    }

    fn question(&self, to: RaftId) -> RouterNews {
        let other = self.others.get(&to);
        let has = other.map_or(0, |it| it.has_questions);
        self.questions
            .news(has, other.and_then(|it| it.answered.as_ref()))
    }

    fn answered(&mut self, from: RaftId, news: &RouterNews, now: Instant) {
        let other = self.others.entry(from).or_default();
        other.has_questions = news.heard;
        learn(&mut other.answered, news, now);
    }

    /// Takes what a question told, and makes the answer.
    fn asked(&mut self, from: RaftId, news: &RouterNews, now: Instant) -> RouterNews {
        let other = self.others.entry(from).or_default();
        learn(&mut other.asked, news, now);
        self.answers.news(news.heard, other.asked.as_ref())
    }
}
