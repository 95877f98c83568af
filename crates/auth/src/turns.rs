//! One attempt of a source at a time.
//!
//! Penalties alone slow guesses that come one after the other. A thousand guesses at once would all
//! wait for the same moment, and then all be tried. Here each attempt waits for what the one before
//! it costs.
//!
//! Invariant: a source has at most one [`Turn`], and only its holder may compare a password.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::attempts::Refusal;
use super::networks::Source;
use super::rounds::Rounds;

/// Attempts of one source that wait, the one whose turn it is among them.
const OF_SOURCE_MAX: usize = 1024;

/// Attempts of all sources that wait.
const WAITING_MAX: usize = 4096;

struct Queue {
    len: usize,
    turn: Arc<Semaphore>,
}

struct Queues {
    by_source: HashMap<Source, Queue>,
    /// The attempts that wait. One that gives way to another loses its sender.
    waiting: Rounds<oneshot::Sender<()>>,
}

/// The attempts that have their turn or wait for it, by source; clones share them.
#[derive(Clone)]
pub(super) struct Turns(Arc<Mutex<Queues>>);

impl Default for Turns {
    fn default() -> Self {
        let queues = Queues {
            by_source: HashMap::new(),
            waiting: Rounds::new(WAITING_MAX),
        };
        Self(Arc::new(Mutex::new(queues)))
    }
}

impl Turns {
    /// Waits for the turn of an attempt of `source`.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if too many wait: at once, or when the attempt gives way to another.
    pub async fn take(&self, source: Source) -> Result<Turn, Refusal> {
        let (stays, gives_way) = oneshot::channel();
        let (place, turn, _waiting) = {
            let mut queues = self.0.lock();
            let here = queues.by_source.get(&source).map_or(0, |queue| queue.len);
            if here >= OF_SOURCE_MAX {
                return Err(Refusal::Busy);
            }
            let (place, turn) = self.enter(&mut queues, source);
            let (id, _) = queues.waiting.push(source, stays);
            let turns = self.clone();
            (place, turn, Waiting { turns, source, id })
        };
        let permit = tokio::select! {
            biased;
            _ = gives_way => return Err(Refusal::Busy),
            permit = turn.acquire_owned() => permit.map_err(|_| Refusal::Busy)?,
        };
        Ok(Turn {
            _permit: permit,
            place,
        })
    }

    /// The turn of `source`, if none of its attempts has it or waits for it. Attempts of other
    /// sources do not matter: a password that is known to be right needs the turn for a moment
    /// only.
    pub fn try_take(&self, source: Source) -> Option<Turn> {
        let mut queues = self.0.lock();
        if queues.by_source.contains_key(&source) {
            return None;
        }
        let (place, turn) = self.enter(&mut queues, source);
        drop(queues);
        let permit = turn.try_acquire_owned().ok()?;
        Some(Turn {
            _permit: permit,
            place,
        })
    }

    /// Counts an attempt in. It is counted out when the place is dropped.
    fn enter(&self, queues: &mut Queues, source: Source) -> (Place, Arc<Semaphore>) {
        let queue = queues.by_source.entry(source).or_insert_with(|| Queue {
            len: 0,
            turn: Arc::new(Semaphore::new(1)),
        });
        queue.len += 1;
        let turn = Arc::clone(&queue.turn);
        let turns = self.clone();
        (Place { turns, source }, turn)
    }

    /// Attempts of all sources.
    #[cfg(any(test, feature = "test-util"))]
    pub fn len(&self) -> usize {
        self.0
            .lock()
            .by_source
            .values()
            .map(|queue| queue.len)
            .sum()
    }
}

struct Place {
    turns: Turns,
    source: Source,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.turns.0.lock();
        if let Some(queue) = queues.by_source.get_mut(&self.source) {
            queue.len -= 1;
            if queue.len == 0 {
                queues.by_source.remove(&self.source);
            }
        }
    }
}

