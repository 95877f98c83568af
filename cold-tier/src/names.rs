//! The names of objects in a bucket, and what they are made of.
//!
//! ```text
//! v1/seg/<region>/<writer>/<seq>.seg              segment
//! v1/idx/<region>/<id>/manifest                   checkpoint of an index, written after its parts
//! v1/idx/<region>/<id>/<part>                     a part of it
//! v1/read/<region>/<writer>                       which segments a node has read, and when
//! v1/lease/<region>/collector                     the node that collects garbage
//! v1/probe/<random>                               written and deleted by the doctor
//! ```
//!
//! `seq` is 16 hexadecimal digits, `part` at least 4. A writer's id is minted at each start of a
//! process, and that of a checkpoint when it is begun, so no name is used twice. Every name has one
//! spelling: what parses prints the same.

use std::fmt;
use std::str::FromStr;

use ring::digest::{Context, SHA256};

use crate::store::ObjectKey;

/// Prefix of the keys of all segments, of every region.
pub const SEGMENTS: &str = "v1/seg/";
/// Prefix of the keys of all checkpoints, of every region.
pub const CHECKPOINTS: &str = "v1/idx/";
/// Prefix of the keys of what nodes have read, of every region.
pub const READS: &str = "v1/read/";

/// A text that is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not a region.
    #[error("region {given:?} is not 1 to 32 characters out of a-z, 0-9 and -")]
    Region {
        /// What was given.
        given: String,
    },
    /// Not a writer's id.
    #[error(
        "writer id {given:?} is not a ULID: 26 characters out of 0-9 and A-Z without I, L, O, U, \
         the first at most 7"
    )]
    Writer {
        /// What was given.
        given: String,
    },
}

/// Where a part of the cluster runs, as its operator calls it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region(String);

impl Region {
    /// Longest name in bytes.
    pub const LEN_MAX: usize = 32;

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Prefix of the keys of its segments.
    #[must_use]
    pub fn segments_prefix(&self) -> String {
        format!("{SEGMENTS}{self}/")
    }

    /// Key of what one of its nodes has read; the writer is one of its run.
    #[must_use]
    pub fn reads_key(&self, writer: WriterId) -> ObjectKey {
        object_key(&format!("{READS}{self}/{writer}"))
    }

    /// Key of the lease of its collector.
    #[must_use]
    pub fn lease_key(&self) -> ObjectKey {
        object_key(&format!("v1/lease/{self}/collector"))
    }
}

impl Default for Region {
    fn default() -> Self {
        Self("local".to_owned())
    }
}

impl FromStr for Region {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if (1..=Self::LEN_MAX).contains(&text.len()) && text.bytes().all(is_allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError::Region {
                given: text.to_owned(),
            })
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One run of a process that writes into the bucket: a [ULID](https://github.com/ulid/spec) in its
/// upper-case text form. The order of ids is the order of their starts, to the millisecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId([u8; Self::LEN]);

/// Crockford's base 32. In ASCII order, so that texts sort as numbers do.
const BASE_32: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl WriterId {
    /// Length of an id in bytes.
    pub const LEN: usize = 26;

    /// Bits of an id that are random.
    const RANDOM_BITS: u32 = 80;

    /// Makes an id of a start at `now_ms` (Unix time in milliseconds, of which 48 bits are used)
    /// and the lower 80 bits of `random`.
    #[must_use]
    pub fn mint(now_ms: u64, random: u128) -> Self {
        let time = u128::from(now_ms) << Self::RANDOM_BITS;
        let random = random & ((1 << Self::RANDOM_BITS) - 1);
        let mut rest = time | random;
        let mut text = [b'0'; Self::LEN];
        for place in text.iter_mut().rev() {
            *place = BASE_32[(rest & 31) as usize];
            rest >>= 5;
        }
        Self(text)
    }

    /// When the writer started: Unix time in milliseconds.
    #[must_use]
    pub fn started_ms(&self) -> u64 {
        // The first 10 characters are the time.
        self.0[..10].iter().fold(0, |time, b| {
            let digit = BASE_32.iter().position(|digit| digit == b).unwrap_or(0);
            (time << 5) | digit as u64
        })
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The text's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl FromStr for WriterId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let bytes = <[u8; Self::LEN]>::try_from(text.as_bytes());
        bytes
            .ok()
            .filter(|bytes| bytes[0] <= b'7' && bytes.iter().all(|b| BASE_32.contains(b)))
            .map(Self)
            .ok_or_else(|| NameError::Writer {
                given: text.to_owned(),
            })
    }
}

impl fmt::Display for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A writer, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterKey {
    /// Its region.
    pub region: Region,
    /// Its id.
    pub writer: WriterId,
}

/// A segment. Ordered as the keys are listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Where its writer runs.
    pub region: Region,
    /// Its writer.
    pub writer: WriterId,
    /// Counts a writer's segments from 0 without gaps.
    pub seq: u64,
}

impl SegmentName {
    /// The object's key.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        object_key(&self.to_string())
    }

