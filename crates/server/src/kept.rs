//! Memory for what connections keep between requests: `WATCH` and `MULTI` (ADR 0003).
//!
//! It may last as long as the connection. So it has a part of the budget of its own: no request
//! waits for its end, and it waits behind no request.

use std::collections::HashMap;

use fonn_auth::Source;
use parking_lot::Mutex;

use super::Shared;
use super::budget::Budget as _;
use super::service::Service;

/// The part of the budget that all connections may keep: one of so many.
const SHARES: usize = 4;

/// The part of that which the connections of one source address may keep: one of so many.
const SOURCE_SHARES: usize = 4;

/// What all connections keep.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    bytes: usize,
    bytes_by_source: HashMap<Source, usize>,
}

impl Kept {
    /// Notes that a connection of `source` keeps `bytes`. False if all connections, or those of
    /// the source, then kept too much. The first of all always may, and the first of a source as
    /// far as all may.
    fn try_add(&self, source: Source, bytes: usize, bytes_max: usize) -> bool {
        let fits = |held: usize, max: usize| held == 0 || held.saturating_add(bytes) <= max;
        let mut table = self.0.lock();
        let of_source = table.bytes_by_source.get(&source).copied().unwrap_or(0);
        if !fits(table.bytes, bytes_max) || !fits(of_source, bytes_max / SOURCE_SHARES) {
            return false;
        }
        table.bytes = table.bytes.saturating_add(bytes);
        let of_source = of_source.saturating_add(bytes);
        table.bytes_by_source.insert(source, of_source);
        true
    }

    /// Takes back what [`Kept::try_add`] noted.
    fn remove(&self, source: Source, bytes: usize) {
        let mut table = self.0.lock();
        table.bytes = table.bytes.saturating_sub(bytes);
        if let Some(held) = table.bytes_by_source.get_mut(&source) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                table.bytes_by_source.remove(&source);
            }
        }
    }
}

/// What one connection keeps; it counts until this is dropped.
pub(super) struct KeptMemory<'s, S: Service> {
    shared: &'s Shared<S>,
    source: Source,
    bytes: usize,
}

impl<'s, S: Service> KeptMemory<'s, S> {
    /// Counts `bytes` that a connection of `source` keeps. None if that is too much.
    pub fn try_hold(shared: &'s Shared<S>, source: Source, bytes: usize) -> Option<Self> {
        let budget = shared.service.budget();
        let kept = &shared.memory.kept;
        if !kept.try_add(source, bytes, budget.bytes_max() / SHARES) {
            return None;
        }
        budget.hold(bytes);
        Some(Self {
            shared,
            source,
            bytes,
        })
    }

    /// Bytes that are counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl<S: Service> Drop for KeptMemory<'_, S> {
    fn drop(&mut self) {
        self.shared.memory.kept.remove(self.source, self.bytes);
        self.shared.service.budget().let_go(self.bytes);
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
    fn a_source_keeps_a_quarter_of_what_all_connections_may_keep() {
        let kept = Kept::default();
        assert!(kept.try_add(source(1), 25, 100));
        assert!(!kept.try_add(source(1), 1, 100));
        // The first of a source may be longer, as far as there is room.
        assert!(!kept.try_add(source(2), 76, 100));
        assert!(kept.try_add(source(2), 75, 100));
        assert!(!kept.try_add(source(3), 1, 100));
        kept.remove(source(1), 25);
        assert!(kept.try_add(source(3), 25, 100));
        kept.remove(source(2), 75);
        kept.remove(source(3), 25);
        // The first of all always may.
        assert!(kept.try_add(source(1), 500, 100));
        kept.remove(source(1), 500);
        let table = kept.0.lock();
        assert!(table.bytes == 0 && table.bytes_by_source.is_empty());
    }
}
