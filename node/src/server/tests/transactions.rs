//! Transactions, `RENAME` and `COPY` through sockets, over RAM alone and over RAM and disk.

use std::sync::atomic::{AtomicBool, Ordering};

use fonn_disk_tier::levels::CodecChoice;

use super::*;

/// Sends a request and returns the reply as far as the kernel gives it at once; replies here are
/// short.
fn call(client: &mut TcpStream, line: &str) -> String {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    client.write_all(&resp(&words)).unwrap();
    reply(client)
}

/// One reply, elements and all, with its line ends as spaces.
fn reply(client: &mut TcpStream) -> String {
    let mut out = Vec::new();
    let mut left = 1;
    while left > 0 {
        left -= 1;
        let start = out.len();
        while !out[start..].ends_with(b"\r\n") {
            let mut byte = [0; 1];
            client.read_exact(&mut byte).unwrap();
            out.push(byte[0]);
        }
        let line = String::from_utf8_lossy(&out[start..]).into_owned();
        let number = line[1..].trim_end().parse::<i64>().unwrap_or(0);
        match line.as_bytes()[0] {
            b'*' => left += number.max(0),
            b'$' if number >= 0 => {
                let mut value = vec![0; number as usize + 2];
                client.read_exact(&mut value).unwrap();
                out.extend(value);
            }
            _ => {}
        }
    }
    String::from_utf8_lossy(&out)
        .replace("\r\n", " ")
        .trim_end()
        .to_owned()
}

fn disk(dir: &tempfile::TempDir) -> DiskOptions {
    DiskOptions {
        dir: dir.path().join("data"),
        budget_bytes: 256 << 20,
        durability: Durability::Batched,
        fresh: CodecChoice::none(),
        compacted: CodecChoice::none(),
        codec_min_bytes: 256,
        value_len_max: VALUE_LEN_MAX,
        queue_bytes_max: 8 << 20,
        memory_bytes: 4 << 20,
        read_threads: 1,
        compaction_percent: 0,
        write_bytes_per_sec_max: None,
        room_wait: fonn_disk_tier::ROOM_WAIT,
    }
}

/// Runs a test over RAM alone, and over RAM and disk.
fn on_both(test: impl Fn(&Node)) {
    test(&Node::start(Options::default()));
    let dir = tempfile::tempdir().unwrap();
    test(&Node::start(Options {
        disk: Some(disk(&dir)),
        ..Options::default()
    }));
}

#[test]
fn exec_answers_with_what_came_of_each_command() {
    on_both(|node| {
        let mut client = node.connect();
        assert_eq!(call(&mut client, "MULTI"), "+OK");
        for queued in [
            "SET a 1",
            "INCR a",
            "SET b x",
            "INCR b",
            "MGET a b none",
            "DEL a b",
        ] {
            assert_eq!(call(&mut client, queued), "+QUEUED");
        }
        // Nothing is carried out before.
        assert_eq!(call(&mut node.connect(), "GET a"), "$-1");
        assert_eq!(
            call(&mut client, "EXEC"),
            "*6 +OK :2 +OK -ERR value is not an integer or out of range *3 $1 2 $1 x $-1 :2"
        );
        assert_eq!(call(&mut client, "GET a"), "$-1");
    });
}

#[test]
fn a_watched_key_that_changes_lets_exec_carry_out_nothing() {
    on_both(|node| {
        let (mut client, mut other) = (node.connect(), node.connect());
        for (change, is_change) in [
            ("GET w", false),
            ("SET w other", true),
            ("EXPIRE w 1000", true),
            ("PERSIST w", true),
            ("DEL w", true),
            ("SET w again", true),
            ("FLUSHALL", true),
            ("SET unrelated v", false),
        ] {
            assert_eq!(call(&mut client, "WATCH w"), "+OK");
            assert!(!call(&mut other, change).starts_with('-'));
            assert_eq!(call(&mut client, "MULTI"), "+OK");
            assert_eq!(call(&mut client, "SET done v"), "+QUEUED");
            let expected = if is_change { "*-1" } else { "*1 +OK" };
            assert_eq!(call(&mut client, "EXEC"), expected, "{change}");
        }
    });
}

#[test]
fn no_other_client_sees_a_transaction_half_done() {
    on_both(|node| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Both keys are always equal for a client that reads them in one transaction.
            for writer in 0..2 {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut client = node.connect();
                    for round in 0..200 {
                        let requests = ["MULTI", "SET x", "SET y", "EXEC"].map(|line| match line {
                            "MULTI" | "EXEC" => line.to_owned(),
                            set => format!("{set} {writer}-{round}"),
                        });
                        for request in &requests[..3] {
                            call(&mut client, request);
                        }
                        assert_eq!(call(&mut client, "EXEC"), "*2 +OK +OK");
                    }
                    is_over.store(true, Ordering::SeqCst);
                });
            }
            let mut client = node.connect();
            while !is_over.load(Ordering::SeqCst) {
                for request in ["MULTI", "GET x", "GET y"] {
                    call(&mut client, request);
                }
                let both = call(&mut client, "EXEC");
                let words: Vec<&str> = both.split(' ').collect();
                let (x, y) = words[1..].split_at((words.len() - 1) / 2);
                assert_eq!(x, y, "{both}");
            }
        });
    });
}

#[test]
fn increments_under_watch_are_not_lost() {
    on_both(|node| {
        call(&mut node.connect(), "SET n 0");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut client = node.connect();
                    let mut done = 0;
                    while done < 30 {
                        call(&mut client, "WATCH n");
                        let value = call(&mut client, "GET n");
                        let number: u64 = value.split(' ').nth(1).unwrap().parse().unwrap();
                        call(&mut client, "MULTI");
                        call(&mut client, &format!("SET n {}", number + 1));
                        done += u64::from(call(&mut client, "EXEC") == "*1 +OK");
                    }
                });
            }
        });
        assert_eq!(call(&mut node.connect(), "GET n"), "$2 90");
    });
}

