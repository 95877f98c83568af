//! The writer thread: takes what is queued, appends it to the newest value log in one system call
//! as a rule, puts it into the index in one batch, and tells the results.
//!
//! It is the only one that writes records, so what it checks stays true until it has written. A
//! batch that cannot be written whole leaves nothing behind. If the newest generation's log or
//! index fails, the batch goes into the next generation.

mod bounds;
mod stage;

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::{error, warn};

use fonn_base::entry::Space;
use fonn_base::reactor::Gather;
use fonn_proto::{Failure, Version};

use self::bounds::Bounds;
use super::Shared;
use super::generation::Generation;
use super::index::Checkpoint;
use super::log::DirectWriter;
use super::mark::end_of_log;
use super::options::{Durability, Limits};
use super::queue::{Batch, Carry, Order};
use super::record::{Fact, HEAD_LEN, IndexEntry, IndexKey, index_key_len};
use super::room::Reservation;
use super::stats::add;
use super::write::{Write, WriteKind};
use crate::levels::{ThreadTimes, thread_cpu};

/// The scratch buffer is given back if a batch made it larger.
const SCRATCH_BYTES_KEPT: usize = 4 << 20;

/// The file system sets room aside for a log in steps of this part of its length: of so many bytes
/// at most, and not before they are worth it, so that a small store stays small.
const AHEAD_PART: u64 = 8;
const AHEAD_MIN: u64 = 1 << 20;
const AHEAD_MAX: u64 = 64 << 20;

/// Of writes from this length on, the processor time is measured. Shorter ones use less than
/// [`STALL_MIN`] of it, so what takes longer has waited.
const MEASURED_LEN: u64 = 256 << 10;
const STALL_MIN: Duration = Duration::from_millis(1);

/// About what an entry adds to an index on disk beside its key: in the journal and in a table.
pub(crate) const INDEX_ENTRY_COST: u64 = 140;

/// Bytes that a write takes on disk, index included, at most. Records that are longer are refused.
fn bytes_of(write: &Write, limits: &Limits) -> u64 {
    let record = HEAD_LEN + write.cost();
    let index = INDEX_ENTRY_COST + 2 * index_key_len(write.key.len()) as u64;
    limits.generation_max.min(record as u64) + index
}

/// Body of the writer thread.
pub(crate) fn run(shared: &Shared) {
    super::stand_back(super::WRITE_NICENESS);
    if let Some(times) = ThreadTimes::of_this_thread() {
        let _ = shared.writer_times.set(times);
    }
    let mut writer = Writer {
        shared,
        scratch: Vec::new(),
        direct: DirectWriter::default(),
        head: Vec::new(),
        staged: Vec::new(),
        newest: HashMap::new(),
        bounds: Bounds::new(),
        is_unsure: false,
    };
    while let Some(batch) = shared.queue.take() {
        if catch_unwind(AssertUnwindSafe(|| writer.run_batch(batch))).is_err() {
            // The callers of the batch hear that it failed: acknowledgements are dropped.
            error!("writing a batch panicked: going on in a new generation");
            writer.is_unsure = true;
            if let Some(newest) = shared.generations.newest() {
                writer.give_up(&newest);
            }
        }
        writer.clear();
    }
}

/// The writes of a batch whose results are not told yet. Should the batch panic, they are told as
/// failed: an observer must not wait for a result for ever.
struct Untold<'a> {
    shared: &'a Shared,
    writes: Vec<(Space, Bytes, Version)>,
}

impl<'a> Untold<'a> {
    fn new(shared: &'a Shared, writes: &[Write]) -> Self {
        let told = |write: &Write| (write.space, write.key.clone(), write.version());
        Self {
            shared,
            writes: writes.iter().map(told).collect(),
        }
    }
}

impl Drop for Untold<'_> {
    fn drop(&mut self) {
        for (space, key, version) in &self.writes {
            let failed = Err(Failure::Unavailable);
            self.shared.observer.written(*space, key, *version, failed);
        }
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    /// Heads, keys, and frames that are no tails.
    scratch: Vec<u8>,
    /// Writes large batches.
    direct: DirectWriter,
    /// The head of the record that is being staged.
    head: Vec<u8>,
    staged: Vec<Staged>,
    /// The last staged record of each key.
    newest: HashMap<IndexKey, usize>,
    /// How new the records of the newest generation are.
    bounds: Bounds,
    /// A log may hold records that were reported as failed, and which a restart would find: until
    /// then every deletion is written.
    is_unsure: bool,
}

