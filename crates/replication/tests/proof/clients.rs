//! Clients and the path of their requests: admission by the core, execution by the store, and then
//! replication by the core. Other events happen between these steps.

use fonn_replication::{Epoch, Event, Record, Reply, Slot, SlotSet, WriteRights};

use super::cluster::{Open, OpenFlush, Outcome, Volatile};
use super::judge::{Executed, Kind};
use super::setup::{Fault, Shell};
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

/// A write or flush of a client.
#[derive(Clone, Debug)]
pub struct Request {
    pub request: u64,
    /// The slot of the key. A flush has none.
    pub slot: Option<Slot>,
    pub entry: Entry,
}

/// A request that the core has admitted.
#[derive(Clone, Debug)]
pub struct Admitted {
    request: Request,
    slots: SlotSet,
    epoch: Epoch,
    /// The revision of the rights if the write needs no other member.
    complete: Option<u64>,
    records: Vec<Record<Entry>>,
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
            900..=994 => self.write((c, n), slot, key, Kind::Gone),
            _ if self.setup.has(Fault::Flush) => self.flush(c),
            _ => {}
        }
        Ok(())
    }

    /// What a member would show, or `None` if it does not answer.
    fn look(&mut self, at: At, slot: Slot, key: Key, from: ReadFrom) -> Option<Option<u32>> {
        if !self.answers(at, slot, from) {
            return None;
        }
        let flush = match self.clusters[at.0].nodes[at.1].store.find(slot, key) {
            StoreLookup::Value(id) => return Some(Some(id)),
            StoreLookup::Deleted => return Some(None),
            StoreLookup::Flushed(version) => Some(version),
            StoreLookup::Nothing => None,
        };
        let found = self.bucket.find(slot, key, flush, &mut self.random);
        let Some(found) = found.cloned() else {
            return Some(None);
        };
        let store = &mut self.clusters[at.0].nodes[at.1].store;
        store.clock.observe(found.version);
        if self.random.percent(50) && !matches!(found.entry, Entry::Flush { .. }) {
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
            ReadFrom::Primary => rights.reads,
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
        let scope = Some((slot.0, key));
        let open = Open {
            node: at.1,
            id,
            kind,
            scope,
            executed: None,
        };
        self.clusters[at.0].judge.begin(id, kind, scope);
        self.clusters[at.0].open.insert(request, open);
        self.note_foreign(at.0, scope);
        let request = Request {
            request,
            slot: Some(slot),
            entry,
        };
        self.schedule(0, Action::Request(at, request));
    }

    fn flush(&mut self, c: usize) {
        let (id, flush_id) = self.name();
        self.clusters[c].judge.begin(id, Kind::Gone, None);
        self.note_foreign(c, None);
        let alive = |n: &usize| self.clusters[c].nodes[*n].alive;
        let nodes: Vec<usize> = (0..self.setup.members).filter(alive).collect();
        let flush = OpenFlush {
            id,
            open_parts: nodes.len(),
            ..OpenFlush::default()
        };
        if nodes.is_empty() {
            return self.clusters[c].judge.fail(id, Kind::Gone, None);
        }
        self.clusters[c].flushes.insert(flush_id, flush);
        for n in nodes {
            let (_, request) = self.name();
            self.clusters[c].flush_parts.insert(request, (n, flush_id));
            let request = Request {
                request,
                slot: None,
                entry: Entry::Flush { id },
            };
            self.schedule(0, Action::Request((c, n), request));
        }
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
        let rights = request.slot.map(|slot| core.rights(slot).writes);
        let slots = match request.slot {
            None => core.may_flush(now),
            Some(slot) => (rights != Some(WriteRights::None) && core.may_answer(now))
                .then(|| [slot].into_iter().collect()),
        };
        let Some(slots) = slots else {
            return self.did_nothing(at, &request);
        };
        let admitted = Admitted {
            request,
            slots,
            epoch: core.applied(),
            complete: (rights == Some(WriteRights::Complete)).then(|| core.revision()),
            records: Vec::new(),
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
    pub fn execute_write(&mut self, at: At, mut admitted: Admitted) {
        let times = (self.wall_ms(at), self.now);
        let node = &mut self.clusters[at.0].nodes[at.1];
        let key = match (admitted.request.slot, admitted.request.entry) {
            (Some(slot), Entry::Value { key, .. } | Entry::Delete { key, .. }) => Some((slot, key)),
            _ => None,
        };
        let replaced = key.map(|(slot, key)| {
            let before = node.store.record(slot, key);
            (slot, key, node.store.version(slot, key), before)
        });
        let epoch = match self.setup.shell {
            Shell::ExecutesLate => node.store.epoch(),
            _ => admitted.epoch,
        };
        let entry = admitted.request.entry;
        let records = node.store.execute(&admitted.slots, epoch, entry, times);
        let Some(mut records) = records else {
            return self.did_nothing(at, &admitted.request);
        };
        records.iter_mut().for_each(|r| r.epoch = admitted.epoch);
        let request = admitted.request.request;
        if let (Some((slot, key, replaced, before)), Some(record)) = (replaced, records.first()) {
            let version = record.version;
            node.volatile.push(Volatile {
                slot,
                key,
                version,
                before,
            });
            if let Some(open) = self.clusters[at.0].open.get_mut(&request) {
                open.executed = Some(Executed { replaced, version });
            }
        }
        self.log(|| format!("{at:?} executes {records:?}"));
        admitted.records = records;
        let incarnation = self.clusters[at.0].nodes[at.1].incarnation;
        let delay = self.thread_delay();
        self.schedule(delay, Action::Report(at, incarnation, admitted));
    }

    /// Reports an executed request to the core, or answers it if no other member needs it.
    pub fn report(&mut self, at: At, admitted: Admitted) {
        let core = &self.clusters[at.0].nodes[at.1].core;
        let Request {
            request,
            slot,
            entry,
        } = admitted.request;
        let unchanged = admitted.complete == Some(core.revision());
        let looks_once = admitted.complete.is_some() && self.setup.shell == Shell::LooksOnce;
        if (unchanged && core.may_answer(self.moment())) || looks_once {
            return self.answered(at, request, Reply::Written);
        }
        let first = admitted.records.into_iter().next();
        let event = match (slot, first) {
            (Some(_), Some(record)) => Event::Write { request, record },
            (_, first) => Event::Flush {
                request,
                slots: admitted.slots,
                version: first.map(|record| record.version).unwrap_or_default(),
                epoch: admitted.epoch,
                entry,
            },
        };
        self.handle(at, event);
    }

    fn did_nothing(&mut self, at: At, request: &Request) {
        let all = usize::from(self.setup.slots);
        let cluster = &mut self.clusters[at.0];
        match request.slot {
            Some(_) => cluster.answered(request.request, Outcome::Skipped),
            None => cluster.flush_answered(request.request, None, all),
        }
    }

    pub fn answered(&mut self, at: At, request: u64, reply: Reply) {
        let all = usize::from(self.setup.slots);
        let now = self.now;
        let cluster = &mut self.clusters[at.0];
        cluster.nodes[at.1].volatile.clear();
        if cluster.flush_parts.contains_key(&request) {
            let flushed = match reply {
                Reply::Flushed { epoch, slots } => Some((epoch, slots)),
                _ => None,
            };
            return cluster.flush_answered(request, flushed, all);
        }
        let outcome = match reply {
            Reply::Written => Outcome::Acknowledged,
            _ => Outcome::Unknown,
        };
        let counts = !cluster.is_left_behind(at.1);
        let open = cluster.open.get(&request);
        let mut is_lost = None;
        if let (Outcome::Acknowledged, Some(open)) = (outcome, open)
            && let Some((slot, key)) = open.scope
        {
            let executed = open.executed;
            cluster.written[usize::from(slot)] = now;
            is_lost = Some(Slot(slot)).filter(|&slot| counts && cluster.is_lost(at.1, slot));
            if let Some(executed) = executed.filter(|_| counts && is_lost.is_none())
                && self.setup.judges_replaced()
                && let Err(error) = cluster.judge.executed(slot, key, executed)
            {
                self.error = Some(error);
            }
        }
        cluster.answered(request, outcome);
        if let Some(slot) = is_lost {
            self.note_loss(at.0, slot);
        }
    }
}
