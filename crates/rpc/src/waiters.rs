//! Pending replies: a table of slots whose numbers are the ids on the wire.
//!
//! Pure. A slot has two sides. The *wire* side is open from the moment the request is encoded until
//! its reply comes or the connection ends. The *caller's* side is open until the caller took its
//! result or went away. The slot is used again when both are closed, so an id is never on the wire
//! twice. A generation in the upper half of the id tells a late or repeated reply from that of the
//! slot's next user even then.

use std::task::{Poll, Waker};
use std::time::Instant;

use super::CallError;

/// Slots at most: their number has 16 bits.
const SLOTS_MAX: usize = 1 << 16;

/// The table; `T` is what a reply is.
#[derive(Debug)]
pub(super) struct Waiters<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u16>,
    slots_max: usize,
    /// Slots whose wire side is open.
    owed: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u16,
    /// Whether a reply is owed.
    is_owed: bool,
    caller: Caller<T>,
    started: Instant,
    deadline: Instant,
    /// When the caller is woken once without a result, if it wants to be.
    nudge: Option<Instant>,
    /// Which buffer the request was written into.
    batch: u64,
    /// Bytes that count for the request.
    bytes: usize,
}

#[derive(Debug)]
enum Caller<T> {
    Waits(Option<Waker>),
    HasResult(Result<T, CallError>),
    Gone,
}

/// What is known about a request when it is written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    pub(super) batch: u64,
    pub(super) bytes: usize,
}

/// A reply that found its request.
#[derive(Debug)]
pub(super) struct Delivered {
    /// The task to wake.
    pub(super) waker: Option<Waker>,
    /// When the request was written down.
    pub(super) started: Instant,
    /// Bytes that counted for the request.
    pub(super) bytes: usize,
    /// Whether a caller will take it.
    pub(super) is_wanted: bool,
}

/// No request with this id is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnknownId;

