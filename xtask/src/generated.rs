//! Files in the repository that are made from the code, wholly or in part.
//!
//! Invariant, which a test of each generator keeps: what is checked in is what would be generated.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};

/// A file and how it is made.
pub struct File {
    /// From the root of the repository.
    pub path: &'static str,
    /// Makes the new text from the old one, which is empty for a new file.
    pub make: fn(&str) -> Result<String>,
}

impl File {
    /// The text as it is, and as it should be.
    fn texts(&self, root: &Path) -> Result<(String, String)> {
        let old = match fs::read_to_string(root.join(self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("reading {}", self.path))?,
        };
        let new = (self.make)(&old).with_context(|| format!("making {}", self.path))?;
        Ok((old, new))
    }

    /// Brings the file up to date; whether it was not.
    pub fn write(&self, root: &Path) -> Result<bool> {
        let (old, new) = self.texts(root)?;
        if old == new {
            return Ok(false);
        }
        let path = root.join(self.path);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        fs::write(&path, new).with_context(|| format!("writing {}", self.path))?;
        Ok(true)
    }

    /// Fails the test that calls it if the checked-in file is not what would be generated.
    #[cfg(test)]
    pub fn assert_up_to_date(&self) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (old, new) = self.texts(root).unwrap();
        let differing = old
            .lines()
            .zip(new.lines())
            .find(|(old, new)| old != new)
            .unwrap_or(("", "one of them is longer"));
        assert!(
            old == new,
            "{} is not what the code says, first at\n- {}\n+ {}",
            self.path,
            differing.0,
            differing.1
        );
    }
}

/// Replaces what is between the markers of `section`:
/// `<!-- generated: section, by … -->` and `<!-- end of section -->`, each on a line of its own.
pub fn fill(text: &str, section: &str, content: &str) -> Result<String> {
    let begin = format!("<!-- generated: {section},");
    let end = format!("<!-- end of {section} -->");
    let start = text
        .find(&begin)
        .and_then(|at| Some(at + text.get(at..)?.find('\n')? + 1))
        .with_context(|| format!("there is no line `{begin} …`"))?;
    let (before, rest) = text.split_at(start);
    let stop = rest
        .find(&end)
        .with_context(|| format!("there is no line `{end}` behind the beginning of {section}"))?;
    // Blank lines, for a table beside a comment is not a table everywhere.
    Ok(format!(
        "{before}\n{}\n\n{}",
        content.trim_end(),
        &rest[stop..]
    ))
}

/// A table in Markdown; bars in cells are escaped.
pub fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let line = |cells: [String; N]| {
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(header.map(str::to_owned));
    text.push_str(&format!("|{}\n", "---|".repeat(N)));
    text.extend(rows.into_iter().map(line));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a\n<!-- generated: x, by y -->\nold\n<!-- end of x -->\nb\n";

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let filled = fill(TEXT, "x", "new\nlines\n").unwrap();
        assert_eq!(
            filled,
            "a\n<!-- generated: x, by y -->\n\nnew\nlines\n\n<!-- end of x -->\nb\n"
        );
        assert_eq!(fill(&filled, "x", "new\nlines").unwrap(), filled);
        for text in [
            "",
            "<!-- generated: x, by y -->\nold\n",
            "<!-- end of x -->\n",
        ] {
            assert!(fill(text, "x", "new").is_err(), "{text}");
        }
        assert!(fill(TEXT, "z", "new").is_err());
    }

    #[test]
    fn cells_cannot_end_a_table_column() {
        let rows = [["a|b".to_owned(), "c".to_owned()]];
        assert_eq!(
            table(["x", "y"], rows),
            "| x | y |\n|---|---|\n| a\\|b | c |\n"
        );
    }

    #[test]
    fn writing_says_whether_anything_changed() {
        let dir = tempfile::tempdir().unwrap();
        let file = File {
            path: "new/file.txt",
            make: |_| Ok("text\n".to_owned()),
        };
        assert!(file.write(dir.path()).unwrap());
        assert!(!file.write(dir.path()).unwrap());
        let text = fs::read_to_string(dir.path().join(file.path)).unwrap();
        assert_eq!(text, "text\n");
    }
}
