//! Writes that wait in a dead link. The router gives them up, sends them to the next owner, and
//! newer values follow. When the link is whole again, the first owner gets the old writes: they
//! never replace the newer values.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_tests::client::{RespClient, RespReply, resp_request};

use super::fault::Fault;
use super::{LASTS, Rig};

/// Keys in flight to all members.
const KEYS: usize = 300;
/// How long newer values are tried for.
const PATIENCE: Duration = Duration::from_secs(20);

fn key(number: usize) -> String {
    format!("late-{number}")
}

/// Sets keys in one pipeline. Returns those that were not acknowledged.
fn set_all(client: &mut RespClient, keys: &[usize], value: &str) -> Result<Vec<usize>> {
    let requests = keys.iter().map(|number| {
        let key = key(*number);
        resp_request(&[b"SET", key.as_bytes(), value.as_bytes()])
    });
    client.send(&requests.collect::<Vec<_>>().concat())?;
    let mut failed = Vec::new();
    for number in keys {
        if !matches!(client.reply()?, RespReply::Simple(_)) {
            failed.push(*number);
        }
    }
    Ok(failed)
}

fn late_writes(is_leader: bool, fault: Fault, owners: u32) -> Result<()> {
    let mut rig = Rig::form(owners, false)?;
    let leader = rig.cluster.leader()?;
    let member = if is_leader {
        leader
    } else {
        (leader + 1) % super::MEMBERS
    };
    let mut client = RespClient::connect(rig.router.addr())?;
    client.socket().set_read_timeout(Some(PATIENCE))?;
    let all: Vec<usize> = (0..KEYS).collect();
    ensure!(
        set_all(&mut client, &all, "before")?.is_empty(),
        "all is well"
    );

    fault.begin(&mut rig.cluster, &rig.links, member)?;
    let begun = Instant::now();
    // Those of the silent member wait in its link. The router repeats them elsewhere, or refuses
    // them.
    set_all(&mut client, &all, "late")?;
    let mut left = all.clone();
    while !left.is_empty() {
        ensure!(
            begun.elapsed() < PATIENCE,
            "{} keys are refused",
            left.len()
        );
        left = set_all(&mut client, &left, "newest")?;
    }
    std::thread::sleep(LASTS.saturating_sub(begun.elapsed()));
    fault.end(&mut rig.cluster, &rig.links, member)?;
    rig.cluster.wait_agreed()?;
    for round in 0..5 {
        let mut older = Vec::new();
        for number in &all {
            let key = key(*number);
            let got = client.call(&[b"GET", key.as_bytes()])?.bulk()?;
            let got = got.with_context(|| format!("{key} is a miss in round {round}"))?;
            if got != b"newest" {
                older.push(format!("{key}: {}", got.escape_ascii()));
            }
        }
        ensure!(older.is_empty(), "round {round}: {older:?}");
        std::thread::sleep(Duration::from_millis(300));
    }
    Ok(())
}

#[test]
fn late_writes_to_a_leader_that_heard_nothing_replace_nothing_newer() -> Result<()> {
    late_writes(true, Fault::Deaf, 2)
}

#[test]
fn late_writes_to_a_member_that_heard_nothing_replace_nothing_newer() -> Result<()> {
    late_writes(false, Fault::Deaf, 1)
}

#[test]
fn late_writes_to_a_member_without_a_link_replace_nothing_newer() -> Result<()> {
    late_writes(false, Fault::Unlinked, 2)
}
