//! Connections of clients that are not known yet, bounded by source address and in total.
//!
//! Each costs memory. Beyond a bound the oldest one gives way to the newest. An honest client is
//! known within milliseconds, so it gets in although another client keeps all places taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fonn_auth::Source;
use parking_lot::Mutex;

/// How many strangers there may be.
#[derive(Clone, Copy, Debug)]
pub struct StrangersMax {
    /// From one source.
    pub of_source: usize,
    /// From all sources.
    pub of_all: usize,
}

/// The strangers by number, with a value for each. The one with the lowest number is the oldest.
#[derive(Debug)]
pub struct Strangers<T> {
    max: StrangersMax,
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    all: BTreeMap<u64, (Source, T)>,
    by_source: HashMap<Source, BTreeSet<u64>>,
}

impl<T> Table<T> {
    fn remove(&mut self, number: u64) -> Option<T> {
        let (source, value) = self.all.remove(&number)?;
        if let Some(numbers) = self.by_source.get_mut(&source) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_source.remove(&source);
            }
        }
        Some(value)
    }
}

impl<T> Strangers<T> {
    /// No strangers yet.
    #[must_use]
    pub fn new(max: StrangersMax) -> Self {
        let table = Table {
            all: BTreeMap::new(),
            by_source: HashMap::new(),
        };
        Self {
            max,
            table: Mutex::new(table),
        }
    }

    /// Counts a stranger. Returns the one that has to give way, if there are too many then.
    #[must_use]
    pub fn begin(&self, number: u64, source: Source, value: T) -> Option<(u64, T)> {
        let mut table = self.table.lock();
        table.all.insert(number, (source, value));
        let numbers = table.by_source.entry(source).or_default();
        numbers.insert(number);
        let oldest = if numbers.len() > self.max.of_source {
            numbers.first().copied()
        } else if table.all.len() > self.max.of_all {
            table.all.first_key_value().map(|(number, _)| *number)
        } else {
            None
        };
        let oldest = oldest?;
        table.remove(oldest).map(|value| (oldest, value))
    }

    /// Whether a stranger is counted.
    #[must_use]
    pub fn counts(&self, number: u64) -> bool {
        self.table.lock().all.contains_key(&number)
    }

    /// Counts a stranger no longer, if it is counted.
    pub fn end(&self, number: u64) {
        self.table.lock().remove(number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    const MAX: StrangersMax = StrangersMax {
        of_source: 10,
        of_all: 40,
    };

    fn source(last: u64) -> Source {
        Source::of(Some(IpAddr::from([192, 0, 2, last as u8])))
    }

    #[test]
    fn the_oldest_stranger_of_a_source_gives_way_to_the_newest() {
        let strangers = Strangers::new(MAX);
        assert_eq!(strangers.begin(1, source(1), 'a'), None);
        for number in 2..12 {
            assert_eq!(strangers.begin(number, source(2), 'b'), None);
        }
        assert_eq!(strangers.begin(20, source(2), 'b'), Some((2, 'b')));
        assert!(strangers.counts(3) && !strangers.counts(2));
        strangers.end(3);
        assert_eq!(strangers.begin(21, source(2), 'b'), None);
        assert_eq!(strangers.begin(22, source(2), 'b'), Some((4, 'b')));
    }

    #[test]
    fn the_oldest_stranger_of_all_gives_way_when_many_sources_have_some() {
        let strangers = Strangers::new(MAX);
        for number in 1..=40 {
            assert_eq!(strangers.begin(number, source(number), ()), None);
        }
        assert_eq!(strangers.begin(90, source(250), ()), Some((1, ())));
        strangers.end(90);
        strangers.end(90);
        assert_eq!(strangers.begin(91, source(250), ()), None);
        for number in 1..=91 {
            strangers.end(number);
        }
        let table = strangers.table.lock();
        assert!(table.all.is_empty() && table.by_source.is_empty());
    }
}
