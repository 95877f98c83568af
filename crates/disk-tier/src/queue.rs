//! What waits for the writer thread, bounded in bytes.
//!
//! Two lanes: writes, in their order, and carry-overs of old records, which may be refused at any
//! time. Every batch takes from both, so that neither starves the other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use fonn_base::entry::Space;
use fonn_proto::Failure;

use super::mark::Place;
use super::record::Fact;
use super::write::Write;

/// Bytes of carry-overs that may wait. One always may.
const CARRY_BYTES_MAX: usize = 4 << 20;

/// Writes in a batch at most.
const BATCH_WRITES_MAX: usize = 256;

/// Bytes of each lane in a batch. At least one of each is taken.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// A copy of an old record, to be put into the newest generation if it is still the newest of its
/// key.
pub(crate) struct Carry {
    pub(crate) space: Space,
    /// The whole record, verified.
    pub(crate) record: Bytes,
    /// Number of the generation where it was read. (A handle would keep the generation from being
    /// removed.)
    pub(crate) generation: u64,
    /// Its facts there. (Its position changes when the generation is compacted.)
    pub(crate) fact: Fact,
}

/// What the writer is asked to do in order, beside writing.
pub(crate) enum Order {
    Write(Write),
    /// Answer when all before it is written.
    Barrier(oneshot::Sender<()>),
    /// Answer with the end of the log when all before it is written, and nothing behind it.
    Mark(oneshot::Sender<Place>),
    /// Begin a new generation.
    Roll,
}

/// What the writer thread takes at once.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) orders: Vec<Order>,
    pub(crate) carries: Vec<Carry>,
}

#[derive(Default)]
struct Lanes {
    orders: VecDeque<Order>,
    order_bytes: usize,
    carries: VecDeque<Carry>,
    carry_bytes: usize,
    /// Carry-overs that the writer has taken and not yet written.
    carries_in_hand: usize,
    closed: bool,
}

impl Lanes {
    fn takes_carry(&self, cost: usize) -> bool {
        !self.closed && (self.carry_bytes == 0 || self.carry_bytes + cost <= CARRY_BYTES_MAX)
    }

    fn take_carries(&mut self) -> Vec<Carry> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        while taken.len() < BATCH_WRITES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(carry) = self.carries.pop_front() else {
                break;
            };
            bytes += carry.record.len();
            taken.push(carry);
        }
        self.carry_bytes = self.carry_bytes.saturating_sub(bytes);
        self.carries_in_hand += taken.len();
        taken
    }
}

/// The queue in front of the writer thread.
pub(crate) struct Queue {
    lanes: Mutex<Lanes>,
    filled: Condvar,
    /// Carry-overs were taken or done.
    carried: Condvar,
    /// Writes were taken.
    drained: Notify,
    bytes_max: usize,
}

