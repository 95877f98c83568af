//! Whether a member that starts has everything that it acknowledged before.
//!
//! After a stop in order it has. After a kill it has what the kernel had, unless the kernel ended
//! too. After a loss of power it has what was synced. Which of these happened is told by the file
//! `stopped`, which an ordered stop leaves behind, and by the boot id of the kernel.

use std::fs::File;
use std::io;
use std::path::Path;

use fonn_base::file;
use fonn_disk_tier::Durability;

const STOPPED: &str = "stopped";

/// The boot id of a kernel; all zero where it is not known.
pub(super) type BootId = [u8; 16];

/// Notes that everything acknowledged is on the disk, and that the process ends.
///
/// # Errors
/// What the operating system said.
pub(crate) fn note_stop(dir: &Path) -> io::Result<()> {
    File::create(dir.join(STOPPED))?.sync_all()?;
    file::sync_dir(dir)
}

/// Whether the process before ended in order. The next start does not find the note.
pub(super) fn take_stop(dir: &Path) -> bool {
    let removed = std::fs::remove_file(dir.join(STOPPED));
    let synced = removed.and_then(|()| file::sync_dir(dir));
    synced.is_ok()
}

/// The boot id of the running kernel (random(4), `/proc/sys/kernel/random/boot_id`).
pub(super) fn boot_id() -> BootId {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.ok().and_then(|text| parse(&text)).unwrap_or_default()
}

fn parse(text: &str) -> Option<BootId> {
    let digits: String = text.trim().split('-').collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| number.to_be_bytes())
}

/// Whether a store has all that it acknowledged: by its durability, whether it was stopped in
/// order, and the boot ids of its last and of this process.
pub(super) fn has_kept_all(
    durability: Durability,
    was_stopped: bool,
    (last, now): (BootId, BootId),
) -> bool {
    match durability {
        _ if was_stopped => true,
        Durability::Fsync => true,
        Durability::Batched => last == now && now != BootId::default(),
        Durability::None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: BootId = [1; 16];
    const OTHER: BootId = [2; 16];
    const UNKNOWN: BootId = [0; 16];

    #[test]
    fn a_stop_is_noted_once() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!take_stop(dir.path()));
        note_stop(dir.path()).unwrap();
        assert!(take_stop(dir.path()));
        assert!(!take_stop(dir.path()));
    }

    #[test]
    fn what_is_kept_depends_on_the_durability_and_on_what_ended() {
        use Durability::{Batched, Fsync, None};
        for durability in [None, Batched, Fsync] {
            assert!(has_kept_all(durability, true, (ONE, OTHER)));
        }
        assert!(has_kept_all(Fsync, false, (ONE, OTHER)));
        assert!(has_kept_all(Batched, false, (ONE, ONE)));
        assert!(!has_kept_all(Batched, false, (ONE, OTHER)));
        assert!(!has_kept_all(Batched, false, (UNKNOWN, UNKNOWN)));
        assert!(!has_kept_all(None, false, (ONE, ONE)));
    }

    #[test]
    fn boot_ids_are_parsed() {
        let text = "01020304-0506-0708-090a-0b0c0d0e0f10\n";
        let id = parse(text).unwrap();
        assert_eq!((id[0], id[15]), (1, 16));
        for wrong in ["", "01020304", "0102030405060708090a0b0c0d0e0f1g"] {
            assert_eq!(parse(wrong), Option::None, "{wrong}");
        }
    }
}
