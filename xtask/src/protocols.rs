//! `cargo xtask protocols`: the tables of docs/protocols.md, from its own tables of memcached
//! commands, and from the tables and encoders in `proto`.

mod commands;

use anyhow::Result;
use fonn_proto::differences::DIFFERENCES;
use fonn_proto::memcached::{self, binary, text};
use fonn_proto::resp::{self, CommandInfo};
use fonn_proto::{Failure, Out, command};

use self::commands::{BINARY, META, META_FLAGS, TEXT};
use crate::generated::{File, fill, table};

/// What is written.
pub const FILES: [File; 1] = [File {
    path: "docs/protocols.md",
    make,
}];

fn make(old: &str) -> Result<String> {
    let sections = [
        ("limits", limits()),
        ("failures", failures()),
        ("text", text_commands()),
        ("meta", meta_commands()),
        ("meta flags", meta_flags()),
        ("binary", binary_commands()),
        ("resp", resp_commands()),
        ("differences", differences()),
    ];
    let mut page = old.to_owned();
    for (section, content) in sections {
        page = fill(&page, section, &content)?;
    }
    Ok(page)
}

fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

fn limits() -> String {
    let rows = [
        (
            "Key, memcached",
            format!("1 to {} bytes", command::MEMCACHED_KEY_LEN_MAX),
        ),
        (
            "Key, RESP",
            format!("0 to {} bytes", command::RESP_KEY_LEN_MAX),
        ),
        (
            "Value",
            "`--max-value`; an append or `SETRANGE` that would make a longer one is refused too"
                .to_owned(),
        ),
        (
            "Flags",
            format!(
                "any but `{:#x}` and `{:#x}`, which mark [long values](adr/0032-long-values.md) and \
                 [compressed blobs](adr/0036-blobs-as-they-came.md) of the HTTP port: a read of \
                 them is a miss",
                command::MANIFEST_FLAGS,
                command::PACKED_FLAGS
            ),
        ),
        (
            "Line, memcached text and meta",
            format!(
                "{} bytes; {} for `get`, `gets`, `gat`, `gats`",
                text::LINE_LEN_MAX,
                text::RETRIEVAL_LINE_LEN_MAX
            ),
        ),
        (
            "Databases",
            format!(
                "{}; the memcached dialects use database 0",
                resp::DATABASE_COUNT
            ),
        ),
        (
            "Version told to memcached clients",
            format!("1.6.18-fonn-*version*, as in {}", code(memcached::VERSION)),
        ),
        ("Version told to Redis clients", code(resp::REDIS_VERSION)),
    ];
    table(
        ["what", "limit"],
        rows.map(|(what, limit)| [what.to_owned(), limit]),
    )
}

/// What one of the encoders writes, without the end of the line.
fn worded(put: fn(Failure, &mut Out), failure: Failure) -> String {
    let mut out = Out::new();
    put(failure, &mut out);
    code(String::from_utf8_lossy(&out.to_vec()).trim_end())
}

fn failures() -> String {
    let rows = Failure::ALL.map(|failure| {
        [
            code(failure.label()),
            worded(text::put_failure, failure),
            format!("0x{:04x}", binary::Status::from(failure).code()),
            worded(resp::put_failure, failure),
        ]
    });
    table(
        ["reason", "memcached text and meta", "binary", "RESP"],
        rows,
    )
}

fn text_commands() -> String {
    let rows = TEXT.iter().map(|command| {
        [
            code(command.syntax),
            command.kind.name().to_owned(),
            command.summary.to_owned(),
        ]
    });
    table(["command", "kind", "what it does"], rows)
}

fn meta_commands() -> String {
    let rows = META.iter().map(|command| {
        [
            code(command.syntax),
            command.kind.name().to_owned(),
            command.codes.to_owned(),
            command.quiet.to_owned(),
            command.summary.to_owned(),
        ]
    });
    table(
        [
            "command",
            "kind",
            "codes",
            "left out with `q`",
            "what it does",
        ],
        rows,
    )
}

fn meta_flags() -> String {
    let commands = ["mg", "ms", "md", "ma", "me"];
    let rows = META_FLAGS.iter().map(|flag| {
        let cell = |name| {
            let command = META.iter().find(|command| command.name() == name);
            match command {
                Some(command) if command.acts.contains(flag.flag()) => "acts",
                Some(command) if command.returns.contains(flag.flag()) => "returns",
                _ => "",
            }
        };
        let [mg, ms, md, ma, me] = commands.map(|name| cell(name).to_owned());
        [
            code(flag.syntax),
            mg,
            ms,
            md,
            ma,
            me,
            flag.summary.to_owned(),
        ]
    });
    table(
        [
            "flag",
            "`mg`",
            "`ms`",
            "`md`",
            "`ma`",
            "`me`",
            "what it means",
        ],
        rows,
    )
}

fn binary_commands() -> String {
    let rows = BINARY.iter().map(|command| {
        [
            format!("0x{:02x}", command.opcode),
            command.name.to_owned(),
            command.kind.name().to_owned(),
            command.summary.to_owned(),
        ]
    });
    table(["opcode", "name", "kind", "what it does"], rows)
}

fn differences() -> String {
    let rows = DIFFERENCES.iter().map(|row| {
        [
            row.id.to_owned(),
            row.protocol.name().to_owned(),
            row.what.to_owned(),
            row.reason.to_owned(),
        ]
    });
    table(
        ["name", "protocol", "what is absent or different", "why"],
        rows,
    )
}

fn resp_commands() -> String {
    let rows = resp::COMMANDS
        .iter()
        .flat_map(|command| std::iter::once(command).chain(command.subcommands));
    table(
        [
            "command",
            "arguments",
            "group",
            "since Redis",
            "what it does",
        ],
        rows.map(resp_row),
    )
}

fn resp_row(command: &CommandInfo) -> [String; 5] {
    // The table counts the name, and a subcommand's name, among the arguments.
    let names = command.name.split('|').count();
    let count = usize::from(command.arity.unsigned_abs()).saturating_sub(names);
    let arguments = match (command.arity < 0, count) {
        (true, 0) => "any".to_owned(),
        (true, count) => format!("{count} or more"),
        (false, count) => count.to_string(),
    };
    [
        code(command.name.to_uppercase().replace('|', " ")),
        arguments,
        command.group.name().to_owned(),
        command.since.to_owned(),
        command.summary.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_of_the_protocols_is_what_the_code_says() {
        FILES[0].assert_up_to_date();
    }

    #[test]
    fn subcommands_have_rows_of_their_own() {
        let page = resp_commands();
        assert!(page.contains("| `CLIENT SETNAME` | 1 | connection | 2.6.9 |"));
        assert!(page.contains("| `GET` | 1 | string | 1.0.0 |"));
        assert!(page.contains("| `PING` | any | connection |"));
    }
}