    /// The segment that an object's key names, if it names one.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let mut parts = key.strip_prefix(SEGMENTS)?.split('/');
        let name = Self {
            region: parts.next()?.parse().ok()?,
            writer: parts.next()?.parse().ok()?,
            seq: parse_hex_16(parts.next()?.strip_suffix(".seg")?)?,
        };
        parts.next().is_none().then_some(name)
    }

    /// REGION/WRITER/SEQUENCE: the name without what all have in common, as operators see it.
    #[must_use]
    pub fn short(&self) -> String {
        let Self {
            region,
            writer,
            seq,
        } = self;
        format!("{region}/{writer}/{seq:016x}")
    }

    /// The segment of a [`SegmentName::short`] name, or of an object's key.
    #[must_use]
    pub fn parse_short(text: &str) -> Option<Self> {
        Self::parse(text).or_else(|| Self::parse(&format!("{SEGMENTS}{text}.seg")))
    }

    /// Its writer, and where that runs.
    #[must_use]
    pub fn writer_key(&self) -> WriterKey {
        WriterKey {
            region: self.region.clone(),
            writer: self.writer,
        }
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            region,
            writer,
            seq,
        } = self;
        write!(f, "{SEGMENTS}{region}/{writer}/{seq:016x}.seg")
    }
}

/// A checkpoint. Those of one region are ordered by age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointName {
    /// Where its writer runs.
    pub region: Region,
    /// Minted when it was begun.
    pub id: WriterId,
}

/// An object of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointObject {
    /// The one that makes it valid.
    Manifest,
    /// A part, counted from 0.
    Part(u32),
}

impl CheckpointName {
    /// Key of one of its objects.
    #[must_use]
    pub fn key(&self, object: CheckpointObject) -> ObjectKey {
        object_key(&match object {
            CheckpointObject::Manifest => format!("{}manifest", self.prefix()),
            CheckpointObject::Part(part) => format!("{}{part:04x}", self.prefix()),
        })
    }

    /// Prefix of the keys of its objects.
    #[must_use]
    pub fn prefix(&self) -> String {
        let Self { region, id } = self;
        format!("{CHECKPOINTS}{region}/{id}/")
    }

    /// The checkpoint, and which object of it, that a key names, if it names one.
    #[must_use]
    pub fn parse(key: &str) -> Option<(Self, CheckpointObject)> {
        let mut parts = key.strip_prefix(CHECKPOINTS)?.split('/');
        let name = Self {
            region: parts.next()?.parse().ok()?,
            id: parts.next()?.parse().ok()?,
        };
        let object = match parts.next()? {
            "manifest" => CheckpointObject::Manifest,
            part => {
                let number = u32::from_str_radix(part, 16).ok()?;
                // One spelling: no sign, no capitals, no more zeros than it is written with.
                (part == format!("{number:04x}")).then_some(CheckpointObject::Part(number))?
            }
        };
        parts.next().is_none().then_some((name, object))
    }
}

/// The region of a node, if `key` is that of what it has read.
#[must_use]
pub fn parse_reads_key(key: &str) -> Option<Region> {
    let (region, writer) = key.strip_prefix(READS)?.split_once('/')?;
    writer.parse::<WriterId>().ok()?;
    region.parse().ok()
}

fn object_key(text: &str) -> ObjectKey {
    ObjectKey::new(text).expect("regions, ids and numbers are short and of allowed characters")
}

fn parse_hex_16(text: &str) -> Option<u64> {
    let number = u64::from_str_radix(text, 16).ok()?;
    (text == format!("{number:016x}")).then_some(number)
}

/// What an index knows a key by: the first 16 bytes of the SHA-256 of the space, little-endian, and
/// the key.
///
/// It stands for the key, in lookups and in reads that clients share. So it has to be one for which
/// no client finds a key with the hash of another tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub [u8; 16]);

impl KeyHash {
    /// Hashes a key of a space.
    #[must_use]
    pub fn of(space: u32, key: &[u8]) -> Self {
        let mut digest = Context::new(&SHA256);
        digest.update(&space.to_le_bytes());
        digest.update(key);
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest.finish().as_ref()[..16]);
        Self(hash)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checkpoint() -> CheckpointName {
        let SegmentName { region, writer, .. } = name();
        CheckpointName { region, id: writer }
    }

    fn name() -> SegmentName {
        SegmentName {
            region: "eu-1".parse().unwrap(),
            writer: WriterId::mint(1_469_918_176_385, 0x1234_5678_9abc_def0_1234),
            seq: 0x2a,
        }
    }

