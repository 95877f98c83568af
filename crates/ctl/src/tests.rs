//! What people read, from fixed answers.

use clap::CommandFactory as _;
use fonn_proto::grpc::v1::{
    ColdStatus, Cost, Count, DiskStatus, Finding, InspectSegmentResponse, KeyCopy, KeyResponse,
    LevelCodec, ListNamespacesResponse, ListSegmentsResponse, Lookups, Namespace, RamStatus,
    RequestCost, Segment, SegmentDamage, SegmentEntry, SegmentState, SetCodecResponse, Severity,
    SpillLag, StatusResponse, Tier, VerifyProgress, VerifyResponse, WarmEnd, WarmResponse,
    verify_response,
};

use super::args::{AdminAddr, Cli, CodecSetting, Command};
use super::doctor::client_addr;
use super::key::State;
use super::progress::bar;
use super::table::{Table, pairs};
use super::words::{bytes, dollars, duration, percent, relative};
use super::*;

const NOW_MS: u64 = 1_700_000_000_000;

fn count(name: &str, count: u64) -> Count {
    Count {
        name: name.to_owned(),
        count,
    }
}

fn level(level: &str, codec: &str) -> LevelCodec {
    LevelCodec {
        level: level.to_owned(),
        codec: codec.to_owned(),
        active: codec.to_owned(),
    }
}

fn cold_status() -> ColdStatus {
    ColdStatus {
        url: "s3://ci-cache/main".to_owned(),
        region: "eu".to_owned(),
        ready: true,
        segments: 120,
        stored_bytes: 3 << 30,
        budget_bytes: 10 << 30,
        entries: 40_000,
        live_bytes: 2 << 30,
        lag: Some(SpillLag {
            age_ms: 4200,
            entries: 12,
            bytes: 3 << 20,
        }),
        cost: Some(Cost {
            requests: vec![
                RequestCost {
                    kind: "put".to_owned(),
                    count: 120,
                    failed: 2,
                    dollars: 0.0006,
                },
                RequestCost {
                    kind: "get".to_owned(),
                    count: 900,
                    ..RequestCost::default()
                },
            ],
            uploaded_bytes: 3 << 30,
            downloaded_bytes: 1 << 20,
            requests_dollars: 0.000_96,
            storage_dollars_per_month: 1.25,
        }),
        ..ColdStatus::default()
    }
}

#[test]
fn a_status_names_every_tier_and_what_it_answered() {
    let status = StatusResponse {
        version: "0.1.0".to_owned(),
        uptime_ms: 7_260_000,
        listeners: vec!["127.0.0.1:11211".to_owned(), "unix:/run/fonn".to_owned()],
        durability: "batched".to_owned(),
        ram: Some(RamStatus {
            budget_bytes: 4 << 30,
            used_bytes: 1 << 30,
            entries: 1000,
            dirty_entries: 3,
            evictions: 9,
        }),
        disk: Some(DiskStatus {
            directory: "/data".to_owned(),
            budget_bytes: 10 << 30,
            used_bytes: 5 << 30,
            entries: 2000,
            generations: 7,
            queue_bytes: 0,
            queue_bytes_max: 1 << 20,
        }),
        cold: Some(cold_status()),
        lookups: Some(Lookups {
            hits: vec![count("ram", 80), count("disk", 10)],
            misses: vec![count("absent", 9), count("expired", 1)],
        }),
        codecs: vec![level("ram", "none"), level("fresh", "lz4")],
        codec_min_bytes: 256,
        connections: 3,
        connections_max: 1000,
        resident_bytes: 2 << 30,
        ..StatusResponse::default()
    };
    assert_eq!(
        status::render(&status),
        "\
node      fonn-node 0.1.0, up 2 h
state     ready
clients   127.0.0.1:11211, unix:/run/fonn
open      3 of 1000 connections
memory    2.0 GiB resident
ram       1.0 GiB of 4.0 GiB (25 %), 1000 entries, 3 to write, 9 evictions
disk      5.0 GiB of 10.0 GiB (50 %), 2000 entries, 7 generations, 0 B queued, in /data, durability batched
codecs    ram=none fresh=lz4, from 256 bytes on
hits      90, 90 % of gets: 80 ram, 10 disk
misses    10: 9 absent, 1 expired
cold      s3://ci-cache/main as region eu
bucket    3.0 GiB of 10.0 GiB (30 %) in 120 segments, 40000 entries, 67 % live
to spill  12 entries, 3.0 MiB, oldest 4 s
requests  120 put (2 failed), 900 get
moved     3.0 GiB up, 1.0 MiB down
cost      about $0.0010 for requests since the start, $1.25 a month for storage
"
    );
}

