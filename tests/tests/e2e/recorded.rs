//! Conversations recorded with memcached 1.6.18 and redis 7.0, held again with a real node.
//!
//! The parsers hold them with a model store; here are the node's own semantics behind them. Left
//! out of the comparison is what differs by nature: the numbers of CAS tokens, and seconds that
//! pass.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use fonn_tests::client::resp_request;
use fonn_tests::node::{FonnNode, NodeOptions};

const TEXT: &str = include_str!("../../../proto/testdata/memcached_text.txt");
const META: &str = include_str!("../../../proto/testdata/memcached_meta.txt");
const REDIS: &str = include_str!("../../../proto/src/resp/tests/redis-7.0.txt");

/// A test may be slow by so much.
const SECONDS_MAX: i64 = 100;

fn connect(node: &FonnNode) -> Result<TcpStream> {
    let stream = TcpStream::connect(node.addr())?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Undoes the escapes of the files.
fn unescape(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().context("an escape without an end")? {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'x' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                u8::from_str_radix(str::from_utf8(&digits)?, 16)?
            }
            other => other,
        });
    }
    Ok(bytes)
}

/// What is asked and what a node answers to that.
fn conversations(file: &str) -> Result<Vec<(&str, &str)>> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for line in file.lines() {
        let (kind, text) = line.split_at(line.len().min(1));
        let text = text.strip_prefix(' ').unwrap_or(text);
        match kind {
            ">" => found.push((text, "")),
            // What differs on purpose comes second.
            "<" | "=" => found.last_mut().context("an answer to nothing")?.1 = text,
            _ => ensure!(kind.is_empty() || kind == "#", "{line}"),
        }
    }
    Ok(found)
}

/// Whether a word is that letter and a number above zero.
fn is_number(word: &str, letter: char) -> bool {
    let number = word.strip_prefix(letter).and_then(|it| it.parse().ok());
    number.is_some_and(|number: u64| number > 0)
}

/// A line of an answer without what differs by nature.
fn masked_line(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let mask = |(at, word): (usize, &&str)| match words[0] {
        "VALUE" if at == 4 => "#".to_owned(),
        "HD" | "VA" | "EN" | "NF" | "NS" | "EX" if at > 0 => {
            for letter in ['c', 't', 'l'] {
                // When it was used last may be another second by now.
                if is_number(word, letter) || letter == 'l' && *word == "l0" {
                    return format!("{letter}#");
                }
            }
            (*word).to_owned()
        }
        "ME" => match word.split_once('=') {
            Some((name @ ("cas" | "exp" | "la"), number)) if number != "-1" => format!("{name}=#"),
            _ => (*word).to_owned(),
        },
        _ => (*word).to_owned(),
    };
    words
        .iter()
        .enumerate()
        .map(mask)
        .collect::<Vec<_>>()
        .join(" ")
}

fn masked(answer: &[u8]) -> String {
    let text = answer.escape_ascii().to_string();
    let lines: Vec<String> = text.split("\\r\\n").map(masked_line).collect();
    lines.join("\\r\\n")
}

/// Whether a request names a token that the server made up, or asks for its figures.
fn is_of_one_server(request: &str) -> bool {
    let is_token = |word: &str| is_number(word, 'C');
    request.contains("stats items")
        || request.contains("cas ")
        || request.split([' ', '\\']).any(is_token)
}

