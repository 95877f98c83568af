//! Clients and the path of their requests: admission by the core, execution by the store, and then
//! replication by the core. Other events happen between these steps.

use fonn_replication::{Epoch, Event, Record, Reply, Slot};

use super::cluster::{Open, Outcome, Volatile};
use super::judge::{Kind, Replaced};
use super::setup::Shell;
use super::store::{Entry, Key, StoreLookup};
use super::world::{Action, At, World};

/// Which owner a read asks.
#[derive(Clone, Copy, Debug)]
pub enum ReadFrom {
    /// The primary. All reads but hedged ones ask it.
    Primary,
    /// Any owner: a hedged read.
    AnyOwner,
}

/// A write of a client.
#[derive(Clone, Debug)]
pub struct Request {
    pub request: u64,
    pub slot: Slot,
    pub entry: Entry,
}

/// A request that the core has admitted.
#[derive(Clone, Debug)]
pub struct Admitted {
    request: Request,
    epoch: Epoch,
    /// The revision of the rights if the write needs no other member.
    complete: Option<u64>,
}

/// What the store has executed.
#[derive(Clone, Debug)]
pub struct Executed {
    request: u64,
    record: Record<Entry>,
    complete: Option<u64>,
}

impl World {
    pub fn client(&mut self) -> Result<(), String> {
        let c = self.random.index(self.clusters.len());
        let slot = Slot(self.random.below(u64::from(self.setup.slots)) as u16);
        let key = self.random.below(u64::from(self.setup.keys)) as Key;
        let primary = self.clusters[c].raft.topology().primary(slot);
        let n = match primary {
            Some(primary) if self.random.percent(80) => usize::from(primary.0),
            _ => self.random.index(self.setup.members),
        };
        match self.random.below(1_000) {
            0..=549 => self.read((c, n), slot, key, ReadFrom::Primary)?,
            550..=649 => self.read((c, n), slot, key, ReadFrom::AnyOwner)?,
            650..=899 => self.write((c, n), slot, key, Kind::Value),
            _ => self.write((c, n), slot, key, Kind::Gone),
        }
        Ok(())
    }

    /// What a member would show, or `None` if it does not answer.
    fn look(&mut self, at: At, slot: Slot, key: Key, from: ReadFrom) -> Option<Option<u32>> {
        if !self.answers(at, slot, from) {
            return None;
        }
        match self.clusters[at.0].nodes[at.1].store.find(slot, key) {
            StoreLookup::Value(id) => return Some(Some(id)),
            StoreLookup::Deleted => return Some(None),
            StoreLookup::Nothing => {}
        }
        let found = self.bucket.find(slot, key, &mut self.random);
        let flushed = self.clusters[at.0].nodes[at.1].store.flushed();
        let found = found.filter(|found| found.version >= flushed);
        let Some(found) = found.cloned() else {
            return Some(None);
        };
        let store = &mut self.clusters[at.0].nodes[at.1].store;
        store.clock.hear(found.version);
        if self.random.percent(50) {
            store.fill(found.clone(), self.now);
        }
        match found.entry {
            Entry::Value { id, .. } => Some(Some(id)),
            _ => Some(None),
        }
    }

    pub fn answers(&self, at: At, slot: Slot, from: ReadFrom) -> bool {
        let node = &self.clusters[at.0].nodes[at.1];
        let rights = node.core.rights(slot);
        let may_read = match from {
            ReadFrom::Primary => rights.leads,
            ReadFrom::AnyOwner => rights.hedged_reads,
        };
        node.runs() && may_read && node.core.may_answer(self.moment())
    }

    fn read(&mut self, at: At, slot: Slot, key: Key, from: ReadFrom) -> Result<(), String> {
        if let Some(shown) = self.look(at, slot, key, from) {
            self.log(|| format!("{at:?} {slot:?} key {key} shows {shown:?} to {from:?}"));
            if !self.clusters[at.0].is_left_behind(at.1) {
                let judged = self.clusters[at.0].judge.read(slot.0, key, shown);
                return judged.map_err(|e| format!("{e} (at {at:?}, {from:?})"));
            }
        }
        Ok(())
    }

    fn write(&mut self, at: At, slot: Slot, key: Key, kind: Kind) {
        if !self.clusters[at.0].nodes[at.1].alive {
            return;
        }
        let (id, request) = self.name();
        let entry = match kind {
            Kind::Value => Entry::Value { key, id },
            Kind::Gone => Entry::Delete { key, id },
        };
        let scope = (slot.0, key);
        let open = Open {
            node: at.1,
            id,
            kind,
            slot,
            key,
            replaced: None,
        };
        self.clusters[at.0].judge.begin(id, kind, scope);
        self.clusters[at.0].open.insert(request, open);
        self.note_foreign(at.0, scope);
        let request = Request {
            request,
            slot,
            entry,
        };
        self.schedule(0, Action::Request(at, request));
    }

    fn name(&mut self) -> (u32, u64) {
        self.next_id += 1;
        self.next_request += 1;
        (self.next_id, self.next_request)
    }

    fn note_foreign(&mut self, c: usize, scope: super::judge::Scope) {
        for other in (0..self.clusters.len()).filter(|&other| other != c) {
            self.clusters[other].judge.foreign(scope);
        }
    }

