//! One value of 200 MiB, and the memory of the node that takes and returns it.

use anyhow::{Result, ensure};

use fonn_tests::client::HttpClient;
use fonn_tests::node::NodeOptions;
use fonn_tests::usage::rss_peak_bytes;
use fonn_tests::values::{Content, ValuePool};

const MIB: u64 = 1 << 20;
const LEN: usize = 200 << 20;
const RAM_BUDGET: u64 = 256 * MIB;

/// The guarantee of resident memory: the budget, 15 % of it and 64 MiB.
const RSS_MAX: u64 = RAM_BUDGET + RAM_BUDGET * 15 / 100 + 64 * MIB;

/// The code of a program that is not optimised takes so much more. A release is held to the
/// guarantee itself.
const RSS_UNOPTIMISED: u64 = 16 * MIB;

// Two copies of the value alone are beyond the bound.
const _: () = assert!(2 * LEN as u64 > RSS_MAX + RSS_UNOPTIMISED);

/// Stores and reads the value at a node with such a `--max-value`.
fn check(max_value: &str) -> Result<()> {
    let node = NodeOptions::new()
        .with_http()
        .flag("--ram-budget", RAM_BUDGET.to_string())
        .flag("--max-value", max_value)
        .start()?;
    let is_release = std::env::var_os("FONN_NODE_BIN").is_some();
    let rss_max = RSS_MAX + if is_release { 0 } else { RSS_UNOPTIMISED };
    let within = |when: &str| -> Result<()> {
        // The most that the process ever had, so no moment is missed.
        let peak = rss_peak_bytes(node.pid()?)?;
        ensure!(peak <= rss_max, "{when}: {} MiB resident", peak / MIB);
        Ok(())
    };
    let pool = ValuePool::new(Content::Random, LEN);
    let value = pool.value(1, LEN);
    let mut http = HttpClient::connect(node.http())?;
    let stored = http.put("/large", &value.to_vec())?;
    ensure!(stored == 200, "PUT: {stored}");
    within("after the PUT")?;
    let found = http.get("/large")?;
    value.check(&found.unwrap_or_default())?;
    within("after the GET")
}

#[test]
fn a_whole_value_of_200_mib_is_held_once() -> Result<()> {
    check("256m")
}

#[test]
fn a_value_of_200_mib_in_chunks_is_held_once() -> Result<()> {
    check("8m")
}
