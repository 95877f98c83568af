//! Requests that are carried out, and since when there is none.

use std::cell::Cell;

use tokio::time::Instant;

/// When the helper was busy last. What the helper holds in memory is on one thread.
pub(crate) struct Clock {
    requests: Cell<usize>,
    idle_since: Cell<Option<Instant>>,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            requests: Cell::new(0),
            idle_since: Cell::new(Some(Instant::now())),
        }
    }
}

impl Clock {
    /// Since when there is no request; none while one is carried out.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.idle_since.get()
    }

    /// A new connection: idleness begins again.
    pub(crate) fn touch(&self) {
        if self.requests.get() == 0 {
            self.idle_since.set(Some(Instant::now()));
        }
    }

    /// A request begins.
    pub(crate) fn begin(&self) {
        self.requests.set(self.requests.get() + 1);
        self.idle_since.set(None);
    }

    /// A request ends.
    pub(crate) fn end(&self) {
        self.requests.set(self.requests.get() - 1);
        self.touch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_idle_after_the_last_request() {
        let clock = Clock::default();
        clock.begin();
        clock.touch();
        assert_eq!(clock.idle_since(), None);
        clock.begin();
        clock.end();
        assert_eq!(clock.idle_since(), None);
        clock.end();
        assert!(clock.idle_since().is_some());
    }
}