impl Queue {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            lanes: Mutex::default(),
            filled: Condvar::new(),
            carried: Condvar::new(),
            drained: Notify::new(),
            bytes_max,
        }
    }

    /// Adds a write, if there is room for it. The writer takes it when it looks; if it sleeps, it
    /// is woken by [`Queue::hand_over`].
    #[expect(
        clippy::result_large_err,
        reason = "a refused write goes back as it came, without allocating"
    )]
    pub(crate) fn try_push(&self, write: Write) -> Result<(), (Write, Failure)> {
        let cost = write.cost();
        let mut lanes = self.lanes.lock();
        if lanes.closed {
            return Err((write, Failure::Unavailable));
        }
        if lanes.order_bytes != 0 && lanes.order_bytes + cost > self.bytes_max {
            return Err((write, Failure::Busy));
        }
        lanes.order_bytes += cost;
        lanes.orders.push_back(Order::Write(write));
        Ok(())
    }

    /// Wakes the writer if something waits.
    pub(crate) fn hand_over(&self) {
        let lanes = self.lanes.lock();
        if !lanes.orders.is_empty() {
            self.filled.notify_one();
        }
    }

    /// Waits until a write of this cost would be taken, or the queue is closed; false if the time
    /// is over before.
    ///
    /// # Cancel safety
    /// Safe: nothing is reserved.
    pub(crate) async fn room(&self, cost: usize, wait: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            {
                let lanes = self.lanes.lock();
                let used = lanes.order_bytes;
                if lanes.closed || used == 0 || used + cost <= self.bytes_max {
                    return true;
                }
            }
            if tokio::time::timeout_at(deadline, drained).await.is_err() {
                return false;
            }
        }
    }

    /// Adds an order that is not a write. A closed queue drops it, with the sender of its answer.
    pub(crate) fn push_order(&self, order: Order) {
        let mut lanes = self.lanes.lock();
        if !lanes.closed {
            lanes.orders.push_back(order);
            self.filled.notify_one();
        }
    }

    /// Adds a carry-over; gives it back if there is no room.
    pub(crate) fn try_carry(&self, carry: Carry) -> Result<(), Carry> {
        let cost = carry.record.len();
        let mut lanes = self.lanes.lock();
        if !lanes.takes_carry(cost) {
            return Err(carry);
        }
        lanes.carry_bytes += cost;
        lanes.carries.push_back(carry);
        self.filled.notify_one();
        Ok(())
    }

    /// Whether there is room for a carry-over of a record of so many bytes.
    pub(crate) fn takes_carry(&self, cost: usize) -> bool {
        self.lanes.lock().takes_carry(cost)
    }

    /// Waits until the writer took carry-overs, or the time is over.
    pub(crate) fn wait_for_carry_room(&self, wait: Duration) {
        let mut lanes = self.lanes.lock();
        if lanes.carry_bytes != 0 {
            self.carried.wait_for(&mut lanes, wait);
        }
    }

    /// Waits until every carry-over is written; false if the time is over before.
    pub(crate) fn wait_for_carries(&self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let mut lanes = self.lanes.lock();
        while !lanes.carries.is_empty() || lanes.carries_in_hand != 0 {
            if lanes.closed || self.carried.wait_until(&mut lanes, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    /// Takes what waits, for the writer; waits for it. None if the queue is closed and empty.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut lanes = self.lanes.lock();
        lanes.carries_in_hand = 0;
        self.carried.notify_all();
        while lanes.orders.is_empty() && lanes.carries.is_empty() {
            if lanes.closed {
                return None;
            }
            self.filled.wait(&mut lanes);
            // Other threads that are due run first and may add to the batch. A batch costs system
            // calls and wakes the threads that wait for it.
            MutexGuard::unlocked(&mut lanes, std::thread::yield_now);
        }
        let mut batch = Batch::default();
        let mut bytes = 0;
        while batch.orders.len() < BATCH_WRITES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(order) = lanes.orders.pop_front() else {
                break;
            };
            if let Order::Write(write) = &order {
                bytes += write.cost();
            }
            let is_mark = matches!(order, Order::Mark(_));
            batch.orders.push(order);
            if is_mark {
                // What follows is to be behind it.
                break;
            }
        }
        lanes.order_bytes = lanes.order_bytes.saturating_sub(bytes);
        batch.carries = lanes.take_carries();
        drop(lanes);
        if bytes != 0 {
            self.drained.notify_waiters();
        }
        Some(batch)
    }

    /// Takes carry-overs alone, if there are any.
    pub(crate) fn take_carries(&self) -> Vec<Carry> {
        let mut lanes = self.lanes.lock();
        let carries = lanes.take_carries();
        self.carried.notify_all();
        carries
    }

    /// Says that so many carry-overs that were taken are written, or not to be.
    pub(crate) fn carries_done(&self, count: usize) {
        let mut lanes = self.lanes.lock();
        lanes.carries_in_hand = lanes.carries_in_hand.saturating_sub(count);
        self.carried.notify_all();
    }

    /// Takes no more; what waits is still written, except carry-overs.
    pub(crate) fn close(&self) {
        let mut lanes = self.lanes.lock();
        lanes.closed = true;
        lanes.carries.clear();
        lanes.carry_bytes = 0;
        self.filled.notify_all();
        self.carried.notify_all();
        drop(lanes);
        self.drained.notify_waiters();
    }

    /// Bytes of the writes that wait.
    pub(crate) fn in_use(&self) -> usize {
        self.lanes.lock().order_bytes
    }
}

#[cfg(test)]
mod tests {
    use fonn_base::entry::Meta;

    use super::*;
    use crate::write::WriteKind;

    fn put(version: u64, len: usize) -> Write {
        let kind = WriteKind::Put {
            meta: Meta::new(version, 0, 0),
            value: vec![0; len].into(),
        };
        Write {
            space: Space(0),
            key: Bytes::from_static(b"key"),
            kind,
            ack: None,
        }
    }

    fn versions(batch: &Batch) -> Vec<u64> {
        let version = |order: &Order| match order {
            Order::Write(write) => write.version(),
            _ => 0,
        };
        batch.orders.iter().map(version).collect()
    }

    #[test]
    fn the_queue_is_bounded_in_bytes_and_gives_the_write_back() {
        let queue = Queue::new(10_000);
        queue.try_push(put(1, 6000)).unwrap();
        let (back, failure) = queue.try_push(put(2, 6000)).unwrap_err();
        assert_eq!((back.version(), failure), (2, Failure::Busy));
        queue.try_push(put(3, 100)).unwrap();
        assert_eq!(versions(&queue.take().unwrap()), [1, 3]);
        assert_eq!(queue.in_use(), 0);
    }

    #[test]
    fn one_write_larger_than_the_queue_passes() {
        let queue = Queue::new(10);
        queue.try_push(put(1, 6000)).unwrap();
        assert!(queue.try_push(put(2, 0)).is_err());
        queue.take().unwrap();
        queue.try_push(put(2, 0)).unwrap();
    }

    #[test]
    fn a_closed_queue_hands_out_what_it_has_and_takes_no_more() {
        let queue = Queue::new(10_000);
        queue.try_push(put(1, 1)).unwrap();
        queue.close();
        assert_eq!(
            queue.try_push(put(2, 1)).unwrap_err().1,
            Failure::Unavailable
        );
        assert_eq!(versions(&queue.take().unwrap()), [1]);
        assert!(queue.take().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_time_or_with_room() {
        let queue = Queue::new(10);
        queue.try_push(put(1, 100)).unwrap();
        assert!(!queue.room(100, Duration::from_secs(1)).await);
        let waiting = queue.room(100, Duration::from_secs(1));
        let (has_room, ()) = tokio::join!(waiting, async {
            queue.take().unwrap();
        });
        assert!(has_room);
    }
}