/// An attempt that waits until this is dropped.
struct Waiting {
    turns: Turns,
    source: Source,
    id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waiting = &mut self.turns.0.lock().waiting;
        waiting.remove(self.source, self.id);
    }
}

/// The turn of one attempt; the next has its own once this is dropped.
pub(super) struct Turn {
    // Given back before the place, which may be the last that knows of it.
    _permit: OwnedSemaphorePermit,
    place: Place,
}

impl Turn {
    /// How many attempts of the same source wait behind this attempt.
    pub fn behind(&self) -> usize {
        let queues = self.place.turns.0.lock();
        let queue = queues.by_source.get(&self.place.source);
        queue.map_or(0, |queue| queue.len - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const HERE: Source = Source::V4([10, 0, 0, 1]);
    const THERE: Source = Source::V4([10, 0, 0, 2]);

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn one_attempt_of_a_source_goes_at_a_time_and_one_that_gives_up_is_forgotten() {
        let turns = Turns::default();
        let Poll::Ready(Ok(first)) = poll(pin!(turns.take(HERE))) else {
            panic!("nobody was before it");
        };
        let mut second = pin!(turns.take(HERE));
        assert!(poll(second.as_mut()).is_pending());
        {
            let mut third = pin!(turns.take(HERE));
            assert!(poll(third.as_mut()).is_pending());
            assert_eq!(first.behind(), 2);
        }
        assert_eq!(first.behind(), 1);
        assert!(matches!(poll(pin!(turns.take(THERE))), Poll::Ready(Ok(_))));
        assert!(turns.try_take(HERE).is_none());
        assert!(turns.try_take(THERE).is_some());
        drop(first);
        assert!(turns.try_take(HERE).is_none(), "another waits for it");
        let Poll::Ready(Ok(second)) = poll(second) else {
            panic!("it is its turn");
        };
        drop(second);
        assert!(turns.0.lock().by_source.is_empty());
        assert!(turns.0.lock().waiting.pop().is_none());
    }

    #[test]
    fn waiting_attempts_are_bounded_and_those_of_crowded_networks_give_way() {
        let turns = Turns::default();
        let mut waiting = Vec::new();
        for number in 0..8 * OF_SOURCE_MAX {
            let source = Source::V4([10, 0, 1, (number % 8) as u8]);
            waiting.push((source, Box::pin(turns.take(source))));
        }
        let mut polled: Vec<_> = (waiting.iter_mut())
            .map(|(_, attempt)| poll(attempt.as_mut()))
            .collect();
        assert!(
            polled[..8]
                .iter()
                .all(|it| matches!(it, Poll::Ready(Ok(_))))
        );
        // Those that came when there was no place for them were told so at once.
        let busy = polled
            .iter()
            .filter(|it| matches!(it, Poll::Ready(Err(_))))
            .count();
        assert!(busy < 4096 + 8);
        let mut over = pin!(turns.take(waiting[0].0));
        let _ = poll(over.as_mut());
        let first = poll(pin!(turns.take(THERE)));
        assert!(matches!(first, Poll::Ready(Ok(_))));
        let mut second = pin!(turns.take(THERE));
        assert!(poll(second.as_mut()).is_pending());
        polled.clear();
        drop(first);
        assert!(matches!(poll(second), Poll::Ready(Ok(_))));
    }

    #[test]
    fn a_source_has_so_many_attempts_and_no_more() {
        let turns = Turns::default();
        let mut waiting: Vec<_> = (0..OF_SOURCE_MAX)
            .map(|_| Box::pin(turns.take(HERE)))
            .collect();
        let held: Vec<_> = waiting.iter_mut().map(|it| poll(it.as_mut())).collect();
        assert!(matches!(held[0], Poll::Ready(Ok(_))));
        assert!(held[1..].iter().all(Poll::is_pending));
        assert!(matches!(poll(pin!(turns.take(HERE))), Poll::Ready(Err(_))));
        assert!(matches!(poll(pin!(turns.take(THERE))), Poll::Ready(Ok(_))));
    }
}
