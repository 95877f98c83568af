//! The allowed imports between crates: the table of the house, and what must never reach the
//! router.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::{Finding, SourceFile};

/// Every package of the workspace with those of ours that it may import. `tests` and `xtask` may
/// import all, and nothing imports them.
const MAY_IMPORT: [(&str, &str, &[&str]); 26] = [
    ("proto", "fonn-proto", &[]),
    ("crates/codec", "fonn-codec", &[]),
    ("crates/dashboard", "fonn-dashboard", &[]),
    ("crates/reapi", "fonn-reapi", &[]),
    ("crates/http-client", "fonn-http-client", &[]),
    ("crates/oidc", "fonn-oidc", &["fonn-http-client"]),
    ("crates/gocache", "fonn-gocache", &["fonn-http-client"]),
    (
        "crates/ccache-storage",
        "fonn-ccache-storage",
        &["fonn-http-client"],
    ),
    ("crates/base", "fonn-base", &["fonn-proto"]),
    // The proof alone has the clock of `fonn-base`. What ships imports nothing.
    ("crates/replication", "fonn-replication", &["fonn-base"]),
    ("crates/auth", "fonn-auth", &["fonn-base", "fonn-proto"]),
    (
        "crates/rpc",
        "fonn-rpc",
        &["fonn-auth", "fonn-base", "fonn-proto"],
    ),
    (
        "crates/admin",
        "fonn-admin",
        &["fonn-auth", "fonn-base", "fonn-dashboard", "fonn-proto"],
    ),
    // Its tests alone call it as a member does, by the client of `rpc`.
    (
        "crates/server",
        "fonn-server",
        &["fonn-auth", "fonn-base", "fonn-proto", "fonn-rpc"],
    ),
    (
        "crates/forward",
        "fonn-forward",
        &[
            "fonn-auth",
            "fonn-base",
            "fonn-proto",
            "fonn-rpc",
            "fonn-server",
        ],
    ),
    (
        "crates/program",
        "fonn-program",
        &["fonn-admin", "fonn-auth", "fonn-base", "fonn-server"],
    ),
    ("cold-tier", "fonn-cold-tier", &["fonn-base", "fonn-codec"]),
    (
        "crates/ram-tier",
        "fonn-ram-tier",
        &["fonn-base", "fonn-proto"],
    ),
    (
        "crates/disk-tier",
        "fonn-disk-tier",
        &["fonn-base", "fonn-codec", "fonn-cold-tier", "fonn-proto"],
    ),
    (
        "crates/gateway",
        "fonn-gateway",
        &[
            "fonn-admin",
            "fonn-auth",
            "fonn-base",
            "fonn-oidc",
            "fonn-program",
            "fonn-proto",
            "fonn-reapi",
            "fonn-server",
        ],
    ),
    (
        "crates/membership",
        "fonn-membership",
        &[
            "fonn-admin",
            "fonn-auth",
            "fonn-base",
            "fonn-codec",
            "fonn-cold-tier",
            "fonn-proto",
            "fonn-replication",
        ],
    ),
    (
        "node",
        "fonn-node",
        &[
            "fonn-proto",
            "fonn-codec",
            "fonn-base",
            "fonn-auth",
            "fonn-rpc",
            "fonn-admin",
            "fonn-server",
            "fonn-forward",
            "fonn-program",
            "fonn-membership",
            "fonn-replication",
            "fonn-ram-tier",
            "fonn-disk-tier",
            "fonn-cold-tier",
            "fonn-gateway",
        ],
    ),
    (
        "router",
        "fonn-router",
        &[
            "fonn-proto",
            "fonn-base",
            "fonn-auth",
            "fonn-rpc",
            "fonn-admin",
            "fonn-server",
            "fonn-forward",
            "fonn-program",
            "fonn-gateway",
        ],
    ),
    (
        "crates/ctl",
        "fonn-ctl",
        &[
            "fonn-admin",
            "fonn-auth",
            "fonn-base",
            "fonn-gocache",
            "fonn-proto",
        ],
    ),
    ("tests", "fonn-tests", LIBRARIES),
    ("xtask", "xtask", LIBRARIES),
];

const LIBRARIES: &[&str] = &[
    "fonn-proto",
    "fonn-codec",
    "fonn-base",
    "fonn-auth",
    "fonn-rpc",
    "fonn-admin",
    "fonn-server",
    "fonn-forward",
    "fonn-program",
    "fonn-dashboard",
    "fonn-ccache-storage",
    "fonn-ctl",
    "fonn-membership",
    "fonn-replication",
    "fonn-ram-tier",
    "fonn-disk-tier",
    "fonn-cold-tier",
    "fonn-gateway",
    "fonn-reapi",
    "fonn-oidc",
    "fonn-node",
    "fonn-router",
];

/// The router talks to no bucket and has no disk: it builds without these, direct or through
/// others. (Prefixes of package names.)
const NOT_IN_ROUTER: [&str; 4] = ["aws-sdk", "aws-config", "aws-smithy", "fjall"];

