//! A look at fjall's journals before fjall reads them.
//!
//! A batch in a journal has a checksum over its items and none over its sequence number. With a
//! lower one its entries would be taken for older than those that they replaced, and these would
//! count again. Batches are written in the order of their numbers, so one that is not higher than
//! that before it is damage. (A higher one does no harm: the checkpoint in the batch has it too, so
//! the log is read again from there.)
//!
//! Layout (fjall `=3.1.13`, `journal/entry.rs`), little-endian: a tag, then for 1, the start of a
//! batch: count (4), sequence number (8); 2, an item: kind (1), codec (1), keyspace (8), key length
//! (2), value length (4), stored length (4), key, stored value; 3, the end: checksum (8), `FJL` 3;
//! 4: keyspace (8).

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::Path;

/// Bytes that are read at once.
const WINDOW_LEN: usize = 256 << 10;

/// Whether the batches of all journals in a directory have the numbers of their order, up to where
/// they end.
///
/// # Errors
/// Of reading. There being no directory is none.
pub(super) fn is_in_order(dir: &Path) -> io::Result<bool> {
    let mut journals = Vec::new();
    let names = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        names => names?,
    };
    for entry in names {
        let path = entry?.path();
        let number = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok());
        if let (Some(number), Some("jnl")) = (number, path.extension().and_then(|it| it.to_str())) {
            journals.push((number, path));
        }
    }
    journals.sort_unstable_by_key(|(number, _): &(u64, _)| *number);
    let mut last = None;
    for (_, path) in journals {
        let mut journal = BufReader::with_capacity(WINDOW_LEN, File::open(path)?);
        match walk(&mut journal, &mut last) {
            Ok(true) => {}
            // It ends within a batch: fjall cuts that off.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            other => return other,
        }
    }
    Ok(true)
}

fn walk(journal: &mut BufReader<File>, last: &mut Option<u64>) -> io::Result<bool> {
    loop {
        let [tag] = take(journal)?;
        match tag {
            1 => {
                let _count: [u8; 4] = take(journal)?;
                let number = u64::from_le_bytes(take(journal)?);
                if last.replace(number).is_some_and(|before| before >= number) {
                    return Ok(false);
                }
            }
            2 => {
                let _kinds: [u8; 10] = take(journal)?;
                let key_len = u16::from_le_bytes(take(journal)?);
                let _value_len: [u8; 4] = take(journal)?;
                let stored_len = u32::from_le_bytes(take(journal)?);
                journal.seek_relative(i64::from(key_len) + i64::from(stored_len))?;
            }
            3 => journal.seek_relative(12)?,
            4 => journal.seek_relative(8)?,
            // Not written yet.
            _ => return Ok(true),
        }
    }
}

fn take<const LEN: usize>(journal: &mut BufReader<File>) -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    journal.read_exact(&mut bytes)?;
    Ok(bytes)
}