impl<T> Waiters<T> {
    pub(super) fn new(slots_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            slots_max: slots_max.clamp(1, SLOTS_MAX),
            owed: 0,
        }
    }

    /// Replies that are owed.
    pub(super) fn owed(&self) -> usize {
        self.owed
    }

    /// Slots in use.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot for a request; returns its id. None if there is no slot.
    #[inline]
    pub(super) fn begin(&mut self, ticket: Ticket) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.slots_max => {
                let index = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot {
                    generation: 0,
                    is_owed: false,
                    caller: Caller::Gone,
                    started: ticket.started,
                    deadline: ticket.deadline,
                    nudge: None,
                    batch: 0,
                    bytes: 0,
                });
                index
            }
            None => return None,
        };
        let slot = self.slots.get_mut(usize::from(index))?;
        *slot = Slot {
            generation: slot.generation.wrapping_add(1),
            is_owed: true,
            caller: Caller::Waits(None),
            started: ticket.started,
            deadline: ticket.deadline,
            nudge: None,
            batch: ticket.batch,
            bytes: ticket.bytes,
        };
        self.owed += 1;
        Some(u32::from(slot.generation) << 16 | u32::from(index))
    }

    /// Takes back what [`Waiters::begin`] did, for a request that was not written after all.
    pub(super) fn cancel(&mut self, id: u32) {
        if let Some(slot) = self.slot(id).filter(|slot| slot.is_owed) {
            slot.is_owed = false;
            slot.caller = Caller::Gone;
            self.owed -= 1;
            self.free.push(id as u16);
        }
    }

    /// Gives the reply with this id to its caller.
    #[inline]
    pub(super) fn reply(
        &mut self,
        id: u32,
        reply: impl FnOnce() -> T,
    ) -> Result<Delivered, UnknownId> {
        let Some(slot) = self.slot(id).filter(|slot| slot.is_owed) else {
            return Err(UnknownId);
        };
        slot.is_owed = false;
        let mut delivered = Delivered {
            waker: None,
            started: slot.started,
            bytes: slot.bytes,
            is_wanted: false,
        };
        let is_free = match &mut slot.caller {
            Caller::Waits(waker) => {
                delivered.waker = waker.take();
                delivered.is_wanted = true;
                slot.caller = Caller::HasResult(Ok(reply()));
                false
            }
            Caller::HasResult(_) => false,
            Caller::Gone => true,
        };
        self.owed -= 1;
        if is_free {
            self.free.push(id as u16);
        }
        Ok(delivered)
    }

    /// The caller asks for its result.
    #[inline]
    pub(super) fn poll(&mut self, id: u32, waker: &Waker) -> Poll<Result<T, CallError>> {
        let Some(slot) = self.slot(id) else {
            return Poll::Ready(Err(CallError::Lost));
        };
        match &mut slot.caller {
            Caller::Waits(Some(known)) if known.will_wake(waker) => Poll::Pending,
            Caller::Waits(known) => {
                *known = Some(waker.clone());
                Poll::Pending
            }
            Caller::HasResult(_) | Caller::Gone => {
                let is_free = !slot.is_owed;
                let before = std::mem::replace(&mut slot.caller, Caller::Gone);
                if is_free {
                    self.free.push(id as u16);
                }
                match before {
                    Caller::HasResult(result) => Poll::Ready(result),
                    Caller::Waits(_) | Caller::Gone => Poll::Ready(Err(CallError::Lost)),
                }
            }
        }
    }

    /// Has the caller woken once when `at` has passed, if it still waits.
    pub(super) fn nudge(&mut self, id: u32, at: Instant) {
        if let Some(slot) = self.slot(id) {
            slot.nudge = Some(at);
        }
    }

    /// The caller went away without its result.
    pub(super) fn abandon(&mut self, id: u32) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let is_free = !slot.is_owed;
        let before = std::mem::replace(&mut slot.caller, Caller::Gone);
        if is_free && !matches!(before, Caller::Gone) {
            self.free.push(id as u16);
        }
    }

    /// Tells callers whose time is over, and nudges those that want it. Returns how many, and how
    /// long the longest debt has stood.
    pub(super) fn expire(&mut self, now: Instant, wakers: &mut Vec<Waker>) -> Expired {
        let mut expired = Expired::default();
        for slot in self.slots.iter_mut().filter(|slot| slot.is_owed) {
            let owing = now.saturating_duration_since(slot.started);
            expired.owing_max = expired.owing_max.max(owing);
            let Caller::Waits(waker) = &mut slot.caller else {
                continue;
            };
            if slot.deadline <= now {
                wakers.extend(waker.take());
                slot.caller = Caller::HasResult(Err(CallError::TimedOut));
                expired.count += 1;
            } else if slot.nudge.take_if(|at| *at <= now).is_some() {
                wakers.extend(waker.clone());
            }
        }
        expired
    }

    /// The connection ended: nothing is owed any more. Requests of batches above `taken` were not
    /// sent; callers of the others get `error`.
    pub(super) fn fail_all(&mut self, taken: u64, error: CallError, wakers: &mut Vec<Waker>) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if !std::mem::take(&mut slot.is_owed) {
                continue;
            }
            match &mut slot.caller {
                Caller::Waits(waker) => {
                    wakers.extend(waker.take());
                    slot.caller = Caller::HasResult(Err(if slot.batch > taken {
                        CallError::Unavailable
                    } else {
                        error
                    }));
                }
                Caller::HasResult(_) => {}
                // There are at most 2^16 slots.
                Caller::Gone => self.free.push(index as u16),
            }
        }
        self.owed = 0;
    }

    #[inline]
    fn slot(&mut self, id: u32) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut((id & 0xffff) as usize)?;
        (u32::from(slot.generation) == id >> 16).then_some(slot)
    }
}

/// What [`Waiters::expire`] found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expired {
    /// Callers that were told.
    pub(super) count: usize,
    /// The longest time that a reply has been owed.
    pub(super) owing_max: std::time::Duration,
}

#[cfg(test)]
mod tests;