/// What is copied into the build of the image.
const IMAGE_FILES: &str = "deploy/Dockerfile.dockerignore";

/// Checks the manifests and the lock file among `files`.
pub fn check(files: &[SourceFile]) -> Result<Vec<Finding>> {
    let manifest = |path: &str| -> Result<Table> {
        let file = files.iter().find(|file| file.path == path);
        let text = &file.with_context(|| format!("there is no {path}"))?.text;
        text.parse().with_context(|| format!("reading {path}"))
    };
    let mut findings = check_members(&manifest("Cargo.toml")?);
    for (dir, package, may_import) in MAY_IMPORT {
        let path = format!("{dir}/Cargo.toml");
        findings.extend(check_manifest(
            &path,
            package,
            may_import,
            &manifest(&path)?,
        ));
    }
    findings.extend(check_router(&manifest("Cargo.lock")?));
    let image = files.iter().find(|file| file.path == IMAGE_FILES);
    findings.extend(check_image(image.map_or("", |file| &file.text)));
    Ok(findings)
}

/// The build of the image needs the folder of every package.
fn check_image(text: &str) -> Vec<Finding> {
    let copied: BTreeSet<&str> = text.lines().filter_map(|it| it.strip_prefix('!')).collect();
    let folders = MAY_IMPORT
        .iter()
        .filter_map(|(dir, _, _)| dir.split('/').next());
    let missing: BTreeSet<&str> = folders.filter(|it| !copied.contains(it)).collect();
    let finding = |folder| Finding {
        path: IMAGE_FILES.to_owned(),
        line: None,
        message: format!("the image is built without the folder `{folder}`: add `!{folder}`"),
    };
    missing.into_iter().map(finding).collect()
}

/// Every member of the workspace must have a row in the table.
fn check_members(root: &Table) -> Vec<Finding> {
    let members = root
        .get("workspace")
        .and_then(|workspace| workspace.get("members"));
    let members = members.and_then(Value::as_array).into_iter().flatten();
    members
        .filter_map(Value::as_str)
        .filter(|member| !MAY_IMPORT.iter().any(|(dir, _, _)| dir == member))
        .map(|member| Finding {
            path: "Cargo.toml".to_owned(),
            line: None,
            message: format!("`{member}` has no row in the table of who may import whom"),
        })
        .collect()
}

fn check_manifest(
    path: &str,
    package: &str,
    may_import: &[&str],
    manifest: &Table,
) -> Vec<Finding> {
    let finding = |message| Finding {
        path: path.to_owned(),
        line: None,
        message,
    };
    let mut findings = Vec::new();
    let name = manifest
        .get("package")
        .and_then(|table| table.get("name")?.as_str());
    if name != Some(package) {
        findings.push(finding(format!("the package must be called `{package}`")));
    }
    let lints = manifest
        .get("lints")
        .and_then(|table| table.get("workspace")?.as_bool());
    if lints != Some(true) {
        findings.push(finding("`[lints] workspace = true` is missing".to_owned()));
    }
    for import in imports(manifest) {
        let is_ours = MAY_IMPORT.iter().any(|(_, ours, _)| *ours == import);
        // A package may name itself among its dev-dependencies to switch on its own features.
        if is_ours && import != package && !may_import.contains(&import.as_str()) {
            findings.push(finding(format!("`{package}` must not import `{import}`")));
        }
    }
    findings
}

/// The packages in all dependency tables of a manifest, under their own names.
fn imports(manifest: &Table) -> BTreeSet<String> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    let mut names = BTreeSet::new();
    for table in targets.chain([manifest]) {
        for kind in KINDS {
            let dependencies = table.get(kind).and_then(Value::as_table);
            for (name, value) in dependencies.into_iter().flatten() {
                let renamed = value.get("package").and_then(Value::as_str);
                names.insert(renamed.unwrap_or(name).to_owned());
            }
        }
    }
    names
}

/// Follows the lock file from the router. The lock file also has what only tests and optional
/// features need, which is stricter than necessary and simpler than resolving features.
fn check_router(lock: &Table) -> Vec<Finding> {
    let mut edges: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let packages = lock
        .get("package")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    for package in packages {
        let Some(name) = package.get("name").and_then(Value::as_str) else {
            continue;
        };
        let dependencies = package.get("dependencies").and_then(Value::as_array);
        let names = dependencies.into_iter().flatten().filter_map(Value::as_str);
        // An entry is `name`, or `name version` where several versions are locked.
        let names = names.filter_map(|entry| entry.split(' ').next());
        edges.entry(name).or_default().extend(names);
    }
    let mut findings = Vec::new();
    let mut importer_of: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from(["fonn-router"]);
    while let Some(name) = queue.pop_front() {
        if NOT_IN_ROUTER.iter().any(|banned| name.starts_with(banned)) {
            findings.push(Finding {
                path: "Cargo.lock".to_owned(),
                line: None,
                message: format!(
                    "the router must build without: {}",
                    chain(name, &importer_of)
                ),
            });
            // What the banned package needs itself is not worth a line.
            continue;
        }
        for &dependency in edges.get(name).into_iter().flatten() {
            if dependency != "fonn-router" && !importer_of.contains_key(dependency) {
                importer_of.insert(dependency, name);
                queue.push_back(dependency);
            }
        }
    }
    findings
}