    #[test]
    fn names_are_spelled_as_documented() {
        let name = name();
        let writer = "01ARYZ6S4128T5CY4TQKFF04HM";
        assert_eq!(name.writer.to_string(), writer);
        assert_eq!(name.writer.started_ms(), 1_469_918_176_385);
        let base = format!("eu-1/{writer}");
        assert_eq!(
            name.key().as_str(),
            format!("v1/seg/{base}/000000000000002a.seg")
        );
        let short = format!("{base}/000000000000002a");
        assert_eq!(name.short(), short);
        for text in [short.as_str(), name.key().as_str()] {
            assert_eq!(SegmentName::parse_short(text), Some(name.clone()));
        }
        for text in ["", "eu-1", "eu-1//0", &short[..short.len() - 1]] {
            assert_eq!(SegmentName::parse_short(text), None, "{text}");
        }
        let manifest = checkpoint().key(CheckpointObject::Manifest);
        assert_eq!(manifest.as_str(), format!("v1/idx/{base}/manifest"));
        let part = checkpoint().key(CheckpointObject::Part(31));
        assert_eq!(part.as_str(), format!("v1/idx/{base}/001f"));
        assert_eq!(name.region.lease_key().as_str(), "v1/lease/eu-1/collector");
        assert!(
            name.key()
                .as_str()
                .starts_with(&name.region.segments_prefix())
        );
    }

    #[test]
    fn what_is_not_a_name_is_refused() {
        for region in ["", "EU", "eu_1", "eu/1", "ü", &"x".repeat(33)] {
            let error = region.parse::<Region>().unwrap_err().to_string();
            assert!(error.contains(&format!("{region:?}")), "{error}");
        }
        let writer = name().writer.to_string();
        for bad in [
            &writer[1..],
            &writer.to_lowercase(),
            &writer.replace('H', "I"),
            &format!("8{}", &writer[1..]),
        ] {
            assert!(bad.parse::<WriterId>().is_err(), "{bad}");
        }
        let key = name().key().to_string();
        for bad in [
            key.replace("2a", "2A"),
            key.replace("0000", "000"),
            key.replace(".seg", ""),
            key.replace("v1", "v2"),
            format!("{key}/x"),
            key.replace("000000000000002a", "+00000000000002a"),
        ] {
            assert_eq!(SegmentName::parse(&bad), None, "{bad}");
        }
        let part = checkpoint().key(CheckpointObject::Part(31)).to_string();
        for bad in [
            part.replace("001f", "1f"),
            part.replace("001f", "0001f"),
            part.replace("001f", "001F"),
            part.replace("001f", "Manifest"),
            format!("{part}/x"),
        ] {
            assert_eq!(CheckpointName::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_hash_is_of_space_and_key() {
        let hash = KeyHash::of(0x0403_0201, b"key");
        let whole = ring::digest::digest(&SHA256, b"\x01\x02\x03\x04key");
        assert_eq!(hash.0, whole.as_ref()[..16]);
        assert_ne!(hash, KeyHash::of(0x0403_0202, b"key"));
    }

    #[test]
    fn a_key_that_was_made_for_it_does_not_have_the_hash_of_another_tenants() {
        // XXH3 (128 bits, no seed) takes these two for one.
        let made = b"..............\xcby\xe6N\xcc\xc0\xe5xo\xd1\x98\xfd\x90}\x1d\x9e\
            .............................\xb8\x08Ft\xf7C$\x8e\x0c,\x8b\x20\xa9]\x8b\x00\
            ................";
        assert_eq!(made.len(), 91);
        let other = KeyHash::of(0x0210, b"an entry of the main branch");
        assert_ne!(KeyHash::of(0x0320, made), other);
    }

    proptest! {
        #[test]
        fn names_come_back_from_their_keys(
            region in "[a-z0-9-]{1,32}",
            now_ms in 0_u64..1 << 48,
            random: u128,
            seq: u64,
            part: u32,
        ) {
            let region: Region = region.parse().unwrap();
            let writer = WriterId::mint(now_ms, random);
            prop_assert_eq!(writer.started_ms(), now_ms);
            prop_assert_eq!(writer.to_string().parse(), Ok(writer));
            let name = SegmentName { region: region.clone(), writer, seq };
            prop_assert_eq!(SegmentName::parse(name.key().as_str()), Some(name));
            let checkpoint = CheckpointName { region: region.clone(), id: writer };
            for object in [CheckpointObject::Manifest, CheckpointObject::Part(part)] {
                let key = checkpoint.key(object);
                prop_assert_eq!(
                    CheckpointName::parse(key.as_str()),
                    Some((checkpoint.clone(), object))
                );
                prop_assert_eq!(SegmentName::parse(key.as_str()), None);
            }
        }

        #[test]
        fn what_parses_prints_the_same(text in "v1/(seg|idx)/[a-c/]{1,3}/[0-7A-Z]{26}/([0-9a-f+]{16}.seg|[0-9a-f]{3,6})") {
            if let Some(name) = SegmentName::parse(&text) {
                prop_assert_eq!(name.to_string(), text.clone());
            }
            if let Some((name, object)) = CheckpointName::parse(&text) {
                prop_assert_eq!(name.key(object).to_string(), text);
            }
        }

        #[test]
        fn writers_sort_by_time(a in 0_u64..1 << 48, b in 0_u64..1 << 48, x: u128, y: u128) {
            if a != b {
                prop_assert_eq!(a.cmp(&b), WriterId::mint(a, x).cmp(&WriterId::mint(b, y)));
            }
        }
    }
}
