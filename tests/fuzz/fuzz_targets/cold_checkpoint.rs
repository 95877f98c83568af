//! Any manifest, part and entry, also behind right checksums: an error, or what encodes to the
//! same.

#![no_main]

use fonn_cold_tier::checkpoint::{
    ENTRY_LEN, FORMAT, IndexEntry, Manifest, PartFacts, SegmentFacts, decode_part,
};
use fonn_cold_tier::names::KeyHash;
use libfuzzer_sys::fuzz_target;

/// Bytes of an entry in a part: hash and value.
const ROW_LEN: usize = 16 + ENTRY_LEN;

fuzz_target!(|input: (u32, &[u8])| {
    let (count, bytes) = input;
    let hash = KeyHash([0; 16]);
    if let Ok(entry) = IndexEntry::decode(hash, bytes) {
        assert_eq!(entry.encode(), bytes);
    }
    if let Ok(facts) = SegmentFacts::decode(bytes) {
        let mut again = Vec::new();
        facts.encode_into(&mut again);
        assert_eq!(again, bytes);
    }
    let _ = Manifest::decode(bytes);
    let head = [&b"FONNMAN\n"[..], &FORMAT.to_le_bytes()].concat();
    if let Ok(manifest) = Manifest::decode(&framed(head, bytes)) {
        let again = manifest.encode().expect("was decoded");
        assert_eq!(Manifest::decode(&again), Ok(manifest));
    }
    let rows = (bytes.len() / ROW_LEN) as u32;
    for entries in [count, rows] {
        let part = framed(Vec::new(), &bytes[..rows as usize * ROW_LEN]);
        let ends = |row: Option<&[u8]>| row.and_then(|row| row.first_chunk()).copied();
        let facts = PartFacts {
            len: part.len() as u64,
            entries,
            first: KeyHash(ends(bytes.chunks_exact(ROW_LEN).next()).unwrap_or_default()),
            last: KeyHash(ends(bytes.chunks_exact(ROW_LEN).next_back()).unwrap_or_default()),
        };
        if let Ok(entries) = decode_part(&part, &facts) {
            let all: Vec<IndexEntry> = entries.collect();
            assert_eq!(all.len(), rows as usize);
            assert!(all.is_sorted_by(|a, b| a.hash < b.hash));
        }
    }
});

/// `head`, and `payload` in a frame behind it.
fn framed(head: Vec<u8>, payload: &[u8]) -> Vec<u8> {
    let mut object = head;
    let codec = "zstd:1".parse().expect("is compiled in");
    fonn_codec::encode(codec, 0, payload, &mut object).expect("is short");
    object
}
