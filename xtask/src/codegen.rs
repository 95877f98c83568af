//! `cargo xtask codegen`: the Rust code of the gRPC services, from `proto/fonn/v1/*.proto`.
//!
//! The compiler of .proto files is a library too (protox), so nothing has to be installed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic_prost_build::Builder;

use crate::generated::File;

/// What is written.
pub const FILES: [File; 4] = [
    File {
        path: "proto/src/gen/fonn.v1.rs",
        make: |_| services(),
    },
    File {
        path: "proto/src/gen/descriptors.rs",
        make: |_| descriptors(),
    },
    File {
        path: "crates/reapi/src/gen/fonn.reapi.rs",
        make: |_| build_tools(),
    },
    File {
        path: "crates/reapi/src/gen/result_descriptors.rs",
        make: |_| result_descriptors(),
    },
];

const HEAD: &str = "// Made by `cargo xtask codegen`; do not edit.\n";

/// Bytes of a literal on one line.
const BYTES_PER_LINE: usize = 32;

/// Where imports are looked up: the directory above `fonn/`.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto")
}

/// All .proto files, compiled, with their comments.
///
/// # Errors
/// When one does not compile.
pub fn compile() -> Result<FileDescriptorSet> {
    let root = root();
    let dir = root.join("fonn/v1");
    let mut files = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "proto") {
            files.push(path);
        }
    }
    files.sort();
    protox::compile(files, [root]).context("compiling the .proto files")
}

fn services() -> Result<String> {
    let dir = tempfile::tempdir()?;
    with_json(tonic_prost_build::configure())
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .out_dir(dir.path())
        .compile_fds(compile()?)
        .context("writing the code")?;
    let code = fs::read_to_string(dir.path().join("fonn.v1.rs")).context("reading the code")?;
    Ok(format!("{HEAD}{code}"))
}

/// The messages of the Remote Execution API. Bytes are shared with the message that was received.
fn build_tools() -> Result<String> {
    let root = root();
    let file = root.join("reapi/cache.proto");
    let set = protox::compile([file], [root]).context("compiling proto/reapi/cache.proto")?;
    let dir = tempfile::tempdir()?;
    tonic_prost_build::configure()
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .bytes(".")
        .out_dir(dir.path())
        .compile_fds(set)
        .context("writing the code")?;
    let code = fs::read_to_string(dir.path().join("fonn.reapi.rs")).context("reading the code")?;
    Ok(format!("{HEAD}{code}"))
}

/// `fonnctl --json` shows messages: how their fields read is in `proto/src/grpc/json.rs`.
fn with_json(builder: Builder) -> Builder {
    let fields = BTreeMap::from([
        ("KeyCopy.tier", "json::tier"),
        ("Finding.severity", "json::severity"),
        ("Segment.state", "json::segment_state"),
        ("WarmResponse.end", "json::warm_end"),
        ("SegmentEntry.key", "json::text"),
        ("KeyRequest.key", "json::text"),
        ("DeleteKeyRequest.key", "json::text"),
        ("Event.level", "json::event_level"),
        ("ClusterMember.state", "json::member_state"),
        ("ClusterStatus.state", "json::member_state"),
        ("User.role", "json::role"),
        ("User.source", "json::user_source"),
        ("PutUserRequest.role", "json::role"),
        ("Setting.origin", "json::setting_origin"),
    ]);
    let mut builder = builder
        .type_attribute(".fonn.v1", "#[derive(serde::Serialize)]")
        .type_attribute(
            ".fonn.v1.VerifyResponse.event",
            "#[serde(rename_all = \"snake_case\")]",
        );
    for (field, function) in fields {
        builder = builder.field_attribute(
            format!(".fonn.v1.{field}"),
            format!("#[serde(serialize_with = \"{function}\")]"),
        );
    }
    builder
}

fn descriptors() -> Result<String> {
    literal(compile()?)
}

/// What the JSON form of an action result is made by.
fn result_descriptors() -> Result<String> {
    let root = root();
    let file = root.join("reapi/result.proto");
    let set = protox::compile([file], [root]).context("compiling proto/reapi/result.proto")?;
    literal(set)
}

/// The set as a Rust expression of bytes.
fn literal(mut set: FileDescriptorSet) -> Result<String> {
    // Comments are most of it, and no client of reflection shows them.
    set.file
        .iter_mut()
        .for_each(|file| file.source_code_info = None);
    let mut text = format!("{HEAD}&[\n");
    for line in set.encode_to_vec().chunks(BYTES_PER_LINE) {
        text.push_str("    ");
        for byte in line {
            write!(text, "{byte}, ")?;
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text.push_str("]\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_code_is_up_to_date() {
        FILES.iter().for_each(File::assert_up_to_date);
    }

    /// The documentation is made from the comments, and an undocumented field is a field that no
    /// reader knows.
    #[test]
    fn everything_in_the_proto_files_has_a_comment() {
        for file in compile().unwrap().file {
            let info = file.source_code_info.clone().unwrap();
            let commented = |path: &[i32]| {
                let mut at = info.location.iter().filter(|it| it.path == path);
                at.any(|it| !it.leading_comments().trim().is_empty())
            };
            let name = file.name();
            for (i, message) in (0..).zip(&file.message_type) {
                assert!(commented(&[4, i]), "{name}: {}", message.name());
                for (j, field) in (0..).zip(&message.field) {
                    let what = format!("{name}: {}.{}", message.name(), field.name());
                    assert!(commented(&[4, i, 2, j]), "{what}");
                }
            }
            for (i, list) in (0..).zip(&file.enum_type) {
                assert!(commented(&[5, i]), "{name}: {}", list.name());
                for (j, value) in (0..).zip(&list.value) {
                    assert!(commented(&[5, i, 2, j]), "{name}: {}", value.name());
                }
            }
            for (i, service) in (0..).zip(&file.service) {
                assert!(commented(&[6, i]), "{name}: {}", service.name());
                for (j, method) in (0..).zip(&service.method) {
                    let what = format!("{name}: {}.{}", service.name(), method.name());
                    assert!(commented(&[6, i, 2, j]), "{what}");
                }
            }
        }
    }
}
