//! What the compiler and clippy do not check about the house.
//!
//! The rules work on file names and texts, so their tests need no repository.

mod comments;
mod commits;
mod graph;
mod prose;
mod sources;
mod words;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub path: String,
    /// The line in it, from 1, if it is about one.
    pub line: Option<usize>,
    /// The breach, and what would be right.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.message),
            None => write!(f, "{}: {}", self.path, self.message),
        }
    }
}

/// A file of the repository.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Its path from the root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Checks all rules on the repository at `root`, and the subjects of the `commits` of a range.
pub fn check(root: &Path, commits: Option<&str>) -> Result<Vec<Finding>> {
    let files = tracked_files(root)?;
    let mut findings = graph::check(&files)?;
    findings.extend(files.iter().flat_map(sources::check));
    findings.extend(files.iter().flat_map(prose::check));
    if let Some(range) = commits {
        findings.extend(commits::check(root, range)?);
    }
    Ok(findings)
}

/// Git in `root`, even where a hook of another repository calls this.
fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(root);
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    command
}

/// The text files that git tracks or would track.
fn tracked_files(root: &Path) -> Result<Vec<SourceFile>> {
    let output = git(root)
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .context("running git ls-files")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "git ls-files failed: {}",
        stderr.trim()
    );
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut files = Vec::new();
    for path in names.split_terminator('\0') {
        let full = root.join(path);
        // Deleted but still in the index, or a submodule or link.
        if !fs::symlink_metadata(&full).is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let bytes = fs::read(&full).with_context(|| format!("reading {path}"))?;
        // What is no text (images, golden bytes) has no lines to check.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile {
                path: path.to_owned(),
                text,
            });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_git(root: &Path, args: &[&str]) {
        assert!(git(root).args(args).status().unwrap().success());
    }

    #[test]
    fn tracked_and_new_text_files_are_read_and_ignored_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        run_git(root, &["init", "-q"]);
        for (name, bytes) in [
            (".gitignore", b"/target\n".as_slice()),
            ("a.rs", b"// a\n"),
            ("gone.rs", b"// gone\n"),
            ("new file.rs", b"// new\n"),
            ("image.bin", b"\xff\xfe"),
        ] {
            fs::write(root.join(name), bytes).unwrap();
        }
        fs::create_dir(root.join("target")).unwrap();
        fs::write(root.join("target/x.rs"), "// built").unwrap();
        run_git(root, &["add", "a.rs", "gone.rs"]);
        fs::remove_file(root.join("gone.rs")).unwrap();
        let mut paths: Vec<String> = tracked_files(root)
            .unwrap()
            .into_iter()
            .map(|file| file.path)
            .collect();
        paths.sort_unstable();
        assert_eq!(paths, [".gitignore", "a.rs", "new file.rs"]);
    }

    #[test]
    fn a_directory_without_repository_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = check(dir.path(), None).unwrap_err().to_string();
        assert!(error.contains("git ls-files failed"), "{error}");
    }

    /// Fails as soon as a change breaks a rule, so that `cargo test` alone shows it.
    #[test]
    fn this_repository_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let findings = check(root, None).unwrap();
        let text: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "\n{}", text.join("\n"));
    }

    #[test]
    fn findings_name_file_and_line() {
        let mut finding = Finding {
            path: "a/b.rs".to_owned(),
            line: Some(3),
            message: "wrong".to_owned(),
        };
        assert_eq!(finding.to_string(), "a/b.rs:3: wrong");
        finding.line = None;
        assert_eq!(finding.to_string(), "a/b.rs: wrong");
    }
}
