//! `cargo xtask admin-api`: the reference of the admin port in docs/admin-api.md, from the comments
//! of the .proto files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result};
use fonn_auth::{ROLES, Role};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MethodDescriptorProto,
};

use crate::codegen;
use crate::generated::{File, fill, table};

/// What is written.
pub const FILES: [File; 1] = [File {
    path: "docs/admin-api.md",
    make,
}];

/// Numbers of fields in descriptors, of which paths to comments are made (descriptor.proto,
/// `SourceCodeInfo`).
mod place {
    pub const MESSAGE: i32 = 4;
    pub const ENUM: i32 = 5;
    pub const SERVICE: i32 = 6;
    /// Of a message's fields, an enum's values, a service's methods.
    pub const PARTS: i32 = 2;
}

fn make(old: &str) -> Result<String> {
    let set = codegen::compile()?;
    let api = Api::of(&set);
    let (calls, used) = api.calls()?;
    let text = fill(old, "calls", &calls)?;
    fill(&text, "messages", &api.types(used)?)
}

/// A message or an enum, where its comments are found.
enum Kind<'s> {
    Message(&'s DescriptorProto),
    Enum(&'s EnumDescriptorProto),
}

struct Named<'s> {
    kind: Kind<'s>,
    file: &'s FileDescriptorProto,
    path: [i32; 2],
}

struct Api<'s> {
    set: &'s FileDescriptorSet,
    /// By the name that fields refer to them by, `.fonn.v1.Name`.
    types: BTreeMap<String, Named<'s>>,
}

impl<'s> Api<'s> {
    fn of(set: &'s FileDescriptorSet) -> Self {
        let mut types = BTreeMap::new();
        for file in &set.file {
            let name = |it: &str| format!(".{}.{it}", file.package());
            for (at, message) in (0..).zip(&file.message_type) {
                let named = Named {
                    kind: Kind::Message(message),
                    file,
                    path: [place::MESSAGE, at],
                };
                types.insert(name(message.name()), named);
            }
            for (at, list) in (0..).zip(&file.enum_type) {
                let named = Named {
                    kind: Kind::Enum(list),
                    file,
                    path: [place::ENUM, at],
                };
                types.insert(name(list.name()), named);
            }
        }
        Self { set, types }
    }

    /// The services that have roles, which are those of the admin port, by name; and the types that
    /// they speak of.
    fn calls(&self) -> Result<(String, BTreeSet<String>)> {
        let role = |method: &str| ROLES.iter().find(|(row, _)| *row == method).map(|it| it.1);
        let (mut services, mut used) = (BTreeMap::new(), BTreeSet::new());
        for file in &self.set.file {
            for (at, service) in (0..).zip(&file.service) {
                let full = format!("{}.{}", file.package(), service.name());
                let name = |it: &MethodDescriptorProto| format!("{full}/{}", it.name());
                if !service.method.iter().any(|it| role(&name(it)).is_some()) {
                    continue;
                }
                let about = paragraphs(comment(file, &[place::SERVICE, at])?);
                let mut text = format!("### {full}\n\n{about}\n\n");
                for (index, method) in (0..).zip(&service.method) {
                    let path = [place::SERVICE, at, place::PARTS, index];
                    writeln!(
                        text,
                        "**{}** ({}) → {}, for the role `{}`. {}\n",
                        method.name(),
                        reference(method.input_type()),
                        answer(method),
                        role(&name(method)).unwrap_or(Role::Admin),
                        paragraphs(comment(file, &path)?),
                    )?;
                    used.extend([method.input_type(), method.output_type()].map(str::to_owned));
                }
                services.insert(full, text);
            }
        }
        Ok((services.into_values().collect(), used))
    }

