use clap::Parser;
use serde::Deserialize;

use super::*;
use crate::duration::Span;
use crate::size::{Budget, ByteCount};

layer! {
    /// Settings as a program would declare them.
    #[derive(Debug, Default, PartialEq, Parser, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    #[command(name = "fonn-test", version = "1.2.3")]
    struct Settings {
        /// Addresses.
        #[arg(long, value_delimiter = ',')]
        listen: Vec<String>,
        /// Budget of memory.
        #[arg(long)]
        ram_budget: Option<Budget>,
        /// Largest value.
        #[arg(long, env = "FONN_RUNTIME_TEST_MAX_VALUE")]
        max_value: Option<ByteCount>,
        /// Delay.
        #[arg(long)]
        delay: Option<Span>,
        /// Threads.
        #[arg(long)]
        threads: Option<u16>,
    }
}

fn file(text: &str) -> Result<Settings, ConfigError> {
    parse_file(Path::new("fonn.toml"), text)
}

fn args(args: &[&str]) -> Result<Settings, Early> {
    let args = std::iter::once("fonn-test").chain(args.iter().copied());
    parse_matches(args).map(|(parsed, _)| parsed)
}

fn usage(list: &[&str]) -> String {
    match args(list) {
        Err(Early::Bad(error)) => error.to_string(),
        other => panic!("not a bad configuration: {other:?}"),
    }
}

#[test]
fn flag_wins_over_file_and_lists_are_taken_whole() {
    let flags = args(&["--ram-budget", "512m", "--listen", "a,b"]).unwrap();
    let lower = file("ram_budget = '25%'\nlisten = ['c']\nthreads = 3\nmax_value = 1024").unwrap();
    let merged = flags.over(lower);
    let expected = Settings {
        listen: vec!["a".to_owned(), "b".to_owned()],
        ram_budget: Some(Budget::Bytes(ByteCount::mib(512))),
        max_value: Some(ByteCount::new(1024)),
        delay: None,
        threads: Some(3),
    };
    assert_eq!(merged, expected);
}

/// With `FONN_RUNTIME_TEST_MAX_VALUE` set.
fn origins_follow_the_layers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fonn.toml");
    std::fs::write(&path, "threads = 3\nmax_value = '1m'\nlisten = ['a']").unwrap();
    let load = |flags: &[&str]| {
        let args = ["fonn-test", "--listen", "b"].iter().chain(flags).copied();
        let set = Settings::default();
        load_layers(args, set, |args: Settings| (Some(path.clone()), args)).unwrap()
    };
    let keys = ["threads", "max_value", "listen", "ram_budget"];
    let (settings, origins) = load(&[]);
    assert_eq!(
        keys.map(|key| origins.of(key)),
        [
            Origin::File,
            Origin::Environment,
            Origin::Flag,
            Origin::Default
        ]
    );
    assert_eq!(settings.max_value, Some(ByteCount::mib(2)));
    assert_eq!(origins.file(), Some(&*path));
    let (_, flags) = load(&["--max-value", "3m", "--threads", "4"]);
    assert_eq!(flags.of("max_value"), Origin::Flag);
    let mut mixed = flags.clone();
    mixed.take_over(&["max_value", "ram_budget"], &origins);
    assert_eq!(mixed.of("max_value"), Origin::Environment);
    assert_eq!(mixed.of("threads"), Origin::Flag, "not asked for");
}

/// The environment of a process cannot be changed safely while others read it, so the test runs
/// itself in a child.
#[test]
fn environment_is_between_flag_and_file() {
    const CHILD: &str = "FONN_RUNTIME_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let lower = || file("max_value = '1m'").unwrap();
        assert_eq!(
            args(&[]).unwrap().over(lower()).max_value,
            Some(ByteCount::mib(2))
        );
        let merged = args(&["--max-value", "3m"]).unwrap().over(lower());
        assert_eq!(merged.max_value, Some(ByteCount::mib(3)));
        origins_follow_the_layers();
        return;
    }
    run_in_child("environment_is_between_flag_and_file", CHILD, "2m");
}

/// Runs a test of this module in a process where `child` and FONN_RUNTIME_TEST_MAX_VALUE are set.
fn run_in_child(test: &str, child: &str, max_value: &str) {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("config::tests::{test}")])
        .env(child, "1")
        .env("FONN_RUNTIME_TEST_MAX_VALUE", max_value)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_bad_value_names_the_variable_or_the_flag_that_it_was_given_by() {
    const CHILD: &str = "FONN_RUNTIME_TEST_BAD_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let error = usage(&[]);
        assert!(
            error.starts_with("invalid value '12q' for FONN_RUNTIME_TEST_MAX_VALUE: "),
            "{error}"
        );
        for flag in [&["--max-value", "13q"][..], &["--max-value=13q"]] {
            let error = usage(flag);
            assert!(error.contains("for '--max-value"), "{error}");
        }
        return;
    }
    let test = "a_bad_value_names_the_variable_or_the_flag_that_it_was_given_by";
    run_in_child(test, CHILD, "12q");
}

