//! `LCS`: the longest common subsequence of two values, with the ties of Redis (`lcsCommand` in
//! `t_string.c`), which decide which of several subsequences is told.

use super::encode::{Protocol, put_array_len, put_bulk, put_integer, put_map_len};
use super::wording::{self, ReplyError};
use crate::Out;

/// Cells of the table at most: it takes four bytes and about a nanosecond a cell.
pub(super) const CELLS_MAX: usize = 1 << 18;

/// What `LCS` was asked for, and the values that were read for it.
#[derive(Debug, Default)]
pub(super) struct Lcs {
    pub(super) tells_len: bool,
    pub(super) tells_matches: bool,
    pub(super) tells_match_len: bool,
    pub(super) match_len_min: u64,
    pub(super) values: Vec<Vec<u8>>,
    /// Why there is no answer: a value was not read, or is too long.
    failure: Option<ReplyError>,
}

/// A common part: where it begins in both values, and its length.
#[derive(Debug, PartialEq, Eq)]
struct Match {
    first: usize,
    second: usize,
    len: usize,
}

impl Lcs {
    /// Takes a value that was read.
    pub(super) fn take(&mut self, value: &[u8]) {
        if value.len() > CELLS_MAX {
            self.fail(wording::LCS_TOO_LONG);
        } else {
            self.values.push(value.to_vec());
        }
    }

    /// Notes why there is no answer.
    pub(super) fn fail(&mut self, error: ReplyError) {
        self.failure.get_or_insert(error);
    }

    /// Words the answer.
    ///
    /// # Errors
    /// If a value was not read, or both are too long together; nothing is worded then.
    pub(super) fn put(&self, out: &mut Out, protocol: Protocol) -> Result<(), ReplyError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let (first, second) = match self.values.as_slice() {
            [first, second] => (first.as_slice(), second.as_slice()),
            _ => return Err(wording::INTERNAL),
        };
        let table = Table::new(first, second).ok_or(wording::LCS_TOO_LONG)?;
        let len = table.at(first.len(), second.len());
        let put_len = |out: &mut Out| put_integer(out, i64::from(len));
        if self.tells_matches {
            put_map_len(out, protocol, 2);
            put_bulk(out, b"matches");
            let mut matches = table.matches(first, second);
            matches.retain(|it| it.len as u64 >= self.match_len_min);
            put_array_len(out, matches.len());
            for found in &matches {
                put_array_len(out, 2 + usize::from(self.tells_match_len));
                for start in [found.first, found.second] {
                    put_array_len(out, 2);
                    put_integer(out, start as i64);
                    put_integer(out, (start + found.len - 1) as i64);
                }
                if self.tells_match_len {
                    put_integer(out, found.len as i64);
                }
            }
            put_bulk(out, b"len");
            put_len(out);
        } else if self.tells_len {
            put_len(out);
        } else {
            let matches = table.matches(first, second);
            let parts = matches.iter().rev().map(|it| {
                let range = it.first..it.first + it.len;
                first.get(range).unwrap_or_default()
            });
            put_bulk(out, &parts.collect::<Vec<_>>().concat());
        }
        Ok(())
    }
}

/// The lengths of the longest common subsequences of all beginnings.
struct Table {
    width: usize,
    cells: Vec<u32>,
}

impl Table {
    fn new(first: &[u8], second: &[u8]) -> Option<Self> {
        let width = second.len() + 1;
        let cells = (first.len() + 1).checked_mul(width)?;
        if first.len().checked_mul(second.len())? > CELLS_MAX {
            return None;
        }
        let mut table = Self {
            width,
            // An empty value has no subsequence: its table is not looked at.
            cells: vec![
                0;
                if first.is_empty() || second.is_empty() {
                    0
                } else {
                    cells
                }
            ],
        };
        if table.cells.is_empty() {
            return Some(table);
        }
        for (row, a) in first.iter().enumerate() {
            for (column, b) in second.iter().enumerate() {
                let len = match a == b {
                    true => table.at(row, column) + 1,
                    false => table.at(row, column + 1).max(table.at(row + 1, column)),
                };
                table.cells[(row + 1) * width + column + 1] = len;
            }
        }
        Some(table)
    }

    fn at(&self, row: usize, column: usize) -> u32 {
        let cell = self.cells.get(row * self.width + column);
        cell.copied().unwrap_or(0)
    }

    /// The parts of the longest common subsequence, the last one first.
    fn matches(&self, first: &[u8], second: &[u8]) -> Vec<Match> {
        let mut matches: Vec<Match> = Vec::new();
        let (mut row, mut column) = (first.len(), second.len());
        let mut is_open = false;
        while row > 0 && column > 0 {
            if first[row - 1] == second[column - 1] {
                (row, column) = (row - 1, column - 1);
                match matches.last_mut() {
                    Some(last) if is_open => {
                        (last.first, last.second) = (row, column);
                        last.len += 1;
                    }
                    _ => matches.push(Match {
                        first: row,
                        second: column,
                        len: 1,
                    }),
                }
                is_open = true;
                continue;
            }
            is_open = false;
            match self.at(row - 1, column) > self.at(row, column - 1) {
                true => row -= 1,
                false => column -= 1,
            }
        }
        matches
    }
}
