//! Faults of the simulation, and their end.

use std::time::Duration;

use fonn_replication::{Change, Disk, Epoch, Event};

use super::cluster::{Outcome, config, layout};
use super::setup::{Fault, Shell};
use super::store::Store;
use super::world::{Action, At, World};

/// Records younger than this are not evicted. Messages are delivered earlier.
const EVICT_AGE_MS: u64 = 8_000;

impl World {
    /// Injects one of the faults of the setup, and schedules the next one.
    pub fn inject(&mut self) {
        if !self.chaos {
            return;
        }
        let next = self.random.between(200, self.setup.calm_ms_max);
        self.schedule(next, Action::Fault);
        if self.setup.faults.is_empty() {
            return;
        }
        let fault = self.setup.faults[self.random.index(self.setup.faults.len())];
        let c = self.random.index(self.clusters.len());
        let n = self.random.index(self.setup.members);
        let for_ms = self.random.between(200, 6_000);
        let until = self.now + for_ms;
        self.log(|| format!("fault {fault:?} at {:?} for {for_ms} ms", (c, n)));
        let disruptive = !matches!(fault, Fault::Layout | Fault::Evict);
        if disruptive {
            // The gap counts from the end of the fault, too: a link that works again moves slots.
            self.last_fault = self.last_fault.max(until);
        }
        match fault {
            Fault::Loss | Fault::Skew | Fault::SkipEpochs => {}
            Fault::OneWay => {
                for other in 0..self.setup.members {
                    if self.random.percent(60) {
                        self.clusters[c].cut[n][other] = until;
                    }
                    if self.random.percent(20) {
                        self.clusters[c].cut[other][n] = until;
                    }
                }
            }
            Fault::CutFromLeader => {
                let which = self.random.below(3);
                if which != 0 {
                    self.clusters[c].cut_to_leader[n] = until;
                }
                if which != 1 {
                    self.clusters[c].cut_from_leader[n] = until;
                }
                // Often the member is cut off from the other members, too, but not from clients.
                if self.random.percent(50) {
                    for other in 0..self.setup.members {
                        self.clusters[c].cut[n][other] = until;
                        self.clusters[c].cut[other][n] = until;
                    }
                }
            }
            Fault::Pause => self.pause((c, n), for_ms),
            Fault::Crash | Fault::UncleanCrash | Fault::DiskLoss => {
                self.crash((c, n), fault, for_ms);
                if self.random.percent(30) {
                    let other = self.random.index(self.setup.members);
                    let for_ms = self.random.between(200, 6_000);
                    self.last_fault = self.last_fault.max(self.now + for_ms);
                    self.crash((c, other), fault, for_ms);
                }
            }
            Fault::NoLeader => self.clusters[c].no_leader_until = until,
            Fault::Layout => {
                let layout = layout(&self.setup, &mut self.random);
                self.schedule(1, Action::Propose(c, Change::ProposeLayout(layout)));
            }
            Fault::Evict => self.evict((c, n)),
        }
    }

    fn pause(&mut self, at: At, for_ms: u64) {
        let node = &mut self.clusters[at.0].nodes[at.1];
        if node.runs() {
            node.paused_until = Some(self.now + for_ms);
            self.schedule(for_ms, Action::Resume(at));
        }
    }

    pub fn resume(&mut self, at: At) -> Result<(), String> {
        let node = &mut self.clusters[at.0].nodes[at.1];
        if node.paused_until.take().is_some() {
            for action in std::mem::take(&mut node.backlog) {
                self.act(action)?;
            }
        }
        Ok(())
    }

    pub fn crash_for_a_while(&mut self, at: At) {
        let for_ms = self.random.between(200, 6_000);
        self.last_fault = self.last_fault.max(self.now + for_ms);
        self.crash(at, Fault::Crash, for_ms);
    }

    fn crash(&mut self, at: At, fault: Fault, for_ms: u64) {
        let lost_ms = self.random.below(400);
        let loses_volatile = self.random.percent(50);
        let now = self.now;
        let slots = self.setup.slots;
        let node = &mut self.clusters[at.0].nodes[at.1];
        if !node.alive {
            return;
        }
        node.alive = false;
        node.paused_until = None;
        node.backlog.clear();
        node.store.crash();
        for write in std::mem::take(&mut node.volatile).into_iter().rev() {
            if loses_volatile {
                let (slot, key, version) = (write.slot, write.key, write.version);
                node.store.lose(slot, key, version, write.before);
            }
        }
        if self.setup.shell == Shell::ForgetsClock {
            node.store.forget_clock();
        }
        match fault {
            Fault::UncleanCrash => {
                node.store.lose_after(now.saturating_sub(lost_ms));
                node.lost_writes = true;
            }
            Fault::DiskLoss => {
                node.store = Store::new(slots);
                node.saved = None;
                node.evicted = Epoch(0);
            }
            _ => {}
        }
        self.end_requests(at);
        self.schedule(for_ms, Action::Start(at));
    }