/// `fonn-router -> … -> name`.
fn chain(name: &str, importer_of: &BTreeMap<&str, &str>) -> String {
    let mut names = vec![name];
    let mut last = name;
    while let Some(&importer) = importer_of.get(last) {
        names.push(importer);
        last = importer;
    }
    names.reverse();
    names.join(" -> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest_findings(text: &str) -> Vec<String> {
        let manifest = text.parse().unwrap();
        let may_import = MAY_IMPORT
            .iter()
            .find(|(dir, _, _)| *dir == "router")
            .unwrap()
            .2;
        let findings = check_manifest("router/Cargo.toml", "fonn-router", may_import, &manifest);
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    const HEAD: &str = "package.name = 'fonn-router'\nlints.workspace = true\n";

    #[test]
    fn allowed_and_foreign_imports_pass() {
        let text = "[dependencies]\nfonn-proto.workspace = true\nbytes = '1'\n\
                    [dev-dependencies]\nfonn-router = { path = '.', features = ['test-util'] }\n";
        assert_eq!(
            manifest_findings(&format!("{HEAD}{text}")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_folder_that_the_image_is_built_without_is_found() {
        let all = "*\n!proto\n!cold-tier\n!node\n!router\n!crates\n!tests\n!xtask\n";
        assert_eq!(check_image(all).len(), 0);
        assert_eq!(check_image(&all.replace("!crates\n", "")).len(), 1);
    }

    #[test]
    fn forbidden_imports_are_found_in_every_table_and_under_other_names() {
        for text in [
            "[dependencies]\nfonn-node.workspace = true",
            "[dev-dependencies]\nfonn-node = { path = '../node' }",
            "[build-dependencies]\nfonn-node = '1'",
            "[target.'cfg(unix)'.dependencies]\nfonn-node = '1'",
            "[dependencies]\nother = { package = 'fonn-node', path = '../node' }",
        ] {
            let findings = manifest_findings(&format!("{HEAD}{text}"));
            assert_eq!(
                findings,
                ["`fonn-router` must not import `fonn-node`"],
                "{text}"
            );
        }
        let findings = manifest_findings(&format!("{HEAD}[dependencies]\nfonn-tests = '1'"));
        assert_eq!(findings.len(), 1, "nothing may import the tests");
    }

    #[test]
    fn name_and_lints_are_checked() {
        let findings = manifest_findings("package.name = 'router'\nlints.workspace = false\n");
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert_eq!(manifest_findings("").len(), 2);
    }

    #[test]
    fn members_without_a_row_are_found() {
        let root = "[workspace]\nmembers = ['proto', 'attic']".parse().unwrap();
        let findings = check_members(&root);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.contains("`attic`"));
    }

    #[test]
    fn the_table_has_no_cycle_and_no_sideways_import() {
        // Rows are in an order in which each imports only earlier ones.
        for (index, (_, package, may_import)) in MAY_IMPORT.iter().enumerate() {
            for import in *may_import {
                let at = MAY_IMPORT
                    .iter()
                    .position(|(_, name, _)| name == import)
                    .unwrap();
                assert!(at < index, "{package} imports {import}");
            }
        }
    }

    #[test]
    fn what_the_router_must_not_have_is_found_through_others() {
        let lock = "[[package]]\nname = 'fonn-router'\ndependencies = ['fonn-proto', 'bytes']\n\
                    [[package]]\nname = 'fonn-proto'\ndependencies = ['squeeze 1.0.0']\n\
                    [[package]]\nname = 'squeeze'\ndependencies = ['fjall-sys', 'fonn-router']\n\
                    [[package]]\nname = 'fjall-sys'\ndependencies = ['aws-sdk-s3']\n\
                    [[package]]\nname = 'fonn-node'\ndependencies = ['fjall']\n";
        let findings = check_router(&lock.parse().unwrap());
        let messages: Vec<&str> = findings
            .iter()
            .map(|finding| finding.message.as_str())
            .collect();
        let chain = "fonn-router -> fonn-proto -> squeeze -> fjall-sys";
        assert_eq!(
            messages,
            [format!("the router must build without: {chain}")]
        );
    }

    #[test]
    fn a_missing_or_broken_manifest_is_an_error() {
        assert!(
            check(&[])
                .unwrap_err()
                .to_string()
                .contains("there is no Cargo.toml")
        );
        let broken = SourceFile {
            path: "Cargo.toml".to_owned(),
            text: "= 3".to_owned(),
        };
        assert!(
            check(&[broken])
                .unwrap_err()
                .to_string()
                .contains("reading Cargo.toml")
        );
    }
}