fn holds(file: &str, count_min: usize) -> Result<()> {
    let node = NodeOptions::new().start()?;
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (request, expected) in conversations(file)? {
        if is_of_one_server(request) {
            continue;
        }
        count += 1;
        // Each was held with a server that had just been started.
        ensure!(node.text()?.command("flush_all")? == "OK");
        let mut stream = connect(&node)?;
        // On a port for all protocols the first word decides; what follows may be anything.
        stream.write_all(b"mn\r\n")?;
        stream.write_all(&unescape(request)?)?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = answer.strip_prefix(b"MN\r\n").context("no memcached")?;
        let (answer, expected) = (masked(answer), masked(&unescape(expected)?));
        if answer != expected {
            wrong.push(format!(
                "> {request}\n  answers  {answer}\n  not      {expected}"
            ));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(count >= count_min, "only {count} were held");
    Ok(())
}

#[test]
fn a_node_answers_the_text_protocol_as_memcached_did() -> Result<()> {
    holds(TEXT, 100)
}

#[test]
fn a_node_answers_the_meta_protocol_as_memcached_did() -> Result<()> {
    holds(META, 100)
}

/// The words of a request as redis-cli splits it: blanks divide, quotes and escapes protect.
fn words(request: &str) -> Result<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = request.trim_start();
    while let Some(first) = rest.chars().next() {
        let quote = Some(first).filter(|it| ['"', '\''].contains(it));
        let body = match quote {
            Some(_) => &rest[1..],
            None => rest,
        };
        let mut end = body.len();
        let mut is_escaped = false;
        for (at, found) in body.char_indices() {
            let is_end = match quote {
                Some(quote) => found == quote,
                None => found == ' ',
            };
            if is_end && !is_escaped {
                end = at;
                break;
            }
            is_escaped = found == '\\' && !is_escaped && quote.is_some();
        }
        let word = &body[..end];
        words.push(match quote {
            Some('"') => unescape(word)?,
            _ => word.as_bytes().to_vec(),
        });
        rest = body[end..]
            .strip_prefix(['"', '\''])
            .unwrap_or(&body[end..]);
        rest = rest.trim_start();
    }
    Ok(words)
}

/// What a request is answered with: all that comes before the answer to what is asked behind it.
fn answer(stream: &mut TcpStream, words: &[&[u8]]) -> Result<Vec<u8>> {
    const ENDS: &[u8] = b"an end that no reply has";
    const END: &[u8] = b"$24\r\nan end that no reply has\r\n";
    let request = [resp_request(words), resp_request(&[b"ECHO", ENDS])].concat();
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while !answer.ends_with(END) {
        let len = stream.read(&mut piece)?;
        ensure!(len > 0, "hung up behind {}", answer.escape_ascii());
        answer.extend_from_slice(&piece[..len]);
    }
    answer.truncate(answer.len() - END.len());
    Ok(answer)
}

/// What a request is answered with, in so many bytes.
fn answer_of(stream: &mut TcpStream, words: &[&[u8]], len: usize) -> Result<Vec<u8>> {
    stream.write_all(&resp_request(words))?;
    let mut answer = vec![0; len];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn integer(answer: &[u8]) -> Option<i64> {
    let text = str::from_utf8(answer).ok()?;
    text.strip_prefix(':')?.strip_suffix("\r\n")?.parse().ok()
}

/// Whether this is the expected time to live, or what is left of it after a while.
fn is_ttl(command: &[u8], answer: &[u8], expected: &[u8]) -> bool {
    let unit = match command.to_ascii_uppercase().as_slice() {
        b"TTL" => 1,
        b"PTTL" => 1000,
        _ => return false,
    };
    match (integer(answer), integer(expected)) {
        (Some(left), Some(whole)) => {
            whole > 0 && (whole - SECONDS_MAX * unit..=whole).contains(&left)
        }
        _ => false,
    }
}

fn replies_are_those_of_redis(column: usize) -> Result<()> {
    let node = NodeOptions::new().start()?;
    let mut stream = connect(&node)?;
    if column == 2 {
        answer(&mut stream, &[b"HELLO", b"3"])?;
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    let mut is_queueing = false;
    for line in REDIS.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let expected = columns.get(column).or(columns.last());
        let expected = unescape(expected.context("no answer")?)?;
        let words = words(columns[0])?;
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        is_queueing |= words[0] == b"MULTI";
        let answer = match is_queueing {
            // What is sent behind it would be queued as well.
            true => answer_of(&mut stream, &words, expected.len()),
            false => answer(&mut stream, &words),
        };
        let answer = answer.with_context(|| columns[0].to_owned())?;
        is_queueing &= ![&b"EXEC"[..], b"DISCARD", b"RESET"].contains(&words[0]);
        count += 1;
        if answer != expected && !is_ttl(words[0], &answer, &expected) {
            wrong.push(format!(
                "{}\n  answers  {}\n  not      {}",
                columns[0],
                answer.escape_ascii(),
                expected.escape_ascii()
            ));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(count > 290, "only {count} were compared");
    Ok(())
}

#[test]
fn a_node_answers_as_redis_did_in_resp2() -> Result<()> {
    replies_are_those_of_redis(1)
}

#[test]
fn a_node_answers_as_redis_did_in_resp3() -> Result<()> {
    replies_are_those_of_redis(2)
}
