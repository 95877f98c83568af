//! Rules about prose: words, the length of sentences, the width of lines.

use super::comments::{comment_lines, test_names};
use super::words::unwanted;
use super::{Finding, SourceFile};
use crate::prose::markdown::{self, LineKind};
use crate::prose::{is_document, sentences};

/// Most words of a sentence in a document.
const SENTENCE_WORDS_MAX: usize = 30;

/// Most columns of a line of a Rust comment.
const COMMENT_WIDTH_MAX: usize = 100;

/// Most columns of a line of text in a document.
const DOCUMENT_WIDTH_MAX: usize = 120;

/// Directories of Rust files that are generated.
const GENERATED_DIRS: [&str; 1] = ["src/gen/"];

/// Names the unwanted words; it cannot do without them.
const WORD_LIST: &str = "xtask/src/tidy/words.rs";

/// Checks one file.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    if is_document(&file.path) {
        check_document(file)
    } else if file.path.ends_with(".rs")
        && file.path != WORD_LIST
        && !GENERATED_DIRS.iter().any(|dir| file.path.contains(dir))
    {
        check_rust(file)
    } else {
        Vec::new()
    }
}

fn finding(file: &SourceFile, line: usize, message: String) -> Finding {
    Finding {
        path: file.path.clone(),
        line: Some(line),
        message,
    }
}

fn unwanted_words(file: &SourceFile, line: usize, text: &str) -> Vec<Finding> {
    unwanted(text)
        .into_iter()
        .map(|(phrase, instead)| finding(file, line, format!("`{phrase}`: write {instead}")))
        .collect()
}

fn check_document(file: &SourceFile) -> Vec<Finding> {
    let blocks = markdown::blocks(&file.text);
    let mut found = Vec::new();
    for block in &blocks {
        found.extend(unwanted_words(file, block.line, &block.text));
    }
    for sentence in sentences(&blocks) {
        let words = sentence.words();
        if words > SENTENCE_WORDS_MAX {
            let start: Vec<&str> = sentence.text.split_whitespace().take(6).collect();
            let message = format!(
                "a sentence of {words} words, more than {SENTENCE_WORDS_MAX}: \"{}\u{2026}\"",
                start.join(" ")
            );
            found.push(finding(file, sentence.line, message));
        }
    }
    for (line, kind, text) in markdown::lines(&file.text) {
        let plain = markdown::plain(text.trim());
        if kind == LineKind::Text && is_too_wide(&plain, width(text), DOCUMENT_WIDTH_MAX) {
            found.push(too_wide(file, line, width(text), DOCUMENT_WIDTH_MAX));
        }
    }
    found
}

fn check_rust(file: &SourceFile) -> Vec<Finding> {
    let mut found = Vec::new();
    for comment in comment_lines(&file.text) {
        if !comment.is_code {
            let text = markdown::plain(&comment.text);
            found.extend(unwanted_words(file, comment.line, &text));
        }
        if !comment.is_code && is_too_wide(&comment.text, comment.width, COMMENT_WIDTH_MAX) {
            let columns = comment.width;
            found.push(too_wide(file, comment.line, columns, COMMENT_WIDTH_MAX));
        }
    }
    for (line, name) in test_names(&file.text) {
        found.extend(unwanted_words(file, line, &name.replace('_', " ")));
    }
    found
}

fn width(line: &str) -> usize {
    line.chars().count()
}

/// Whether a line is wider than it may be, and could be broken: a row of a table and a single word,
/// such as an address or a command, cannot.
fn is_too_wide(text: &str, columns: usize, columns_max: usize) -> bool {
    columns > columns_max
        && !text.starts_with('|')
        && text
            .trim_start_matches(['-', '>', '*', ' '])
            .contains(char::is_whitespace)
}

fn too_wide(file: &SourceFile, line: usize, columns: usize, columns_max: usize) -> Finding {
    let message = format!("{columns} columns, more than {columns_max}: wrap it");
    finding(file, line, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(&'static str, Option<usize>)> {
        let file = SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let rule = |message: &str| match message {
            it if it.starts_with('`') => "words",
            it if it.starts_with("a sentence") => "sentences",
            _ => "width",
        };
        check(&file)
            .into_iter()
            .map(|finding| (rule(&finding.message), finding.line))
            .collect()
    }

    #[test]
    fn unwanted_words_are_found_in_documents_comments_and_test_names() {
        let words = |line| ("words", Some(line));
        assert_eq!(
            rules("docs/a.md", "Fine.\n\nNobody waits.\n\n| `who` | who |\n"),
            [words(3), words(5)]
        );
        let source =
            "/// Nobody.\nlet nobody = \"nobody\"; // `nobody`\n#[test]\nfn who_is_first() {}\n";
        assert_eq!(rules("a/src/b.rs", source), [words(1), words(4)]);
        for path in ["docs/metrics.md", "a/b.md", WORD_LIST, "proto/src/gen/a.rs"] {
            assert!(rules(path, "// nobody").is_empty(), "{path}");
        }
    }

    #[test]
    fn sentences_of_more_than_thirty_words_are_found() {
        let sentence = |words: usize| format!("{}end.\n", "word ".repeat(words - 1));
        assert!(rules("README.md", &sentence(30)).is_empty() || sentence(30).len() > 120);
        let short_lines = |words: usize| sentence(words).replace("word word ", "word word\n");
        assert!(rules("README.md", &short_lines(30)).is_empty());
        let found = rules("README.md", &format!("# Title\n\n{}", short_lines(31)));
        assert_eq!(found, [("sentences", Some(3))]);
        assert!(rules("README.md", &format!("| {} |", sentence(31).trim())).is_empty());
    }

    #[test]
    fn wide_lines_are_found_unless_they_cannot_be_broken() {
        let comment = |width: usize| format!("// a {}\n", "x".repeat(width - 5));
        assert!(rules("a.rs", &comment(100)).is_empty());
        assert_eq!(rules("a.rs", &comment(101)), [("width", Some(1))]);
        let document = |width: usize| format!("a {}\n", "x".repeat(width - 2));
        assert!(rules("docs/a.md", &document(120)).is_empty());
        assert_eq!(rules("docs/a.md", &document(121)), [("width", Some(1))]);
        let word = "x".repeat(200);
        assert!(
            rules(
                "a.rs",
                &format!(
                    "/// | {word} | b |\n// {word}\nlet a = \"{word} b\";\n// ```\n// {word} b"
                )
            )
            .is_empty()
        );
        assert!(rules("docs/a.md", &format!("a\n`cat {word}`\n")).is_empty());
        let text = format!("- {word}\n\n| {word} | b |\n\n```\n{word} b\n```\n");
        assert!(rules("docs/a.md", &text).is_empty());
    }
}
