//! The upkeep thread: seals generations, watches the bytes, drops the oldest generation. And two
//! threads for what it would have to wait for: one makes generations, one syncs.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fonn_base::entry::Space;
use fonn_codec::CodecSpec;
use fonn_codec::policy::Signals;
use fonn_proto::Version;
use tracing::{info, warn};

use super::below::{Below, Leave, Leaving};
use super::compaction::reclaim::{GENERATIONS_MANY, Progress};
use super::directory::{GenerationName, free_bytes};
use super::generation::Generation;
use super::index::IndexError;
use super::options::Limits;
use super::queue::Order;
use super::record::{ERASED, index_key};
use super::shared::Buried;
use super::stats::add;
use super::{Shared, carry, tail};
use crate::levels::{Cpu, Device, ThreadTimes, Writing};

/// How often it looks, without a wake; and how often logs are synced.
const TICK: Duration = Duration::from_millis(100);

/// How often the bytes of indexes are counted on disk; in between they are estimated.
const MEASURE_INTERVAL: Duration = Duration::from_millis(500);

/// How often it looks at what is scarce, and `auto` at codecs.
const DECIDE_INTERVAL: Duration = Duration::from_secs(1);

/// How long the newest generation is not written to before the next one begins.
const REST_MIN: Duration = Duration::from_secs(5);

/// Bytes that the only generation has then at least; for each older one, twice as many.
const REST_BYTES_MIN: u64 = 1 << 20;

/// How long after a failed attempt to make a generation the next one follows.
const SPARE_RETRY: Duration = Duration::from_secs(1);

/// How often it warns of a file system that stays full.
const FULL_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Body of the upkeep thread.
pub(crate) fn run(shared: &Shared) {
    let mut upkeep = Upkeep {
        shared,
        quiet: HashSet::new(),
        measured_at: Instant::now(),
        resting: None,
        decided_at: Instant::now(),
        cpu: Cpu::new(),
        device: Device::default(),
        writer_wanted: Duration::ZERO,
        asked_at: 0,
        full_warning: FullWarning::default(),
        has_warned_of_others: false,
    };
    while !shared.is_closing() {
        upkeep.tick();
        shared.wait_for_wake(TICK);
    }
    upkeep.bury();
}

/// Body of the thread that keeps the next generation ready: making one takes several syncs, for
/// which nothing else should wait.
pub(crate) fn run_spare(shared: &Shared, mut next_id: u64) {
    let mut has_failed = false;
    while shared.wait_for_missing_spare(if has_failed {
        SPARE_RETRY
    } else {
        Duration::ZERO
    }) {
        let spare = shared.create_generation(GenerationName::first(next_id));
        next_id += 1;
        if let (Err(error), false) = (&spare, has_failed) {
            warn!(%error, "cannot make a new generation");
        }
        has_failed = spare.is_err();
        shared.put_spare(spare.ok());
    }
}

/// Body of the sync thread: bounds what a loss of power costs. It does not run where the writer
/// syncs each batch.
pub(crate) fn run_sync(shared: &Shared) {
    while !shared.wait_for_close(TICK) {
        for generation in shared.generations.snapshot().iter() {
            if !generation.log.is_dirty() {
                continue;
            }
            let began = Instant::now();
            // A failure is logged and counted, and the writer goes on in a new generation.
            let _ = shared.sync(generation);
            let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            add(&shared.stats.sync_ns, took);
        }
    }
}

/// Records that are told at once, and about how many bytes of their keys. The tier below syncs each
/// time, and writes wait meanwhile.
const LEAVING_MAX: usize = 16 << 10;
const LEAVING_BYTES_MAX: usize = 1 << 20;

