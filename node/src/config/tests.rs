use std::time::Duration;

use fonn_server::ListenAddr;

use super::*;

fn from_file(text: &str) -> Result<Config, ConfigError> {
    resolve(config::parse_file(Path::new("test.toml"), text)?)
}

fn from_args(args: &[&str]) -> Result<Config, String> {
    let all = std::iter::once("fonn-node").chain(args.iter().copied());
    load(all).map_err(|early| match early {
        Early::Info(text) => text,
        Early::Bad(error) => error.to_string(),
    })
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let config = resolve(Settings {
        data_dir: Some("/d".into()),
        ..Settings::default()
    })
    .unwrap();
    assert_eq!(
        config.common.listen,
        [ListenAddr::Tcp("127.0.0.1:11211".to_owned())]
    );
    assert_eq!(config.common.admin_listen, "127.0.0.1:11280");
    assert_eq!(config.common.http.address(), Some("127.0.0.1:11290"));
    assert_eq!(config.common.http.deadline, Duration::from_secs(2));
    assert_eq!(config.disk_budget, ByteCount::mib(10 * 1024));
    assert_eq!(config.max_value, ByteCount::mib(256));
    assert_eq!(config.durability, Durability::Batched);
    assert_eq!(config.lru, LruMode::Approximate);
    assert_eq!(config.codec_min_bytes, 256);
    let codecs = "ram=none,fresh=lz4,compacted=zstd:3,cold=zstd:9";
    assert_eq!(config.codecs(), codecs);
    let quarter = memory::available().bytes() / 4;
    assert!(config.ram_budget.bytes().abs_diff(quarter) <= 4);
}

#[test]
fn every_flag_has_a_key_in_the_file() {
    let config = from_file(
        r#"
        listen = ["127.0.0.1:1", "unix:/tmp/s"]
        admin_listen = "127.0.0.1:2"
        http_listen = "none"
        http_deadline = "500ms"
        threads = 3
        ram_budget = "100m"
        max_value = 1000000
        lru = "strict"
        data_dir = "/data"
        disk_budget = "1g"
        durability = "fsync"
        codec = ["ram=lz4", "fresh=zstd:1"]
        codec_min_bytes = "1k"
        log = "debug"
        log_format = "json"
        "#,
    )
    .unwrap();
    assert_eq!(config.common.listen.len(), 2);
    assert_eq!(config.common.http.address(), None);
    assert_eq!(config.common.http.deadline, Duration::from_millis(500));
    assert_eq!(
        (config.common.threads, config.ram_budget),
        (3, ByteCount::mib(100))
    );
    assert_eq!(config.max_value, ByteCount::new(1_000_000));
    assert_eq!(
        (config.lru, config.durability),
        (LruMode::Strict, Durability::Fsync)
    );
    assert_eq!(config.codec(Level::Fresh).to_string(), "zstd:1");
    assert_eq!(config.codec_min_bytes, 1024);
}

#[test]
fn what_cannot_be_used_is_refused_with_a_sentence_that_names_it() {
    for (text, parts) in [
        ("threads = 0", &["--threads", "0", "1 to 256"][..]),
        ("max_value = \"2g\"", &["--max-value", "2g", "1g"]),
        ("ram_budget = \"1k\"", &["--ram-budget", "8m"]),
        (
            "data_dir = \"/d\"\ndisk_budget = \"1m\"",
            &["--disk-budget", "64m", "--data-dir none"],
        ),
        (
            "listen = \"0.0.0.0:1\"",
            &["--listen", "0.0.0.0:1", "--insecure"],
        ),
        (
            "admin_listen = \"0.0.0.0:1\"",
            &["--admin-listen", "--insecure"],
        ),
        (
            "http_listen = \"0.0.0.0:1\"",
            &["--http-listen", "--insecure"],
        ),
        (
            "http_deadline = \"1ms\"",
            &["--http-deadline", "10ms to 60s"],
        ),
        (
            "users_file = \"u\"\nlisten = \"0.0.0.0:1\"",
            &[
                "--listen",
                "0.0.0.0:1",
                "in the clear",
                "--tls-cert",
                "--insecure",
            ],
        ),
        (
            "users_file = \"u\"\nadmin_listen = \"0.0.0.0:1\"",
            &["--admin-listen", "in the clear", "--tls-cert"],
        ),
        (
            "\nram_bugdet = 1",
            &["test.toml", "line 2", "ram_bugdet", "ram_budget"],
        ),
        (
            "codec = \"middle=lz4\"",
            &["line 1", "codec", "middle", "fresh, compacted and cold"],
        ),
        (
            "codec = \"fresh=brotli\"",
            &["line 1", "codec", "brotli", "zstd", "auto"],
        ),
        ("listen = \"nowhere\"", &["line 1", "nowhere", "HOST:PORT"]),
    ] {
        let message = from_file(text).unwrap_err().to_string();
        for part in parts {
            assert!(
                message.contains(part),
                "{text:?} gave {message:?}, which lacks {part:?}"
            );
        }
        assert!(!message.contains('\n'), "{message:?}");
    }
}

