//! Any bytes as records, headers and whole segments: an error, or what encodes to the same bytes.

#![no_main]

use fonn_cold_tier::segment::{
    HEADER_LEN, Record, SegmentBuilder, SegmentHeader, scan_records, verify,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (is_sealed, mut bytes) = input;
    let _ = verify(&bytes);
    if is_sealed {
        seal(&mut bytes);
    }
    if let Ok(record) = Record::decode(&bytes) {
        let mut again = Vec::new();
        record.encode_into(&mut again);
        assert_eq!(again, bytes);
        assert_eq!(record.encoded_len(), bytes.len());
    }
    if let Ok(header) = SegmentHeader::decode(&bytes) {
        assert_eq!(header.encode(), bytes[..HEADER_LEN]);
    }
    // What can be read as records makes a segment that can be read.
    let header = SegmentHeader {
        region: "r".parse().expect("is a region"),
        writer: "01ARYZ6S4128T5CY4TQKFF04HM".parse().expect("is a ULID"),
        seq: 0,
        created_ms: 0,
    };
    let mut builder = SegmentBuilder::new();
    let mut len = HEADER_LEN as u64;
    for (offset, record) in scan_records(&bytes).map_while(Result::ok) {
        assert_eq!(offset, len);
        builder.push(&record).expect("fits");
        len += record.encoded_len() as u64;
        assert_eq!(builder.len(), len);
    }
    let sealed = builder.finish(header, &[]);
    let object = sealed.to_bytes();
    assert_eq!(verify(&object).expect("was just written"), sealed.footer);
    assert!(object[HEADER_LEN..].starts_with(&bytes[..(len as usize - HEADER_LEN)]));
});

/// Gives a record at the beginning the right lengths and checksum, and a header its checksum.
fn seal(bytes: &mut [u8]) {
    if bytes.len() >= HEADER_LEN && bytes.starts_with(b"FONNSEG\n") {
        let checksum = crc32c::crc32c(&bytes[..HEADER_LEN - 4]);
        bytes[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
    } else if bytes.len() >= 48 {
        let key_len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]])) % (bytes.len() - 47);
        bytes[8..10].copy_from_slice(&(key_len as u16).to_le_bytes());
        let frame_len = (bytes.len() - 48 - key_len) as u32;
        bytes[12..16].copy_from_slice(&frame_len.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    }
}
