//! Any footer behind right checksums, and any last bytes of an object: an error, or a footer that
//! agrees with itself.

#![no_main]

use fonn_cold_tier::segment::{FORMAT, HEADER_LEN, SegmentHeader, Tail, decode_tail};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u32, u32, bool, &[u8])| {
    let (data_len, decoded_len, is_honest, bytes) = input;
    check(bytes, u64::from(data_len));
    // A right header in front, half of the time.
    let mut payload = Vec::new();
    if is_honest {
        let header = SegmentHeader {
            region: "r".parse().expect("is a region"),
            writer: "01ARYZ6S4128T5CY4TQKFF04HM".parse().expect("is a ULID"),
            seq: 0,
            created_ms: 0,
        };
        payload.extend_from_slice(&header.encode());
    }
    payload.extend_from_slice(bytes);
    if payload.len() > HEADER_LEN {
        let checksum = crc32c::crc32c(&payload[..HEADER_LEN - 4]);
        payload[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
    }
    let mut tail = Vec::new();
    let codec = "zstd:3".parse().expect("is compiled in");
    fonn_codec::encode(codec, 0, &payload, &mut tail).expect("is short");
    // What the footer says of the data is what the trailer says, half of the time.
    let data_len = match payload.get(HEADER_LEN..HEADER_LEN + 8) {
        Some(field) if is_honest => u64::from_le_bytes(field.try_into().expect("has 8 bytes")),
        _ => u64::from(data_len),
    };
    let footer_len = tail.len() as u32;
    let footer_checksum = crc32c::crc32c(&tail);
    let decoded_len = if is_honest {
        payload.len() as u32
    } else {
        decoded_len
    };
    let mut trailer = data_len
        .wrapping_add(HEADER_LEN as u64)
        .to_le_bytes()
        .to_vec();
    for field in [footer_len, decoded_len, footer_checksum] {
        trailer.extend_from_slice(&field.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&trailer);
    trailer.extend_from_slice(&checksum.to_le_bytes());
    trailer.extend_from_slice(&FORMAT.to_le_bytes());
    trailer.extend_from_slice(b"FONNSEG\n");
    tail.extend_from_slice(&trailer);
    let object_len = data_len
        .wrapping_add(HEADER_LEN as u64)
        .wrapping_add(tail.len() as u64);
    check(&tail, object_len);
    check(&tail[tail.len() / 2..], object_len);
});

fn check(suffix: &[u8], object_len: u64) {
    match decode_tail(suffix, object_len) {
        Ok(Tail::Complete(footer)) => {
            let mut end = HEADER_LEN as u64;
            for entry in &footer.entries {
                assert_eq!(entry.offset, end);
                end += u64::from(entry.len);
            }
            assert_eq!(end, HEADER_LEN as u64 + footer.data_len);
            assert!(end < object_len);
            let facts = footer.facts(object_len);
            assert_eq!(facts.entries as usize, footer.entries.len());
        }
        Ok(Tail::NeedMore { suffix_len }) => {
            assert!(suffix_len > suffix.len() as u64 && suffix_len <= object_len);
        }
        Err(_) => {}
    }
}