/// A record ready to be appended: a part of the scratch buffer, then the tail.
struct Staged {
    head: Range<usize>,
    tail: Bytes,
    fact: Fact,
    record_len: u32,
}

/// Why a batch was not written. Nothing of it is visible.
enum NotWritten {
    /// The file system is full.
    NoSpace,
    /// The generation takes no more.
    GenerationFailed(Arc<Generation>),
    /// There is no generation.
    NoGeneration,
}

/// What a write needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Staging {
    /// A staged record: its own, or a newer one of the key.
    Record,
    Nothing,
}

impl<'a> Writer<'a> {
    fn clear(&mut self) {
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_BYTES_KEPT);
        self.staged.clear();
        self.newest.clear();
    }

    fn run_batch(&mut self, batch: Batch) {
        let Batch { orders, carries } = batch;
        let mut writes = Vec::with_capacity(orders.len());
        let mut barriers = Vec::new();
        let mut mark = None;
        let mut is_roll_asked = false;
        for order in orders {
            match order {
                Order::Write(write) => writes.push(write),
                Order::Barrier(answer) => barriers.push(answer),
                Order::Mark(answer) => mark = Some(answer),
                Order::Roll => is_roll_asked = true,
            }
        }
        self.write_carries(carries);
        let limits = self.shared.limits();
        let bytes = writes.iter().map(|write| bytes_of(write, &limits)).sum();
        let mut untold = Untold::new(self.shared, &writes);
        let reserved = self.make_room(bytes, is_roll_asked);
        let room = reserved.as_ref().map(|_| ()).map_err(|failure| *failure);
        let mut results = Vec::with_capacity(writes.len());
        for write in &writes {
            results.push(self.stage(write, room));
        }
        if let Err(failure) = self.write_staged() {
            self.fail_staged(&mut results, failure, &writes);
        }
        drop(reserved);
        self.tell(writes, results);
        untold.writes.clear();
        for answer in barriers {
            let _ = answer.send(());
        }
        if let Some(answer) = mark {
            let _ = answer.send(end_of_log(&self.shared.generations.snapshot()));
        }
    }

    /// Rolls if the newest generation is full, and waits until the disk has room, which is reserved
    /// then. An error is why values cannot be written; deletions always are.
    fn make_room(&mut self, bytes: u64, is_roll_asked: bool) -> Result<Reservation<'a>, Failure> {
        let shared = self.shared;
        let deadline = Instant::now() + shared.options.room_wait;
        let limits = shared.limits();
        if let Some(newest) = shared.generations.newest() {
            let used = newest.disk_bytes() - newest.log.ahead();
            let is_due = used >= limits.generation || (is_roll_asked && newest.log.end() > 0);
            let is_waited_for = used >= limits.generation_max || newest.has_failed();
            if is_due || is_waited_for {
                self.roll(if is_waited_for {
                    shared.options.room_wait
                } else {
                    Duration::ZERO
                });
            }
        }
        let reserve = || shared.reserve(bytes, shared.writes_max(&limits));
        let mut reserved = reserve();
        while reserved.is_none() && !shared.is_disk_full() && Instant::now() < deadline {
            shared.press(bytes);
            // What is carried over is what room is waited for.
            let carries = shared.queue.take_carries();
            if carries.is_empty() {
                shared.wait_for_room(Duration::from_millis(5));
            }
            self.write_carries(carries);
            reserved = reserve();
        }
        shared.unpress();
        reserved
            .filter(|_| !shared.is_disk_full())
            .ok_or(Failure::OutOfSpace)
    }

    /// Writes carry-overs, apart from writes: these may have to wait for them.
    fn write_carries(&mut self, carries: Vec<Carry>) {
        let count = carries.len();
        if count == 0 {
            return;
        }
        if !self.shared.is_disk_full() {
            let shared = self.shared;
            let total_max = shared.limits().total_max;
            let mut reserved = Vec::with_capacity(count);
            for carry in carries {
                let bytes = carry.record.len() as u64 + INDEX_ENTRY_COST;
                let Some(room) = shared.reserve(bytes, total_max) else {
                    add(&shared.stats.carries_skipped, 1);
                    continue;
                };
                reserved.push(room);
                self.stage_carry(carry);
            }
            // A copy that is not written is an entry that is evicted.
            let _ = self.write_staged();
        }
        self.clear();
        self.shared.queue.carries_done(count);
    }

    /// Goes on in the next generation; false if there is none in time.
    fn roll(&self, wait: Duration) -> bool {
        let Some(next) = self.shared.take_spare(wait) else {
            return false;
        };
        self.shared.generations.push_newest(Arc::new(next));
        self.shared.wake_upkeep();
        true
    }

    fn give_up(&self, generation: &Generation) {
        if generation.set_failed() {
            add(&self.shared.stats.generations_failed, 1);
        }
    }

    /// Writes what is staged, if need be in the next generation; without the values, if these are
    /// too much for the file system.
    fn write_staged(&mut self) -> Result<(), Failure> {
        let mut is_retried = false;
        loop {
            match self.try_write_staged() {
                Ok(()) => return Ok(()),
                Err(NotWritten::NoSpace) => return Err(Failure::OutOfSpace),
                Err(NotWritten::GenerationFailed(generation)) => {
                    self.give_up(&generation);
                    if is_retried || !self.roll(self.shared.options.room_wait) {
                        return Err(Failure::Unavailable);
                    }
                    is_retried = true;
                }
                Err(NotWritten::NoGeneration) => {
                    if is_retried || !self.roll(self.shared.options.room_wait) {
                        return Err(Failure::Unavailable);
                    }
                    is_retried = true;
                }
            }
        }
    }

    fn try_write_staged(&mut self) -> Result<(), NotWritten> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let Some(generation) = self.shared.generations.newest() else {
            return Err(NotWritten::NoGeneration);
        };
        if generation.has_failed() {
            return Err(NotWritten::GenerationFailed(generation));
        }
        let bytes: u64 = self.staged.iter().map(|it| u64::from(it.record_len)).sum();
        let versions = self.staged.iter().map(|it| it.fact.version());
        generation.note_newest(versions.max().unwrap_or(0));
        self.reserve_ahead(&generation, bytes);
        let mut direct = std::mem::take(&mut self.direct);
        let appended = self.stalling(bytes, || {
            self.shared.throttle.take(bytes);
            let _call = self.shared.device.begin(bytes);
            generation.log.append(&mut direct, &mut self.slices())
        });
        add(&self.shared.stats.direct_bytes, direct.take_written_bytes());
        self.direct = direct;
        let start = match appended {
            Ok(start) => start,
            Err(error) => {
                warn!(generation = generation.id, error = %error.source, "cannot append to a value log");
                self.is_unsure |= error.torn;
                return Err(if is_no_space(&error.source) && !error.torn {
                    // A log that is as long as a file may be would not grow if others were dropped.
                    if error.source.kind() != io::ErrorKind::FileTooLarge {
                        self.shared.set_refused();
                    }
                    NotWritten::NoSpace
                } else {
                    NotWritten::GenerationFailed(generation)
                });
            }
        };
        let end = generation.log.end();
        if let Err(error) = self.sync_and_index(&generation, start, end) {
            error!(
                generation = generation.id,
                error, "generation takes no more writes"
            );
            // What a restart must not find.
            self.is_unsure |= generation.log.cut(start).is_err();
            return Err(NotWritten::GenerationFailed(generation));
        }
        self.bounds.begin(generation.id, start);
        for (key, &at) in &self.newest {
            if let Some(staged) = self.staged.get(at) {
                self.bounds.note(key, staged.fact.version());
            }
        }
        generation.set_committed(end);
        self.shared.tail_wake.notify_one();
        let key_bytes = self.newest.keys().map(|key| key.len() as u64).sum::<u64>();
        generation.add_side_bytes(2 * key_bytes + INDEX_ENTRY_COST * self.newest.len() as u64);
        self.shared.take_free(end - start);
        add(&self.shared.stats.written_bytes, end - start);
        Ok(())
    }

    /// Has the file system set room aside for this batch and the next ones, if the budget has it.
    fn reserve_ahead(&self, generation: &Generation, bytes: u64) {
        let log = &generation.log;
        let step = (log.end() / AHEAD_PART).min(AHEAD_MAX);
        if log.ahead() >= bytes || step < AHEAD_MIN {
            return;
        }
        let len = bytes + step;
        if self.shared.disk_bytes() + len <= self.shared.limits().writes_max {
            // A device that stalls may not return from this either.
            let _call = self.shared.device.begin(len);
            log.reserve(len);
        }
    }

    /// Runs what may have to wait for the device, and counts how long it did: the time that passed
    /// and was not used by this thread. Of a short write, a time that is not long is not counted:
    /// to ask how much of it was used takes longer.
    fn stalling<T>(&self, bytes: u64, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let used = (bytes >= MEASURED_LEN).then(thread_cpu);
        let out = call();
        let used = used.map(|before| thread_cpu().saturating_sub(before));
        let stalled = match (began.elapsed(), used) {
            (elapsed, Some(used)) => elapsed.saturating_sub(used),
            (elapsed, None) if elapsed < STALL_MIN => return out,
            (elapsed, None) => elapsed,
        };
        let stalled_ns = u64::try_from(stalled.as_nanos()).unwrap_or(u64::MAX);
        add(&self.shared.stats.writer_stalled_ns, stalled_ns);
        out
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(self.staged.len() * 2);
        // Heads without tails between them lie side by side: one slice for all of them.
        let mut run = 0..0;
        for staged in &self.staged {
            if run.end != staged.head.start {
                slices.extend(self.scratch.get(run).map(IoSlice::new));
                run = staged.head.start..staged.head.start;
            }
            run.end = staged.head.end;
            if !staged.tail.is_empty() {
                slices.extend(self.scratch.get(run.clone()).map(IoSlice::new));
                slices.push(IoSlice::new(&staged.tail));
                run = staged.head.end..staged.head.end;
            }
        }
        slices.extend(self.scratch.get(run).map(IoSlice::new));
        slices.retain(|slice| !slice.is_empty());
        slices
    }

    fn sync_and_index(
        &mut self,
        generation: &Generation,
        start: u64,
        end: u64,
    ) -> Result<(), String> {
        if self.shared.options.durability == Durability::Fsync {
            let synced = self.stalling(MEASURED_LEN, || {
                let _call = self.shared.device.begin(end - start);
                generation.log.sync()
            });
            synced.map_err(|error| {
                add(&self.shared.stats.syncs_failed, 1);
                error.to_string()
            })?;
        }
        let mut offset = start;
        let offsets: Vec<u64> = self
            .staged
            .iter()
            .map(|staged| {
                let at = offset;
                offset += u64::from(staged.record_len);
                at
            })
            .collect();
        let entries = self.newest.iter().filter_map(|(key, &at)| {
            let (staged, &offset) = (self.staged.get(at)?, offsets.get(at)?);
            let entry = IndexEntry {
                fact: staged.fact,
                offset,
                record_len: staged.record_len,
            };
            Some((key.clone(), entry))
        });
        // A wait for compaction is no wait for the device.
        let index = &generation.index;
        index
            .wait_for_flushes()
            .map_err(|error| error.to_string())?;
        let _call = self.shared.device.begin(end - start);
        index
            .commit(entries, Some(Checkpoint::Written(end)))
            .map_err(|error| error.to_string())
    }

    /// Nothing staged was written. Deletions alone may still be.
    fn fail_staged(
        &mut self,
        results: &mut [Result<Staging, Failure>],
        failure: Failure,
        writes: &[Write],
    ) {
        for result in results.iter_mut() {
            if matches!(result, Ok(Staging::Record)) {
                *result = Err(failure);
            }
        }
        if failure != Failure::OutOfSpace {
            return;
        }
        self.clear();
        let failed = |result: &Result<Staging, Failure>| *result == Err(failure);
        for (write, result) in writes.iter().zip(results.iter_mut()) {
            if failed(result) && matches!(write.kind, WriteKind::Tombstone { .. }) {
                *result = self.stage(write, Err(failure));
            }
        }
        if let Err(failure) = self.write_staged() {
            for result in results.iter_mut() {
                if matches!(result, Ok(Staging::Record)) {
                    *result = Err(failure);
                }
            }
        }
    }

    fn tell(&self, writes: Vec<Write>, results: Vec<Result<Staging, Failure>>) {
        let mut acks = Vec::with_capacity(writes.len());
        for (write, result) in writes.into_iter().zip(results) {
            let result = result.map(|_| ());
            if result.is_err() {
                add(&self.shared.stats.writes_failed, 1);
            }
            let version = write.version();
            self.shared
                .observer
                .written(write.space, &write.key, version, result);
            acks.extend(write.ack.map(|ack| (ack, result)));
        }
        // A reactor hears of all of them at once, and sends the answers together.
        let _gather = Gather::begin();
        for (ack, result) in acks {
            ack.complete(result);
        }
    }
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
