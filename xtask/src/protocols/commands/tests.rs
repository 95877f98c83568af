use std::collections::BTreeSet;

use fonn_proto::memcached::{binary, text};
use fonn_proto::outcome::Value;
use fonn_proto::{Body, Command, Hit, Limits, Number, Out, Outcome, Request, Step, Stored};

use super::*;

const LIMITS: Limits = Limits { value_len_max: 100 };

impl TextCommand {
    /// The first word of the line.
    fn name(&self) -> &'static str {
        self.syntax.split(' ').next().unwrap_or_default()
    }
}

/// Hands the request that `line` makes to `look`. A storage command gets a value of one byte.
fn with_line<R>(line: &str, look: impl FnOnce(Request<'_>) -> R) -> R {
    let mut parser = text::Parser::new(LIMITS);
    let bytes = format!("{line}\r\nx\r\n");
    match parser.parse(bytes.as_bytes()) {
        Step::Request { request, .. } => look(request),
        step => panic!("{step:?} for {line}"),
    }
}

/// What is answered to `line` without executing anything.
fn known_answer(line: &str) -> String {
    with_line(line, |mut request| {
        let mut out = Out::new();
        if matches!(request.body, Body::Answer | Body::Close) {
            request.reply.finish(&mut out);
        }
        String::from_utf8(out.to_vec()).unwrap()
    })
}

/// A line of the form of `syntax`.
fn example(syntax: &str) -> String {
    syntax
        .replace("<key>", "Zm9v")
        .replace("<bytes>", "1")
        .replace("<flags>", "0")
        .replace("<exptime>", "0")
        .replace("<delta>", "1")
        .replace("<cas>", "1")
        .replace("<level>", "1")
        .replace('*', "")
        .split(" [")
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn every_listed_text_command_is_understood() {
    for command in TEXT {
        let line = example(command.syntax);
        let answer = known_answer(&line);
        assert!(!answer.contains("ERROR"), "{answer} for {line}");
        let stores = with_line(
            &line,
            |request| matches!(&request.body, Body::Data(commands) if matches!(commands[0], Command::Store(_))),
        );
        assert_eq!(stores, command.kind == Kind::Storage, "{line}");
        if command.syntax.ends_with("[noreply]") && !stores {
            let quiet = known_answer(&format!("{line} noreply"));
            assert_eq!(quiet, "", "{line}");
        }
    }
}

#[test]
fn every_listed_group_of_statistics_is_understood() {
    let stats = TEXT.iter().find(|command| command.name() == "stats");
    let groups = stats.unwrap().syntax.trim_start_matches("stats [");
    for group in groups.trim_end_matches(']').split(" | ") {
        assert_eq!(known_answer(&format!("stats {group}")), "", "{group}");
    }
    assert_eq!(known_answer("stats nonsense"), "ERROR\r\n");
}

#[test]
fn words_that_are_not_listed_are_no_commands() {
    let listed: BTreeSet<&str> = TEXT
        .iter()
        .map(TextCommand::name)
        .chain(META.iter().map(MetaCommand::name))
        .collect();
    let others = [
        "GET",
        "bget",
        "slabs",
        "lru",
        "lru_crawler",
        "watch",
        "cache_memlimit",
        "shutdown",
        "misbehave",
        "debugtime",
        "refresh_certs",
        "extstore",
        "mget",
    ];
    let short = (b'a'..=b'z').map(|letter| format!("m{}", char::from(letter)));
    for word in others.map(str::to_owned).into_iter().chain(short) {
        if !listed.contains(word.as_str()) {
            assert_eq!(
                known_answer(&format!("{word} Zm9v 1 1 1")),
                "ERROR\r\n",
                "{word}"
            );
        }
    }
}

/// The reply of a complete binary packet whose lengths fit the opcode, if it is known at once.
fn binary_status(opcode: u8) -> Option<u16> {
    let mut bytes = vec![0x80, opcode];
    bytes.resize(24, 0);
    let mut parser = binary::Parser::new(LIMITS);
    let mut rest = bytes.as_slice();
    loop {
        match parser.parse(rest) {
            Step::Skip { len } => rest = &rest[len as usize..],
            Step::Request { mut request, .. } => {
                let mut out = Out::new();
                if matches!(request.body, Body::Answer | Body::Close) {
                    request.reply.finish(&mut out);
                }
                let reply = out.to_vec();
                return (reply.len() >= 24).then(|| u16::from_be_bytes([reply[6], reply[7]]));
            }
            step => panic!("{step:?} for {opcode:#04x}"),
        }
    }
}

#[test]
fn exactly_the_listed_opcodes_are_known() {
    for opcode in 0..=u8::MAX {
        let is_listed = BINARY.iter().any(|command| command.opcode == opcode);
        let is_unknown = binary_status(opcode) == Some(binary::Status::UnknownCommand.code());
        assert_eq!(is_listed, !is_unknown, "{opcode:#04x}");
    }
    assert!(BINARY.is_sorted_by_key(|command| command.opcode));
}

/// All answers that the outcomes of its command can bring a meta line, and the command itself.
fn behavior(line: &str) -> Vec<String> {
    with_line(line, |mut request| {
        let Body::Data(commands) = std::mem::replace(&mut request.body, Body::Answer) else {
            panic!("no command for {line}");
        };
        let command = &commands[0];
        let mut seen = vec![format!("{command:?}")];
        for outcome in outcomes() {
            let mut out = Out::new();
            request.reply.each(command, &outcome, &mut out);
            seen.push(out.to_vec().escape_ascii().to_string());
        }
        seen
    })
}

fn outcomes() -> [Outcome<'static>; 8] {
    [
        Outcome::Hit(Hit {
            value: Value::Copied(b"abc"),
            value_len: 3,
            flags: 7,
            version: 42,
            ttl_ms: Some(19_001),
            expires_at_ms: Some(1),
            idle_s: 11,
            fetched_before: true,
            stale: false,
            won: false,
            lost: false,
        }),
        Outcome::Miss,
        Outcome::Stored(Stored {
            version: 9,
            value_len: 1,
            previous: None,
        }),
        Outcome::Number(Number {
            text: b"12".as_slice().into(),
            version: 8,
            ttl_ms: None,
        }),
        Outcome::Deleted { version: 0 },
        Outcome::NotFound,
        Outcome::NotStored(None),
        Outcome::Exists,
    ]
}

#[test]
fn meta_flags_act_and_return_exactly_where_the_table_says() {
    for command in META.iter().filter(|command| command.name() != "mn") {
        let name = command.name();
        let start = match name {
            "ms" => "ms Zm9v 1",
            _ => &format!("{name} Zm9v"),
        };
        for flag in META_FLAGS {
            let argument = match (flag.flag(), name) {
                ('M', "ma") => "D",
                ('M', _) => "A",
                ('C' | 'D' | 'E' | 'F' | 'J' | 'T' | 'N' | 'R', _) => "77",
                ('O' | 'L' | 'P', _) => "abc",
                _ => "",
            };
            // Some flags do something only beside others.
            let besides: &[&str] = match (flag.flag(), name) {
                ('I', "ms") => &["C5"],
                ('N', "ms") => &["", "MA"],
                ('J', "ma") => &["", "N60"],
                ('T', "md") => &["", "I", "x"],
                _ => &[""],
            };
            let changes = besides.iter().any(|beside| {
                let before = behavior(&format!("{start} {beside}"));
                let with = behavior(&format!("{start} {beside} {}{argument}", flag.flag()));
                before != with
            });
            let acts = command.acts.contains(flag.flag());
            let returns = command.returns.contains(flag.flag());
            assert!(!(acts && returns), "{name} {}", flag.syntax);
            assert_eq!(changes, acts || returns, "{name} {}", flag.syntax);
        }
    }
}

#[test]
fn characters_that_are_not_listed_are_no_meta_flags() {
    for character in b'!'..=b'~' {
        let character = char::from(character);
        let is_listed = META_FLAGS.iter().any(|flag| flag.flag() == character);
        let answer = known_answer(&format!("mg Zm9v {character}"));
        let is_unknown = answer == "CLIENT_ERROR invalid flag\r\n";
        assert_eq!(is_listed, !is_unknown, "{character} {answer}");
    }
    assert!(
        META_FLAGS.is_sorted_by_key(|flag| (
            flag.flag().to_ascii_lowercase(),
            flag.flag().is_uppercase()
        ))
    );
}

/// The codes that a meta line answers with to the outcomes that its command can have.
fn codes(command: &MetaCommand, line: &str) -> BTreeSet<String> {
    let outcomes = match command.name() {
        "mg" | "me" => "Hit Miss",
        "ms" => "Stored NotStored Exists NotFound",
        "md" => "Deleted Exists NotFound",
        _ => "Number NotStored Exists NotFound",
    };
    let outcomes: Vec<&str> = outcomes.split(' ').collect();
    let answers = behavior(line);
    let named = self::outcomes().into_iter().zip(&answers[1..]);
    named
        .filter(|(outcome, answer)| {
            let name = format!("{outcome:?}");
            outcomes.contains(&name.split(['(', ' ']).next().unwrap()) && !answer.is_empty()
        })
        .map(|(_, answer)| answer[..2].to_owned())
        .collect()
}

#[test]
fn meta_commands_answer_and_leave_out_what_is_listed() {
    let listed =
        |codes: &str| -> BTreeSet<String> { codes.split_whitespace().map(str::to_owned).collect() };
    for command in META.iter().filter(|command| command.name() != "mn") {
        let line = example(command.syntax).replace(" <flag>", "");
        // With `v` a value is answered instead of none.
        let of = |flags: &str| -> BTreeSet<String> {
            ["", "v"]
                .iter()
                .flat_map(|value| codes(command, &format!("{line} {flags} {value}")))
                .collect()
        };
        let (loud, quiet) = (of(""), of("q"));
        assert_eq!(loud, listed(command.codes), "{line}");
        let left_out: BTreeSet<String> = loud.difference(&quiet).cloned().collect();
        assert_eq!(left_out, listed(command.quiet), "{line}");
    }
    assert_eq!(known_answer("mn"), "MN\r\n");
}
