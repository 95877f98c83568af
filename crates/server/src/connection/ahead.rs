//! Tells the service which keys the next requests are about, before they are executed.
//!
//! A lookup in memory mostly waits for memory. Of several lookups the service can wait for all at a
//! time, if it hears of them together. They come together in two ways: in one chunk of a client
//! that does not wait for replies, and from several connections of a reactor that the kernel woke
//! at once. The latter queue their lookups, and let the others do the same before they go on.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use fonn_proto::Space;
use fonn_proto::session::{Dialect, KeysAhead};
use smallvec::SmallVec;

use super::Driver;
use crate::service::Service;

/// Requests of a chunk that are looked at ahead, and how many are worth it on their own.
pub(super) const AHEAD_MAX: usize = 16;
const AHEAD_MIN: usize = 4;

/// Lookups of several connections that are announced together. Long replies to these pass through
/// the processor's cache before the last one is looked up.
const TOGETHER_MAX: usize = 8;

/// Requests that go on at once after a connection was alone in its turn.
const ALONE_SKIPS: usize = 8;

type Lookups = SmallVec<[u64; AHEAD_MAX]>;

/// What the connections of a reactor are about to look up, in the order in which they go on.
struct Turn {
    waiting: VecDeque<u64>,
    /// Lookups that were announced and not made.
    announced: usize,
    /// Connections that joined the turn, and those of them that did not go on yet.
    joined: usize,
    present: usize,
    skips: usize,
}

thread_local! {
    static TURN: RefCell<Turn> = const {
        RefCell::new(Turn {
            waiting: VecDeque::new(),
            announced: 0,
            joined: 0,
            present: 0,
            skips: 0,
        })
    };
}

impl Turn {
    /// Whether the next request goes on at once, since its connection is most likely alone.
    fn skips(&mut self) -> bool {
        let skips = self.skips > 0;
        self.skips -= usize::from(skips);
        skips
    }

    fn join(&mut self, lookups: &[u64]) {
        self.waiting.extend(lookups);
        self.joined += 1;
        self.present += 1;
    }

    /// What to announce before the connection whose turn it is makes its lookups.
    fn due(&mut self, lookups: usize) -> Lookups {
        let mut due = Lookups::new();
        if self.announced < lookups && self.joined > 1 {
            due.extend(self.waiting.drain(..self.waiting.len().min(TOGETHER_MAX)));
            self.announced += due.len();
        }
        self.announced = self.announced.saturating_sub(lookups);
        due
    }

    fn leave(&mut self) {
        self.present = self.present.saturating_sub(1);
        if self.present == 0 {
            if self.joined == 1 {
                self.skips = ALONE_SKIPS;
            }
            (self.joined, self.announced) = (0, 0);
            self.waiting.clear();
        }
    }
}

/// The presence of a connection in a turn. It ends if the connection is dropped meanwhile too.
struct Presence;

impl Presence {
    fn new(lookups: &[u64]) -> Self {
        TURN.with_borrow_mut(|turn| turn.join(lookups));
        Self
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // A thread that ends drops its connections at any time.
        let _ = TURN.try_with(|turn| turn.borrow_mut().leave());
    }
}

/// Lets the tasks run that the kernel woke together with the caller. Unlike the function of `tokio`
/// it does not ask the kernel for others.
async fn let_others_join() {
    let mut is_over = false;
    poll_fn(|context| {
        if is_over {
            return Poll::Ready(());
        }
        is_over = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
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
        if lookups.len() >= AHEAD_MIN || TURN.with_borrow_mut(Turn::skips) {
            service.expect(&lookups);
        } else {
            let _presence = Presence::new(&lookups);
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

    fn turn() -> Turn {
        Turn {
            waiting: VecDeque::new(),
            announced: 0,
            joined: 0,
            present: 0,
            skips: 0,
        }
    }

    #[test]
    fn lookups_of_a_turn_are_announced_in_groups_and_each_once() {
        let mut turn = turn();
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
        assert!(turn.present == 0 && turn.announced == 0 && !turn.skips());
    }

    #[test]
    fn a_connection_alone_does_not_wait_for_others_for_a_while() {
        let mut turn = turn();
        turn.join(&[1, 2]);
        assert!(turn.due(2).is_empty());
        turn.leave();
        let skips = std::iter::from_fn(|| turn.skips().then_some(())).count();
        assert_eq!(skips, ALONE_SKIPS);
    }

    #[test]
    fn a_connection_that_is_dropped_shifts_no_later_turn() {
        let mut turn = turn();
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