    pub fn upload(&mut self) {
        for c in 0..self.clusters.len() {
            for n in 0..self.setup.members {
                if self.clusters[c].nodes[n].runs() && self.random.percent(50) {
                    let records = self.clusters[c].nodes[n].store.upload();
                    self.bucket.upload(c, records);
                }
            }
        }
    }

    /// Asks the core whether the store may execute a request.
    pub fn admit(&mut self, at: At, request: Request) {
        let now = self.moment();
        let core = &self.clusters[at.0].nodes[at.1].core;
        let rights = core.rights(request.slot);
        if !rights.leads || !core.may_answer(now) {
            return self.clusters[at.0].answered(request.request, Outcome::Skipped);
        }
        let admitted = Admitted {
            request,
            epoch: core.applied(),
            complete: rights.completes.then(|| core.revision()),
        };
        let incarnation = self.clusters[at.0].nodes[at.1].incarnation;
        let delay = self.thread_delay();
        self.schedule(delay, Action::Execute(at, incarnation, admitted));
    }

    /// How long a thread takes from one step to the next.
    fn thread_delay(&mut self) -> u64 {
        match self.random.below(100) {
            0 if self.chaos => self.random.between(100, 4_000),
            0..=9 => self.random.between(1, 30),
            _ => 0,
        }
    }

    /// The store executes a request.
    pub fn execute_write(&mut self, at: At, admitted: Admitted) {
        let times = (self.wall_ms(at), self.now);
        let node = &mut self.clusters[at.0].nodes[at.1];
        let Request {
            request,
            slot,
            entry,
        } = admitted.request;
        let key = entry.key();
        let (replaced, before) = (node.store.version(slot, key), node.store.record(slot, key));
        let epoch = match self.setup.shell {
            Shell::ExecutesLate => node.store.epoch(),
            _ => admitted.epoch,
        };
        let Some(mut record) = node.store.execute(slot, epoch, entry, times) else {
            return self.clusters[at.0].answered(request, Outcome::Skipped);
        };
        record.epoch = admitted.epoch;
        let version = record.version;
        node.volatile.push(Volatile {
            slot,
            key,
            version,
            before,
        });
        if let Some(open) = self.clusters[at.0].open.get_mut(&request) {
            open.replaced = Some(Replaced { replaced, version });
        }
        self.log(|| format!("{at:?} executes {record:?}"));
        let ceiling = self.clusters[at.0].raft.ceiling(admitted.epoch);
        if version >= ceiling && self.setup.is_whole() {
            self.error = Some(format!("out of range: {record:?}, below {ceiling:?}"));
        }
        let executed = Executed {
            request,
            record,
            complete: admitted.complete,
        };
        let incarnation = self.clusters[at.0].nodes[at.1].incarnation;
        let delay = self.thread_delay();
        self.schedule(delay, Action::Report(at, incarnation, executed));
    }

    /// Reports an executed request to the core, or answers it if no other member needs it.
    pub fn report(&mut self, at: At, executed: Executed) {
        let core = &self.clusters[at.0].nodes[at.1].core;
        let Executed {
            request,
            record,
            complete,
        } = executed;
        let unchanged = complete == Some(core.revision());
        let looks_once = complete.is_some() && self.setup.shell == Shell::LooksOnce;
        if (unchanged && core.may_answer(self.moment())) || looks_once {
            return self.answered(at, request, Reply::Written);
        }
        self.handle(at, Event::Write { request, record });
    }

    pub fn answered(&mut self, at: At, request: u64, reply: Reply) {
        let now = self.now;
        let cluster = &mut self.clusters[at.0];
        cluster.nodes[at.1].volatile.clear();
        let outcome = match reply {
            Reply::Written => Outcome::Acknowledged,
            Reply::Refused => Outcome::Unknown,
        };
        let counts = !cluster.is_left_behind(at.1);
        let open = cluster.open.get(&request);
        let (mut is_lost, mut is_doubtful) = (None, false);
        let scope = open.map(|open| (open.slot.0, open.key));
        if let (Outcome::Acknowledged, Some(open)) = (outcome, open) {
            let (slot, key, replaced, id) = (open.slot, open.key, open.replaced, open.id);
            cluster.written[usize::from(slot.0)] = now;
            is_lost = Some(slot).filter(|&slot| counts && cluster.is_lost(at.1, slot));
            is_doubtful = replaced.is_some_and(|it| it.version < cluster.doubtful);
            let is_judged = counts && is_lost.is_none() && !is_doubtful;
            let is_judged = is_judged && !cluster.judge.is_flushed(id);
            if let Some(replaced) = replaced.filter(|_| is_judged)
                && self.setup.judges_replaced()
                && let Err(error) = cluster.judge.replaced(slot.0, key, replaced)
            {
                self.error = Some(error);
            }
        }
        cluster.answered(request, outcome);
        if let Some(scope) = scope.filter(|_| is_doubtful) {
            cluster.judge.doubt(scope);
        }
        if let Some(slot) = is_lost {
            self.note_loss(at.0, slot);
        }
    }
}
