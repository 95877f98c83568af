//! Rules about single files: how long they are, and what must not be in them.

use super::{Finding, SourceFile};

/// Most lines of a source file: more are two things in one.
const LINES_MAX: usize = 700;

/// Endings of what people write and read.
const SOURCE_ENDINGS: [&str; 12] = [
    ".rs", ".toml", ".js", ".ts", ".css", ".html", ".py", ".sh", ".proto", ".tf", ".yaml", ".yml",
];

/// Directories whose files are generated or recorded.
const GENERATED_DIRS: [&str; 4] = ["src/gen/", "testdata/", "dist/", "corpus/"];

/// Beginnings of paths that exist on one machine only. Split, so that this file passes.
const MACHINE_PATHS: [&str; 6] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("/opt/to", "ols"),
    concat!("C:", "\\Users"),
];

/// Checks one file.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = file.text.lines().count();
    if is_written_by_hand(&file.path) && lines > LINES_MAX {
        findings.push(Finding {
            path: file.path.clone(),
            line: None,
            message: format!("{lines} lines, more than {LINES_MAX}: split it by purpose"),
        });
    }
    for (index, line) in file.text.lines().enumerate() {
        if let Some(machine_path) = MACHINE_PATHS.iter().find(|path| names_path(line, path)) {
            findings.push(Finding {
                path: file.path.clone(),
                line: Some(index + 1),
                message: format!("`{machine_path}` is a path of one machine"),
            });
        }
    }
    findings
}

fn is_written_by_hand(path: &str) -> bool {
    SOURCE_ENDINGS.iter().any(|ending| path.ends_with(ending))
        && !GENERATED_DIRS.iter().any(|dir| path.contains(dir))
}

/// Whether `line` has an absolute path that begins with `machine_path`, as opposed to a longer path
/// that contains it in the middle.
fn names_path(line: &str, machine_path: &str) -> bool {
    line.match_indices(machine_path).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: impl Into<String>) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text: text.into(),
        }
    }

    #[test]
    fn long_sources_are_found_and_generated_or_other_files_are_not() {
        let lines = |count: usize| "x\n".repeat(count);
        assert!(check(&file("a/src/b.rs", lines(700))).is_empty());
        let findings = check(&file("a/src/b.rs", lines(701)));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.starts_with("701 lines"));
        for path in [
            "Cargo.lock",
            "LICENSE",
            "proto/src/gen/b.rs",
            "a/testdata/b.py",
            "docs/a.md",
        ] {
            assert!(check(&file(path, lines(5000))).is_empty(), "{path}");
        }
    }

    #[test]
    fn machine_paths_are_found_in_every_text_file() {
        for path in MACHINE_PATHS {
            let text = format!("fine\nlet dir = \"{path}somebody\";\n");
            for name in ["a.rs", "README.md", "Dockerfile"] {
                let findings = check(&file(name, text.as_str()));
                assert_eq!(findings.len(), 1, "{path}");
                assert_eq!(findings[0].line, Some(2));
            }
        }
    }

    #[test]
    fn paths_that_only_contain_such_a_name_are_fine() {
        for text in [
            concat!("docs/ho", "me/index.md"),
            concat!("${VAR}/ho", "me/x"),
            "use the homework/rooted network/works",
            "/usr/share/fonn",
        ] {
            assert!(check(&file("a.md", text)).is_empty(), "{text}");
        }
    }
}
