//! Lookups that need the facts of an entry and not its value.
//!
//! Of a record above 64 KiB they read its head, its key and the header of its frame. The checksum
//! of the record covers exactly these bytes. The checksum of the value is compared when the value
//! is read.
//!
//! Invariant: what a read has found to be damaged is not reported as present. Otherwise a client
//! that asks before it stores would never store it again. So in a generation in which a read met
//! damage, a probe reads whole records.

use fonn_base::entry::{Meta, Space};
use fonn_codec::frame::{ErrorKind, Header};

use super::error::DiskError;
use super::generations::Found;
use super::reader::{self, Indexed, Lookup};
use super::record::{BOUND_FRAME_LEN, HEAD_LEN, Record};
use super::{DiskFound, DiskTier, Shared};

/// A shorter record is read whole: that costs about as much as reading its head.
const WHOLE_LEN_MAX: usize = 64 << 10;

/// What is known of an entry whose value was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// The facts beside the value.
    pub meta: Meta,
    /// Length of the value in bytes.
    pub value_len: usize,
}

/// What a lookup found that needs no value.
#[derive(Clone, Debug)]
pub enum DiskProbed {
    /// The newest copy is on disk. Only its head was read and verified.
    Facts(DiskFacts),
    /// What a read of the whole entry found.
    Found(DiskFound),
}

/// Looks a key up, and reads no more of its record than is needed for its facts.
fn probe(shared: &Shared, space: Space, key: &[u8]) -> Result<Lookup<DiskProbed>, DiskError> {
    let (found, meta) = match reader::indexed(shared, space, key)? {
        Indexed::Put(found, meta) => (found, meta),
        Indexed::NoValue(below) => return Ok(Lookup::Found(DiskProbed::Found(below))),
    };
    if head_suffices(shared, &found) {
        return read_head(shared, (space, key), &found, meta).map(Lookup::Found);
    }
    let read = reader::read_short(shared, (space, key), &found, meta)?;
    Ok(match read {
        Lookup::Found(found) => Lookup::Found(DiskProbed::Found(found)),
        Lookup::Long(len) => Lookup::Long(len),
    })
}

/// Whether the value can be left where it is. A record in the older half is carried over if there
/// is room for it, as by a read: being asked for is a use.
fn head_suffices(shared: &Shared, found: &Found) -> bool {
    let len = found.entry.record_len as usize;
    len > WHOLE_LEN_MAX
        && !found.generation.has_met_damage()
        && !(shared.is_in_older_half(found.generation.id) && shared.queue.takes_carry(len))
}

/// Reads the head of the record that an index led to.
fn read_head(
    shared: &Shared,
    (space, key): (Space, &[u8]),
    found: &Found,
    meta: Meta,
) -> Result<DiskProbed, DiskError> {
    let (log, entry) = (&found.generation.log, &found.entry);
    let record_len = u64::from(entry.record_len);
    let damaged = || DiskProbed::Found(reader::damaged(shared, (space, key), found));
    // A log may have lost its end, and with it the end of the record.
    let end = entry.offset.checked_add(record_len);
    if end.is_none_or(|end| end > log.end()) {
        return Ok(damaged());
    }
    let head_len = HEAD_LEN + key.len() + BOUND_FRAME_LEN;
    let head = match log.read(entry.offset, head_len) {
        Ok(head) => head,
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(damaged()),
        Err(_) => return Err(reader::refused(shared, key, found)),
    };
    let record = Record::parse_start(&head, record_len)
        .filter(|it| it.space == space && it.key == key && it.fact == entry.fact);
    let Some(record) = record else {
        return Ok(damaged());
    };
    let frame_len = record_len - (HEAD_LEN + key.len()) as u64;
    match Header::parse(record.frame, shared.options.value_len_max) {
        Ok(header) if header.frame_len() as u64 == frame_len => Ok(DiskProbed::Facts(DiskFacts {
            meta,
            value_len: header.original_len(),
        })),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            Ok(DiskProbed::Found(reader::unsupported(shared, error)))
        }
        Ok(_) | Err(_) => Ok(damaged()),
    }
}

impl DiskTier {
    /// Finds out whether there is an entry, and its facts. A value above 64 KiB is not read as a
    /// rule. Apart from that it is a read as by [`DiskTier::find`].
    ///
    /// # Errors
    /// As [`DiskTier::find`].
    ///
    /// # Cancel safety
    /// As [`DiskTier::find`].
    pub async fn find_facts(&self, space: Space, key: &[u8]) -> Result<DiskProbed, DiskError> {
        let sought: Box<[u8]> = key.into();
        let probe = move |shared: &Shared| probe(shared, space, &sought);
        match self.read_value(probe).await? {
            Lookup::Found(probed) => Ok(probed),
            Lookup::Long(len) => {
                let found = Box::pin(self.find_long(space, key, len)).await?;
                Ok(DiskProbed::Found(found))
            }
        }
    }
}
