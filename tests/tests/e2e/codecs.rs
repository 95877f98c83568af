//! Values that shrink: how small the data directory becomes, what the codecs say they did, and that
//! a restart changes no byte.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{Cache as _, RespClient};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::usage::disk_bytes;

const VALUES: usize = 400;
const COMPACTION_LIMIT: Duration = Duration::from_secs(120);

/// What fastcached's store gains on values of 200 KiB.
const TEXT_RATIO_MIN: f64 = 4.25;
const SYNTHETIC_RATIO_MIN: f64 = 100.0;

/// What a compiler says: the same words, other names and numbers.
fn warnings(number: usize) -> Vec<u8> {
    const LEN: usize = 200 << 10;
    let mut out = String::with_capacity(LEN + 400);
    for at in 0.. {
        let seed = (number * 7919 + at * 104_729) % 100_003;
        let (name, file, line) = (seed % 97, seed % 31, seed % 2000);
        let _ = write!(
            out,
            "warning: unused variable: `value_{name}`\n\
             \x20   --> src/tiers/file_{file}.rs:{line}:13\n\
             \x20    |\n\
             {line:>4} |         let value_{name} = self.look_into_the_index(key)?;\n\
             \x20    |             ^^^^^^^^ help: if this is intentional, prefix it with an underscore\n\
             \x20    |\n\
             \x20    = note: `#[warn(unused_variables)]` on by default\n\n"
        );
        if out.len() >= LEN {
            break;
        }
    }
    out.truncate(LEN);
    out.into_bytes()
}

/// The same short piece over and over, another for each number.
fn synthetic(number: usize) -> Vec<u8> {
    let piece = format!("{number:08} synthetic ");
    piece.bytes().cycle().take(256 << 10).collect()
}

fn write_all(cache: &mut RespClient, value: fn(usize) -> Vec<u8>) -> Result<f64> {
    let mut bytes = 0;
    for number in 0..VALUES {
        let value = value(number);
        bytes += value.len();
        cache.set(&format!("k{number}"), &value, None)?;
    }
    Ok(bytes as f64)
}

fn check_all(cache: &mut RespClient, value: fn(usize) -> Vec<u8>) -> Result<()> {
    for number in 0..VALUES {
        let got = cache.get(&format!("k{number}"))?;
        ensure!(got == Some(value(number)), "k{number} differs");
    }
    Ok(())
}

/// How often the bytes of values are those of the data directory.
fn ratio(node: &FonnNode, value_bytes: f64) -> Result<f64> {
    Ok(value_bytes / disk_bytes(node.data_dir())? as f64)
}

/// Waits until everything is compacted, and its former files are gone.
fn wait_until_compacted(node: &FonnNode, value_bytes: f64, fresh: f64) -> Result<()> {
    let deadline = Instant::now() + COMPACTION_LIMIT;
    loop {
        let uncompacted = node.metric("fonn_disk_uncompacted_bytes")?;
        let ratio = ratio(node, value_bytes)?;
        if uncompacted == Some(0.0) && ratio >= fresh {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "still {uncompacted:?} bytes, ratio {ratio}, fresh {fresh}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A counter of one codec at one level.
fn codec_counter(page: &str, what: &str, level: &str, codec: &str) -> Result<f64> {
    let name = format!("fonn_codec_{what}_total{{");
    let labels = [format!("level=\"{level}\""), format!("codec=\"{codec}\"")];
    let mut lines = page.lines().filter_map(|line| line.rsplit_once(' '));
    let found = lines.find(|(series, _)| {
        series.starts_with(&name) && labels.iter().all(|label| series.contains(label))
    });
    let (_, value) = found.with_context(|| format!("{what} of {codec} at {level}"))?;
    Ok(value.parse()?)
}

#[test]
fn text_shrinks_when_it_is_fresh_and_more_when_it_is_compacted_and_the_metrics_tell() -> Result<()>
{
    let mut node = NodeOptions::new().start()?;
    let mut cache = node.resp()?;
    let bytes = write_all(&mut cache, warnings)?;
    let fresh = ratio(&node, bytes)?;
    ensure!(fresh >= TEXT_RATIO_MIN, "fresh: {fresh}");
    wait_until_compacted(&node, bytes, fresh)?;

    let page = node.http_get("/metrics")?.body;
    for (level, codec) in [("fresh", "lz4"), ("compacted", "zstd")] {
        let counter = |what| codec_counter(&page, what, level, codec);
        let (bytes_in, bytes_out) = (counter("bytes_in")?, counter("bytes_out")?);
        ensure!(counter("values")? == VALUES as f64, "{level}\n{page}");
        ensure!(bytes_in == bytes, "{level}: {bytes_in} of {bytes}");
        let gain = bytes_in / bytes_out;
        ensure!(gain >= TEXT_RATIO_MIN, "{level}: {gain}");
        let cpu = counter("cpu_seconds")?;
        ensure!(cpu > 0.0 && cpu < 120.0, "{level}: {cpu}");
        for other in ["none", "snappy", "zlib"] {
            let values = codec_counter(&page, "values", level, other)?;
            ensure!(values == 0.0, "{other} at {level}: {values}");
        }
    }

    node.stop()?;
    node.start_again()?;
    check_all(&mut node.resp()?, warnings)?;
    let after = ratio(&node, bytes)?;
    ensure!(after >= TEXT_RATIO_MIN, "after a restart: {after}");
    Ok(())
}

#[test]
fn synthetic_values_shrink_a_hundredfold_and_are_the_same_after_a_restart() -> Result<()> {
    let mut node = NodeOptions::new().start()?;
    let bytes = write_all(&mut node.resp()?, synthetic)?;
    let fresh = ratio(&node, bytes)?;
    ensure!(fresh >= SYNTHETIC_RATIO_MIN, "fresh: {fresh}");
    node.kill9()?;
    node.start_again()?;
    check_all(&mut node.resp()?, synthetic)?;
    let after = ratio(&node, bytes)?;
    ensure!(after >= SYNTHETIC_RATIO_MIN, "after a restart: {after}");
    Ok(())
}
