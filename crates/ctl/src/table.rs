//! Tables in text.

use std::fmt::Write as _;

/// A table with a header.
#[derive(Debug)]
pub(super) struct Table {
    /// Names, and whether the cells stand on the right.
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

/// Between columns.
const GAP: &str = "  ";

impl Table {
    /// A table of columns with these names. Where `>` is in front, the cells stand on the right.
    pub(super) fn new(columns: &[&'static str]) -> Self {
        let columns = columns.iter().map(|column| match column.strip_prefix('>') {
            Some(name) => (name, true),
            None => (*column, false),
        });
        Self {
            columns: columns.collect(),
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
            for (index, (cell, (_, is_right))) in row.iter().zip(&self.columns).enumerate() {
                let width = width(index);
                let gap = if index == 0 { "" } else { GAP };
                // Writing to a string does not fail.
                let _ = match is_right {
                    false => write!(line, "{gap}{cell:<width$}"),
                    true => write!(line, "{gap}{cell:>width$}"),
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
