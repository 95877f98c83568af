//! CRC-32C (Castagnoli, RFC 3720 B.4), the checksum of frames and entries.
//!
//! By crc-fast, as in `fonn-codec`, which this crate does not know: the entries that members hand
//! over to each other are summed up whole.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of some bytes.
#[inline]
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The CRC-32C of some bytes followed by `bytes`, from that of the former; that of no bytes is 0.
#[inline]
pub(super) fn crc32c_append(checksum: u32, bytes: &[u8]) -> u32 {
    // The digest's state is the checksum before its last step, the inversion.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, (!checksum).into());
    digest.update(bytes);
    // 32 bits, by the algorithm.
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_another_implementation_computes() {
        let bytes: Vec<u8> = (0..5_000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for len in [0, 1, 7, 8, 63, 200, 1023, 1024, 4_999] {
            let (front, back) = bytes.split_at(len);
            assert_eq!(crc32c(front), ::crc32c::crc32c(front));
            assert_eq!(crc32c_append(crc32c(front), back), ::crc32c::crc32c(&bytes));
        }
    }
}