    /// All types that are used, and those that these use.
    fn types(&self, used: BTreeSet<String>) -> Result<String> {
        let mut open: Vec<String> = used.into_iter().collect();
        let mut all = BTreeMap::new();
        while let Some(name) = open.pop() {
            let named = self.types.get(&name);
            let named = named.with_context(|| format!("no type {name}"))?;
            if all.insert(name, named).is_some() {
                continue;
            }
            if let Kind::Message(message) = named.kind {
                let fields = message.field.iter().map(|it| it.type_name());
                open.extend(fields.filter(|it| !it.is_empty()).map(str::to_owned));
            }
        }
        let mut text = String::new();
        for (name, named) in all {
            let (file, path) = (named.file, named.path);
            let part = |at| [path[0], path[1], place::PARTS, at];
            let about = paragraphs(comment(file, &path)?);
            writeln!(text, "### {}\n\n{about}\n", short(&name))?;
            let mut rows = Vec::new();
            match named.kind {
                Kind::Message(message) => {
                    for (at, field) in (0..).zip(&message.field) {
                        let about = cell(comment(file, &part(at))?);
                        rows.push([
                            format!("`{}`", field.name()),
                            of_field(message, field),
                            about,
                        ]);
                    }
                    if !rows.is_empty() {
                        writeln!(text, "{}", table(["field", "type", "meaning"], rows))?;
                    }
                }
                Kind::Enum(list) => {
                    for (at, value) in (0..).zip(&list.value) {
                        let about = cell(comment(file, &part(at))?);
                        let number = value.number().to_string();
                        rows.push([format!("`{}`", value.name()), number, about]);
                    }
                    writeln!(text, "{}", table(["value", "number", "meaning"], rows))?;
                }
            }
        }
        Ok(text)
    }
}

/// What stands before a thing in its file; `path` leads there.
fn comment<'f>(file: &'f FileDescriptorProto, path: &[i32]) -> Result<&'f str> {
    let info = file.source_code_info.as_ref();
    let mut places = info.into_iter().flat_map(|it| &it.location);
    let found = places.find(|it| it.path == path);
    let found = found.with_context(|| format!("{}: nothing at {path:?}", file.name()))?;
    Ok(found.leading_comments())
}

/// Lines become paragraphs; blank lines are between these.
fn paragraphs(comment: &str) -> String {
    let lines = comment.lines().map(str::trim);
    let mut paragraphs = vec![String::new()];
    for line in lines {
        let last = paragraphs.last_mut().filter(|_| !line.is_empty());
        match last {
            None => paragraphs.push(String::new()),
            Some(last) => {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(line);
            }
        }
    }
    paragraphs.retain(|it| !it.is_empty());
    paragraphs.join("\n\n")
}

fn cell(comment: &str) -> String {
    paragraphs(comment).replace("\n\n", " ")
}

fn short(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, short)| short)
}

/// The name of a type, with a link to where it is described.
fn reference(name: &str) -> String {
    let short = short(name);
    format!("[{short}](#{})", short.to_lowercase())
}

fn answer(method: &MethodDescriptorProto) -> String {
    let stream = if method.server_streaming() {
        "a stream of "
    } else {
        ""
    };
    format!("{stream}{}", reference(method.output_type()))
}

/// The type of a field as people say it.
fn of_field(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => reference(field.type_name()),
        other => other
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    };
    if field.label() == Label::Repeated {
        return format!("list of {name}");
    }
    if field.proto3_optional() {
        return format!("{name}, or not said");
    }
    let index = field.oneof_index.and_then(|it| usize::try_from(it).ok());
    match index.and_then(|it| message.oneof_decl.get(it)) {
        Some(group) => format!("{name}; one of `{}`", group.name()),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_up_to_date() {
        FILES.iter().for_each(File::assert_up_to_date);
    }

    #[test]
    fn every_call_that_needs_a_role_is_in_it_and_no_other() {
        let set = codegen::compile().unwrap();
        let (calls, _) = Api::of(&set).calls().unwrap();
        for (name, role) in ROLES {
            let (service, method) = name.split_once('/').unwrap();
            let section = calls.split(&format!("### {service}\n")).nth(1);
            let section = section.unwrap().split("\n### ").next().unwrap();
            let line = section
                .lines()
                .find(|it| it.starts_with(&format!("**{method}** ")));
            let line = line.unwrap_or_else(|| panic!("{name} is missing"));
            assert!(line.contains(&format!("the role `{role}`")), "{line}");
        }
        // Members speak these with each other alone.
        for service in ["Raft", "Members"] {
            assert!(!calls.contains(&format!("### fonn.v1.{service}\n")));
        }
    }

    #[test]
    fn lines_of_a_comment_become_paragraphs() {
        let text = " What it\n is.\n\n  More\n of it.\n";
        assert_eq!(paragraphs(text), "What it is.\n\nMore of it.");
        assert_eq!(cell(text), "What it is. More of it.");
    }
}
