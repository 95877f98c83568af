//! How often to look, where nothing has shrunk for long.
//!
//! A run is values of about the same length of which none shrank, one after the other. The longer
//! it is the rarer is a look: at all of the first 64, then at one in `n` / 32 of a run of `n`
//! values, and never at fewer than one in 16. The first value that shrinks ends the run. So,
//! whatever the order of the values, no more than about 1/32 of them is left as it is and would
//! have shrunk, and where one in ten or more shrinks hardly any: a run of 64 is as good as never
//! reached. When data changes from noise to text, up to 30 values of the text are left, 15 on
//! average. Which ones are looked at is drawn by lot, or a period of the data could fall in step
//! with that of the looks.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::frame::Verbatim;
use crate::sniff::{before_a_look, looks_random};
use crate::spec::CodecSpec;

/// From this length on all values are looked at: beside what else is done for them a look is
/// nothing, and one of them is worth many short ones.
const LOOKED_AT_FROM_LEN: usize = 64 << 10;

/// Lengths of one run differ by less than a factor of two. Those below 2 bytes are one class.
const CLASSES: usize = LOOKED_AT_FROM_LEN.ilog2() as usize;

/// In a run of `n` values one in `n` by this is looked at.
const RUN_PER_INTERVAL: u32 = 32;

/// One in so many is looked at, at least.
const INTERVAL_MAX: u32 = 16;

/// Longer runs are not told apart.
const RUN_MAX: u32 = RUN_PER_INTERVAL * INTERVAL_MAX;

/// The runs of one level. For several threads at once, without locks: where two come together, one
/// of both values may not be counted, which costs a look at most.
#[derive(Debug, Default)]
pub struct Runs {
    classes: [AtomicU64; CLASSES],
}

impl Runs {
    /// Why `raw` is better left as it is without an attempt; like
    /// [`reason_to_leave`](crate::reason_to_leave), but it does not look at all values of a run.
    /// [`Verbatim::NoCodec`] for those, since no codec was asked. If this is None,
    /// [`tell`](Self::tell) what came of the attempt.
    pub fn reason_to_leave(
        &self,
        spec: CodecSpec,
        min_bytes: usize,
        raw: &[u8],
    ) -> Option<Verbatim> {
        if let Some(reason) = before_a_look(spec, min_bytes, raw) {
            return Some(reason);
        }
        let Some(class) = self.class_of(raw.len()) else {
            return looks_random(raw).then_some(Verbatim::LooksRandom);
        };
        let mut run = Run::from_bits(class.load(Ordering::Relaxed));
        let reason = if !run.is_look_due() {
            run.pass();
            Verbatim::NoCodec
        } else if looks_random(raw) {
            run.saw_none();
            Verbatim::LooksRandom
        } else {
            return None;
        };
        class.store(run.to_bits(), Ordering::Relaxed);
        Some(reason)
    }

    /// Takes in whether a value of `len` bytes shrank that a codec was tried on.
    pub fn tell(&self, len: usize, did_shrink: bool) {
        let Some(class) = self.class_of(len) else {
            return;
        };
        let mut run = Run::from_bits(class.load(Ordering::Relaxed));
        if did_shrink && run.length == 0 {
            // As nearly always where values shrink: nothing to write, which others would have to
            // read again.
            return;
        }
        if did_shrink {
            run.end();
        } else {
            run.saw_none();
        }
        class.store(run.to_bits(), Ordering::Relaxed);
    }

    /// Forgets what it knows: for another codec, which may shrink what the last one did not.
    pub fn forget(&self) {
        for class in &self.classes {
            let mut run = Run::from_bits(class.load(Ordering::Relaxed));
            run.end();
            class.store(run.to_bits(), Ordering::Relaxed);
        }
    }

    /// None for lengths of which all values are looked at.
    fn class_of(&self, len: usize) -> Option<&AtomicU64> {
        self.classes.get(len.checked_ilog2().unwrap_or(0) as usize)
    }
}

/// What is remembered of the values of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    /// Values that did not shrink or were not looked at, up to [`RUN_MAX`].
    length: u16,
    /// So many are not looked at before the next one is.
    passes: u16,
    /// The last lot.
    lot: u32,
}

impl Run {
    #[allow(clippy::cast_possible_truncation)] // The parts of the word.
    fn from_bits(bits: u64) -> Self {
        Self {
            length: bits as u16,
            passes: (bits >> 16) as u16,
            lot: (bits >> 32) as u32,
        }
    }

    fn to_bits(self) -> u64 {
        u64::from(self.length) | u64::from(self.passes) << 16 | u64::from(self.lot) << 32
    }

    fn is_look_due(self) -> bool {
        self.passes == 0
    }

    /// The value is not looked at.
    fn pass(&mut self) {
        self.passes = self.passes.saturating_sub(1);
        self.lengthen();
    }

    /// The value was looked at, or tried, and does not shrink.
    fn saw_none(&mut self) {
        self.lengthen();
        let interval = (u32::from(self.length) / RUN_PER_INTERVAL).clamp(1, INTERVAL_MAX);
        // From nothing to twice what is missing to the interval: the interval on average.
        let lots = interval.saturating_mul(2).saturating_sub(1);
        // Numerical Recipes' generator; its upper bits are the good ones.
        self.lot = self.lot.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let drawn = u64::from(self.lot).wrapping_mul(lots.into()) >> 32;
        self.passes = u16::try_from(drawn).unwrap_or(0);
    }

    /// The value shrank.
    fn end(&mut self) {
        self.length = 0;
        self.passes = 0;
    }

    fn lengthen(&mut self) {
        let length = u32::from(self.length).saturating_add(1).min(RUN_MAX);
        self.length = u16::try_from(length).unwrap_or(u16::MAX);
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests;
