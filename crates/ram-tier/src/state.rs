//! The state of a slot in one word.
//!
//! Bits 0–10 are the flags below, bits 11–16 the recency epoch of the last move (see `recency.rs`),
//! bits 17–31 how much longer the block is than the payload in it.

/// Marked stale by a client.
pub(super) const STALE: u32 = 1 << 0;
/// The right to recache was given out.
pub(super) const TOKEN_SENT: u32 = 1 << 1;
/// Read since it was written.
pub(super) const FETCHED: u32 = 1 << 2;
/// Not yet on disk: must not be evicted.
pub(super) const DIRTY: u32 = 1 << 3;
/// A delete that is not yet on disk.
pub(super) const TOMBSTONE: u32 = 1 << 4;
/// The stored bytes are a codec frame.
pub(super) const FRAMED: u32 = 1 << 5;
/// The payload's body is the index of a shared value.
pub(super) const SHARED: u32 = 1 << 6;
/// The payload has client flags.
pub(super) const HAS_FLAGS: u32 = 1 << 7;
/// The payload has the number of the writer.
pub(super) const HAS_WRITER: u32 = 1 << 8;
/// The payload has a chosen CAS token.
pub(super) const HAS_CAS: u32 = 1 << 9;
/// The payload has an expiry.
pub(super) const HAS_EXPIRY: u32 = 1 << 10;

/// The facts that a payload may have.
pub(super) const FACTS: u32 = HAS_FLAGS | HAS_WRITER | HAS_CAS | HAS_EXPIRY;

const EPOCH_SHIFT: u32 = 11;

/// The epochs that fit; a power of two.
pub(super) const EPOCHS: u8 = 64;

const EPOCH_MASK: u32 = (EPOCHS as u32 - 1) << EPOCH_SHIFT;
const SLACK_SHIFT: u32 = 17;

/// The most bytes by which a block may be longer than its payload.
pub(super) const SLACK_MAX: usize = (1 << (u32::BITS - SLACK_SHIFT)) - 1;

/// How many bytes the block is longer than the payload.
pub(super) const fn slack(word: u32) -> usize {
    (word >> SLACK_SHIFT) as usize
}

/// The word with another slack, at most [`SLACK_MAX`].
pub(super) const fn with_slack(word: u32, slack: usize) -> u32 {
    word & ((1 << SLACK_SHIFT) - 1) | (slack as u32) << SLACK_SHIFT
}

/// The epoch of a word.
pub(super) const fn epoch(word: u32) -> u8 {
    ((word & EPOCH_MASK) >> EPOCH_SHIFT) as u8
}

/// The word with another epoch.
pub(super) const fn with_epoch(word: u32, epoch: u8) -> u32 {
    word & !EPOCH_MASK | (epoch as u32) << EPOCH_SHIFT & EPOCH_MASK
}

/// The word with `bits` set or cleared.
pub(super) const fn with_bits(word: u32, bits: u32, on: bool) -> u32 {
    if on { word | bits } else { word & !bits }
}

/// Whether all of `bits` are set.
pub(super) const fn has(word: u32, bits: u32) -> bool {
    word & bits == bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_word_do_not_disturb_each_other() {
        let all = STALE | TOKEN_SENT | FETCHED | DIRTY | TOMBSTONE | FRAMED | SHARED | FACTS;
        let word = with_epoch(with_slack(all, SLACK_MAX), EPOCHS - 1);
        assert_eq!(word, u32::MAX);
        assert_eq!((slack(word), epoch(word)), (SLACK_MAX, EPOCHS - 1));
        let word = with_slack(with_epoch(with_bits(word, DIRTY, false), 5), 819);
        assert_eq!((slack(word), epoch(word)), (819, 5));
        assert!(has(word, all & !DIRTY) && !has(word, DIRTY));
        assert_eq!(slack(with_slack(word, 0)), 0);
    }
}
