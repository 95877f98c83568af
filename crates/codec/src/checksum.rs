//! CRC-32C (Castagnoli, RFC 3720 B.4), the checksum of everything that is stored or sent.
//!
//! By crc-fast: it multiplies without carries over wide registers where the processor can, and from
//! 512 bytes on takes half to a quarter of the time of the crate crc32c, which uses the processor's
//! own instruction. That matters beside LZ4, which decodes several gigabytes a second, and in the
//! disk's writer, which sums up every record.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of some bytes.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The CRC-32C of some bytes followed by `bytes`, from that of the former; that of no bytes is 0.
#[inline]
pub fn crc32c_append(checksum: u32, bytes: &[u8]) -> u32 {
    // The digest's state is the checksum before its last step, the inversion.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, (!checksum).into());
    digest.update(bytes);
    // 32 bits, by the algorithm.
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_values() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46DD_794E);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_append(0x1234_5678, &[]), 0x1234_5678);
    }

    proptest! {
        #[test]
        fn it_is_what_another_implementation_computes(
            seed in any::<u64>(),
            len in prop_oneof![0..300usize, 0..40_000usize],
            skip in 0..64usize,
            cut in 0..40_000usize,
        ) {
            let mut state = seed;
            let bytes: Vec<u8> = (0..len + skip)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            let bytes = &bytes[skip..];
            let (front, back) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(crc32c_append(crc32c(front), back), ::crc32c::crc32c(bytes));
        }
    }
}