#[test]
fn namespaces_are_told_with_what_they_may_take_and_what_they_lost() {
    let list = ListNamespacesResponse {
        now_ms: NOW_MS,
        namespaces: vec![
            Namespace {
                name: "default".to_owned(),
                ram_entries: 3,
                ..Namespace::default()
            },
            Namespace {
                name: "pulls".to_owned(),
                base: "main".to_owned(),
                quota_bytes: Some(2 << 30),
                used_bytes: Some(1 << 30),
                entries: Some(400),
                ram_entries: 90,
                hits: 75,
                misses: 25,
                stores: 500,
                quota_evictions: 100,
                quota_refusals: 1,
                ..Namespace::default()
            },
        ],
    };
    assert_eq!(
        namespaces::render(&list),
        "\
NAMESPACE  BASE     USED    QUOTA  FULL  ENTRIES  IN RAM  HITS  OF GETS  STORES  LOST  REFUSED
default                -        -              -       3     0                0     0        0
pulls      main  1.0 GiB  2.0 GiB  50 %      400      90    75     75 %     500   100        1
"
    );
}

#[test]
fn a_starting_node_has_a_short_status() {
    let status = StatusResponse {
        version: "0.1.0".to_owned(),
        uptime_ms: 10,
        not_ready_reason: "starting".to_owned(),
        ..StatusResponse::default()
    };
    assert_eq!(
        status::render(&status),
        "node   fonn-node 0.1.0, up 10 ms\nstate  not ready: starting\n"
    );
}

fn copy(tier: Tier, written_ms_ago: u64) -> KeyCopy {
    KeyCopy {
        tier: tier.into(),
        version: (NOW_MS - written_ms_ago) << 16,
        codec: "lz4".to_owned(),
        value_bytes: 4096,
        stored_bytes: 1024,
        writer: "ci".to_owned(),
        ..KeyCopy::default()
    }
}

#[test]
fn a_key_is_shown_with_what_each_copy_is_good_for() {
    let answer = KeyResponse {
        copies: vec![
            KeyCopy {
                dirty: true,
                expires_at_ms: NOW_MS + 3_600_000,
                ..copy(Tier::Ram, 5_000)
            },
            KeyCopy {
                location: "generation 3 at 64".to_owned(),
                ..copy(Tier::Disk, 60_000)
            },
        ],
        flushed_below_version: 0,
        now_ms: NOW_MS,
        owners: Vec::new(),
    };
    assert_eq!(
        key::render(&answer),
        "\
TIER  STATE                    WRITTEN    WRITER  EXPIRES    VALUE   STORED  CODEC             VERSION  PLACE
ram   served, not on disk yet  5 s ago    ci      in 1 h   4.0 KiB  1.0 KiB  lz4    111411199672320000
disk  superseded               1 min ago  ci      never    4.0 KiB  1.0 KiB  lz4    111411196067840000  generation 3 at 64
"
    );
    let nothing = KeyResponse::default();
    assert_eq!(key::render(&nothing), "no tier has this key\n");
    let elsewhere = KeyResponse {
        owners: vec!["c".to_owned(), "a".to_owned()],
        ..KeyResponse::default()
    };
    assert_eq!(
        key::render(&elsewhere),
        "owned by c, a\nno tier has this key\n"
    );
}

