//! Conversations recorded with memcached 1.6.18, held again with this parser and a model store.

use super::model::converse;

/// One conversation of a file in `testdata`.
struct Conversation {
    input: String,
    memcached: String,
    /// What we answer where that differs on purpose.
    ours: Option<String>,
}

fn conversations(file: &str) -> Vec<Conversation> {
    let mut conversations: Vec<Conversation> = Vec::new();
    for line in file
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (kind, text) = line.split_at(1);
        let text = text.strip_prefix(' ').unwrap_or(text);
        match (kind, conversations.last_mut()) {
            (">", _) => conversations.push(Conversation {
                input: text.to_owned(),
                memcached: String::new(),
                ours: None,
            }),
            ("<", Some(last)) => last.memcached = text.to_owned(),
            ("=", Some(last)) => last.ours = Some(text.to_owned()),
            _ => panic!("a line of another kind: {line}"),
        }
    }
    conversations
}

/// Undoes the escapes of the files.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chars = text.bytes();
    while let Some(byte) = chars.next() {
        bytes.push(match (byte, byte == b'\\') {
            (byte, false) => byte,
            _ => match chars.next().unwrap() {
                b'r' => b'\r',
                b'n' => b'\n',
                b'\\' => b'\\',
                b'x' => {
                    let digits = [chars.next().unwrap(), chars.next().unwrap()];
                    u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => panic!("unknown escape {}", char::from(other)),
            },
        });
    }
    bytes
}

fn assert_holds(file: &str, count_min: usize) {
    let conversations = conversations(file);
    assert!(
        conversations.len() >= count_min,
        "only {} conversations",
        conversations.len()
    );
    let mut wrong = Vec::new();
    for Conversation {
        input,
        memcached,
        ours,
    } in conversations
    {
        assert_ne!(ours.as_ref(), Some(&memcached), "not a difference: {input}");
        let expected = ours.unwrap_or(memcached);
        let (answer, _) = converse(&unescape(&input));
        if answer != unescape(&expected) {
            let answer = answer.escape_ascii();
            wrong.push(format!(
                "> {input}\n  answers  {answer}\n  not      {expected}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn text_answers_are_those_of_memcached() {
    assert_holds(include_str!("../../../../testdata/memcached_text.txt"), 120);
}

#[test]
fn meta_answers_are_those_of_memcached() {
    assert_holds(include_str!("../../../../testdata/memcached_meta.txt"), 120);
}
