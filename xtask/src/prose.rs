//! Prose: its sentences, and how many words they have.

pub mod markdown;

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
}
