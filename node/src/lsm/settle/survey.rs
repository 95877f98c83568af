//! Whether writing a generation anew would gain anything, from a sample of its entries.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fonn_codec::frame::{HEADER_LEN, Header};

use super::recode::is_worth_trying;
use super::rewrite::{Use, usefulness};
use super::{Pace, Stopped};
use crate::entry::Space;
use crate::lsm::Shared;
use crate::lsm::generation::Generation;
use crate::lsm::record::{Fact, HEAD_LEN, index_key, split_index_key};

/// Entries that are looked at. Key order has nothing to do with age or size, as a rule.
const SAMPLE_MAX: u32 = 2048;

/// Entries of each space that are looked at, at least.
const SAMPLE_OF_SPACE_MIN: u32 = 64;

/// Entries between two rests.
const PIECE: u32 = 256;

/// The share of a log that must be of no use to write it anew for that alone.
const USELESS_SHARE_MIN: f64 = 0.5;

/// The share of the sampled bytes that may become shorter, from which on it is tried.
const RECODE_SHARE_MIN: f64 = 1.0 / 64.0;

/// What a sample of a generation says about the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Survey {
    /// Share of the log that a read may still need.
    useful: f64,
    /// Share of the sampled bytes whose frames could have the codec of settled data and have not.
    recodable: f64,
}

impl Survey {
    pub(crate) fn is_worth_it(&self) -> bool {
        1.0 - self.useful >= USELESS_SHARE_MIN || self.recodable >= RECODE_SHARE_MIN
    }
}

pub(super) fn run(shared: &Shared, source: &Arc<Generation>) -> Result<Survey, Stopped> {
    let mut pace = Pace::new(shared, source);
    let now_ms = unix_now_ms();
    let (spec, min_bytes) = shared.last.active();
    let (mut entry_bytes, mut sampled, mut useful, mut recodable) = (0_u64, 1_u64, 0_u64, 0_u64);
    let entries = source.index.entries_from(&index_key(Space(0), b""));
    for (found, at) in entries.zip(0_u32..) {
        let (key, entry) = found?;
        let len = u64::from(entry.record_len);
        entry_bytes += len;
        if at % PIECE == PIECE - 1 {
            pace.rest()?;
        }
        if at >= SAMPLE_MAX {
            continue;
        }
        let Some((space, user_key)) = split_index_key(&key) else {
            continue;
        };
        sampled += len;
        let found = usefulness(shared, source, (space, &key), &entry, now_ms)?;
        if found != Use::None {
            useful += len;
        }
        if let (Use::Whole, Fact::Put(_)) = (found, entry.fact) {
            let frame_at = entry.offset + (HEAD_LEN + user_key.len()) as u64;
            let header = source.log.read(frame_at, HEADER_LEN)?;
            // A frame that cannot be read stays as it is.
            let header = Header::parse(&header, shared.options.value_len_max);
            let could = header.is_ok_and(|header| {
                header.original_len() >= min_bytes && is_worth_trying(header.encoding(), spec)
            });
            recodable += if could { len } else { 0 };
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
    let now_ms = unix_now_ms();
    let contents = source.contents()?;
    let samples = (SAMPLE_MAX / u32::try_from(contents.len()).unwrap_or(u32::MAX).max(1))
        .max(SAMPLE_OF_SPACE_MIN);
    let mut useful = 0.0;
    for &(space, bytes) in contents {
        let (mut sampled, mut found_useful) = (1_u64, 0_u64);
        let entries = source.index.entries_from(&index_key(space, b""));
        for (found, _) in entries.zip(0..samples) {
            let (key, entry) = found?;
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

pub(super) fn unix_now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