#[test]
fn the_state_of_a_copy_follows_what_a_get_would_do() {
    let plain = copy(Tier::Disk, 1000);
    let state = |copy: &KeyCopy, flushed_below_version| {
        let answer = KeyResponse {
            copies: vec![copy.clone()],
            flushed_below_version,
            now_ms: NOW_MS,
            owners: Vec::new(),
        };
        key::state(copy, &answer)
    };
    assert_eq!(state(&plain, 0), State::Served);
    assert_eq!(state(&plain, plain.version), State::Served);
    assert_eq!(state(&plain, plain.version + 1), State::Flushed);
    let expired = KeyCopy {
        expires_at_ms: NOW_MS,
        ..plain.clone()
    };
    assert_eq!(state(&expired, 0), State::Expired);
    let deleted = KeyCopy {
        tombstone: true,
        ..plain.clone()
    };
    assert_eq!(state(&deleted, 0), State::Deleted);
    let purged = KeyCopy {
        purged: true,
        ..plain.clone()
    };
    assert_eq!(state(&purged, 0), State::Purged);
    let damaged = KeyCopy {
        damaged: true,
        ..plain
    };
    assert_eq!(state(&damaged, 0), State::Damaged);
}

#[test]
fn codecs_are_listed_and_changes_say_how_to_keep_them() {
    let codecs = codec::Codecs {
        codecs: vec![level("ram", "none"), level("fresh", "zstd:3")],
        codec_min_bytes: 256,
    };
    assert_eq!(
        codec::render(&codecs),
        "LEVEL  CODEC\nram    none\nfresh  zstd:3\nvalues below 256 bytes are stored verbatim\n"
    );
    let set = SetCodecResponse {
        previous: "lz4".to_owned(),
        codec: "zstd:3".to_owned(),
    };
    assert_eq!(
        codec::changed("fresh", &set),
        "fresh: zstd:3, was lz4, until the next restart or reload; to keep it, set --codec fresh=zstd:3\n"
    );
    let set = SetCodecResponse {
        previous: "\x1b[2J".to_owned(),
        ..set
    };
    assert!(codec::changed("fresh", &set).starts_with("fresh: zstd:3, was \u{FFFD}[2J, until"));
}

#[test]
fn a_finding_has_its_remedy_below() {
    let finding = Finding {
        check: "credentials".to_owned(),
        severity: Severity::Failed.into(),
        message: "the bucket refuses\x1b[2J the access key".to_owned(),
        remedy: "set AWS_ACCESS_KEY_ID".to_owned(),
        duration_ms: 12,
    };
    assert_eq!(
        doctor::render(&finding),
        "FAILED   credentials: the bucket refuses\u{FFFD}[2J the access key (12 ms)\n         \
         to cure it: set AWS_ACCESS_KEY_ID\n"
    );
}

#[test]
fn clocks_may_differ_by_the_time_of_the_call() {
    let severity =
        |node_ms, local_ms, took_ms| doctor::clock(node_ms, local_ms, took_ms).severity();
    assert_eq!(severity(NOW_MS, NOW_MS + 1000, 0), Severity::Ok);
    assert_eq!(severity(NOW_MS, NOW_MS + 30_000, 29_000), Severity::Ok);
    assert_eq!(severity(NOW_MS + 3000, NOW_MS, 0), Severity::Warning);
    assert_eq!(severity(NOW_MS, NOW_MS + 3_600_000, 5), Severity::Failed);
}

#[test]
fn a_client_port_is_looked_for_where_a_client_would() {
    let addr = |listener, host| client_addr(listener, host);
    assert_eq!(
        addr("127.0.0.1:1", "127.0.0.1").as_deref(),
        Some("127.0.0.1:1")
    );
    assert_eq!(
        addr("127.0.0.1:1", "localhost").as_deref(),
        Some("127.0.0.1:1")
    );
    assert_eq!(addr("0.0.0.0:1", "node-1").as_deref(), Some("node-1:1"));
    assert_eq!(addr("[::]:1", "[::1]").as_deref(), Some("[::1]:1"));
    assert_eq!(addr("10.0.0.1:1", "node-1").as_deref(), Some("10.0.0.1:1"));
    assert_eq!(addr("127.0.0.1:1", "node-1"), None);
    assert_eq!(addr("unix:/run/fonn", "127.0.0.1"), None);
}

fn segment(sequence: u64, state: SegmentState) -> Segment {
    Segment {
        name: format!("eu/01J/{sequence:016x}"),
        sequence,
        size_bytes: 16 << 20,
        data_bytes: 1000,
        live_bytes: 400,
        entries: 90,
        tombstones: 2,
        created_at_ms: NOW_MS - 86_400_000,
        last_read_at_ms: sequence * (NOW_MS - 60_000),
        state: state.into(),
        ..Segment::default()
    }
}

