//! The state bits of a slot, packed with the expiry into one word.
//!
//! Bits 16–63 hold the expiry (Unix time in milliseconds, 0 for never), bits 0–9 the flags below,
//! bits 10–15 the recency epoch of the last move (see `recency.rs`).

/// Marked stale by a client.
pub(super) const STALE: u64 = 1 << 0;
/// The right to recache was given out.
pub(super) const TOKEN_SENT: u64 = 1 << 1;
/// Read since it was written.
pub(super) const FETCHED: u64 = 1 << 2;
/// Not yet on disk: must not be evicted.
pub(super) const DIRTY: u64 = 1 << 3;
/// A delete that is not yet on disk.
pub(super) const TOMBSTONE: u64 = 1 << 4;
/// The stored bytes are a codec frame.
pub(super) const FRAMED: u64 = 1 << 5;
/// The payload has a mask of facts: client flags, the writer.
pub(super) const HAS_FACTS: u64 = 1 << 6;
/// The payload has a chosen CAS token.
pub(super) const HAS_CAS: u64 = 1 << 7;
/// The payload's body is the index of a shared value.
pub(super) const SHARED: u64 = 1 << 8;

/// The payload is shorter than its block (see `payload.rs`).
pub(super) const SLACK: u64 = 1 << 9;

const EPOCH_SHIFT: u32 = 10;

/// The epochs that fit; a power of two.
pub(super) const EPOCHS: u8 = 64;

const EPOCH_MASK: u64 = (EPOCHS as u64 - 1) << EPOCH_SHIFT;
const EXPIRY_SHIFT: u32 = 16;

/// The latest expiry that can be kept, in the year 10889; later ones are brought down to it.
pub(super) const EXPIRY_MAX_MS: u64 = (1 << (64 - EXPIRY_SHIFT)) - 1;

/// The expiry of a packed word.
pub(super) const fn expires_at_ms(packed: u64) -> u64 {
    packed >> EXPIRY_SHIFT
}

/// The epoch of a packed word.
pub(super) const fn epoch(packed: u64) -> u8 {
    ((packed & EPOCH_MASK) >> EPOCH_SHIFT) as u8
}

/// The word with another epoch.
pub(super) const fn with_epoch(packed: u64, epoch: u8) -> u64 {
    packed & !EPOCH_MASK | (epoch as u64) << EPOCH_SHIFT & EPOCH_MASK
}

/// The word with another expiry.
pub(super) fn with_expiry(packed: u64, expires_at_ms: u64) -> u64 {
    packed & ((1 << EXPIRY_SHIFT) - 1) | expires_at_ms.min(EXPIRY_MAX_MS) << EXPIRY_SHIFT
}

/// The word with `bits` set or cleared.
pub(super) const fn with_bits(packed: u64, bits: u64, on: bool) -> u64 {
    if on { packed | bits } else { packed & !bits }
}

/// Whether all of `bits` are set.
pub(super) const fn has(packed: u64, bits: u64) -> bool {
    packed & bits == bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_word_do_not_disturb_each_other() {
        let all = STALE
            | TOKEN_SENT
            | FETCHED
            | DIRTY
            | TOMBSTONE
            | FRAMED
            | HAS_FACTS
            | HAS_CAS
            | SHARED
            | SLACK;
        let word = with_epoch(with_expiry(all, 1_900_000_000_123), EPOCHS - 1);
        assert_eq!(
            (expires_at_ms(word), epoch(word)),
            (1_900_000_000_123, EPOCHS - 1)
        );
        assert!(has(word, all));
        let word = with_epoch(with_bits(word, DIRTY, false), 5);
        assert_eq!((expires_at_ms(word), epoch(word)), (1_900_000_000_123, 5));
        assert!(has(word, all & !DIRTY) && !has(word, DIRTY));
        assert_eq!(expires_at_ms(with_expiry(word, u64::MAX)), EXPIRY_MAX_MS);
        assert_eq!(expires_at_ms(with_expiry(word, 0)), 0);
    }
}
