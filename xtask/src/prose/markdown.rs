//! The prose of a Markdown text: paragraphs, items, headings and cells, without code and markup.
//!
//! It knows as much of Markdown as this repository uses. Code blocks, HTML comments, addresses of
//! links and rules of tables are no prose.

use super::{Block, CODE};

/// What a line of Markdown is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// A line of a paragraph or item.
    Text,
    /// A heading.
    Heading,
    /// A row of a table.
    Table,
    /// A line of a code block, or its fence.
    Code,
    /// Nothing, a comment of HTML, or the definition of a link.
    Other,
}

/// Each line of `text` with its number from 1 and what it is.
pub fn lines(text: &str) -> Vec<(usize, LineKind, &str)> {
    let mut fence: Option<&str> = None;
    let mut in_comment = false;
    let mut in_list = false;
    let mut lines: Vec<(usize, LineKind, &str)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let bare = line.trim_start().trim_start_matches("> ").trim_start();
        let kind = if let Some(mark) = fence {
            if bare.starts_with(mark) {
                fence = None;
            }
            LineKind::Code
        } else if in_comment || bare.starts_with("<!--") {
            in_comment = !bare.contains("-->");
            LineKind::Other
        } else if let Some(mark) = ["```", "~~~"].into_iter().find(|m| bare.starts_with(m)) {
            fence = Some(mark);
            LineKind::Code
        } else if line.starts_with("    ") && !in_list && follows_code_or_blank(&lines) {
            LineKind::Code
        } else if bare.starts_with('|') {
            LineKind::Table
        } else if bare.starts_with('#') {
            LineKind::Heading
        } else if bare.is_empty() || bare.starts_with('[') && bare.contains("]: ") {
            LineKind::Other
        } else {
            LineKind::Text
        };
        if kind == LineKind::Text {
            in_list = item_text(bare).is_some() || in_list && line.starts_with(' ');
        }
        lines.push((index + 1, kind, line));
    }
    lines
}

/// Whether an indented line that comes behind `lines` is code and does not continue a paragraph.
fn follows_code_or_blank(lines: &[(usize, LineKind, &str)]) -> bool {
    lines
        .last()
        .is_none_or(|(_, kind, _)| matches!(kind, LineKind::Code | LineKind::Other))
}

/// The blocks of `text`.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (line, kind, raw) in lines(text) {
        let mut push = |text: String, has_sentences: bool| {
            blocks.push(Block {
                line,
                text,
                has_sentences,
            });
        };
        match kind {
            LineKind::Text => {
                let bare = raw.trim().trim_start_matches("> ").trim();
                let item = item_text(bare);
                match item {
                    None if open => {
                        if let Some(block) = blocks.last_mut() {
                            block.text.push(' ');
                            block.text.push_str(bare);
                        }
                    }
                    _ => push(item.unwrap_or(bare).to_owned(), true),
                }
            }
            LineKind::Heading => push(raw.trim().trim_start_matches('#').trim().to_owned(), false),
            LineKind::Table => {
                for cell in raw.split('|').map(str::trim) {
                    if cell.chars().any(char::is_alphanumeric) {
                        push(cell.to_owned(), false);
                    }
                }
            }
            LineKind::Code | LineKind::Other => {}
        }
        open = kind == LineKind::Text;
    }
    for block in &mut blocks {
        block.text = plain(&block.text);
    }
    blocks
}

/// The text of an item of a list, if `line` begins one.
fn item_text(line: &str) -> Option<&str> {
    let bullet = ["- ", "* ", "+ "]
        .into_iter()
        .find_map(|mark| line.strip_prefix(mark));
    bullet.or_else(|| {
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        (rest.len() < line.len())
            .then(|| rest.strip_prefix(". "))
            .flatten()
    })
}

/// `text` as it is read: links without addresses, code as one word, no emphasis.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c == '`' {
            let ticks = rest.len() - rest.trim_start_matches('`').len();
            let (mark, after) = rest.split_at(ticks);
            if let Some((_, tail)) = after.split_once(mark) {
                out.push_str(CODE);
                rest = tail;
                continue;
            }
        }
        if let Some(tail) = rest.strip_prefix("](")
            && let Some((_, tail)) = tail.split_once(')')
        {
            rest = tail;
            continue;
        }
        if !matches!(c, '[' | ']' | '*') {
            out.push(c);
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_comments_and_addresses_are_no_prose() {
        let text = "# A title\n\nSee [the **page**](a/b.md#c) of `x y z`,\nplease.\n\n```sh\nwho am i\n```\n\
                    <!-- who\nelse -->\n[a]: b.md\n- first ``a ` b``\n  goes on\n2. second\n";
        let blocks = blocks(text);
        let texts: Vec<&str> = blocks.iter().map(|block| block.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "A title",
                &format!("See the page of {CODE}, please."),
                &format!("first {CODE} goes on"),
                "second"
            ]
        );
        assert_eq!(blocks[1].line, 3);
        assert!(!blocks[0].has_sentences && blocks[1].has_sentences);
    }

    #[test]
    fn indented_lines_are_code_unless_they_belong_to_an_item() {
        let text = "Text\n    goes on:\n\n    00 01\n    02\n\n- item\n\n    of two paragraphs\n";
        let blocks = blocks(text);
        let texts: Vec<&str> = blocks.iter().map(|block| block.text.as_str()).collect();
        assert_eq!(texts, ["Text goes on:", "item", "of two paragraphs"]);
    }

    #[test]
    fn cells_of_a_table_are_blocks_without_sentences() {
        let blocks = blocks("| a | b c |\n|---|---|\n| d. E | `f` |\n");
        let texts: Vec<&str> = blocks.iter().map(|block| block.text.as_str()).collect();
        assert_eq!(texts, ["a", "b c", "d. E", CODE]);
        assert!(blocks.iter().all(|block| !block.has_sentences));
        assert_eq!(blocks[2].line, 3);
    }

    #[test]
    fn an_open_tick_is_text_and_ends_nothing() {
        assert_eq!(plain("a ` b [c](d"), "a ` b c(d");
    }
}
