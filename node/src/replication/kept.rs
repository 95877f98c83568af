//! Whether a member that starts has everything that it acknowledged before.
//!
//! After a stop in order it has. After a kill it has what the kernel had, unless the kernel ended
//! too. After a loss of power it has what was synced. Which of these happened is told by the file
//! `stopped`, in which an ordered stop notes the incarnation of its process, and by the boot id of
//! the kernel.

use std::fs;
use std::io;
use std::path::Path;

use fonn_base::file;
use fonn_disk_tier::Durability;

const STOPPED: &str = "stopped";

/// The boot id of a kernel; all zero where it is not known.
pub(super) type BootId = [u8; 16];

/// Notes that everything is on the disk that the process of an incarnation acknowledged.
///
/// # Errors
/// What the operating system said.
pub(super) fn note_stop(dir: &Path, incarnation: u64) -> io::Result<()> {
    let text = format!("{incarnation}\n");
    file::replace(&dir.join(STOPPED), text.as_bytes()).map(drop)
}

/// Whether the process of an incarnation ended in order.
pub(super) fn was_stopped(dir: &Path, incarnation: u64) -> bool {
    let noted = fs::read_to_string(dir.join(STOPPED));
    noted.is_ok_and(|text| text.trim().parse() == Ok(incarnation))
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
    fn a_stop_counts_for_the_process_that_stopped() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!was_stopped(dir.path(), 3));
        note_stop(dir.path(), 3).unwrap();
        assert!(was_stopped(dir.path(), 3));
        assert!(!was_stopped(dir.path(), 4));
        note_stop(dir.path(), 4).unwrap();
        assert!(was_stopped(dir.path(), 4));
        fs::write(dir.path().join(STOPPED), "").unwrap();
        assert!(!was_stopped(dir.path(), 4));
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
