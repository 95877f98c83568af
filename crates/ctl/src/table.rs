//! Tables in text.

use std::fmt::Write as _;

/// On which side of a column its cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A table with a header.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

/// Between columns.
const GAP: &str = "  ";

impl Table {
    pub(super) fn new(columns: &[(&'static str, Side)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows
            .push(cells.into_iter().map(|it| printable(&it)).collect());
    }

    /// The text, a line for the header and each row.
    pub(super) fn render(&self) -> String {
        let width = |index: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            let header = self.columns.get(index).map_or(0, |(name, _)| name.len());
            cells
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
                .max(header)
        };
        let header = self
            .columns
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for (index, (cell, (_, side))) in row.iter().zip(&self.columns).enumerate() {
                let width = width(index);
                let gap = if index == 0 { "" } else { GAP };
                // Writing to a string does not fail.
                let _ = match side {
                    Side::Left => write!(line, "{gap}{cell:<width$}"),
                    Side::Right => write!(line, "{gap}{cell:>width$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Lines of a name and a value each, with the values in one column.
pub(super) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in pairs {
        let _ = writeln!(text, "{name:<width$}{GAP}{}", printable(value));
    }
    text
}

/// Text of others without what a terminal would act on.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{FFFD}' } else { c };
    text.chars().map(shown).collect()
}
