//! Which calls of a class may run now, and which wait.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::LimitOptions;

/// What an answer says about the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Served,
    Overloaded,
    Unknown,
}

/// The queue is full.
#[derive(Debug, thiserror::Error)]
#[error("{waiting} calls to the store are waiting already")]
pub(super) struct QueueFull {
    waiting: usize,
}

/// What a limit does at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitSnapshot {
    /// Calls that may run at once.
    pub limit: u32,
    /// Calls that run.
    pub running: u32,
    /// Calls that wait.
    pub waiting: usize,
    /// Calls turned away because the queue was full.
    pub rejected: u64,
}

/// The limit, as all calls of a class share it.
#[derive(Debug)]
pub struct Gate {
    options: LimitOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: f64,
    running: u32,
    waiting: VecDeque<oneshot::Sender<()>>,
    rejected: u64,
    /// How often the limit was lowered; calls that began before the last time do not lower it.
    decreases: u64,
}

impl Gate {
    pub(super) fn new(options: LimitOptions) -> Self {
        let max = options.max.max(1);
        Self {
            options: LimitOptions { max, ..options },
            state: Mutex::new(State {
                limit: f64::from(options.initial.clamp(1, max)),
                running: 0,
                waiting: VecDeque::new(),
                rejected: 0,
                decreases: 0,
            }),
        }
    }

    /// Everything at one moment.
    #[must_use]
    pub fn snapshot(&self) -> LimitSnapshot {
        let state = self.state.lock();
        LimitSnapshot {
            limit: state.limit as u32,
            running: state.running,
            waiting: state.waiting.len(),
            rejected: state.rejected,
        }
    }
}

/// Waits until a call may run.
///
/// # Cancel safety
/// Dropping it gives the place in the queue up, or the place in the store if it was just granted.
pub(super) async fn enter(gate: &Arc<Gate>) -> Result<Permit, QueueFull> {
    let mut waiting = {
        let mut state = gate.state.lock();
        // A later call does not go before those that wait.
        if state.waiting.is_empty() && state.has_room() {
            state.running += 1;
            return Ok(Permit::new(gate, state.decreases));
        }
        if state.waiting.len() >= gate.options.queue_max {
            state.waiting.retain(|waiting| !waiting.is_closed());
        }
        let waiting = state.waiting.len();
        if waiting >= gate.options.queue_max {
            state.rejected += 1;
            return Err(QueueFull { waiting });
        }
        let (admit, admitted) = oneshot::channel();
        state.waiting.push_back(admit);
        Waiting { gate, admitted }
    };
    // The sender is dropped only with the gate, which this call keeps alive.
    let _ = (&mut waiting.admitted).await;
    let decreases = gate.state.lock().decreases;
    Ok(Permit::new(gate, decreases))
}

/// A call in the queue.
struct Waiting<'a> {
    gate: &'a Arc<Gate>,
    admitted: oneshot::Receiver<()>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.admitted.close();
        // Admitted, but dropped before it noticed: others wait for the place.
        if self.admitted.try_recv().is_ok() {
            self.gate.state.lock().leave();
        }
    }
}

/// The right to call. Dropping it gives the place back without a verdict.
#[must_use]
pub(super) struct Permit {
    gate: Arc<Gate>,
    decreases_at_begin: u64,
    verdict: Verdict,
}

impl Permit {
    fn new(gate: &Arc<Gate>, decreases_at_begin: u64) -> Self {
        Self {
            gate: Arc::clone(gate),
            decreases_at_begin,
            verdict: Verdict::Unknown,
        }
    }

    /// Gives the place back, and tells how it went.
    pub(super) fn leave(mut self, verdict: Verdict) {
        self.verdict = verdict;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        match self.verdict {
            Verdict::Served => state.increase(self.gate.options.max),
            Verdict::Overloaded if self.decreases_at_begin == state.decreases => state.decrease(),
            Verdict::Overloaded | Verdict::Unknown => {}
        }
        state.leave();
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.running < self.limit as u32
    }

    /// A call has ended: lets in those that may run now.
    fn leave(&mut self) {
        self.running = self.running.saturating_sub(1);
        while self.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            // One that was dropped while it waited takes no place.
            if waiting.send(()).is_ok() {
                self.running += 1;
            }
        }
    }

    fn increase(&mut self, max: u32) {
        // An unused limit says nothing about what the store can take.
        if !self.has_room() {
            self.limit = (self.limit + 1.0 / self.limit).min(f64::from(max));
        }
    }

    fn decrease(&mut self) {
        self.limit = (self.limit / 2.0).max(1.0);
        self.decreases += 1;
    }
}
