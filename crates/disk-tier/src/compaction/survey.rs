//! Whether writing a generation anew would gain anything, from a sample of its entries.

use std::sync::Arc;

use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_codec::frame::{HEADER_LEN, Header};
use fonn_codec::{Encoding, Verbatim};

use super::recode::is_worth_trying;
use super::rewrite::{Use, usefulness};
use super::{Pace, Stopped};
use crate::Shared;
use crate::generation::Generation;
use crate::record::{Fact, HEAD_LEN, index_key, split_index_key};

/// Entries that are looked at. Key order has nothing to do with age or size, as a rule.
const SAMPLE_MAX: u32 = 2048;

/// Entries of each space that are looked at, at least.
const SAMPLE_OF_SPACE_MIN: u32 = 64;

/// Entries between two rests.
const PIECE: u32 = 256;

/// Bytes of values that are read between two rests.
const READ_BETWEEN_RESTS: usize = 256 << 10;

/// The share of a log that must be of no use to write it anew for that alone.
const USELESS_SHARE_MIN: f64 = 0.5;

/// The share of the sampled bytes that may become shorter, from which on it is tried.
const RECODE_SHARE_MIN: f64 = 1.0 / 64.0;

/// Of the values that were never looked at, so many of the sample are at first, and then one
/// for so many.
const LOOKS_AT_FIRST: u64 = 128;
const LOOK_EVERY: u64 = 8;

/// Longer values are looked at when they are written, and here only if that was without a codec:
/// then they are tried.
const LOOKED_AT_LEN_MAX: usize = 64 << 10;

/// What a sample of a generation says about the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Survey {
    /// Share of the log that a read may still need.
    useful: f64,
    /// Share of the sampled bytes whose frames could have the codec `compacted` and have not.
    recodable: f64,
}

impl Survey {
    pub(crate) fn is_worth_it(&self) -> bool {
        1.0 - self.useful >= USELESS_SHARE_MIN || self.recodable >= RECODE_SHARE_MIN
    }
}

/// The values of a sample that were stored as they are without a look.
#[derive(Debug, Default)]
struct Unlooked {
    count: u64,
}

impl Unlooked {
    /// Counts one; if it is to be looked at, for how many of them it stands. Keys are sorted, so
    /// those that come first are no sample of all.
    fn next(&mut self) -> Option<u64> {
        self.count += 1;
        if self.count <= LOOKS_AT_FIRST {
            Some(1)
        } else {
            self.count.is_multiple_of(LOOK_EVERY).then_some(LOOK_EVERY)
        }
    }
}

pub(super) fn run(shared: &Shared, source: &Arc<Generation>) -> Result<Survey, Stopped> {
    let mut pace = Pace::new(shared, source);
    let now_ms = Clock::system().wall_ms();
    let (spec, min_bytes) = shared.compacted.active();
    let (mut entry_bytes, mut sampled, mut useful, mut recodable) = (0_u64, 1_u64, 0_u64, 0_u64);
    let (mut unlooked, mut read) = (Unlooked::default(), 0);
    let entries = source.index.entries_from(&index_key(Space(0), b""));
    for (found, at) in entries.zip(0_u32..) {
        let (key, entry) = found.map_err(|error| source.unreadable(error))?;
        let len = u64::from(entry.record_len);
        entry_bytes += len;
        if at % PIECE == PIECE - 1 {
            pace.rest()?;
        }
        if at >= SAMPLE_MAX {
            continue;
        }
        let Some((space, _)) = split_index_key(&key) else {
            continue;
        };
        sampled += len;
        let found = usefulness(shared, source, (space, &key), &entry, now_ms)?;
        if found != Use::None {
            useful += len;
        }
        if let (Use::Whole, Fact::Put(_)) = (found, entry.fact) {
            let Some((_, user_key)) = source.key_of(&key, &entry)? else {
                continue;
            };
            let frame_at = entry.offset + (HEAD_LEN + user_key.len()) as u64;
            let header = source.log.read(frame_at, HEADER_LEN)?;
            // A frame that cannot be read stays as it is.
            let Ok(header) = Header::parse(&header, shared.options.value_len_max) else {
                continue;
            };
            let value_len = header.original_len();
            if value_len < min_bytes || !is_worth_trying(header.encoding(), spec) {
                continue;
            }
            let is_unlooked = header.encoding() == Encoding::Verbatim(Verbatim::NoCodec);
            if !is_unlooked || value_len >= LOOKED_AT_LEN_MAX {
                recodable += len;
                continue;
            }
            if let Some(stands_for) = unlooked.next() {
                let value_at = frame_at + HEADER_LEN as u64;
                let Ok(value) = source.log.read(value_at, value_len) else {
                    continue;
                };
                if fonn_codec::reason_to_leave(spec, min_bytes, &value).is_none() {
                    recodable += len * stands_for;
                }
                read += value_len;
                if read >= READ_BETWEEN_RESTS {
                    pace.rest()?;
                    read = 0;
                }
            }
        }
    }
    let useful_share = useful as f64 / sampled as f64;
    let log_len = source.log.end().max(1) as f64;
    Ok(Survey {
        useful: entry_bytes as f64 * useful_share / log_len,
        recodable: recodable as f64 / sampled as f64,
    })
}

/// About which share of a log a read may still need, from a sample of each space.
pub(super) fn useful_share(shared: &Shared, source: &Generation) -> Result<f64, Stopped> {
    let now_ms = Clock::system().wall_ms();
    let contents = source.contents();
    let contents = contents.map_err(|error| source.unreadable(error))?;
    let samples = (SAMPLE_MAX / u32::try_from(contents.len()).unwrap_or(u32::MAX).max(1))
        .max(SAMPLE_OF_SPACE_MIN);
    let mut useful = 0.0;
    for &(space, bytes) in contents {
        let (mut sampled, mut found_useful) = (1_u64, 0_u64);
        let entries = source.index.entries_from(&index_key(space, b""));
        for (found, _) in entries.zip(0..samples) {
            let (key, entry) = found.map_err(|error| source.unreadable(error))?;
            if split_index_key(&key).is_none_or(|(found, _)| found != space) {
                break;
            }
            let len = u64::from(entry.record_len);
            sampled += len;
            if usefulness(shared, source, (space, &key), &entry, now_ms)? != Use::None {
                found_useful += len;
            }
        }
        useful += bytes as f64 * found_useful as f64 / sampled as f64;
    }
    Ok(useful / source.log.end().max(1) as f64)
}