#[test]
fn an_open_address_is_served_if_that_was_asked_for() {
    assert!(from_file("listen = \"0.0.0.0:1\"\ninsecure = true").is_ok());
    assert!(from_args(&["--listen", "0.0.0.0:1", "--insecure"]).is_ok());
    assert!(from_args(&["--listen", "0.0.0.0:1", "--insecure=false"]).is_err());
    let users = ["--listen", "0.0.0.0:1", "--users-file", "u"];
    assert!(from_args(&[&users[..], &["--insecure"]].concat()).is_ok());
    let tls = ["--tls-cert", "c", "--tls-key", "k"];
    assert!(from_args(&[&users[..], &tls].concat()).is_ok());
}

#[test]
fn a_flag_wins_over_the_file_and_later_codecs_over_earlier_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fonn.toml");
    std::fs::write(&path, "ram_budget = \"64m\"\nthreads = 7\n").unwrap();
    let path = path.display().to_string();
    let config = from_args(&[
        "--config",
        &path,
        "--ram-budget",
        "32m",
        "--data-dir",
        "none",
        "--codec",
        "ram=lz4",
        "--codec",
        "fresh=none,ram=none",
    ])
    .unwrap();
    assert_eq!(
        (config.ram_budget, config.common.threads),
        (ByteCount::mib(32), 7)
    );
    assert_eq!(config.data_dir, None);
    assert_eq!(
        (config.codec(Level::Ram), config.codec(Level::Fresh)),
        (CodecChoice::none(), CodecChoice::none())
    );
}

#[test]
fn help_shows_every_setting_in_its_group() {
    let help = from_args(&["--help"]).unwrap_err();
    for key in config::keys::<Settings>() {
        let flag = format!("--{}", key.replace('_', "-"));
        assert!(help.contains(&flag), "{flag} is missing in\n{help}");
    }
    for group in ["Listeners:", "RAM:", "Disk:", "Compression:", "Logs:"] {
        assert!(help.contains(group), "{group} is missing in\n{help}");
    }
}

#[test]
fn every_level_takes_a_codec_and_the_last_word_counts() {
    let text =
        r#"codec = ["ram=zstd:-7", "compacted=auto", "fresh=snappy", "cold=zlib:9", "fresh=auto"]"#;
    let config = from_file(text).unwrap();
    assert_eq!(config.codec(Level::Fresh), CodecChoice::Auto);
    let codecs = config.pairs().into_iter().find(|(name, _)| name == "codec");
    assert_eq!(
        codecs.unwrap().1,
        "ram=zstd:-7,fresh=auto,compacted=auto,cold=zlib:9"
    );
}

#[test]
fn the_banner_tells_tiers_budgets_codecs_durability_and_listeners() {
    let config = from_file("data_dir = \"/data\"\nram_budget = \"64m\"").unwrap();
    let banner = config.banner(
        &["127.0.0.1:5".to_owned()],
        Some("127.0.0.1:7"),
        "127.0.0.1:6",
    );
    for part in [
        "64.0 MiB",
        "10.0 GiB",
        "/data",
        "lz4",
        "batched",
        "127.0.0.1:5",
        "127.0.0.1:6",
        "every client on this machine",
    ] {
        assert!(banner.contains(part), "{part} is missing in\n{banner}");
    }
}

#[test]
fn every_setting_is_told_once_in_the_order_of_help() {
    let config = from_file(
        r#"
        data_dir = "/d"
        cold_tier = "s3://bucket/prefix"
        s3_endpoint = "http://key:hidden@host:9000"
        node_id = "a"
        cluster_listen = "127.0.0.1:11290"
        bootstrap = true
        "#,
    )
    .unwrap();
    let settings = config.settings();
    let told: Vec<&str> = settings.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(told, config::keys::<Settings>());
    let value = |key: &str| {
        let found = settings.iter().find(|it| it.key == key);
        found.unwrap().value.clone()
    };
    assert_eq!(value("s3_endpoint"), "http://host:9000");
    assert!(settings.iter().all(|it| !it.value.contains("hidden")));
    // Where there is neither, the one that says so stands for all of its kind.
    let config = from_file("data_dir = '/d'").unwrap();
    for key in ["cold_tier", "cluster_listen"] {
        let it = config.settings().into_iter().find(|it| it.key == key);
        assert_eq!(it.unwrap().value, "none");
    }
    assert!(config.settings().iter().all(|it| it.key != "spill"));
}

