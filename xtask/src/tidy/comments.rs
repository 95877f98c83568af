//! The comments and the names of the tests of a Rust file.
//!
//! It is no parser: it knows strings, characters and comments, so that it finds each comment and
//! nothing else.

/// A line of a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommentLine {
    /// The line in the file, from 1.
    pub line: usize,
    /// How wide the line of the file is, in characters.
    pub width: usize,
    /// What follows the slashes or the star, without white space around it.
    pub text: String,
    /// Whether it is a line of a code block inside of a comment.
    pub is_code: bool,
}

/// Where the scanner is.
enum Place {
    Code,
    Text,
    RawText { hashes: usize },
    LineComment,
    BlockComment { depth: usize },
}

/// All lines of comments of `source`.
pub fn comment_lines(source: &str) -> Vec<CommentLine> {
    let mut place = Place::Code;
    let mut in_fence = false;
    let mut found = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let comment = scan_line(line, &mut place);
        let Some(comment) = comment else {
            in_fence = false;
            continue;
        };
        let text = comment
            .trim_start()
            .trim_start_matches(['/', '!', '*'])
            .trim_end_matches("*/")
            .trim();
        let is_fence = text.starts_with("```");
        found.push(CommentLine {
            line: index + 1,
            width: line.chars().count(),
            text: text.to_owned(),
            is_code: in_fence || is_fence,
        });
        if is_fence {
            in_fence = !in_fence;
        }
    }
    found
}

/// Scans a line from `place` on, and returns the comment in it.
fn scan_line<'line>(line: &'line str, place: &mut Place) -> Option<&'line str> {
    let mut comment_at = matches!(place, Place::BlockComment { .. }).then_some(0);
    let mut at = 0;
    while let Some(rest) = line.get(at..).filter(|rest| !rest.is_empty()) {
        let step;
        (*place, step) = match place {
            Place::Code => code_step(rest),
            Place::Text if rest.starts_with('\\') => {
                let escaped = rest.chars().nth(1).map_or(0, char::len_utf8);
                (Place::Text, 1 + escaped)
            }
            Place::Text if rest.starts_with('"') => (Place::Code, 1),
            Place::Text => (Place::Text, char_len(rest)),
            Place::RawText { hashes } => {
                let end = format!("\"{}", "#".repeat(*hashes));
                if rest.starts_with(&end) {
                    (Place::Code, end.len())
                } else {
                    (Place::RawText { hashes: *hashes }, char_len(rest))
                }
            }
            Place::LineComment => (Place::LineComment, rest.len()),
            Place::BlockComment { depth } => {
                if rest.starts_with("/*") {
                    (Place::BlockComment { depth: *depth + 1 }, 2)
                } else if rest.starts_with("*/") && *depth == 1 {
                    (Place::Code, 2)
                } else if rest.starts_with("*/") {
                    (Place::BlockComment { depth: *depth - 1 }, 2)
                } else {
                    (Place::BlockComment { depth: *depth }, char_len(rest))
                }
            }
        };
        if matches!(place, Place::LineComment | Place::BlockComment { .. }) {
            comment_at.get_or_insert(at);
        }
        at += step;
    }
    if matches!(place, Place::LineComment) {
        *place = Place::Code;
    }
    comment_at.and_then(|at| line.get(at..))
}

/// The place after the next token of code, and the bytes of the token.
fn code_step(rest: &str) -> (Place, usize) {
    if rest.starts_with("//") {
        return (Place::LineComment, 2);
    }
    if rest.starts_with("/*") {
        return (Place::BlockComment { depth: 1 }, 2);
    }
    if rest.starts_with('"') {
        return (Place::Text, 1);
    }
    if let Some(after) = rest.strip_prefix('\'') {
        // A lifetime has no second quote behind its first character.
        let mut chars = after.chars();
        let len = match chars.next() {
            Some('\\') => after
                .get(2..)
                .and_then(|tail| tail.find('\''))
                .map_or(1, |end| end + 4),
            Some(c) if chars.next() == Some('\'') => c.len_utf8() + 2,
            _ => 1,
        };
        return (Place::Code, len);
    }
    // A word as a whole, so that the `r` of a raw string is not the end of a name.
    let word = rest.len()
        - rest
            .trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
            .len();
    if let Some("r" | "br" | "cr") = rest.get(..word) {
        let after = rest.get(word..).unwrap_or_default();
        let hashes = after.len() - after.trim_start_matches('#').len();
        if after
            .get(hashes..)
            .is_some_and(|tail| tail.starts_with('"'))
        {
            return (Place::RawText { hashes }, word + hashes + 1);
        }
    }
    (Place::Code, word.max(char_len(rest)))
}

fn char_len(text: &str) -> usize {
    text.chars().next().map_or(1, char::len_utf8)
}

/// The names of the tests of `source`, with their lines from 1.
pub fn test_names(source: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut is_test = false;
    for (index, line) in source.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("#[") {
            is_test |= ["#[test]", "#[tokio::test", "#[test_"]
                .iter()
                .any(|attribute| line.starts_with(attribute));
        } else if is_test && let Some((_, after)) = line.split_once("fn ") {
            let name = after
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next();
            names.extend(name.map(|name| (index + 1, name)));
            is_test = false;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_found_and_strings_are_not() {
        let source = r####"
//! Head.
let url = "http://x"; // after code
let raw = r#"// "not"#; /* a /* b */ c */ let c = '"'; // quote
let life: &'static str = "a \" // b";
let multi = "first
// still text
"; /// doc
/* one
 * two */
let name = for_r"//"; let esc = '\''; // end
"####;
        let found: Vec<(usize, String)> = comment_lines(source)
            .into_iter()
            .map(|comment| (comment.line, comment.text))
            .collect();
        let expected = [
            (2, "Head."),
            (3, "after code"),
            (4, "a /* b */ c */ let c = '\"'; // quote"),
            (8, "doc"),
            (9, "one"),
            (10, "two"),
            (11, "end"),
        ];
        let expected: Vec<(usize, String)> = expected
            .into_iter()
            .map(|(line, text)| (line, text.to_owned()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn code_blocks_of_comments_are_marked() {
        let lines = comment_lines("/// a\n/// ```\n/// b\n/// ```\n/// c\n");
        let code: Vec<bool> = lines.iter().map(|line| line.is_code).collect();
        assert_eq!(code, [false, true, true, true, false]);
        assert_eq!(lines[0].width, 5);
    }

    #[test]
    fn tests_are_found_behind_their_attributes() {
        let source = "#[test]\nfn a_b() {}\nfn no_test() {}\n    #[tokio::test(flavor = \"x\")]\n    \
                      #[cfg(unix)]\n    // why\n    async fn c_d() {\n#[cfg(test)]\nmod tests {\n";
        assert_eq!(test_names(source), [(2, "a_b"), (7, "c_d")]);
    }
}
