//! Names of identities, for the numbers that entries have of their writers.
//!
//! Each login adds a name, and what other members and routers tell adds theirs. So a name is still
//! known after its user or token was removed from the users file, which is when it is looked for.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use fonn_proto::WriterId;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::writer_id;

/// Names that are kept; the oldest are forgotten first.
pub const WRITER_NAMES_MAX: usize = 16 * 1024;

/// Longest name in bytes that is kept.
pub const WRITER_NAME_LEN_MAX: usize = 1024;

/// The names that are known.
#[derive(Debug)]
pub struct WriterNames {
    known: RwLock<Known>,
    /// How many names were ever learned.
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Known {
    names: HashSet<Arc<str>>,
    by_number: HashMap<WriterId, Vec<Arc<str>>>,
    /// In the order in which they were learned.
    order: VecDeque<Arc<str>>,
    learned: u64,
}

impl Default for WriterNames {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            count: watch::Sender::new(0),
        }
    }
}

impl WriterNames {
    /// Adds a name. A known one costs a lookup.
    pub fn learn(&self, name: &str) {
        let is_name = (1..=WRITER_NAME_LEN_MAX).contains(&name.len()) && !name.contains('\n');
        if !is_name || self.known.read().names.contains(name) {
            return;
        }
        let mut known = self.known.write();
        known.add(name);
        let learned = known.learned;
        drop(known);
        self.count.send_replace(learned);
    }

    /// The names with a number: none, one, or by a rare chance several.
    #[must_use]
    pub fn of(&self, writer: WriterId) -> Vec<Arc<str>> {
        let known = self.known.read();
        known.by_number.get(&writer).cloned().unwrap_or_default()
    }

    /// Counts up with each name that is learned.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// The names that were learned after `position` others, at most `count`, and the position
    /// behind them. What was forgotten meanwhile is left out.
    #[must_use]
    pub fn after(&self, position: u64, count: usize) -> (Vec<Arc<str>>, u64) {
        let known = self.known.read();
        let forgotten = known.learned - known.order.len() as u64;
        let from = position.max(forgotten);
        let skipped = usize::try_from(from - forgotten).unwrap_or(usize::MAX);
        let names: Vec<_> = known
            .order
            .iter()
            .skip(skipped)
            .take(count)
            .cloned()
            .collect();
        let end = from + names.len() as u64;
        (names, end)
    }
}

impl Known {
    fn add(&mut self, name: &str) {
        let name: Arc<str> = name.into();
        if !self.names.insert(Arc::clone(&name)) {
            return;
        }
        let of_number = self.by_number.entry(writer_id(&name)).or_default();
        of_number.push(Arc::clone(&name));
        self.order.push_back(name);
        self.learned += 1;
        while self.order.len() > WRITER_NAMES_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(name) = self.order.pop_front() else {
            return;
        };
        self.names.remove(&name);
        let number = writer_id(&name);
        if let Some(of_number) = self.by_number.get_mut(&number) {
            of_number.retain(|it| *it != name);
            if of_number.is_empty() {
                self.by_number.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[Arc<str>]) -> Vec<&str> {
        names.iter().map(|it| &**it).collect()
    }

    #[test]
    fn a_name_is_found_by_its_number() {
        let names = WriterNames::default();
        names.learn("ci");
        names.learn("ci");
        names.learn("two\nlines");
        names.learn("");
        assert_eq!(texts(&names.of(writer_id("ci"))), ["ci"]);
        assert!(names.of(writer_id("dev")).is_empty());
        assert!(names.of(writer_id("two\nlines")).is_empty());
        assert_eq!(*names.changes().borrow(), 1);
    }

    #[test]
    fn what_was_learned_is_told_in_order_and_once() {
        let names = WriterNames::default();
        for name in ["a", "b", "c"] {
            names.learn(name);
        }
        let (told, position) = names.after(0, 2);
        assert_eq!((texts(&told), position), (vec!["a", "b"], 2));
        let (told, position) = names.after(position, 2);
        assert_eq!((texts(&told), position), (vec!["c"], 3));
        assert_eq!(names.after(position, 2), (Vec::new(), 3));
    }

    #[test]
    fn the_oldest_names_are_forgotten_first() {
        let names = WriterNames::default();
        for number in 0..=WRITER_NAMES_MAX {
            names.learn(&format!("job-{number}"));
        }
        assert!(names.of(writer_id("job-0")).is_empty());
        assert!(!names.of(writer_id("job-1")).is_empty());
        let (told, position) = names.after(0, 1);
        assert_eq!((texts(&told), position), (vec!["job-1"], 2));
    }
}
