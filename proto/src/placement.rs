//! Which slot a key belongs to: the function that clients, nodes and routers have to agree on.
//!
//! It is that of Redis Cluster (Redis cluster specification, "Key distribution model" and "Hash tags"),
//! so that cluster-aware RESP clients find a key's owner by themselves.

/// How many slots there are.
pub const SLOT_COUNT: u16 = 16_384;

/// The slot of a key, below [`SLOT_COUNT`]: CRC16 of the key modulo the number of slots.
///
/// Where the key holds a `{`, and behind it a `}` with at least one byte between them, only the bytes
/// between the first `{` and the first `}` behind it count. Keys with the same tag share a slot.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOT_COUNT
}

/// The part of a key that decides about its slot.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'{', key) else {
        return key;
    };
    let behind = key.get(open + 1..).unwrap_or_default();
    match memchr::memchr(b'}', behind) {
        None | Some(0) => key,
        Some(close) => behind.get(..close).unwrap_or(key),
    }
}

/// CRC16/XMODEM: polynomial 0x1021, start value 0, nothing reflected, no final exclusive or.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        let [high, low] = crc.to_be_bytes();
        CRC16_TABLE[usize::from(high ^ byte)] ^ u16::from_be_bytes([low, 0])
    })
}

/// The checksum of each single byte.
const CRC16_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_has_the_check_value_of_xmodem() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
        assert_eq!(crc16(b"\0"), 0);
        assert_eq!(crc16(b"\xff"), 0x1EF0);
    }

    #[test]
    fn slots_are_those_that_redis_computes() {
        // Answers of `CLUSTER KEYSLOT` of redis-server 7.0.15.
        let golden: [(&[u8], u16); 13] = [
            (b"", 0),
            (b"a", 15495),
            (b"foo", 12182),
            (b"hello", 866),
            (b"123456789", 12739),
            (b"foo{hash_tag}", 2515),
            (b"{user1000}.following", 3443),
            (b"foo{}{bar}", 8363),
            (b"foo{{bar}}zap", 4015),
            (b"foo{bar}{zap}", 5061),
            (b"foo{bar", 15278),
            (b"\0\xff\r\n", 6261),
            (b"sccache/a/b/c/0123456789abcdef", 720),
        ];
        for (key, expected) in golden {
            assert_eq!(slot(key), expected, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn only_the_first_tag_counts_and_an_empty_one_is_none() {
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
        assert_eq!(hash_tag(b"foo}bar{"), b"foo}bar{");
        assert_eq!(hash_tag(b"}{a}"), b"a");
    }

    #[test]
    fn slots_of_many_keys_are_in_range_and_even() {
        let mut counts = vec![0_u32; usize::from(SLOT_COUNT)];
        for number in 0..SLOT_COUNT as u32 * 64 {
            counts[usize::from(slot(format!("key:{number}").as_bytes()))] += 1;
        }
        assert!(
            counts.iter().all(|&count| (16..160).contains(&count)),
            "64 a slot on average"
        );
    }
}
