//! Any bytes as a record that comes in pieces: what the record gives that is there at once, at any
//! split.

#![no_main]

use fonn_codec::Frame;
use fonn_cold_tier::segment::{Fact, RECORD_HEAD_LEN, Record, RecordStream, Wanted};
use libfuzzer_sys::fuzz_target;

const VALUE_LEN_MAX: usize = 1 << 20;

fuzz_target!(|input: (bool, u16, Vec<u8>)| {
    let (is_sealed, piece_len, mut bytes) = input;
    if is_sealed {
        seal(&mut bytes);
    }
    if bytes.len() < RECORD_HEAD_LEN {
        return;
    }
    let key_len = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
    let key = bytes.get(RECORD_HEAD_LEN..RECORD_HEAD_LEN + key_len);
    let key = key.unwrap_or_default().to_vec();
    let whole = Record::decode(&bytes).ok();
    let wanted = Wanted {
        space: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
        key: &key,
        at: whole.map(|record| record.at).unwrap_or_default(),
        record_len: bytes.len(),
        value_len_max: VALUE_LEN_MAX,
    };
    let mut stream = RecordStream::new(wanted);
    let pieces = bytes.chunks(usize::from(piece_len).max(1));
    let mut is_fed = true;
    for piece in pieces {
        if stream.feed(piece).is_err() {
            is_fed = false;
            break;
        }
    }
    let streamed = if is_fed { stream.finish().ok() } else { None };
    let expected = whole.and_then(|record| {
        let Fact::Put { facts, frame } = record.fact else {
            return None;
        };
        let frame = Frame::parse(frame, VALUE_LEN_MAX).ok()?;
        frame.verify().ok()?;
        let mut value = Vec::new();
        frame.decode_into(&mut value).ok()?;
        Some((facts, value))
    });
    let streamed = streamed.map(|received| (received.facts, received.value.to_vec()));
    assert_eq!(streamed, expected);
});

/// Gives a record its lengths and checksums, that of its frame too.
fn seal(bytes: &mut [u8]) {
    if bytes.len() < RECORD_HEAD_LEN {
        return;
    }
    let key_len = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
    let key_len = key_len % (bytes.len() - RECORD_HEAD_LEN + 1);
    bytes[8..10].copy_from_slice(&(key_len as u16).to_le_bytes());
    let frame_len = bytes.len() - RECORD_HEAD_LEN - key_len;
    bytes[12..16].copy_from_slice(&(frame_len as u32).to_le_bytes());
    let frame = &mut bytes[RECORD_HEAD_LEN + key_len..];
    if frame.len() >= 16 {
        let payload_len = (frame.len() - 16) as u32;
        frame[8..12].copy_from_slice(&payload_len.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&frame[..12]), &frame[16..]);
        frame[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
}
