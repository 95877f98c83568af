//! `cargo xtask crates`: the graph and the table of crates in docs/architecture.md, from the
//! manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::generated::{File, fill, table};

/// What is written.
pub const FILES: [File; 1] = [File {
    path: "docs/architecture.md",
    make,
}];

/// They import everything, which a graph need not show.
const TOOLS: [&str; 2] = ["tests", "xtask"];

/// A crate of the workspace.
struct Crate {
    folder: String,
    about: String,
    /// Names of packages. Tests may import more.
    imports: BTreeSet<String>,
}

fn make(old: &str) -> Result<String> {
    let crates = crates(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))?;
    let page = fill(old, "crate graph", &graph(&crates))?;
    fill(&page, "crates", &rows(&crates))
}

/// All crates by the names of their packages.
fn crates(root: &Path) -> Result<BTreeMap<String, Crate>> {
    let manifest = |folder: &str| -> Result<Table> {
        let path = root.join(folder).join("Cargo.toml");
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("reading {}", path.display()))?;
        text.parse().with_context(|| format!("{}", path.display()))
    };
    let workspace = manifest("")?;
    let members = workspace["workspace"].get("members");
    let members = members.and_then(Value::as_array).context("no members")?;
    let members = members.iter().filter_map(Value::as_str);
    let crates = members.map(|folder| {
        let manifest = manifest(folder)?;
        let text = |key: &str| -> Result<String> {
            let found = manifest["package"].get(key).and_then(Value::as_str);
            Ok(found
                .with_context(|| format!("{folder} has no {key}"))?
                .to_owned())
        };
        let imports = manifest.get("dependencies").and_then(Value::as_table);
        let imports = imports.into_iter().flat_map(Table::keys);
        let made = Crate {
            folder: folder.to_owned(),
            about: text("description")?,
            imports: imports
                .filter(|it| it.starts_with("fonn-"))
                .cloned()
                .collect(),
        };
        Ok((text("name")?, made))
    });
    crates.collect()
}

/// What a crate imports, directly or through others.
fn below<'c>(crates: &'c BTreeMap<String, Crate>, name: &'c str) -> BTreeSet<&'c str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![name];
    while let Some(name) = open.pop() {
        let imports = crates.get(name).into_iter().flat_map(|it| &it.imports);
        open.extend(imports.map(String::as_str).filter(|it| found.insert(*it)));
    }
    found
}

/// The imports as a graph of Mermaid, without those that follow from others.
fn graph(crates: &BTreeMap<String, Crate>) -> String {
    let mut text = "```mermaid\nflowchart TD\n".to_owned();
    let short = |name: &str| name.trim_start_matches("fonn-").to_owned();
    for (name, one) in crates
        .iter()
        .filter(|(_, it)| !TOOLS.contains(&&*it.folder))
    {
        let direct = one.imports.iter().filter(|import| {
            let mut others = one.imports.iter().filter(|it| it != import);
            !others.any(|it| below(crates, it).contains(import.as_str()))
        });
        let direct: Vec<String> = direct.map(|it| short(it)).collect();
        // A string takes everything.
        let _ = match direct.is_empty() {
            true => writeln!(text, "  {}", short(name)),
            false => writeln!(text, "  {} --> {}", short(name), direct.join(" & ")),
        };
    }
    text + "```\n"
}

/// The crates with all that they import, the ones that import most first.
fn rows(crates: &BTreeMap<String, Crate>) -> String {
    let mut sorted: Vec<_> = crates.iter().collect();
    sorted.sort_by_key(|(name, _)| (usize::MAX - below(crates, name).len(), *name));
    let folder = |name: &String| crates.get(name).map(|it| it.folder.as_str());
    let rows = sorted.into_iter().map(|(_, one)| {
        let imports: Vec<&str> = one.imports.iter().filter_map(folder).collect();
        let imports = match (TOOLS.contains(&&*one.folder), imports.is_empty()) {
            (true, _) => "all".to_owned(),
            (false, true) => "–".to_owned(),
            (false, false) => imports.join(", ").replace("crates/", ""),
        };
        [format!("`{}`", one.folder), one.about.clone(), imports]
    });
    table(["crate", "is", "imports"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_the_crates_as_they_are() {
        for file in FILES {
            file.assert_up_to_date();
        }
    }

    #[test]
    fn imports_that_follow_from_others_are_left_out() {
        let named = |name: &str, imports: &[&str]| {
            let made = Crate {
                folder: name.to_owned(),
                about: String::new(),
                imports: imports.iter().map(|it| (*it).to_owned()).collect(),
            };
            (name.to_owned(), made)
        };
        let all = [
            named("fonn-a", &["fonn-b", "fonn-c"]),
            named("fonn-b", &["fonn-c"]),
            named("fonn-c", &[]),
        ];
        let text = graph(&BTreeMap::from(all));
        assert!(text.contains("  a --> b\n  b --> c\n  c\n"), "{text}");
    }
}