/// Tells the tier below what goes without it: every record that may be the newest of its key. False
/// if that tier cannot remember them.
fn tell_lost(shared: &Shared, oldest: &Generation, below: &dyn Below) -> bool {
    let mut is_noted = true;
    let mut leaving = Vec::new();
    let mut leaving_bytes = 0;
    // False once it has refused some.
    let mut tell = |space, key: &[u8], version| {
        let may_be_newest = match shared.generations.find(&index_key(space, key)) {
            Ok(newest) => newest.is_some_and(|newest| newest.generation.id == oldest.id),
            Err(_) => true,
        };
        if !may_be_newest || version == ERASED {
            return is_noted;
        }
        leaving_bytes += key.len();
        leaving.push(Leaving {
            space,
            key: key.to_owned(),
            version,
        });
        if leaving.len() >= LEAVING_MAX || leaving_bytes >= LEAVING_BYTES_MAX {
            is_noted &= below.lost(&leaving);
            leaving.clear();
            leaving_bytes = 0;
        }
        is_noted
    };
    let mut by_index = || {
        for found in oldest.index.entries_from(&index_key(Space(0), b"")) {
            let (key, entry) = found?;
            if let Some((space, key)) = oldest.key_of(&key, &entry)?
                && !tell(space, &key, entry.fact.version())
            {
                break;
            }
        }
        Ok::<_, IndexError>(())
    };
    if let Err(error) = by_index() {
        warn!(generation = oldest.id, %error, "cannot read the index of the oldest generation: reading its log");
        let mut records = oldest.log.records(0);
        while let Ok(Some(record)) = records.next() {
            if !tell(record.space, record.key(), record.fact.version()) {
                break;
            }
        }
        if records.position() < records.end() {
            let position = records.position();
            warn!(
                generation = oldest.id,
                position, "cannot read the log of the oldest generation either"
            );
        }
    }
    is_noted && below.lost(&leaving)
}

struct Upkeep<'a> {
    shared: &'a Shared,
    /// Generations whose bytes on disk change no more.
    quiet: HashSet<GenerationName>,
    measured_at: Instant,
    /// The newest generation, the end of its log, and since when that has not changed.
    resting: Option<(u64, u64, Instant)>,
    /// When codecs were last decided on.
    decided_at: Instant,
    cpu: Cpu,
    device: Device,
    /// Processor time that the writer had used or waited for then.
    writer_wanted: Duration,
    /// Bytes that had been written when room was last asked for.
    asked_at: u64,
    full_warning: FullWarning,
    /// It was logged that the index of the tier below leaves no room.
    has_warned_of_others: bool,
}

/// When it last warned of a full file system.
#[derive(Default)]
struct FullWarning(Option<Instant>);

