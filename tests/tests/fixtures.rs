//! The test clients and the load generator against the servers whose protocols they speak, so
//! that a suite that passes on Fonn has not agreed with a mistake of its own.

use std::num::NonZeroUsize;

use anyhow::{Result, ensure};

use fonn_tests::client::{
    BinaryClient, Cache, Dialect, RespClient, TextClient, is_refusal, opcode, status,
};
use fonn_tests::component::program;
use fonn_tests::load::{self, KeyDistribution, LoadOptions, Protocol, Sizes, Target};
use fonn_tests::peers::Peer;
use fonn_tests::values::{Content, ValuePool};

fn memcached() -> Result<Option<Peer>> {
    program("memcached")?
        .map(|program| Peer::memcached(&program, 1))
        .transpose()
}

fn redis() -> Result<Option<Peer>> {
    program("redis-server")?
        .map(|program| Peer::redis(&program))
        .transpose()
}

fn basics(cache: &mut dyn Cache) -> Result<()> {
    let value = ValuePool::new(Content::Random, 1 << 20)
        .value(1, 1 << 20)
        .to_vec();
    ensure!(cache.get("absent")?.is_none());
    cache.set("key", &value, None)?;
    ensure!(cache.get("key")?.as_ref() == Some(&value));
    cache.set("key", b"", Some(1000))?;
    ensure!(cache.get("key")? == Some(Vec::new()));
    ensure!(cache.touch("key", 2000)? && !cache.touch("absent", 2000)?);
    cache.set("number", b"41", None)?;
    ensure!(cache.incr("number", 1)? == Some(42));
    ensure!(cache.delete("number")? && !cache.delete("number")?);
    cache.flush()?;
    ensure!(cache.get("key")?.is_none());
    Ok(())
}

#[test]
fn memcached_agrees_with_the_text_meta_and_binary_clients() -> Result<()> {
    let Some(server) = memcached()? else {
        return Ok(());
    };
    for dialect in [Dialect::Text, Dialect::Meta, Dialect::Binary] {
        basics(&mut *dialect.connect(server.addr)?)?;
    }
    Ok(())
}

#[test]
fn redis_agrees_with_the_resp_client() -> Result<()> {
    let Some(server) = redis()? else {
        return Ok(());
    };
    basics(&mut *Dialect::Resp.connect(server.addr)?)
}

#[test]
fn refusals_are_told_from_broken_connections() -> Result<()> {
    if let Some(server) = memcached()? {
        let mut text = TextClient::connect(server.addr)?;
        ensure!(is_refusal(&text.items("get").unwrap_err()));
        let mut binary = BinaryClient::connect(server.addr)?;
        binary.set("word", b"abc", None)?;
        ensure!(is_refusal(&binary.incr("word", 1).unwrap_err()));
        let reply = binary.call(opcode::GET, "absent", &[], &[], 0)?;
        ensure!(reply.status == status::NOT_FOUND);
        text.send(b"quit\r\n")?;
        ensure!(text.at_end()?);
        ensure!(!is_refusal(&text.get("key").unwrap_err()));
    }
    if let Some(server) = redis()? {
        let mut resp = RespClient::connect(server.addr)?;
        resp.set("word", b"abc", None)?;
        ensure!(is_refusal(&resp.incr("word", 1).unwrap_err()));
    }
    Ok(())
}

/// Each protocol with values below and above the length that is sent in place.
#[test]
fn the_load_generator_finds_every_value_that_it_set() -> Result<()> {
    let targets = [
        (memcached()?, Protocol::Text),
        (memcached()?, Protocol::Binary),
        (redis()?, Protocol::Resp),
    ];
    for (server, protocol) in targets {
        let Some(server) = server else { continue };
        let mut options = LoadOptions::new(Target::Tcp(server.addr), protocol);
        options.value_size = Sizes {
            min: 16,
            max: 3 << 20,
        };
        options.keys = 200;
        options.get_ratio = 0.7;
        options.hit_ratio = 0.8;
        options.pipeline = NonZeroUsize::MIN.saturating_add(6);
        options.client_threads = NonZeroUsize::MIN.saturating_add(1);
        options.distribution = KeyDistribution::Zipf(0.9);
        options.operations = Some(4000);
        options.server_pid = Some(server.daemon.pid());
        let report = load::run(&options)?;
        ensure!(
            report.is_clean() && report.unexpected_misses == 0,
            "{protocol:?}: {report}"
        );
        ensure!(report.operations == 4000, "{report}");
        ensure!((0.75..0.85).contains(&report.hit_ratio), "{report}");
        ensure!(
            report.server_cpu_seconds.is_some_and(|cpu| cpu > 0.0),
            "{report}"
        );
    }
    Ok(())
}

/// A value that was changed behind its back, or exchanged with another, is counted as wrong.
#[test]
fn the_load_generator_notices_wrong_bytes() -> Result<()> {
    let Some(server) = memcached()? else {
        return Ok(());
    };
    let mut options = LoadOptions::new(Target::Tcp(server.addr), Protocol::Text);
    options.value_size = Sizes::fixed(20_000);
    options.keys = 1;
    options.operations = Some(10);
    options.fill_only = true;
    load::run(&options)?;
    (options.fill_only, options.no_fill) = (false, true);
    ensure!(load::run(&options)?.wrong == 0);

    let mut text = TextClient::connect(server.addr)?;
    let key = load::key_of(0, options.key_size);
    let mut value = text.get(&key)?.unwrap_or_default();
    ensure!(value.len() == 20_000);
    value[15_000] ^= 1;
    text.set(&key, &value, None)?;
    ensure!(load::run(&options)?.wrong == 10);
    value.pop();
    text.set(&key, &value, None)?;
    ensure!(load::run(&options)?.wrong == 10);
    text.delete(&key)?;
    ensure!(load::run(&options)?.unexpected_misses == 10);
    Ok(())
}
