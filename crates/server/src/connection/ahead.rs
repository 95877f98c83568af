//! Tells the service which keys the next requests are about, before they are executed.
//!
//! A lookup in memory mostly waits for memory. Of several lookups the service can wait for all at a
//! time, if it hears of them together. They come together in two ways: in one chunk of a client
//! that does not wait for replies, and from several connections of a reactor that the kernel woke
//! at once. The latter queue their lookups, and let the others do the same before they go on.

use std::cell::RefCell;
use std::collections::VecDeque;

use fonn_proto::Space;
use fonn_proto::session::{Dialect, KeysAhead};
use smallvec::SmallVec;

use super::Driver;
use super::company::{Company, let_others_join};
use crate::service::Service;

/// Requests of a chunk that are looked at ahead, and how many are worth it on their own.
pub(super) const AHEAD_MAX: usize = 16;
pub(super) const AHEAD_MIN: usize = 4;

/// Lookups of several connections that are announced together. Long replies to these pass through
/// the processor's cache before the last one is looked up.
const TOGETHER_MAX: usize = 8;

type Lookups = SmallVec<[u64; AHEAD_MAX]>;

/// What the connections of a reactor are about to look up, in the order in which they go on.
struct Turn {
    company: Company,
    waiting: VecDeque<u64>,
    /// Lookups that were announced and not made.
    announced: usize,
}

thread_local! {
    static TURN: RefCell<Turn> = const { RefCell::new(Turn::new()) };
}

impl Turn {
    const fn new() -> Self {
        Self {
            company: Company::new(),
            waiting: VecDeque::new(),
            announced: 0,
        }
    }

    /// Whether the connection with these lookups is to wait for others before it goes on.
    fn join(&mut self, lookups: &[u64]) -> bool {
        let joins = self.company.join();
        if joins {
            self.waiting.extend(lookups);
        }
        joins
    }

    /// What to announce before the connection whose turn it is makes its lookups.
    fn due(&mut self, lookups: usize) -> Lookups {
        let mut due = Lookups::new();
        if self.announced < lookups && self.company.is_shared() {
            due.extend(self.waiting.drain(..self.waiting.len().min(TOGETHER_MAX)));
            self.announced += due.len();
        }
        self.announced = self.announced.saturating_sub(lookups);
        due
    }

    fn leave(&mut self) {
        if self.company.leave() {
            self.announced = 0;
            self.waiting.clear();
        }
    }
}

/// The presence of a connection in a turn. It ends if the connection is dropped meanwhile too.
struct Presence;

impl Drop for Presence {
    fn drop(&mut self) {
        // A thread that ends drops its connections at any time.
        let _ = TURN.try_with(|turn| turn.borrow_mut().leave());
    }
}

impl<S: Service> Driver<'_, S> {
    /// The lookups of the next requests.
    fn lookups_in(&self, dialect: Dialect, space: Space, data: &[u8]) -> Lookups {
        if data.is_empty() || !self.guard.is_admitted() || self.guard.overlay().is_some() {
            return Lookups::new();
        }
        let service = &self.shared.service;
        let keys = KeysAhead::new(dialect, data).take(AHEAD_MAX);
        keys.map_while(|key| service.foresee(space, key)).collect()
    }

    /// Tells the service of the next requests of a chunk.
    pub(super) fn look_ahead(&self, dialect: Dialect, space: Space, data: &[u8]) {
        let lookups = self.lookups_in(dialect, space, data);
        if lookups.len() >= AHEAD_MIN {
            self.shared.service.expect(&lookups);
        }
    }

    /// Tells the service of the requests at the start of a chunk, together with those of other
    /// connections. Returns how many they are.
    pub(super) async fn look_around(&self, data: &[u8]) -> usize {
        let (Some(session), Some(space)) = (&self.session, self.space) else {
            return 0;
        };
        let lookups = self.lookups_in(session.dialect(), space, data);
        let service = &self.shared.service;
        if lookups.is_empty() {
            return 0;
        }
        if lookups.len() >= AHEAD_MIN || !TURN.with_borrow_mut(|turn| turn.join(&lookups)) {
            service.expect(&lookups);
        } else {
            let _presence = Presence;
            let_others_join().await;
            let due = TURN.with_borrow_mut(|turn| turn.due(lookups.len()));
            if !due.is_empty() {
                service.expect(&due);
            }
        }
        lookups.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_of_a_turn_are_announced_in_groups_and_each_once() {
        let mut turn = Turn::new();
        for at in 0..20 {
            turn.join(&[at]);
        }
        let mut announced = Vec::new();
        for at in 0..20 {
            announced.extend(turn.due(1));
            assert!(
                announced.contains(&at),
                "{at} is looked up, and {announced:?}"
            );
            assert!(announced.len() <= at as usize + TOGETHER_MAX);
            turn.leave();
        }
        assert_eq!(announced, (0..20).collect::<Vec<_>>());
        assert_eq!((turn.waiting.len(), turn.announced), (0, 0));
    }

    #[test]
    fn a_connection_that_is_dropped_shifts_no_later_turn() {
        let mut turn = Turn::new();
        turn.join(&[1]);
        turn.join(&[2]);
        turn.join(&[3]);
        turn.leave();
        assert_eq!(turn.due(1).as_slice(), [1, 2, 3]);
        turn.leave();
        turn.leave();
        turn.join(&[4]);
        turn.join(&[5]);
        assert_eq!(turn.due(1).as_slice(), [4, 5]);
    }
}
