//! Bodies of responses that clients have not read yet.
//!
//! Invariant: together they hold no more than the store allows. When they would, the connection whose body made no progress
//! for the longest time is cut. One body is always admitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::life::Life;
use crate::store::Store;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Outstanding(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last_ticket: u64,
    bytes: usize,
    /// By ticket. A body gets a new ticket with each progress, so the first one stands still for the longest time.
    bodies: BTreeMap<u64, Body>,
}

#[derive(Debug)]
struct Body {
    bytes: usize,
    life: Arc<Life>,
}

impl Table {
    fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    fn remove(&mut self, ticket: u64) -> usize {
        let bytes = self.bodies.remove(&ticket).map_or(0, |body| body.bytes);
        self.bytes -= bytes;
        bytes
    }
}

/// A body that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted<S: Store> {
    store: S,
    all: Arc<Outstanding>,
    ticket: u64,
}

impl Outstanding {
    /// Counts a body of `bytes` on the connection `life`.
    pub(crate) fn count<S: Store>(
        self: &Arc<Self>,
        store: &S,
        life: &Arc<Life>,
        bytes: usize,
    ) -> Counted<S> {
        let mut table = self.0.lock();
        let ticket = table.ticket();
        let life = Arc::clone(life);
        table.bodies.insert(ticket, Body { bytes, life });
        table.bytes += bytes;
        store.hold(bytes);
        while table.bytes > store.unread_max() && table.bodies.len() > 1 {
            let Some((_, victim)) = table.bodies.pop_first() else {
                break;
            };
            table.bytes -= victim.bytes;
            store.let_go(victim.bytes);
            victim.life.cut();
        }
        Counted {
            store: store.clone(),
            all: Arc::clone(self),
            ticket,
        }
    }
}

impl<S: Store> Counted<S> {
    /// Notes that the client read something.
    pub(crate) fn progress(&mut self) {
        let mut table = self.all.0.lock();
        if let Some(body) = table.bodies.remove(&self.ticket) {
            body.life.touch();
            let ticket = table.ticket();
            table.bodies.insert(ticket, body);
            self.ticket = ticket;
        }
    }
}

impl<S: Store> Drop for Counted<S> {
    fn drop(&mut self) {
        let bytes = self.all.0.lock().remove(self.ticket);
        self.store.let_go(bytes);
    }
}