#[test]
fn segments_are_a_table_with_a_sum() {
    let list = ListSegmentsResponse {
        segments: vec![
            segment(0, SegmentState::Live),
            segment(1, SegmentState::Doomed),
        ],
        next_page_token: "x".to_owned(),
    };
    assert_eq!(
        cold::render_list(&list, NOW_MS),
        "\
SEGMENT                  WRITTEN      SIZE  LIVE  ENTRIES  DELETES  READ       STATE
eu/01J/0000000000000000  1 d ago  16.0 MiB  40 %       90        2  never      live
eu/01J/0000000000000001  1 d ago  16.0 MiB  40 %       90        2  1 min ago  doomed
2 segments, 32.0 MiB, and there are more
"
    );
    let none = ListSegmentsResponse::default();
    assert_eq!(cold::render_list(&none, NOW_MS), "there are no segments\n");
}

#[test]
fn a_segment_is_shown_with_the_head_of_its_entries() {
    let inspection = InspectSegmentResponse {
        segment: None,
        format_version: 1,
        footer_bytes: 2048,
        records: 3,
        entries: vec![SegmentEntry {
            key: b"a/b\xff".to_vec(),
            namespace: "default".to_owned(),
            database: 2,
            offset: 64,
            length: 300,
            version: 9,
            expires_at_ms: NOW_MS + 1000,
            tombstone: false,
            current: true,
        }],
        next_page_token: String::new(),
    };
    assert_eq!(
        cold::render_inspection("eu/01J/0", &inspection, NOW_MS),
        "\
segment  eu/01J/0
state    the node's index does not know it
format   1
footer   2.0 KiB
records  3

OFFSET  LENGTH  VERSION  EXPIRES  STATE    SPACE      KEY
    64     300        9  in 1 s   current  default/2  a/b\u{FFFD}
2 more; --limit shows them
"
    );
}

#[test]
fn a_check_ends_with_what_was_found() {
    let damage = SegmentDamage {
        segment: "eu/01J/0".to_owned(),
        message: "the checksum is wrong".to_owned(),
    };
    assert_eq!(
        cold::damage_line(&damage),
        "BAD eu/01J/0: the checksum is wrong\n"
    );
    let last = VerifyProgress {
        segments_done: 2,
        segments_total: 2,
        bytes_done: 2048,
        bytes_total: 2048,
        records_sound: 10,
        damages: 0,
    };
    assert_eq!(
        cold::render_verified(&last, 0),
        "2 segments, 2.0 KiB, 10 sound records, nothing wrong\n"
    );
    assert!(cold::render_verified(&last, 1).contains("1 findings"));
}

#[test]
fn progress_is_a_bar_that_never_overflows() {
    assert_eq!(bar(0, 0), format!("[>{}]   0 %", " ".repeat(29)));
    assert_eq!(
        bar(1, 2),
        format!("[{}>{}]  50 %", "=".repeat(15), " ".repeat(14))
    );
    for done in [10, 11] {
        assert_eq!(bar(done, 10), format!("[{}] 100 %", "=".repeat(30)));
    }
}

#[test]
fn warming_is_good_if_it_came_to_an_end_with_everything_read() {
    let of = |end: WarmEnd, failed| WarmResponse {
        end: end.into(),
        failed,
        ..WarmResponse::default()
    };
    for end in [WarmEnd::All, WarmEnd::Limit, WarmEnd::RamFull] {
        assert_eq!(warm::verdict(&of(end, 0)), Verdict::Good, "{end:?}");
        assert_eq!(warm::verdict(&of(end, 1)), Verdict::Bad, "{end:?}");
    }
    let cut_off = of(WarmEnd::Unspecified, 0);
    assert_eq!(warm::verdict(&cut_off), Verdict::Bad);
    assert!(warm::render(&cut_off).ends_with("it was cut off\n"));
}

#[test]
fn tables_align_and_keep_control_characters_from_the_terminal() {
    let mut table = Table::new(&["A", ">COUNT"]);
    table.row(["é\x07x".to_owned(), "5".to_owned()]);
    table.row(["longer".to_owned(), "123456".to_owned()]);
    assert_eq!(
        table.render(),
        "A        COUNT\né\u{FFFD}x          5\nlonger  123456\n"
    );
    let lines = pairs(&[("a", "1\n2".to_owned()), ("long", String::new())]);
    assert_eq!(lines, "a     1\u{FFFD}2\nlong  \n");
}