#[test]
fn rename_and_copy_keep_value_and_expiry() {
    on_both(|node| {
        let mut client = node.connect();
        let large = "v".repeat(20_000);
        assert_eq!(
            call(&mut client, &format!("SET from {large} EXAT 4000000000")),
            "+OK"
        );
        assert_eq!(call(&mut client, "COPY from copied"), ":1");
        assert_eq!(call(&mut client, "COPY from copied"), ":0");
        assert_eq!(call(&mut client, "RENAME from to"), "+OK");
        assert_eq!(call(&mut client, "EXISTS from"), ":0");
        assert_eq!(call(&mut client, "RENAME from to"), "-ERR no such key");
        assert_eq!(call(&mut client, "RENAMENX to copied"), ":0");
        for key in ["to", "copied"] {
            assert_eq!(
                call(&mut client, &format!("GET {key}")),
                format!("$20000 {large}")
            );
            assert_eq!(
                call(&mut client, &format!("EXPIRETIME {key}")),
                ":4000000000"
            );
        }
        assert_eq!(call(&mut client, "COPY to to DB 3"), ":1");
        assert_eq!(call(&mut client, "SELECT 3"), "+OK");
        assert_eq!(call(&mut client, "STRLEN to"), ":20000");
    });
}

#[test]
fn what_only_the_disk_has_takes_part_in_a_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Options {
        disk: Some(disk(&dir)),
        ram_budget: 4 << 20,
        ..Options::default()
    });
    let mut client = node.connect();
    call(&mut client, "SET first 1");
    call(&mut client, "WATCH first");
    let value = "v".repeat(100_000);
    for number in 0..100 {
        assert_eq!(
            call(&mut client, &format!("SET filler-{number} {value}")),
            "+OK"
        );
    }
    let hash = node.shared.service.engine.ram().hash(Space(0), b"first");
    let is_in_ram = || {
        let shard = node.shared.service.engine.ram().lock(hash);
        shard.find(hash, Space(0), b"first").is_some()
    };
    until("the first key leaves RAM", || !is_in_ram());
    call(&mut client, "MULTI");
    call(&mut client, "INCR first");
    call(&mut client, "GET first");
    call(&mut client, "RENAME first second");
    assert_eq!(call(&mut client, "EXEC"), "*3 :2 $1 2 +OK");
    assert_eq!(call(&mut client, "GET second"), "$1 2");
}

#[test]
fn a_copy_of_a_missing_key_leaves_its_target_to_the_steps_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Options {
        disk: Some(disk(&dir)),
        ..Options::default()
    });
    let mut client = node.connect();
    call(&mut client, "MULTI");
    call(&mut client, "COPY missing to REPLACE");
    call(&mut client, "APPEND to value");
    call(&mut client, "RENAMENX missing other");
    call(&mut client, "GETDEL other");
    let replies = call(&mut client, "EXEC");
    assert_eq!(replies, "*4 :0 :5 -ERR no such key $-1");
    assert_eq!(call(&mut client, "GET to"), "$5 value");
}

#[test]
fn what_a_transaction_returns_is_bounded() {
    let node = Node::start(Options::default());
    let mut client = node.connect();
    let value = "v".repeat(1_500_000);
    assert_eq!(call(&mut client, &format!("SET k {value}")), "+OK");
    call(&mut client, "MULTI");
    call(&mut client, "GET k");
    call(&mut client, "GET k");
    call(&mut client, "STRLEN k");
    let reply = call(&mut client, "EXEC");
    // One value of any size, then as many as fit the longest value.
    assert!(reply.starts_with("*3 $1500000 v"));
    assert!(
        reply.ends_with("v -ERR value is too large :1500000"),
        "{}",
        reply.len()
    );
}

#[test]
fn bits_are_set_and_counted() {
    on_both(|node| {
        let mut client = node.connect();
        assert_eq!(call(&mut client, "SETBIT bits 17 1"), ":0");
        assert_eq!(call(&mut client, "SETBIT bits 17 1"), ":1");
        assert_eq!(call(&mut client, "GETBIT bits 17"), ":1");
        assert_eq!(call(&mut client, "GETBIT bits 16"), ":0");
        assert_eq!(call(&mut client, "BITCOUNT bits"), ":1");
        assert_eq!(call(&mut client, "STRLEN bits"), ":3");
        assert_eq!(call(&mut client, "EXPIRE bits 100 LT XX"), ":0");
        assert_eq!(call(&mut client, "EXPIRE bits 100"), ":1");
        assert_eq!(call(&mut client, "EXPIRE bits 50 LT XX"), ":1");
        let time = call(&mut client, "TIME");
        assert!(time.starts_with("*2 $10 1"), "{time}");
        assert_eq!(call(&mut client, "KEYS b*"), "*1 $4 bits");
        assert_eq!(call(&mut client, "KEYS x*"), "*0");
    });
}

#[test]
fn a_setting_is_changed_only_where_the_process_takes_changes() {
    let node = Node::start(Options::default());
    let mut client = node.connect();
    assert_eq!(
        call(&mut client, "CONFIG SET nosuch 1"),
        "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"
    );
    assert_eq!(
        call(&mut client, "CONFIG SET databases 1"),
        "-ERR CONFIG SET failed (possibly related to argument 'databases') - can't set immutable config"
    );
}
