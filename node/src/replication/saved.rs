//! What a member saves of replication: the file `slots` in the directory of raft.
//!
//! | bytes | type | meaning |
//! |---|---|---|
//! | 8 | `FNSLOTS1` | what the file is |
//! | 8 | u64 | the incarnation: the number of the start that wrote it |
//! | 16 | id | the boot id of the kernel under which that process ran; zero if it is not known |
//! | 8 | u64 | the applied epoch |
//! | 1 | u8 | 1 if the member is fit, else 0 |
//! | 2 | u16 | how many marks follow |
//! | 32 each | u64, mark | an epoch, and where the log was when the member applied it |
//! | 42 each | slot | for each slot in order: role (1), flags (1), synced epoch (8), floor epoch (8), led since (8), handed over (8), hidden below this version (8) |
//! | 4 | u32 | CRC-32C of all bytes before it |
//!
//! Numbers are little endian. The file is written under another name, synced, and renamed.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use fonn_base::file;
use fonn_codec::checksum;
use fonn_disk_tier::Mark;
use fonn_proto::placement::SLOT_COUNT;
use fonn_replication::{Epoch, Role, Saved, SlotState};

use super::kept::BootId;

const FILE: &str = "slots";
const MAGIC: [u8; 8] = *b"FNSLOTS1";
const SLOT_LEN: usize = 42;
const MARK_LEN: usize = 8 + Mark::LEN;

const IN_SYNC: u8 = 2;
const SYNCED: u8 = 4;

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
    let core = &saved.core;
    let slots = core.slots.iter().zip(&saved.hidden);
    let mut out = Vec::with_capacity(64 + core.slots.len() * SLOT_LEN);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&saved.incarnation.to_le_bytes());
    out.extend_from_slice(&saved.boot);
    out.extend_from_slice(&core.applied.0.to_le_bytes());
    out.push(core.is_fit.into());
    // At most MARKS_MAX.
    out.extend_from_slice(&(saved.marks.len() as u16).to_le_bytes());
    for (epoch, mark) in &saved.marks {
        out.extend_from_slice(&epoch.0.to_le_bytes());
        out.extend_from_slice(&mark.to_bytes());
    }
    for (state, hidden) in slots {
        out.push(role_number(state.role));
        let flag = |is: bool, flag| if is { flag } else { 0 };
        out.push(flag(state.in_sync, IN_SYNC) | flag(state.synced.is_some(), SYNCED));
        let synced = state.synced.unwrap_or_default();
        for epoch in [synced, state.floor, state.led_since, state.handed_over] {
            out.extend_from_slice(&epoch.0.to_le_bytes());
        }
        out.extend_from_slice(&hidden.to_le_bytes());
    }
    out.extend_from_slice(&checksum::crc32c(&out).to_le_bytes());
    out
}

/// What a file says of this many slots.
fn parse(bytes: &[u8], slot_count: usize) -> Option<SavedSlots> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if checksum::crc32c(body).to_le_bytes() != *crc {
        return None;
    }
    let (magic, rest) = body.split_first_chunk::<8>()?;
    let (incarnation, rest) = rest.split_first_chunk::<8>()?;
    let (boot, rest) = rest.split_first_chunk::<16>()?;
    let (applied, rest) = rest.split_first_chunk::<8>()?;
    let ([is_fit], rest) = rest.split_first_chunk::<1>()?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let marks_len = MARK_LEN * usize::from(u16::from_le_bytes(*count));
    let (marks, rest) = rest.split_at_checked(marks_len)?;
    let (rows, rest) = rest.as_chunks::<SLOT_LEN>();
    if *magic != MAGIC || *is_fit > 1 || !rest.is_empty() || rows.len() != slot_count {
        return None;
    }
    let mark = |bytes: &[u8; MARK_LEN]| {
        let (epoch, mark) = bytes.split_first_chunk::<8>()?;
        Some((Epoch(u64::from_le_bytes(*epoch)), Mark::parse(mark)?))
    };
    let rows = rows.iter().map(slot).collect::<Option<Vec<_>>>()?;
    let (slots, hidden) = rows.into_iter().unzip();
    Some(SavedSlots {
        incarnation: u64::from_le_bytes(*incarnation),
        boot: *boot,
        marks: marks
            .as_chunks()
            .0
            .iter()
            .map(mark)
            .collect::<Option<_>>()?,
        core: Saved {
            applied: Epoch(u64::from_le_bytes(*applied)),
            is_fit: *is_fit == 1,
            slots,
        },
        hidden,
    })
}

fn slot(bytes: &[u8; SLOT_LEN]) -> Option<(SlotState, u64)> {
    let ([role, flags], numbers) = bytes.split_first_chunk::<2>()?;
    let (numbers, _) = numbers.as_chunks::<8>();
    let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
    let synced = Epoch(numbers.next()?);
    let state = SlotState {
        role: role_of(*role)?,
        in_sync: flags & IN_SYNC != 0,
        synced: (flags & SYNCED != 0).then_some(synced),
        floor: Epoch(numbers.next()?),
        led_since: Epoch(numbers.next()?),
        handed_over: Epoch(numbers.next()?),
    };
    Some((state, numbers.next()?))
}

const ROLES: [Role; 4] = [Role::None, Role::Learner, Role::Owner, Role::Primary];

fn role_number(role: Role) -> u8 {
    let at = ROLES.iter().position(|known| *known == role);
    at.unwrap_or_default() as u8
}

fn role_of(number: u8) -> Option<Role> {
    ROLES.get(usize::from(number)).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes up to the marks, and behind the slots.
    const HEAD_LEN: usize = 43;
    const CHECKSUM_LEN: usize = 4;

    fn saved() -> SavedSlots {
        let mark = Mark::parse(&[7; Mark::LEN]).unwrap();
        let mut slots = vec![SlotState::default(); usize::from(SLOT_COUNT)];
        slots[3] = SlotState {
            role: Role::Owner,
            in_sync: true,
            synced: Some(Epoch(9)),
            floor: Epoch(5),
            led_since: Epoch(6),
            handed_over: Epoch(7),
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
        for at in [0, 9, 30, 100, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let all = usize::from(SLOT_COUNT);
            assert_eq!(parse(&damaged, all), None, "byte {at}");
            assert_eq!(parse(&bytes[..at], all), None, "cut at {at}");
        }
    }

    /// A file is refused, or has these slots and reads the same after it was written again.
    fn is_kept(file: &[u8], slot_count: usize) -> bool {
        let Some(read) = parse(file, slot_count) else {
            return true;
        };
        let len = HEAD_LEN + read.marks.len() * MARK_LEN + slot_count * SLOT_LEN + CHECKSUM_LEN;
        let has_all = file.len() == len && read.core.slots.len() == slot_count;
        has_all && parse(&to_bytes(&read), slot_count) == Some(read)
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_the_same_when_they_were_written_again(
            bytes: Vec<u8>,
            slot_count in 0usize..4,
            marks in 0u8..8,
            is_whole: bool,
        ) {
            prop_assert!(is_kept(&bytes, slot_count));
            let mut file = [&MAGIC, &bytes[..]].concat();
            if is_whole {
                file.resize(HEAD_LEN + usize::from(marks) * MARK_LEN + slot_count * SLOT_LEN, 0);
                file[HEAD_LEN - 2..HEAD_LEN].copy_from_slice(&u16::from(marks).to_le_bytes());
            }
            file.extend_from_slice(&checksum::crc32c(&file).to_le_bytes());
            prop_assert!(is_kept(&file, slot_count));
        }
    }
}
