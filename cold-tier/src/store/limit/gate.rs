//! Which calls may run now, and which wait.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::LimitOptions;

/// So many reads may go before a waiting write.
pub const READS_IN_A_ROW_MAX: u32 = 8;

/// The kinds of calls that have a queue each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Read,
    Write,
}

/// What an answer says about the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Served,
    Overloaded,
    Unknown,
}

/// The queue of a class is full.
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
    /// Reads that run.
    pub reads: u32,
    /// Other calls that run.
    pub writes: u32,
    /// Reads that wait.
    pub reads_waiting: usize,
    /// Other calls that wait.
    pub writes_waiting: usize,
    /// Calls turned away because their queue was full.
    pub rejected: u64,
    /// How often the limit was lowered.
    pub decreases: u64,
}

/// The limit, as all calls share it.
#[derive(Debug)]
pub struct Gate {
    options: LimitOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: f64,
    reads: u32,
    writes: u32,
    reads_waiting: VecDeque<oneshot::Sender<()>>,
    writes_waiting: VecDeque<oneshot::Sender<()>>,
    /// Reads admitted since a write, while one waited.
    reads_in_a_row: u32,
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
                reads: 0,
                writes: 0,
                reads_waiting: VecDeque::new(),
                writes_waiting: VecDeque::new(),
                reads_in_a_row: 0,
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
            reads: state.reads,
            writes: state.writes,
            reads_waiting: state.reads_waiting.len(),
            writes_waiting: state.writes_waiting.len(),
            rejected: state.rejected,
            decreases: state.decreases,
        }
    }
}

/// Waits until a call of that class may run.
///
/// # Cancel safety
/// Dropping it gives the place in the queue up, or the place in the store if it was just granted.
pub(super) async fn enter(gate: &Arc<Gate>, class: Class) -> Result<Permit, QueueFull> {
    let mut waiting = {
        let mut state = gate.state.lock();
        // A later call does not go before waiting calls of its class.
        if state.queue(class).is_empty() && state.may_enter(class) {
            state.admit(class);
            return Ok(Permit::new(gate, class, state.decreases));
        }
        let queue = state.queue(class);
        if queue.len() >= gate.options.queue_max {
            queue.retain(|waiting| !waiting.is_closed());
        }
        let waiting = queue.len();
        if waiting >= gate.options.queue_max {
            state.rejected += 1;
            return Err(QueueFull { waiting });
        }
        let (admit, admitted) = oneshot::channel();
        queue.push_back(admit);
        Waiting {
            gate,
            class,
            admitted,
        }
    };
    // The sender is dropped only with the gate, which this call keeps alive.
    let _ = (&mut waiting.admitted).await;
    let decreases = gate.state.lock().decreases;
    let permit = Permit::new(gate, class, decreases);
    Ok(permit)
}

/// A call in a queue.
struct Waiting<'a> {
    gate: &'a Arc<Gate>,
    class: Class,
    admitted: oneshot::Receiver<()>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.admitted.close();
        // Admitted, but dropped before it noticed: others wait for the place.
        if self.admitted.try_recv().is_ok() {
            let mut state = self.gate.state.lock();
            state.leave(self.class);
            state.admit_waiting();
        }
    }
}

/// The right to call. Dropping it gives the place back without a verdict.
#[must_use]
pub(super) struct Permit {
    gate: Arc<Gate>,
    class: Class,
    decreases_at_begin: u64,
    verdict: Verdict,
}

impl Permit {
    fn new(gate: &Arc<Gate>, class: Class, decreases_at_begin: u64) -> Self {
        Self {
            gate: Arc::clone(gate),
            class,
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
        state.leave(self.class);
        state.admit_waiting();
    }
}

impl State {
    fn queue(&mut self, class: Class) -> &mut VecDeque<oneshot::Sender<()>> {
        match class {
            Class::Read => &mut self.reads_waiting,
            Class::Write => &mut self.writes_waiting,
        }
    }

    fn may_enter(&self, class: Class) -> bool {
        let limit = self.limit as u32;
        let is_below_limit = self.reads + self.writes < limit;
        match class {
            Class::Read => is_below_limit || self.reads == 0,
            Class::Write => is_below_limit && self.writes < limit - limit / 4,
        }
    }

    fn admit(&mut self, class: Class) {
        match class {
            Class::Read => {
                self.reads += 1;
                let is_before_a_write = !self.writes_waiting.is_empty();
                self.reads_in_a_row = if is_before_a_write {
                    self.reads_in_a_row + 1
                } else {
                    0
                };
            }
            Class::Write => {
                self.writes += 1;
                self.reads_in_a_row = 0;
            }
        }
    }

    fn leave(&mut self, class: Class) {
        let running = match class {
            Class::Read => &mut self.reads,
            Class::Write => &mut self.writes,
        };
        *running = running.saturating_sub(1);
    }

    /// Lets in the calls that may run now.
    fn admit_waiting(&mut self) {
        loop {
            let is_turn_of_writes = self.reads_in_a_row >= READS_IN_A_ROW_MAX;
            let order = if is_turn_of_writes {
                [Class::Write, Class::Read]
            } else {
                [Class::Read, Class::Write]
            };
            let next = order
                .into_iter()
                .find(|&class| !self.queue(class).is_empty() && self.may_enter(class));
            let Some(class) = next else { return };
            // One that was dropped while it waited takes no place.
            let is_there = self
                .queue(class)
                .pop_front()
                .is_some_and(|waiting| waiting.send(()).is_ok());
            if is_there {
                self.admit(class);
            }
        }
    }

    fn increase(&mut self, max: u32) {
        // An unused limit says nothing about what the store can take.
        if self.reads + self.writes >= self.limit as u32 {
            self.limit = (self.limit + 1.0 / self.limit).min(f64::from(max));
        }
    }

    fn decrease(&mut self) {
        self.limit = (self.limit / 2.0).max(1.0);
        self.decreases += 1;
    }
}
