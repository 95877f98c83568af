//! Files of one number: magic, layout and number, with a checksum behind them.

use fonn_codec::checksum;

const LAYOUT: u32 = 1;

/// What a file with the number holds.
pub(crate) fn to_bytes(magic: [u8; 4], number: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(20);
    out.extend_from_slice(&magic);
    out.extend_from_slice(&LAYOUT.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&checksum::crc32c(&out).to_le_bytes());
    out
}

/// The number in a file; None if the file is damaged.
pub(crate) fn parse(magic: [u8; 4], bytes: &[u8]) -> Option<u64> {
    let (body, _) = bytes.split_last_chunk::<4>()?;
    let number = u64::from_le_bytes(*body.last_chunk::<8>()?);
    (to_bytes(magic, number) == bytes).then_some(number)
}
