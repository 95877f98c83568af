//! The requests that hold memory while they arrive: how long each has been arriving, and how much
//! each source address holds.
//!
//! A request is charged for the bytes that have come, so it may have to wait in the middle. Two
//! rules keep requests from waiting for each other for ever:
//! - The oldest request of all may exceed the budget, as far as it would fit if it were alone.
//! - The oldest request of a source may exceed the share of its source.
//!
//! The requests without the oldest never exceed the budget. So all of them together never exceed it
//! twice.

use std::collections::{BTreeMap, HashMap};

use fonn_auth::Source;
use parking_lot::Mutex;

/// All requests that hold memory.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last_ticket: u64,
    /// By ticket, so that the first has been arriving for the longest time.
    by_age: BTreeMap<u64, Arrival>,
    bytes_by_source: HashMap<Source, usize>,
    waiting: usize,
}

#[derive(Debug)]
struct Arrival {
    source: Source,
    bytes: usize,
    waits: bool,
}

impl Arrivals {
    /// Notes that a request of `source` holds `bytes`. None if its source then held more than
    /// `share_max`; one request of each source always goes.
    pub fn begin(&self, source: Source, bytes: usize, share_max: usize) -> Option<u64> {
        let mut table = self.0.lock();
        let held = table.bytes_by_source.entry(source).or_default();
        if *held > 0 && held.saturating_add(bytes) > share_max {
            return None;
        }
        *held = held.saturating_add(bytes);
        table.last_ticket += 1;
        let ticket = table.last_ticket;
        let arrival = Arrival {
            source,
            bytes,
            waits: false,
        };
        table.by_age.insert(ticket, arrival);
        Some(ticket)
    }

    /// Notes that a request holds so much more. False if its source then held more than `share_max`
    /// and has an older request.
    pub fn grow(&self, ticket: u64, more: usize, share_max: usize) -> bool {
        let mut table = self.0.lock();
        let table = &mut *table;
        let Some(arrival) = table.by_age.get(&ticket) else {
            return false;
        };
        let source = arrival.source;
        if table.lacks_share(ticket, source, more, share_max) {
            return false;
        }
        let held = table.bytes_by_source.entry(source).or_default();
        *held = held.saturating_add(more);
        if let Some(arrival) = table.by_age.get_mut(&ticket) {
            arrival.bytes += more;
        }
        true
    }

    /// Whether the share of its source keeps a request from holding so much more.
    pub fn lacks_share(&self, ticket: u64, more: usize, share_max: usize) -> bool {
        let table = self.0.lock();
        let arrival = table.by_age.get(&ticket);
        arrival.is_some_and(|it| table.lacks_share(ticket, it.source, more, share_max))
    }

    /// Takes back what [`Arrivals::grow`] noted.
    pub fn shrink(&self, ticket: u64, less: usize) {
        let mut table = self.0.lock();
        let table = &mut *table;
        if let Some(arrival) = table.by_age.get_mut(&ticket) {
            arrival.bytes = arrival.bytes.saturating_sub(less);
            let source = arrival.source;
            table.release(source, less);
        }
    }

    /// A request holds nothing any more.
    pub fn end(&self, ticket: u64) {
        let mut table = self.0.lock();
        if let Some(arrival) = table.by_age.remove(&ticket) {
            table.waiting -= usize::from(arrival.waits);
            table.release(arrival.source, arrival.bytes);
        }
    }

    /// Whether `source` holds so much that no request of it begins with `bytes`.
    pub fn is_share_held(&self, source: Source, bytes: usize, share_max: usize) -> bool {
        let table = self.0.lock();
        let held = table.bytes_by_source.get(&source);
        held.is_some_and(|held| held.saturating_add(bytes) > share_max)
    }

    /// Notes whether a request waits for more memory.
    pub fn set_waits(&self, ticket: u64, waits: bool) {
        let mut table = self.0.lock();
        let table = &mut *table;
        if let Some(arrival) = table.by_age.get_mut(&ticket)
            && arrival.waits != waits
        {
            arrival.waits = waits;
            match waits {
                true => table.waiting += 1,
                false => table.waiting -= 1,
            }
        }
    }

    /// Whether any request waits for more memory.
    pub fn wait(&self) -> bool {
        self.0.lock().waiting > 0
    }

    /// Whether a request has been arriving for longer than all others.
    pub fn is_oldest(&self, ticket: u64) -> bool {
        let table = self.0.lock();
        let oldest = table.by_age.first_key_value();
        oldest.is_some_and(|(oldest, _)| *oldest == ticket)
    }
}

impl Table {
    /// Whether `source` would hold too much with `more`, and has an older request than `ticket`.
    fn lacks_share(&self, ticket: u64, source: Source, more: usize, share_max: usize) -> bool {
        let held = self.bytes_by_source.get(&source).copied().unwrap_or(0);
        if held.saturating_add(more) <= share_max {
            return false;
        }
        let oldest = self.by_age.iter().find(|(_, it)| it.source == source);
        oldest.is_some_and(|(oldest, _)| *oldest != ticket)
    }

    fn release(&mut self, source: Source, bytes: usize) {
        if let Some(held) = self.bytes_by_source.get_mut(&source) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.bytes_by_source.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(last: u8) -> Source {
        Source::of(Some(IpAddr::from([192, 0, 2, last])))
    }

    #[test]
    fn one_source_holds_no_more_than_its_share_but_for_its_oldest_request() {
        let arrivals = Arrivals::default();
        let first = arrivals.begin(source(1), 60, 100).unwrap();
        assert_eq!(arrivals.begin(source(1), 60, 100), None);
        let second = arrivals.begin(source(1), 40, 100).unwrap();
        assert!(!arrivals.grow(second, 1, 100) && arrivals.is_share_held(source(1), 1, 100));
        assert!(arrivals.lacks_share(second, 1, 100) && !arrivals.lacks_share(first, 1, 100));
        assert!(arrivals.grow(first, 500, 100));
        // Other sources are not concerned, and one request of each always goes.
        assert!(!arrivals.is_share_held(source(2), 1000, 100));
        let other = arrivals.begin(source(2), 1000, 100).unwrap();
        arrivals.end(other);
        arrivals.end(first);
        assert!(arrivals.grow(second, 60, 100));
        arrivals.shrink(second, 60);
        arrivals.end(second);
        arrivals.end(second);
        assert!(arrivals.0.lock().bytes_by_source.is_empty());
    }

    #[test]
    fn the_request_after_the_oldest_becomes_the_oldest() {
        let arrivals = Arrivals::default();
        let first = arrivals.begin(source(1), 10, 100).unwrap();
        let second = arrivals.begin(source(2), 10, 100).unwrap();
        arrivals.set_waits(second, true);
        assert!(arrivals.is_oldest(first) && !arrivals.is_oldest(second) && arrivals.wait());
        arrivals.end(first);
        assert!(arrivals.is_oldest(second) && !arrivals.is_oldest(first));
        arrivals.set_waits(second, false);
        assert!(!arrivals.wait());
    }
}
