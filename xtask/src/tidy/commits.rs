//! The subjects of commits: `area: what it does`, at most 72 characters.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Finding, git};

/// Most characters of a subject.
const SUBJECT_MAX: usize = 72;

/// Checks the commits of `range` (`BASE..HEAD`) of the repository at `root`. Merges are no commits
/// of their own.
pub fn check(root: &Path, range: &str) -> Result<Vec<Finding>> {
    let output = git(root)
        .args(["log", "--no-merges", "--format=%h %s", "--end-of-options"])
        .arg(range)
        .output()
        .context("running git log")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "git log {range} failed: {}",
        stderr.trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let mut findings = Vec::new();
    for line in text.lines() {
        let (commit, subject) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(message) = fault(subject) {
            findings.push(Finding {
                path: format!("commit {commit}"),
                line: None,
                message: format!("{message}: \"{subject}\""),
            });
        }
    }
    Ok(findings)
}

/// What is wrong with a subject.
fn fault(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > SUBJECT_MAX {
        return Some(format!(
            "a subject of {length} characters, more than {SUBJECT_MAX}"
        ));
    }
    let is_area = |area: &str| {
        !area.is_empty()
            && area.chars().all(|c| {
                c.is_ascii_lowercase()
                    || c.is_ascii_digit()
                    || matches!(c, '-' | '_' | '/' | '.' | ',' | ' ')
            })
    };
    match subject.split_once(": ") {
        Some((area, what)) if is_area(area) && !what.trim().is_empty() => None,
        _ => Some("a subject that is not `area: what it does`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn subjects_name_an_area_and_are_short() {
        let long = format!("node: {}", "x".repeat(67));
        for (subject, fine) in [
            ("node: answer reads from the disk tier", true),
            ("cold-tier, docs: name the bucket", true),
            (long.as_str(), false),
            ("answer reads", false),
            ("Node: answer reads", false),
            ("node:", false),
            ("node:answer", false),
            (": answer", false),
        ] {
            assert_eq!(fault(subject).is_none(), fine, "{subject}");
        }
        assert!(fault(&long[..72]).is_none());
    }

    #[test]
    fn the_commits_of_a_range_are_checked_and_a_range_that_is_not_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let run = |args: &[&str]| assert!(git(root).args(args).output().unwrap().status.success());
        run(&["init", "-q"]);
        for (index, subject) in ["Old subject", "node: fine", "bad subject"]
            .iter()
            .enumerate()
        {
            fs::write(root.join("a"), index.to_string()).unwrap();
            run(&["add", "a"]);
            let author = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
            run(&[&author[..], &["commit", "-q", "-m", subject]].concat());
        }
        let findings = check(root, "HEAD~2..HEAD").unwrap();
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.ends_with("\"bad subject\""));
        assert!(check(root, "no-such..HEAD").is_err());
    }
}
