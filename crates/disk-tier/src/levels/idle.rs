//! Idle processors, lent to work that several threads can share.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many processors are idle, as seen last, and how many of these are lent.
#[derive(Debug, Default)]
pub struct IdleCpus {
    idle: AtomicUsize,
    lent: AtomicUsize,
}

/// Processors that are lent until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Lent<'a> {
    from: &'a IdleCpus,
    count: usize,
}

impl IdleCpus {
    /// Says how many are idle now. What is lent stays so.
    pub fn set(&self, count: usize) {
        self.idle.store(count, Ordering::Relaxed);
    }

    /// Lends up to `wanted`, perhaps none. Never waits.
    pub fn lend(&self, wanted: usize) -> Lent<'_> {
        let idle = self.idle.load(Ordering::Relaxed);
        let mut count = 0;
        let take = |lent: usize| {
            count = wanted.min(idle.saturating_sub(lent));
            Some(lent.saturating_add(count))
        };
        let _ = self
            .lent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Lent { from: self, count }
    }
}

impl Lent<'_> {
    /// How many these are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.from.lent.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_lent_than_are_idle_and_they_come_back() {
        let cpus = IdleCpus::default();
        assert_eq!(cpus.lend(5).count(), 0);
        cpus.set(3);
        let two = cpus.lend(2);
        let one = cpus.lend(2);
        assert_eq!((two.count(), one.count()), (2, 1));
        assert_eq!(cpus.lend(1).count(), 0);
        drop(two);
        assert_eq!(cpus.lend(9).count(), 2);
        // Fewer are idle than are lent.
        cpus.set(0);
        assert_eq!(cpus.lend(1).count(), 0);
        drop(one);
        cpus.set(3);
        assert_eq!(cpus.lend(9).count(), 3);
    }
}