    /// Clients of a member that crashed learn nothing about their requests.
    fn end_requests(&mut self, at: At) {
        let cluster = &mut self.clusters[at.0];
        let of_node = |(&request, open): (&u64, &super::cluster::Open)| {
            (open.node == at.1).then_some(request)
        };
        let mut requests: Vec<u64> = cluster.open.iter().filter_map(of_node).collect();
        requests.sort_unstable();
        for request in requests {
            cluster.answered(request, Outcome::Unknown);
        }
    }

    pub fn start(&mut self, at: At) {
        let config = config(&self.setup, at.1);
        let latest = self.clusters[at.0].raft.log.len();
        let older = self.random.index(3);
        let node = &mut self.clusters[at.0].nodes[at.1];
        if node.alive {
            return;
        }
        node.core = fonn_replication::Core::new(config);
        node.alive = true;
        node.incarnation += 1;
        node.heard_leader = self.now;
        node.lease = Duration::ZERO;
        let disk = match node.saved.clone() {
            None => Disk::Empty,
            Some(saved) if node.lost_writes => Disk::Unclean(saved),
            Some(saved) => Disk::Clean(saved),
        };
        // A member without a disk gets the latest topology, or one that is a little older.
        let applied = node.saved.as_ref().map(|saved| saved.applied);
        let position = applied.map(|epoch| self.clusters[at.0].raft.position(epoch));
        let learned = position.unwrap_or((latest - 1).saturating_sub(older));
        let known = position.map(|position| self.clusters[at.0].raft.log[position].clone());
        let node = &mut self.clusters[at.0].nodes[at.1];
        node.learned = learned;
        let (incarnation, through) = (node.incarnation, node.evicted);
        self.handle(at, Event::Start { disk, incarnation });
        self.handle(at, Event::Evicted { through });
        if let Some(agreed) = known {
            self.clusters[at.0].nodes[at.1].learned += 1;
            self.learn(at, agreed);
        }
    }

    fn evict(&mut self, at: At) {
        let before = self.now.saturating_sub(EVICT_AGE_MS);
        if !self.clusters[at.0].nodes[at.1].runs() {
            return;
        }
        let only_uploaded = self.setup.bucket;
        let node = &mut self.clusters[at.0].nodes[at.1];
        let (through, keys) = node.store.evict(before, only_uploaded);
        node.evicted = node.evicted.max(through);
        if !self.setup.bucket {
            for (slot, key) in keys {
                self.clusters[at.0].judge.evicted(slot.0, key);
            }
        }
        self.handle(at, Event::Evicted { through });
    }

    /// Ends all faults.
    pub fn heal(&mut self) -> Result<(), String> {
        self.chaos = false;
        self.last_fault = self.now;
        self.log(|| "all faults end".to_owned());
        for c in 0..self.clusters.len() {
            let members = self.setup.members;
            let cluster = &mut self.clusters[c];
            cluster.cut = vec![vec![0; members]; members];
            cluster.cut_to_leader = vec![0; members];
            cluster.cut_from_leader = vec![0; members];
            cluster.no_leader_until = 0;
            for n in 0..members {
                self.resume((c, n))?;
                self.start((c, n));
            }
        }
        Ok(())
    }

    /// At the end all members are in sync, and each slot takes writes.
    pub fn check_end(&self) -> Result<(), String> {
        for (c, cluster) in self.clusters.iter().enumerate() {
            let topology = cluster.raft.topology();
            let in_sync =
                |m: &fonn_replication::Member| m.status == fonn_replication::Status::InSync;
            if !topology.members.iter().all(in_sync) || topology.next_layout.is_some() {
                return Err(format!("cluster {c} does not come to rest: {topology:?}"));
            }
            let idle = cluster
                .written
                .iter()
                .position(|&at| at + 10_000 < self.now);
            if let Some(slot) = idle {
                return Err(format!("slot {slot} of cluster {c} takes no writes"));
            }
        }
        Ok(())
    }
}
