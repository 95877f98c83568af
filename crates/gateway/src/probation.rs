//! Connections on probation: their clients have to log in or to speak TLS, and have not done so.
//!
//! A connection on probation costs memory for a client that is not known. Connections on probation
//! are bounded by source address and in total. Beyond a bound the oldest one is cut, so an honest
//! client gets in although another client keeps all places taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fonn_auth::Source;
use parking_lot::Mutex;

use crate::life::Life;

/// Connections on probation, of all sources and of one. Each may hold the head of a request and a
/// window of HTTP/2, 112 KiB; wide windows are bounded by themselves.
const ALL_MAX: usize = 512;
const BY_SOURCE_MAX: usize = 128;

/// The connections on probation, by the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Probation(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last_number: u64,
    lives: BTreeMap<u64, (Source, Arc<Life>)>,
    by_source: HashMap<Source, BTreeSet<u64>>,
}

impl Probation {
    /// Counts a connection; returns its number. Cuts the oldest one of its source, or of all, if
    /// there are too many then.
    pub(crate) fn begin(&self, source: Source, life: &Arc<Life>) -> u64 {
        let mut table = self.0.lock();
        table.last_number += 1;
        let number = table.last_number;
        table.lives.insert(number, (source, Arc::clone(life)));
        let numbers = table.by_source.entry(source).or_default();
        numbers.insert(number);
        let oldest = match numbers.len() > BY_SOURCE_MAX {
            true => numbers.first().copied(),
            false if table.lives.len() > ALL_MAX => table.lives.keys().next().copied(),
            false => None,
        };
        if let Some(life) = oldest.and_then(|oldest| table.remove(oldest)) {
            life.cut();
        }
        number
    }

    /// Counts a connection no longer.
    pub(crate) fn end(&self, number: u64) {
        self.0.lock().remove(number);
    }
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Arc<Life>> {
        let (source, life) = self.lives.remove(&number)?;
        if let Some(numbers) = self.by_source.get_mut(&source) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_source.remove(&source);
            }
        }
        Some(life)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::life::Times;

    fn source(number: usize) -> Source {
        let number = u32::try_from(number).unwrap();
        Source::of(Some(IpAddr::from(number.to_be_bytes())))
    }

    fn begin(probation: &Probation, from: usize) -> (u64, Arc<Life>) {
        let life = Life::new(Times::default(), true);
        (probation.begin(source(from), &life), life)
    }

    #[test]
    fn the_oldest_connection_of_a_source_gives_way_to_the_newest() {
        let probation = Probation::default();
        let (_, other) = begin(&probation, 0);
        let lives: Vec<_> = (0..=BY_SOURCE_MAX).map(|_| begin(&probation, 1)).collect();
        assert!(lives[0].1.is_cut() && !lives[1].1.is_cut() && !other.is_cut());
        // A client that was let in makes room.
        probation.end(lives[1].0);
        let (_, newest) = begin(&probation, 1);
        assert!(!lives[2].1.is_cut() && !newest.is_cut());
    }

    #[test]
    fn the_oldest_connection_of_all_gives_way_where_many_sources_have_some() {
        let probation = Probation::default();
        let lives: Vec<_> = (0..=ALL_MAX).map(|from| begin(&probation, from)).collect();
        assert!(lives[0].1.is_cut() && !lives[1].1.is_cut());
        for (number, _) in &lives {
            probation.end(*number);
        }
        let table = probation.0.lock();
        assert!(table.lives.is_empty() && table.by_source.is_empty());
    }
}