#[test]
fn unknown_key_names_file_line_key_and_the_nearest_keys() {
    let error = file("threads = 1\n\nram_bugdet = '25%'\nzzz = 1\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "fonn.toml, line 3: unknown key `ram_bugdet`, the nearest known key is `ram_budget`"
    );
    let error = file("max-value = 3").unwrap_err().to_string();
    assert!(
        error.ends_with("line 1: unknown key `max-value`, the nearest known key is `max_value`")
    );
    let error = file("[section]\na = 1").unwrap_err().to_string();
    assert!(error.contains("line 1: unknown key `section`"), "{error}");
}

#[test]
fn bad_value_names_file_line_key_value_and_what_is_accepted() {
    let error = file("threads = 1\nram_budget = '12q'")
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("fonn.toml, line 2, key `ram_budget`: `12q`: expected a budget"),
        "{error}"
    );
    let error = file("threads = 'x'").unwrap_err().to_string();
    assert!(
        error.starts_with("fonn.toml, line 1, key `threads`: invalid type"),
        "{error}"
    );
    let error = file("listen = [\n  'a',\n  7,\n]").unwrap_err().to_string();
    assert!(
        error.starts_with("fonn.toml, line 3, key `listen`: invalid type"),
        "{error}"
    );
    let error = file("delay = true").unwrap_err().to_string();
    assert!(error.contains("expected a duration like 5s"), "{error}");
    for error in [
        file("delay = 'x'"),
        file("a = = 1"),
        file("threads = 1\nthreads = 2"),
    ] {
        let text = error.unwrap_err().to_string();
        assert!(
            !text.contains('\n') && text.starts_with("fonn.toml, line "),
            "{text}"
        );
    }
}

#[test]
fn file_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("absent.toml");
    let error = load_file::<Settings>(&path).unwrap_err().to_string();
    assert!(
        error.contains("absent.toml: cannot read the file: "),
        "{error}"
    );
    std::fs::write(&path, "threads = 9").unwrap();
    assert_eq!(load_file::<Settings>(&path).unwrap().threads, Some(9));
    std::fs::write(&path, b"threads = 9 # \xff").unwrap();
    assert!(matches!(
        load_file::<Settings>(&path),
        Err(ConfigError::Read { .. })
    ));
}

#[test]
fn bad_flags_give_one_sentence_with_flag_value_and_what_is_accepted() {
    let error = usage(&["--ram-budget", "150%"]);
    assert!(
        error.contains("'150%'") && error.contains("--ram-budget"),
        "{error}"
    );
    assert!(
        error.contains("a percentage from 1% to 100%") && !error.contains('\n'),
        "{error}"
    );
    let error = usage(&["--ram-bugdet", "1"]);
    assert!(
        error.contains("'--ram-bugdet'") && error.contains("'--ram-budget'"),
        "{error}"
    );
    assert!(
        !error.contains("Usage") && !error.contains("For more information"),
        "{error}"
    );
    assert!(!usage(&["stray"]).starts_with("error:"));
}

#[test]
fn a_bad_flag_with_a_login_is_told_without_it() {
    let error = usage(&["--ram-budget", "s3://key:secret@bucket"]);
    assert!(
        !error.contains("secret") && !error.contains("key"),
        "{error}"
    );
    assert!(
        error.starts_with("invalid value for '--ram-budget <RAM_BUDGET>': expected"),
        "{error}"
    );
}

#[test]
fn help_and_version_are_no_errors() {
    for (flag, part) in [("--help", "Largest value"), ("--version", "1.2.3")] {
        match args(&[flag]) {
            Err(Early::Info(text)) => assert!(text.contains(part), "{text}"),
            other => panic!("no information: {other:?}"),
        }
    }
}

#[test]
fn invalid_setting_reads_as_one_sentence() {
    let error = ConfigError::invalid("--threads", 0, "1 to 1024 threads");
    assert_eq!(error.to_string(), "--threads 0: expected 1 to 1024 threads");
}

#[test]
fn keys_are_the_fields_also_of_layers_in_a_layer() {
    layer! {
        #[derive(Debug, Default, Deserialize)]
        struct Outer {
            first: Option<u8>,
            #[serde(skip)]
            inner: Inner,
        }
        #[derive(Debug, Default, Deserialize)]
        struct Inner {
            second: Option<u8>,
        }
    }
    assert_eq!(keys::<Outer>(), ["first", "second"]);
    let parse = |text| parse_file::<Outer>(Path::new("x"), text);
    assert_eq!(parse("second = 2").unwrap().inner.second, Some(2));
    assert_eq!(parse("first = 2").unwrap().first, Some(2));
    let error = parse("first = 2\nsecond = 'x'").unwrap_err().to_string();
    assert!(error.starts_with("x, line 2, key `second`: "), "{error}");
    assert!(matches!(
        parse("third = 3"),
        Err(ConfigError::UnknownKey { line: 1, .. })
    ));
}

#[test]
fn edit_distance_counts_single_changes() {
    for (a, b, distance) in [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("kitten", "sitting", 3),
        ("a-b", "a_b", 0),
    ] {
        assert_eq!(edit_distance(a, b), distance, "{a} {b}");
    }
}
