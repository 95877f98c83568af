//! What lives on when the oldest generation is dropped.
//!
//! Hot entries are copied into the newest generation, and, if the generation consists mostly of
//! outdated records, all entries that it has: then not they are what takes the space. Never more
//! than half of its bytes, so dropping always frees as much as it writes, and the cost for each
//! byte written is bounded.

use std::time::{Duration, Instant};

use fonn_base::entry::Space;
use tracing::warn;

use super::Shared;
use super::generation::Generation;
use super::queue::Carry;
use super::reader::{Looked, look};
use super::record::{Fact, IndexEntry, index_key, split_index_key};
use super::stats::add;

/// The part of the time that writes wait for room in which carrying over has to end.
const PRESSED_PART: u32 = 3;

/// Entries that are looked at to learn how much of a generation is outdated.
const SAMPLE_MAX: usize = 4096;

/// Whether there is still time to carry over.
struct Clock<'a> {
    shared: &'a Shared,
    pressed_at: Option<Instant>,
}

impl Clock<'_> {
    fn is_over(&mut self) -> bool {
        if !self.shared.is_pressed() {
            self.pressed_at = None;
            return self.shared.is_closing();
        }
        let pressed_at = self.pressed_at.get_or_insert_with(Instant::now);
        let pressed_max = self.shared.options.room_wait / PRESSED_PART;
        pressed_at.elapsed() > pressed_max || self.shared.is_closing()
    }
}

/// Gives the writer what shall live on of the oldest generation. Returns when it is written, or
/// earlier if there is no time.
pub(crate) fn run(shared: &Shared, oldest: &Generation) {
    let carried_max = oldest.log.end() / 2;
    let _ = carry(shared, oldest, Some(carried_max));
}

/// Gives the writer all that is live in the oldest generation; false if not all of it is in the
/// newest.
pub(crate) fn run_all(shared: &Shared, oldest: &Generation) -> bool {
    carry(shared, oldest, None)
}

/// Carries over up to so many bytes of what is hot, or without a limit what is live; false if that
/// is not complete.
fn carry(shared: &Shared, oldest: &Generation, limit: Option<u64>) -> bool {
    let carried_max = limit.unwrap_or(u64::MAX);
    let now_ms = fonn_base::clock::Clock::system().wall_ms();
    let mut clock = Clock {
        shared,
        pressed_at: None,
    };
    let takes_all = limit.is_none() || is_mostly_outdated(&mut clock, oldest, now_ms);
    let mut carried = 0;
    for found in oldest.index.entries_from(&index_key(Space(0), b"")) {
        if clock.is_over() {
            return false;
        }
        let Ok((key, entry)) = found else {
            warn!(
                generation = oldest.id,
                "cannot read the index of the oldest generation"
            );
            return false;
        };
        let Fact::Put(meta) = entry.fact else {
            continue;
        };
        let Ok(Some((space, user_key))) = oldest.key_of(&key, &entry) else {
            add(&shared.stats.reads_corrupt, 1);
            continue;
        };
        let record_len = u64::from(entry.record_len);
        let is_kept = carried + record_len <= carried_max
            && (takes_all || shared.observer.keep(space, &user_key, &meta))
            && is_live(shared, oldest, (space, &key), &entry, now_ms);
        if !is_kept {
            continue;
        }
        match look(&oldest.log, &entry, (space, &user_key)) {
            Looked::Whole { record, .. } => {
                let carry = Carry {
                    space,
                    record,
                    generation: oldest.id,
                    fact: entry.fact,
                };
                if !push(&mut clock, carry) {
                    return false;
                }
                carried += record_len;
            }
            Looked::Damaged => add(&shared.stats.reads_corrupt, 1),
            Looked::Refused => add(&shared.stats.reads_failed, 1),
        }
    }
    while !shared.queue.wait_for_carries(Duration::from_millis(20)) {
        if clock.is_over() {
            return false;
        }
    }
    true
}

/// Whether less than half of the log is of any use. All entries are counted; whether newer
/// generations have outdated them is asked for the first ones only.
fn is_mostly_outdated(clock: &mut Clock<'_>, oldest: &Generation, now_ms: u64) -> bool {
    let (mut entry_bytes, mut sampled_bytes, mut live_bytes) = (0_u64, 1_u64, 0_u64);
    let entries = oldest.index.entries_from(&index_key(Space(0), b""));
    for (at, (key, entry)) in entries.filter_map(Result::ok).enumerate() {
        if clock.is_over() {
            return false;
        }
        entry_bytes += u64::from(entry.record_len);
        let Some((space, _)) = split_index_key(&key) else {
            continue;
        };
        if at < SAMPLE_MAX {
            sampled_bytes += u64::from(entry.record_len);
            if is_live(clock.shared, oldest, (space, &key), &entry, now_ms) {
                live_bytes += u64::from(entry.record_len);
            }
        }
    }
    let live_share = live_bytes as f64 / sampled_bytes as f64;
    entry_bytes as f64 * live_share <= oldest.log.end() as f64 / 2.0
}

/// Whether a read would find this entry, and find it of use.
fn is_live(
    shared: &Shared,
    oldest: &Generation,
    (space, key): (Space, &[u8]),
    entry: &IndexEntry,
    now_ms: u64,
) -> bool {
    let Fact::Put(meta) = entry.fact else {
        return false;
    };
    if meta.is_expired(now_ms) || shared.is_hidden(space, &meta, now_ms) {
        return false;
    }
    matches!(shared.generations.find(key), Ok(Some(found)) if found.generation.id == oldest.id)
}

/// Adds it to the queue, waiting for room as long as there is time; false if there is none.
fn push(clock: &mut Clock<'_>, carry: Carry) -> bool {
    let mut carry = carry;
    while let Err(back) = clock.shared.queue.try_carry(carry) {
        if clock.is_over() {
            return false;
        }
        carry = back;
        clock
            .shared
            .queue
            .wait_for_carry_room(Duration::from_millis(20));
    }
    true
}
