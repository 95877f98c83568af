//! Prose: its sentences, its words, and how long both are.
//!
//! The rules of `tidy` and the table of `cargo xtask prose` measure with the same code.

pub mod markdown;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Documents whose text is generated from sources, which are the place to change them.
const GENERATED: [&str; 2] = ["docs/admin-api.md", "docs/metrics.md"];

/// Abbreviations whose dot ends no sentence.
const ABBREVIATIONS: [&str; 4] = ["e.g.", "i.e.", "etc.", "vs."];

/// A run of prose that is a paragraph, an item of a list, a heading or a cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its start, from 1.
    pub line: usize,
    /// What the reader sees, in one line, with code replaced by [`CODE`].
    pub text: String,
    /// Whether it consists of sentences; headings and tables do not.
    pub has_sentences: bool,
}

/// Stands for code inside of prose: a word that no rule knows.
pub const CODE: &str = "\u{ab}code\u{bb}";

/// A sentence of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The line of the block's start, from 1.
    pub line: usize,
    /// Its words and punctuation.
    pub text: String,
}

impl Sentence {
    /// How many words it has. Signs that stand alone are no words.
    pub fn words(&self) -> usize {
        self.text
            .split_whitespace()
            .filter(|word| word.chars().any(char::is_alphanumeric))
            .count()
    }
}

/// Whether `path` is a document that people write.
pub fn is_document(path: &str) -> bool {
    let at_top = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ]
    .contains(&path);
    (at_top || path.starts_with("docs/") && path.ends_with(".md")) && !GENERATED.contains(&path)
}

/// The sentences of `blocks`.
pub fn sentences(blocks: &[Block]) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    for block in blocks.iter().filter(|block| block.has_sentences) {
        let mut words: Vec<&str> = Vec::new();
        let mut all = block.text.split_whitespace().peekable();
        while let Some(word) = all.next() {
            words.push(word);
            let at_end = all.peek().is_none_or(|next| ends(word, next));
            if at_end {
                let text = words.join(" ");
                let sentence = Sentence {
                    line: block.line,
                    text,
                };
                if sentence.words() > 0 {
                    sentences.push(sentence);
                }
                words.clear();
            }
        }
    }
    sentences
}

/// Whether a sentence ends between `word` and `next`.
fn ends(word: &str, next: &str) -> bool {
    let stem = word.trim_end_matches([')', '"', '*', '_', '\u{201d}']);
    stem.ends_with(['.', '!', '?'])
        && !ABBREVIATIONS.contains(&stem.trim_start_matches('('))
        && next
            .chars()
            .find(|c| !matches!(c, '(' | '"' | '*' | '_' | '[' | '\u{201c}'))
            .is_some_and(|c| !c.is_lowercase())
}

/// The sizes of a document.
struct Sizes {
    path: String,
    words: usize,
    sentences: usize,
    words_in_sentences: usize,
    longest: usize,
}

impl Sizes {
    fn of(path: &str, text: &str) -> Self {
        let lengths: Vec<usize> = sentences(&markdown::blocks(text))
            .iter()
            .map(Sentence::words)
            .collect();
        Self {
            path: path.to_owned(),
            words: text.split_whitespace().count(),
            sentences: lengths.len(),
            words_in_sentences: lengths.iter().sum(),
            longest: lengths.iter().copied().max().unwrap_or(0),
        }
    }

    /// Tenths of a word, so that the figures are exact.
    fn mean_tenths(&self) -> usize {
        (self.words_in_sentences * 10)
            .checked_div(self.sentences)
            .unwrap_or(0)
    }
}

/// The table of all documents below `root`: words, sentences and their lengths.
pub fn table(root: &Path) -> Result<String> {
    let mut paths = Vec::new();
    collect(root, "", &mut paths)?;
    collect(root, "docs", &mut paths)?;
    paths.sort_unstable();
    let mut out =
        String::from("| document | words | sentences | mean | longest |\n|---|---|---|---|---|\n");
    for path in paths {
        let text =
            fs::read_to_string(root.join(&path)).with_context(|| format!("reading {path}"))?;
        let sizes = Sizes::of(&path, &text);
        let mean = sizes.mean_tenths();
        let (whole, tenth) = (mean / 10, mean % 10);
        writeln!(
            out,
            "| {} | {} | {} | {whole}.{tenth} | {} |",
            sizes.path, sizes.words, sizes.sentences, sizes.longest
        )?;
    }
    Ok(out)
}

/// Adds the documents of the folder `under`; folders of `docs` are entered.
fn collect(root: &Path, under: &str, paths: &mut Vec<String>) -> Result<()> {
    let folder = root.join(under);
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("reading {}", folder.display()))?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        let path = if under.is_empty() {
            name
        } else {
            format!("{under}/{name}")
        };
        if entry.path().is_dir() {
            if !under.is_empty() {
                collect(root, &path, paths)?;
            }
        } else if is_document(&path) {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(markdown: &str) -> Vec<String> {
        sentences(&markdown::blocks(markdown))
            .into_iter()
            .map(|sentence| sentence.text)
            .collect()
    }

    #[test]
    fn sentences_end_with_a_mark_before_a_capital_or_with_the_block() {
        assert_eq!(
            texts(
                "The node starts. It takes 1.5 s (e.g. on a laptop). And 3 s later?\nYes: it\nends\n\n- One\n- Two. Three"
            ),
            [
                "The node starts.",
                "It takes 1.5 s (e.g. on a laptop).",
                "And 3 s later?",
                "Yes: it ends",
                "One",
                "Two.",
                "Three"
            ]
        );
    }

    #[test]
    fn words_are_counted_and_signs_are_not() {
        let sentence = Sentence {
            line: 1,
            text: format!("The node \u{2013} or 2 = {CODE} \u{2013} waits."),
        };
        assert_eq!(sentence.words(), 6);
    }

    #[test]
    fn the_table_has_words_and_mean_of_each_document_and_no_generated_ones() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("docs/adr")).unwrap();
        for (path, text) in [
            ("README.md", "# Fonn\n\nOne two. Three four five.\n"),
            ("docs/adr/0001-x.md", "A b c d.\n"),
            ("docs/metrics.md", "Made from code.\n"),
            ("other.md", "Not a document.\n"),
        ] {
            fs::write(dir.path().join(path), text).unwrap();
        }
        let table = table(dir.path()).unwrap();
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| README.md | 7 | 2 | 2.5 | 3 |",
                "| docs/adr/0001-x.md | 4 | 1 | 4.0 | 4 |"
            ]
        );
    }
}