#[test]
fn credentials_in_the_url_of_the_bucket_are_not_repeated() {
    let error = from_args(&["--cold-tier", "s3://key:secret@bucket/prefix"]).unwrap_err();
    assert!(
        error.contains("--cold-tier") && error.contains("no credentials"),
        "{error}"
    );
    assert!(
        !error.contains("secret") && !error.contains("key:"),
        "{error}"
    );
    let error = from_file("cold_tier = 's3://key:secret@bucket'")
        .unwrap_err()
        .to_string();
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn what_a_reload_applies_is_in_force_and_the_rest_is_told_for_later() {
    let mut config = from_file("data_dir = \"/a\"\nram_budget = \"64m\"").unwrap();
    let new = "data_dir = \"/b\"\nram_budget = \"32m\"\nthreads = 200\nlog = \"debug\"";
    let new = from_file(new).unwrap();
    config.adopt(&new, &LIVE);
    let settings = config.settings_before(&new);
    let told = |key: &str| {
        let found = settings.iter().find(|it| it.key == key).unwrap();
        (
            found.value.as_str(),
            found.can_reload,
            found.after_restart.as_deref(),
        )
    };
    assert_eq!(told("ram_budget"), ("32m", true, None));
    assert_eq!(told("log"), ("debug", true, None));
    assert_eq!(told("data_dir"), ("/a", false, Some("/b")));
    assert_eq!(told("threads").2, Some("200"));
    // What needs a restart is what a reload does not apply, and nothing is both.
    let names = config.needs_restart(&new).into_iter();
    let keys: Vec<String> = names.map(|it| it[2..].replace('-', "_")).collect();
    let later = settings.iter().filter(|it| it.after_restart.is_some());
    let mut later: Vec<&str> = later.map(|it| it.key.as_str()).collect();
    later.sort_unstable();
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, later);
}

#[test]
fn a_reload_names_what_needs_a_restart() {
    let old = from_file("data_dir = \"/a\"").unwrap();
    let new = from_file("data_dir = \"/b\"\nram_budget = \"64m\"\nthreads = 200").unwrap();
    assert_eq!(old.needs_restart(&new), ["--threads", "--data-dir"]);
    assert!(old.needs_restart(&old).is_empty());
    // Each by its own name, and what is new by the one that stands for its kind.
    let with = |more: &str| from_file(&format!("data_dir = \"/a\"\n{more}")).unwrap();
    let member = "node_id = \"n\"\ncluster_listen = \"127.0.0.1:1\"\nbootstrap = true\n";
    let zones = ["a", "b"].map(|zone| with(&format!("{member}zone = \"{zone}\"")));
    assert_eq!(zones[0].needs_restart(&zones[1]), ["--zone"]);
    let bucket = "cold_tier = \"file:///bucket\"\n";
    let spill = with(&format!(
        "{bucket}spill = \"on-evict\"\ncold_budget = \"1g\""
    ));
    assert_eq!(with(bucket).needs_restart(&spill), ["--spill"]);
    assert_eq!(with("").needs_restart(&with(bucket)), ["--cold-tier"]);
    assert_eq!(zones[0].needs_restart(&with("")), ["--cluster-listen"]);
}

#[test]
fn a_codec_that_the_build_leaves_out_is_refused_at_the_start_with_its_feature() {
    for codec in fonn_codec::registry::all() {
        let name = codec.name();
        let sentence =
            format!("codec {name} is not in this build: it needs the cargo feature `{name}`");
        for level in ["ram", "fresh", "compacted", "cold"] {
            let setting = format!("{level}={name}");
            let by_flag = from_args(&["--data-dir", "none", "--codec", &setting]);
            let by_file = from_file(&format!("data_dir = \"none\"\ncodec = [\"{setting}\"]"));
            for answer in [by_flag, by_file.map_err(|error| error.to_string())] {
                match answer {
                    Ok(config) => {
                        let codecs = config.codecs();
                        assert!(codec.is_available(), "{setting} was taken");
                        assert!(codecs.contains(&setting), "{setting}: {codecs}");
                    }
                    Err(error) => {
                        assert!(!codec.is_available(), "{setting}: {error}");
                        assert!(error.contains(&sentence), "{error}");
                    }
                }
            }
        }
    }
}
