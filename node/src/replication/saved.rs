//! What a member saves of replication: the file `slots` in the directory of raft.
//!
//! | bytes | type | meaning |
//! |---|---|---|
//! | 8 | `FNSLOTS1` | what the file is |
//! | 4 | u32, little endian | CRC-32C of all that follows |
//! | – | JSON | the [`Contents`] |
//!
//! The file is written under another name, synced, and renamed.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use fonn_base::file;
use fonn_codec::checksum;
use fonn_disk_tier::Mark;
use fonn_proto::placement::SLOT_COUNT;
use fonn_replication::{Epoch, Saved, SavedSlot};
use serde::{Deserialize, Serialize};

use super::kept::BootId;

const FILE: &str = "slots";
const MAGIC: [u8; 8] = *b"FNSLOTS1";

/// Most marks that are kept: a member that was away for more epochs copies its slots in full.
pub(super) const MARKS_MAX: usize = 256;

/// What is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SavedSlots {
    pub(super) incarnation: u64,
    pub(super) boot: BootId,
    /// Where the log was when each epoch was applied, the oldest first.
    pub(super) marks: VecDeque<(Epoch, Mark)>,
    pub(super) core: Saved,
    /// For each slot, the version below which its entries are hidden and not removed yet; 0 for
    /// none.
    pub(super) hidden: Vec<u64>,
}

/// What the file says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Contents {
    incarnation: u64,
    boot: BootId,
    applied: u64,
    is_fit: bool,
    marks: Vec<(u64, [u8; Mark::LEN])>,
    /// How many slots that follow each other are alike, and what is saved of each.
    slots: Vec<(u16, SlotRow)>,
}

/// What is saved of a slot: whether it is in sync, the synced epoch, the epoch of the floor, and
/// the version below which its entries are hidden.
type SlotRow = (bool, Option<u64>, u64, u64);

/// Reads what was saved last. `None` if there is nothing that can be believed.
pub(super) fn load(dir: &Path) -> Option<SavedSlots> {
    let bytes = std::fs::read(dir.join(FILE)).ok()?;
    parse(&bytes, usize::from(SLOT_COUNT))
}

/// Saves; durable when it returns.
///
/// # Errors
/// What the operating system said.
pub(super) fn save(dir: &Path, saved: &SavedSlots) -> io::Result<()> {
    file::replace(&dir.join(FILE), &to_bytes(saved)).map(drop)
}

/// Removes what was saved: the next start is one with an empty disk.
///
/// # Errors
/// What the operating system said.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    let removed = std::fs::remove_file(dir.join(FILE));
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => file::sync_dir(dir),
    }
}

fn to_bytes(saved: &SavedSlots) -> Vec<u8> {
    let mut runs: Vec<(u16, SlotRow)> = Vec::new();
    for (slot, hidden) in saved.core.slots.iter().zip(&saved.hidden) {
        let synced = slot.synced.map(|epoch| epoch.0);
        let row = (slot.in_sync, synced, slot.floor.0, *hidden);
        match runs.last_mut() {
            Some((count, last)) if *last == row => *count += 1,
            _ => runs.push((1, row)),
        }
    }
    let marks = saved.marks.iter();
    seal(&Contents {
        incarnation: saved.incarnation,
        boot: saved.boot,
        applied: saved.core.applied.0,
        is_fit: saved.core.is_fit,
        marks: marks
            .map(|(epoch, mark)| (epoch.0, mark.to_bytes()))
            .collect(),
        slots: runs,
    })
}

fn seal(contents: &Contents) -> Vec<u8> {
    let json = serde_json::to_vec(contents).expect("the contents have a JSON form");
    let crc = checksum::crc32c(&json).to_le_bytes();
    [&MAGIC[..], &crc, &json].concat()
}

/// What a file says of this many slots.
fn parse(bytes: &[u8], slot_count: usize) -> Option<SavedSlots> {
    let (crc, json) = bytes.strip_prefix(&MAGIC)?.split_first_chunk::<4>()?;
    if checksum::crc32c(json).to_le_bytes() != *crc {
        return None;
    }
    let contents: Contents = serde_json::from_slice(json).ok()?;
    let (mut slots, mut hidden) = (Vec::new(), Vec::new());
    for (count, (in_sync, synced, floor, hidden_below)) in contents.slots {
        let len = slots.len() + usize::from(count);
        if len > slot_count {
            return None;
        }
        let slot = SavedSlot {
            in_sync,
            synced: synced.map(Epoch),
            floor: Epoch(floor),
        };
        slots.resize(len, slot);
        hidden.resize(len, hidden_below);
    }
    let mark = |(epoch, mark): (u64, [u8; Mark::LEN])| Some((Epoch(epoch), Mark::parse(&mark)?));
    let marks = contents
        .marks
        .into_iter()
        .map(mark)
        .collect::<Option<_>>()?;
    (slots.len() == slot_count).then_some(SavedSlots {
        incarnation: contents.incarnation,
        boot: contents.boot,
        marks,
        core: Saved {
            applied: Epoch(contents.applied),
            is_fit: contents.is_fit,
            slots,
        },
        hidden,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn saved() -> SavedSlots {
        let mark = Mark::parse(&[7; Mark::LEN]).unwrap();
        let mut slots = vec![SavedSlot::default(); usize::from(SLOT_COUNT)];
        slots[3] = SavedSlot {
            in_sync: true,
            synced: Some(Epoch(9)),
            floor: Epoch(5),
        };
        let mut hidden = vec![0; usize::from(SLOT_COUNT)];
        hidden[3] = 1 << 50;
        SavedSlots {
            incarnation: 4,
            boot: [5; 16],
            marks: [(Epoch(8), mark), (Epoch(9), mark)].into(),
            core: Saved {
                applied: Epoch(9),
                is_fit: true,
                slots,
            },
            hidden,
        }
    }

    #[test]
    fn what_was_saved_is_loaded_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()), None);
        save(dir.path(), &saved()).unwrap();
        assert_eq!(load(dir.path()), Some(saved()));
        remove(dir.path()).unwrap();
        assert_eq!(load(dir.path()), None);
        remove(dir.path()).unwrap();
        let bytes = to_bytes(&saved());
        let all = usize::from(SLOT_COUNT);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(parse(&damaged, all), None, "byte {at}");
            assert_eq!(parse(&bytes[..at], all), None, "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn a_file_is_refused_or_has_all_slots_and_reads_the_same_when_it_is_written_again(
            bytes: Vec<u8>,
            runs in prop::collection::vec((0..4u16, any::<SlotRow>()), 0..5),
            slot_count in 0..9usize,
        ) {
            let sealed = [&MAGIC[..], &checksum::crc32c(&bytes).to_le_bytes(), &bytes].concat();
            prop_assert_eq!(parse(&bytes, slot_count), None);
            prop_assert_eq!(parse(&sealed, slot_count), None);
            let count: usize = runs.iter().map(|(count, _)| usize::from(*count)).sum();
            let file = seal(&Contents {
                incarnation: 1,
                boot: BootId::default(),
                applied: 2,
                is_fit: false,
                marks: Vec::new(),
                slots: runs,
            });
            let read = parse(&file, slot_count);
            prop_assert_eq!(read.is_some(), count == slot_count);
            if let Some(read) = read {
                prop_assert_eq!(read.core.slots.len(), slot_count);
                prop_assert_eq!(parse(&to_bytes(&read), slot_count), Some(read));
            }
        }
    }
}