#[test]
fn numbers_read_as_people_say_them() {
    assert_eq!(bytes(1536), "1.5 KiB");
    assert_eq!(
        (percent(1, 3), percent(0, 0)),
        ("33 %".to_owned(), String::new())
    );
    let words = [0, 999, 59_999, 60_000, 3_600_000, 90_000_000].map(duration);
    assert_eq!(words, ["0 ms", "999 ms", "59 s", "1 min", "1 h", "1 d"]);
    assert_eq!(relative(NOW_MS, NOW_MS), "now");
    assert_eq!(relative(NOW_MS + 5000, NOW_MS), "in 5 s");
    assert_eq!(
        (dollars(12.345), dollars(0.00042)),
        ("$12.35".to_owned(), "$0.0004".to_owned())
    );
}

#[test]
fn the_command_line_is_sound_and_addresses_are_checked() {
    Cli::command().debug_assert();
    for good in [
        "127.0.0.1:11280",
        "[::1]:1",
        "node-1.example:80",
        "http://a:1/",
    ] {
        assert!(good.parse::<AdminAddr>().is_ok(), "{good}");
    }
    for bad in [
        "",
        "a",
        ":1",
        "a:",
        "a:0",
        "a:65536",
        "a b:1",
        "ftp://a:1",
        "a/b:1",
    ] {
        assert!(bad.parse::<AdminAddr>().is_err(), "{bad}");
    }
    for bad in ["", "ram", "=lz4", "ram="] {
        assert!(bad.parse::<CodecSetting>().is_err(), "{bad}");
    }
    for (args, port) in [
        (["--admin", "a", "status"], "11280"),
        (["gocache", "--server", "a"], "11290"),
    ] {
        let error = Cli::try_parse_from([&["fonnctl"][..], &args[..]].concat());
        let text = error.unwrap_err().to_string();
        assert!(text.contains(&format!("as in 127.0.0.1:{port}")), "{text}");
    }
    let without_yes = Cli::try_parse_from(["fonnctl", "flush", "default"]);
    assert_eq!(without_yes.unwrap_err().exit_code(), 2);
    let cli = Cli::try_parse_from(["fonnctl", "cold", "ls", "--admin", "a:1", "--json"]).unwrap();
    assert!(
        cli.json
            && cli.admin.addr == "a:1"
            && !cli.admin.is_https
            && matches!(cli.command, Command::Cold(_))
    );
    let cli = Cli::try_parse_from(["fonnctl", "status", "--user", "ci"]).unwrap();
    assert_eq!(cli.login.user.as_deref(), Some("ci"));
    assert!("https://a:1/".parse::<AdminAddr>().unwrap().is_https);
    let alone = Cli::try_parse_from(["fonnctl", "status", "--tls-cert", "c"]);
    assert_eq!(alone.unwrap_err().exit_code(), 2);
    // A password is never an argument: every user of the machine can read those.
    let flag = Cli::try_parse_from(["fonnctl", "status", "--password", "p"]);
    assert_eq!(flag.unwrap_err().exit_code(), 2);
}

#[tokio::test]
async fn a_password_is_read_from_a_file_or_the_environment() {
    let file = |text: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    };
    let args = |user: Option<&str>, path: Option<&std::path::Path>| args::Login {
        user: user.map(str::to_owned),
        password_file: path.map(Into::into),
    };
    let read = async |args: &args::Login, variable: Option<&str>| {
        let read = login::read_with(args, variable.map(Into::into)).await;
        read.map(|it| it.map(|it| (it.user, it.password)))
    };
    let good = file("p ä\n");
    let by_file = args(Some("ci"), Some(good.path()));
    let expected = Some(("ci".to_owned(), "p ä".as_bytes().to_vec()));
    assert_eq!(read(&by_file, Some("other")).await.unwrap(), expected);
    let by_variable = read(&args(Some("ci"), None), Some("v")).await.unwrap();
    assert_eq!(by_variable, Some(("ci".to_owned(), b"v".to_vec())));
    assert_eq!(read(&args(None, None), Some("v")).await.unwrap(), None);
    let (empty, long) = (file("\n"), file(&"x".repeat(5000)));
    for (bad, part) in [
        (args(Some("ci"), Some(empty.path())), "is empty"),
        (args(Some("ci"), Some(long.path())), "more than 1024"),
        (
            args(Some("ci"), Some("/nonexistent".as_ref())),
            "/nonexistent",
        ),
        (args(None, Some(good.path())), "--user"),
        (args(Some("a:b"), Some(good.path())), "a:b"),
    ] {
        let error = read(&bad, None).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert!(!error.contains("p ä"), "{error}");
    }
}