impl FullWarning {
    /// Whether to warn now.
    fn is_due(&mut self, is_full: bool, now: Instant) -> bool {
        let is_recent = |at: Instant| now.duration_since(at) < FULL_WARNING_INTERVAL;
        let is_due = is_full && !self.0.is_some_and(is_recent);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

impl Upkeep<'_> {
    fn tick(&mut self) {
        self.look_at_free_space();
        self.seal();
        self.roll_if_at_rest();
        self.decide();
        self.measure();
        self.merge_oldest();
        self.relieve();
        self.bury();
    }

    fn look_at_free_space(&mut self) {
        let Ok(free) = free_bytes(&self.shared.options.dir) else {
            return;
        };
        self.shared.set_free(free);
        let is_full = self.shared.is_disk_full();
        if self.full_warning.is_due(is_full, Instant::now()) {
            warn!(
                free,
                "the file system of --data-dir is full: values are refused until there is room; free \
                 some, or lower --disk-budget"
            );
        }
    }

    /// Everything but the newest is only read from now on.
    fn seal(&self) {
        for generation in self.shared.generations.snapshot().iter().skip(1) {
            if let Err(error) = generation.seal() {
                warn!(generation = generation.id, %error, "cannot seal a generation: a restart has to read its log");
            }
        }
    }

    /// Looks at what is scarce, and lets `auto` decide by it for the levels on disk.
    fn decide(&mut self) {
        let shared = self.shared;
        let elapsed = self.decided_at.elapsed();
        if elapsed < DECIDE_INTERVAL {
            return;
        }
        self.decided_at = Instant::now();
        let stats = shared.stats.snapshot();
        let writer = shared.writer_times.get().and_then(ThreadTimes::total);
        let writer = writer.unwrap_or_default();
        let writing = Writing {
            bytes: stats.written_bytes + stats.compaction_written_bytes,
            stalled: Duration::from_nanos(stats.writer_stalled_ns),
            run_delay: writer.run_delay,
            synced: Duration::from_nanos(stats.sync_ns),
        };
        let queue = shared.queue.in_use() as f32;
        let cpu_busy = self.cpu.busy();
        shared.idle_cpus.set(self.cpu.idle(cpu_busy));
        let writer_wanted = writer.used + writer.run_delay;
        let writer_busy = writer_wanted.saturating_sub(self.writer_wanted);
        self.writer_wanted = writer_wanted;
        let signals = Signals {
            cpu_busy,
            device_busy: self.device.busy(writing, elapsed),
            backlog: queue / shared.options.queue_bytes_max as f32,
        };
        // Fresh values are encoded by one thread: when that is busy, idle cores are of no use to
        // it.
        let writer_busy = writer_busy.as_secs_f32() / elapsed.as_secs_f32();
        shared.fresh.decide(Signals {
            cpu_busy: cpu_busy.max(writer_busy),
            ..signals
        });
        shared.compacted.decide(signals);
    }

    /// Begins a new generation when the newest has not been written to for a while, so that what is
    /// in it can be compacted. The more generations there are, the larger it must be: each costs
    /// every absent key a look.
    fn roll_if_at_rest(&mut self) {
        let generations = self.shared.generations.snapshot();
        let Some(newest) = generations.first() else {
            return;
        };
        let (id, end) = (newest.id, newest.log.end());
        let since = match self.resting {
            Some((old_id, old_end, since)) if (old_id, old_end) == (id, end) => since,
            _ => Instant::now(),
        };
        self.resting = Some((id, end, since));
        let older = u32::try_from(generations.len() - 1).unwrap_or(u32::MAX);
        let least = REST_BYTES_MIN.checked_shl(older).unwrap_or(u64::MAX);
        let last = self.shared.compacted.active().0;
        let would_gain = last != CodecSpec::none() && last != self.shared.fresh.active().0;
        let may_compact = self.shared.options.compaction_percent > 0 && would_gain;
        if may_compact && end >= least && since.elapsed() >= REST_MIN {
            self.shared.queue.push_order(Order::Roll);
            self.resting = None;
        }
    }

    fn measure(&mut self) {
        if self.measured_at.elapsed() < MEASURE_INTERVAL {
            return;
        }
        self.measured_at = Instant::now();
        if self.shared.below.is_some() {
            // Its index lies in the same directory, and grows.
            self.shared.measure_others();
        }
        let generations = self.shared.generations.snapshot();
        for generation in generations.iter() {
            if self.quiet.contains(&generation.name()) {
                continue;
            }
            let is_quiet = generation.is_quiet();
            generation.measure();
            if is_quiet {
                self.quiet.insert(generation.name());
            }
        }
        self.quiet
            .retain(|name| generations.iter().any(|it| it.name() == *name));
    }

    /// Drops oldest generations until the bytes are within the budget, and the file system has its
    /// reserve.
    fn relieve(&mut self) {
        while !self.shared.is_closing() {
            let limits = self.shared.limits();
            let total = self.shared.kept_bytes();
            self.shared.look_ahead(total, &limits);
            self.ask_for_room(total, &limits);
            let is_full = self.shared.is_reserve_touched();
            // A large value may need more than what is always kept free.
            let wanted = self.shared.wanted_bytes();
            let is_within = total <= limits.total_high && total + wanted <= limits.writes_max;
            if is_within && !is_full {
                break;
            }
            let generations = self.shared.generations.snapshot();
            let [_, .., oldest] = &*generations else {
                // Only the newest is left. It is dropped too if the budget has become smaller than
                // it.
                let is_too_large = generations.iter().any(|newest| newest.log.end() > 0);
                if total > limits.total_max && is_too_large {
                    self.shared.queue.push_order(Order::Roll);
                }
                self.warn_of_others();
                self.shared.accept_refusal();
                break;
            };
            let oldest = Arc::clone(oldest);
            drop(generations);
            if !is_full && self.reclaims() {
                break;
            }
            if !self.may_leave(&oldest) {
                self.shared.accept_refusal();
                break;
            }
            if !is_full && total <= limits.total_max {
                carry::run(self.shared, &oldest);
            }
            let oldest_id = oldest.id;
            drop(oldest);
            self.drop_generation(oldest_id);
            // There may be room to be made again.
            self.shared.reclaim.set(Progress::Idle);
            self.bury();
            self.look_at_free_space();
            self.shared.accept_refusal();
        }
    }

    /// Says once that what is no generation's takes most of the budget: writes may be refused then
    /// until the budget is larger.
    fn warn_of_others(&mut self) {
        let others = self.shared.other_bytes.load(Ordering::Acquire);
        let budget = self.shared.budget.load(Ordering::Relaxed);
        if others > budget / 2 && !self.has_warned_of_others {
            self.has_warned_of_others = true;
            warn!(
                bytes = others,
                budget, "the index of the bucket leaves entries no room: raise --disk-budget"
            );
        }
    }

    /// With quotas, asks for room one generation's worth of writes ahead.
    fn ask_for_room(&mut self, total: u64, limits: &Limits) {
        let reclaim = &self.shared.reclaim;
        let is_near = total + limits.generation > limits.total_high;
        if !is_near || !reclaim.is_on() {
            return;
        }
        let written = self.shared.stats.written_bytes.load(Ordering::Relaxed);
        let since = written.saturating_sub(self.asked_at);
        let is_due = match reclaim.progress() {
            Progress::Idle => true,
            Progress::Asked => false,
            // Much may have become useless since it was looked for.
            Progress::Nothing => since > limits.generation / 4,
        };
        if is_due {
            self.asked_at = written;
            reclaim.set(Progress::Asked);
            self.shared.wake_compaction();
        }
    }

    /// Merges what is left of the oldest generation into the newest, if there are many: those that
    /// lost much of what they had are small.
    fn merge_oldest(&self) {
        if !self.shared.reclaim.is_on() || self.shared.is_reserve_touched() {
            return;
        }
        let generations = self.shared.generations.snapshot();
        let Some(oldest) = generations
            .last()
            .filter(|_| generations.len() > GENERATIONS_MANY)
        else {
            return;
        };
        let oldest = Arc::clone(oldest);
        drop(generations);
        let has_room =
            self.shared.disk_bytes() + oldest.log.end() <= self.shared.limits().writes_max;
        if has_room && self.may_leave(&oldest) && carry::run_all(self.shared, &oldest) {
            let oldest_id = oldest.id;
            drop(oldest);
            self.drop_generation(oldest_id);
        }
    }

    /// Whether room is being made, so that nothing has to be dropped for it.
    fn reclaims(&self) -> bool {
        let reclaim = &self.shared.reclaim;
        reclaim.is_on() && reclaim.progress() == Progress::Asked
    }

    /// Whether the tier below lets the generation go. If it cannot take anything, it is told what
    /// is lost.
    fn may_leave(&self, oldest: &Generation) -> bool {
        let Some(below) = &self.shared.below else {
            return true;
        };
        let leave = match below.leave(tail::end_of(oldest)) {
            Leave::Wait if self.shared.is_disk_full() => Leave::Lossy,
            leave => leave,
        };
        match leave {
            Leave::Now => true,
            Leave::Wait => false,
            Leave::Lossy => tell_lost(self.shared, oldest, &**below),
        }
    }

    fn drop_generation(&self, oldest: u64) {
        let _held = self.shared.structure.lock();
        // It may have been compacted since it was looked at.
        let Some(oldest) = self.shared.generations.by_id(oldest) else {
            return;
        };
        if self.shared.below.is_none() {
            self.shared.forget(self.newest_of(&oldest));
        }
        // A restart must not find it again when the writer has begun to leave out tombstones for
        // it.
        if let Err(error) = oldest.mark_dropped() {
            warn!(generation = oldest.id, %error, "cannot mark a generation as dropped: a restart before its removal would find it again");
        }
        info!(
            generation = oldest.id,
            bytes = oldest.disk_bytes(),
            "dropping the oldest generation"
        );
        // Bytes that are on their way out count there before they cease to count here.
        self.shared.bury(Arc::clone(&oldest));
        self.shared.generations.remove(oldest.id);
        add(&self.shared.stats.generations_dropped, 1);
    }

    /// The version that no record of a generation is above.
    fn newest_of(&self, generation: &Generation) -> Version {
        // No version at or above the ceiling was ever given out, or kept.
        let ceiling = || self.shared.state().version_ceiling;
        // No member sends entries to a node that is in no cluster: its index need not be read for
        // that.
        if !self.shared.keeps_tombstones() {
            return ceiling();
        }
        generation.newest_version().unwrap_or_else(|error| {
            warn!(generation = generation.id, %error, "cannot read the index of the oldest generation");
            ceiling()
        })
    }

    /// Removes dropped generations that no thread reads any more.
    fn bury(&self) {
        let mut still_read = Vec::new();
        for buried in self.shared.take_buried() {
            let bytes = buried.bytes;
            match Arc::try_unwrap(buried.generation) {
                Ok(generation) => {
                    if let Err(error) = generation.remove() {
                        warn!(%error, "cannot remove a dropped generation: the next start tries again");
                        self.shared.add_other_bytes(bytes);
                    }
                    self.shared.unbury(bytes);
                }
                Err(generation) => still_read.push(Buried { generation, bytes }),
            }
        }
        self.shared.put_back_buried(still_read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_system_is_warned_of_once_a_minute() {
        let start = Instant::now();
        let mut warning = FullWarning::default();
        let mut is_due = |is_full, secs| warning.is_due(is_full, start + Duration::from_secs(secs));
        assert!(!is_due(false, 0));
        assert!(is_due(true, 1));
        assert!(!is_due(true, 60));
        assert!(!is_due(false, 61));
        assert!(is_due(true, 62));
        assert!(!is_due(true, 63));
    }
}
