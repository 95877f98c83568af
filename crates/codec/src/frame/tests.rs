use super::*;
use crate::CodecSpec;

const LIMIT: usize = 1 << 20;

/// A frame that a version 1 encoder wrote once; every later build must read it.
fn assert_golden(hex: &str, value: &[u8]) {
    let bytes: Vec<u8> = hex
        .split_whitespace()
        .flat_map(|word| word.as_bytes().chunks(2))
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let frame = Frame::parse(&bytes, LIMIT).unwrap();
    frame.verify().unwrap();
    let mut out = Vec::new();
    frame.decode_into(&mut out).unwrap();
    assert_eq!(out, value);
}

#[test]
fn version_1_verbatim_frames_are_written_and_read_byte_for_byte() {
    let hex = "f1 00 00 00 04000000 04000000 1604d67d 736e6f77";
    assert_golden(hex, b"snow");
    let mut out = Vec::new();
    encode(CodecSpec::none(), 256, b"snow", &mut out).unwrap();
    assert_eq!(out, b"\xf1\0\0\0\x04\0\0\0\x04\0\0\0\x16\x04\xd6\x7dsnow");
}

#[test]
#[cfg(feature = "lz4")]
fn version_1_lz4_frames_are_read() {
    let hex = "f1 01 00 00 3c000000 10000000 36a60219 5f666f6e6e2005001e6020666f6e6e20";
    assert_golden(hex, &b"fonn ".repeat(12));
}

#[test]
#[cfg(feature = "snappy")]
fn version_1_snappy_frames_are_read() {
    let hex = "f1 02 00 00 3c000000 0a000000 44dfe490 3c10666f6e6e20da0500";
    assert_golden(hex, &b"fonn ".repeat(12));
}

#[test]
#[cfg(feature = "zlib")]
fn version_1_zlib_frames_are_read() {
    let hex = "f1 03 06 00 3c000000 0a000000 be3b2847 4bcbcfcb5348238f0000";
    assert_golden(hex, &b"fonn ".repeat(12));
}

#[test]
#[cfg(feature = "zstd")]
fn version_1_zstd_frames_are_read() {
    let hex = "f1 04 03 00 3c000000 14000000 7925eb5f 28b52ffd203c5d000028666f6e6e200100c459b4";
    assert_golden(hex, &b"fonn ".repeat(12));
}

#[test]
#[cfg(feature = "zstd")]
fn version_1_frames_with_blocks_are_read() {
    // Two blocks, at zstd:-7: one of 131,072 bytes in 28, one of a single byte, verbatim.
    let hex = "f1 04 f9 11 01000200 25000000 07eefb18 1c000000 1d000000 \
               28b52ffda0000002008500004007070707070707070100f5ff39e002 07";
    assert_golden(hex, &[7; BLOCK_LEN + 1]);
}