#[test]
fn a_refused_login_is_told_from_other_refusals() {
    use tonic::Status;

    for status in [
        Status::unauthenticated("no"),
        Status::permission_denied("no"),
    ] {
        assert!(matches!(CtlError::of(&status, "a:1"), CtlError::Denied(_)));
    }
    let other = CtlError::of(&Status::not_found("no"), "a:1");
    assert!(matches!(other, CtlError::Refused(_)));
}

#[test]
fn a_refusal_has_nothing_that_a_terminal_acts_on() {
    let status = tonic::Status::permission_denied("no \x1b]0;title\x07");
    let text = CtlError::of(&status, "a:1").to_string();
    assert_eq!(text, "no \u{FFFD}]0;title\u{FFFD}");
}

#[test]
fn a_password_becomes_a_hash_that_verifies() {
    use argon2::password_hash::phc::PasswordHash;
    use argon2::{Argon2, PasswordVerifier as _};

    let hash = password::hash_password(b"correct horse").unwrap();
    assert!(
        hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
        "{hash}"
    );
    let parsed = PasswordHash::new(&hash).unwrap();
    assert!(
        Argon2::default()
            .verify_password(b"correct horse", &parsed)
            .is_ok()
    );
    assert!(
        Argon2::default()
            .verify_password(b"wrong horse", &parsed)
            .is_err()
    );
    assert_ne!(
        password::hash_password(b"correct horse").unwrap(),
        hash,
        "salted"
    );
    assert!(password::hash_password(b"").is_err());
    assert!(password::hash_password(&[b'x'; 1025]).is_err());
    for line in ["p", "p\n", "p\r\n"] {
        assert_eq!(password::without_line_end(line.as_bytes()), b"p");
    }
    assert_eq!(password::without_line_end(b"p\n\n"), b"p\n");
}

#[test]
fn what_is_no_node_is_told_from_what_refuses() {
    use tonic::Status;

    let text = |status: &Status| CtlError::of(status, "a:1").to_string();
    let refused = Status::failed_precondition("this node has no cold tier; start it with one");
    assert_eq!(
        text(&refused),
        "this node has no cold tier; start it with one"
    );
    let old = text(&Status::unimplemented("there is no service"));
    assert!(old.contains("older than this fonnctl"), "{old}");
    let foreign = text(&Status::unknown("grpc-status header missing"));
    assert!(
        foreign.contains("a:1 does not answer as the admin port"),
        "{foreign}"
    );
    assert!(foreign.contains("--admin"), "{foreign}");
}

#[test]
fn enums_keys_and_events_read_as_words() {
    let copy = KeyCopy {
        tier: Tier::Disk.into(),
        ..KeyCopy::default()
    };
    assert_eq!(serde_json::to_value(copy).unwrap()["tier"], "disk");
    let finding = Finding {
        severity: Severity::Warning.into(),
        ..Finding::default()
    };
    assert_eq!(
        serde_json::to_value(finding).unwrap()["severity"],
        "warning"
    );
    let entry = SegmentEntry {
        key: b"a\xffb".to_vec(),
        ..SegmentEntry::default()
    };
    assert_eq!(serde_json::to_value(entry).unwrap()["key"], "a\u{FFFD}b");
    let event = VerifyResponse {
        event: Some(verify_response::Event::Progress(VerifyProgress::default())),
    };
    let json = serde_json::to_value(event).unwrap();
    assert_eq!(json["event"]["progress"]["segments_done"], 0);
}

#[test]
fn an_unknown_number_is_not_hidden() {
    let copy = KeyCopy {
        tier: 77,
        ..KeyCopy::default()
    };
    assert_eq!(serde_json::to_value(copy).unwrap()["tier"], 77);
}
