//! `cargo xtask sbom`: which crates the released programs are made of, as a CycloneDX 1.5 bill of
//! materials (<https://cyclonedx.org/docs/1.5/json/>).
//!
//! Crates that only tests need are left out; those of build scripts are in, since they run where
//! releases are built. The same sources make the same bytes: there is no serial number and no time
//! in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cargo::cargo;

/// The packages of the released programs.
const PROGRAMS: [&str; 4] = [
    "fonn-node",
    "fonn-router",
    "fonn-ctl",
    "fonn-ccache-storage",
];
/// For what system releases are built.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The bill of materials of the workspace at `root`, as JSON text.
///
/// # Errors
/// When cargo fails, or does not agree with `Cargo.lock`.
pub fn text(root: &Path) -> Result<String> {
    let output = cargo(root)
        .args(["metadata", "--format-version=1", "--locked"])
        .args(["--filter-platform", TARGET])
        .output()
        .context("running cargo metadata")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {stderr}");
    let metadata = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("reading Cargo.lock")?;
    let bom = bom(&metadata, &lock)?;
    Ok(format!("{}\n", serde_json::to_string_pretty(&bom)?))
}

/// The bill of what `cargo metadata` and `Cargo.lock` say.
fn bom(metadata: &Value, lock: &str) -> Result<Value> {
    let checksums = checksums(lock)?;
    let packages: BTreeMap<&str, &Value> = list(&metadata["packages"])
        .map(|package| Ok((string(&package["id"])?, package)))
        .collect::<Result<_>>()?;
    let nodes: BTreeMap<&str, &Value> = list(&metadata["resolve"]["nodes"])
        .map(|node| Ok((string(&node["id"])?, node)))
        .collect::<Result<_>>()?;
    let mut open = Vec::new();
    for (id, package) in &packages {
        if PROGRAMS.contains(&string(&package["name"])?) {
            open.push(*id);
        }
    }
    ensure!(
        open.len() == PROGRAMS.len(),
        "the programs are not in the workspace"
    );
    let programs = open.clone();
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    while let Some(id) = open.pop() {
        if edges.contains_key(id) {
            continue;
        }
        let node = nodes
            .get(id)
            .with_context(|| format!("{id} is not resolved"))?;
        let mut needed = BTreeSet::new();
        for dependency in list(&node["deps"]) {
            if list(&dependency["dep_kinds"]).any(|it| it["kind"] != "dev") {
                needed.insert(string(&dependency["pkg"])?);
            }
        }
        open.extend(&needed);
        edges.insert(id, needed);
    }
    let reference = |id: &str| -> Result<String> {
        let package = packages
            .get(id)
            .with_context(|| format!("{id} is unknown"))?;
        let (name, version) = (string(&package["name"])?, string(&package["version"])?);
        Ok(format!("pkg:cargo/{name}@{version}"))
    };
    let (mut components, mut dependencies) = (Vec::new(), Vec::new());
    for (id, needed) in &edges {
        let package = packages
            .get(id)
            .with_context(|| format!("{id} is unknown"))?;
        let (name, version) = (string(&package["name"])?, string(&package["version"])?);
        let kind = match programs.contains(id) {
            true => "application",
            false => "library",
        };
        let purl = reference(id)?;
        let mut component = json!({
            "type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl,
        });
        if let Some(license) = package["license"].as_str() {
            // An old form of OR.
            let parts: Vec<&str> = license.split('/').map(str::trim).collect();
            let expression = parts.join(" OR ");
            component["licenses"] = json!([{ "expression": expression }]);
        }
        if !package["source"].is_null() {
            let checksum = checksums.get(&(name.to_owned(), version.to_owned()));
            let checksum =
                checksum.with_context(|| format!("{purl} has no checksum in Cargo.lock"))?;
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        components.push(component);
        let needed: Vec<String> = needed
            .iter()
            .map(|id| reference(id))
            .collect::<Result<_>>()?;
        dependencies.push(json!({ "ref": purl, "dependsOn": needed }));
    }
    let version = programs.first().and_then(|id| packages.get(id));
    let version = version.map(|package| package["version"].clone());
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application", "bom-ref": "fonn", "name": "fonn", "version": version,
        }},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// SHA-256 of the archives of crates, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock is no TOML")?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let mut checksums = BTreeMap::new();
    for package in packages.context("Cargo.lock has no packages")? {
        let text = |key| {
            package
                .get(key)
                .and_then(toml::Value::as_str)
                .map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (text("name"), text("version"), text("checksum"))
        {
            checksums.insert((name, version), checksum);
        }
    }
    Ok(checksums)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string(value: &Value) -> Result<&str> {
    value.as_str().context("cargo metadata has another form")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, source: Option<&str>) -> Value {
        json!({
            "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source,
        })
    }

    fn needs(name: &str, kind: Option<&str>) -> Value {
        json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] })
    }

    /// Two programs: one needs a crate, one builds with another and is tested with a third.
    fn metadata() -> Value {
        let registry = Some("registry+https://example.com/index");
        json!({
            "packages": [
                package("fonn-node", None), package("fonn-router", None),
                package("fonn-ccache-storage", None), package("fonn-ctl", None),
                package("linked", registry), package("built", registry), package("tested", registry),
            ],
            "resolve": { "nodes": [
                { "id": "fonn-node", "deps": [needs("linked", None)] },
                { "id": "fonn-router", "deps": [needs("built", Some("build")), needs("tested", Some("dev"))] },
                { "id": "fonn-ccache-storage", "deps": [] },
                { "id": "fonn-ctl", "deps": [] },
                { "id": "linked", "deps": [] },
                { "id": "built", "deps": [needs("linked", None)] },
                { "id": "tested", "deps": [] },
            ]},
        })
    }

    const LOCK: &str = "
        [[package]]
        name = 'linked'
        version = '1.0.0'
        checksum = 'aa'
        [[package]]
        name = 'built'
        version = '1.0.0'
        checksum = 'bb'
    ";

    #[test]
    fn what_programs_are_made_of_is_listed_with_checksums_and_tests_are_not() {
        let bom = bom(&metadata(), LOCK).unwrap();
        let names: Vec<&str> = list(&bom["components"])
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        let expected = [
            "built",
            "fonn-ccache-storage",
            "fonn-ctl",
            "fonn-node",
            "fonn-router",
            "linked",
        ];
        assert_eq!(names, expected);
        assert_eq!(
            bom["components"][0],
            json!({
                "type": "library", "bom-ref": "pkg:cargo/built@1.0.0", "name": "built", "version": "1.0.0",
                "purl": "pkg:cargo/built@1.0.0", "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                "hashes": [{ "alg": "SHA-256", "content": "bb" }],
            })
        );
        let router = list(&bom["dependencies"])
            .find(|it| it["ref"] == "pkg:cargo/fonn-router@1.0.0")
            .unwrap();
        assert_eq!(router["dependsOn"], json!(["pkg:cargo/built@1.0.0"]));
    }

    #[test]
    fn a_crate_without_a_checksum_is_an_error() {
        let error = bom(&metadata(), "[[package]]\nname = 'x'\nversion = '1'").unwrap_err();
        assert!(error.to_string().contains("no checksum"), "{error}");
    }

    #[test]
    fn this_workspace_has_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let bom: Value = serde_json::from_str(&text(root).unwrap()).unwrap();
        let names: BTreeSet<&str> = list(&bom["components"])
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        assert!(names.contains("fjall") && names.contains("fonn-base"));
        assert!(!names.contains("proptest") && !names.contains("fonn-tests"));
    }
}
