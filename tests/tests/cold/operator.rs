//! What the operator sees of the bucket, and does about it: `fonnctl cold`, `fonnctl doctor`.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use fonn_tests::bucket::Bucket;
use fonn_tests::ctl::{self, fonnctl, json, lines, text};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{
    Entries, connect, destroy, metric, over, wait_until, wait_until_ready, wait_until_spilled,
};

const LEN: usize = 4 << 10;

fn admin(node: &FonnNode) -> String {
    node.admin().to_string()
}

/// Names of segments, as `ls` shows them.
fn names(node: &FonnNode) -> Result<Vec<String>> {
    let segments = lines(&admin(node), &["cold", "ls"])?;
    let names = segments
        .iter()
        .map(|it| Some(it["name"].as_str()?.to_owned()));
    names
        .collect::<Option<_>>()
        .context("a segment has no name")
}

/// The findings of the doctor, each with its severity.
fn findings(node: &FonnNode) -> Result<Vec<(String, String, Value)>> {
    let findings = lines(&admin(node), &["doctor"])?.into_iter();
    let parts = findings.map(|it| {
        let text = |name: &str| it[name].as_str().unwrap_or_default().to_owned();
        (text("check"), text("severity"), it.clone())
    });
    Ok(parts.collect())
}

#[test]
fn segments_are_listed_and_shown_with_what_is_in_them() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, LEN);
    let entries = Entries {
        pool: &pool,
        lens: &[LEN],
        prefix: "ls/",
    };
    let node = over(&bucket).start()?;
    entries.write(&mut *connect(&node)?, 0..150)?;
    wait_until_spilled(&node)?;
    entries.write(&mut *connect(&node)?, 150..200)?;
    connect(&node)?.delete(&entries.key(3))?;
    wait_until_spilled(&node)?;

    let segments = lines(&admin(&node), &["cold", "ls"])?;
    let sum = |field: &str| -> u64 { segments.iter().filter_map(|it| it[field].as_u64()).sum() };
    assert_eq!(sum("entries"), 200);
    assert!(sum("tombstones") >= 1);
    let files = bucket.segments()?;
    assert_eq!(segments.len(), files.len());
    let stored: u64 = files
        .iter()
        .map(|it| Ok(fs::metadata(it)?.len()))
        .sum::<Result<u64>>()?;
    assert_eq!(sum("size_bytes"), stored);
    let table = text(&admin(&node), &["cold", "ls"])?;
    for name in names(&node)? {
        assert!(
            name.starts_with("local/") && table.contains(&name),
            "{table}"
        );
    }
    let one = lines(&admin(&node), &["cold", "ls", "--limit", "1"])?;
    assert_eq!(one.len(), 1);
    assert!(lines(&admin(&node), &["cold", "ls", "--region", "far"])?.is_empty());

    // Every key is in a segment, and the copy that would be served is marked.
    let (mut current, mut deleted) = (HashSet::new(), HashSet::new());
    for name in names(&node)? {
        let shown = json(
            &admin(&node),
            &["cold", "inspect", &name, "--limit", "1000"],
        )?;
        assert_eq!(shown["format_version"], 4);
        assert_eq!(shown["segment"]["name"], name.as_str());
        for entry in shown["entries"].as_array().context("no entries")? {
            let key = entry["key"].as_str().context("no key")?.to_owned();
            if entry["current"] == true {
                let kind = if entry["tombstone"] == true {
                    &mut deleted
                } else {
                    &mut current
                };
                assert!(kind.insert(key), "{entry}");
            }
        }
    }
    assert_eq!((current.len(), deleted.len()), (199, 1));
    let name = names(&node)?.remove(0);
    let shown = text(&admin(&node), &["cold", "inspect", &name])?;
    assert!(
        shown.contains("ls/") && shown.contains("current"),
        "{shown}"
    );
    for (segment, word) in [
        ("local/nonsense/0", "REGION/WRITER"),
        (
            "local/01ARYZ6S4128T5CY4TQKFF04HM/0000000000000000",
            "no segment",
        ),
    ] {
        let (code, error) = ctl::failure(&admin(&node), &["cold", "inspect", segment])?;
        assert_eq!(code, Some(1));
        assert!(error.contains(word), "{error}");
    }

    // What it has cost, and where a key is.
    let status = json(&admin(&node), &["status"])?;
    let cold = &status["cold"];
    assert_eq!(cold["url"], bucket.url());
    assert_eq!(cold["stored_bytes"].as_u64(), Some(stored));
    let cost = &cold["cost"];
    let requests = cost["requests"].as_array().context("no requests")?;
    let puts = requests.iter().filter(|it| {
        it["kind"]
            .as_str()
            .is_some_and(|kind| kind.starts_with("put"))
    });
    let puts: u64 = puts.filter_map(|it| it["count"].as_u64()).sum();
    assert!(puts >= files.len() as u64, "{cost}");
    assert!(cost["uploaded_bytes"].as_u64() >= Some(stored), "{cost}");
    assert!(cost["requests_dollars"].as_f64() > Some(0.0), "{cost}");
    let told = text(&admin(&node), &["status"])?;
    assert!(
        told.contains("cost ") && told.contains("a month for storage"),
        "{told}"
    );
    let key = json(&admin(&node), &["key", &entries.key(7)])?;
    let copies = key["copies"].as_array().context("no copies")?;
    let cold = copies.last().context("no copy")?;
    assert_eq!(cold["tier"], "cold");
    assert!(
        cold["location"]
            .as_str()
            .is_some_and(|it| it.contains("local/")),
        "{cold}"
    );
    Ok(())
}

#[test]
fn a_flipped_byte_in_the_bucket_is_found_and_named() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, LEN);
    let entries = Entries {
        pool: &pool,
        lens: &[LEN],
        prefix: "verify/",
    };
    let node = over(&bucket).start()?;
    entries.write(&mut *connect(&node)?, 0..100)?;
    wait_until_spilled(&node)?;
    entries.write(&mut *connect(&node)?, 100..200)?;
    wait_until_spilled(&node)?;
    let sound = text(&admin(&node), &["cold", "verify"])?;
    assert!(
        sound.contains("200 sound records, nothing wrong"),
        "{sound}"
    );

    let damaged = bucket.segments()?.remove(0);
    let mut bytes = fs::read(&damaged)?;
    // In the middle of a value.
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&damaged, bytes)?;
    let all = names(&node)?;
    let stem = damaged
        .file_stem()
        .and_then(|it| it.to_str())
        .context("no name")?;
    let name = all
        .iter()
        .find(|it| it.ends_with(stem))
        .context("not listed")?;
    let output = fonnctl(&admin(&node), &["cold", "verify"])?;
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stdout)?;
    assert!(told.contains(&format!("BAD {name}")), "{told}");
    assert!(told.contains("1 findings"), "{told}");
    let alone = fonnctl(&admin(&node), &["cold", "verify", name])?;
    assert_eq!(alone.status.code(), Some(1));
    for other in all.iter().filter(|it| *it != name) {
        text(&admin(&node), &["cold", "verify", other])?;
    }
    Ok(())
}

#[test]
fn segments_that_come_back_are_served_again_after_a_rebuild() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, LEN);
    let entries = Entries {
        pool: &pool,
        lens: &[LEN],
        prefix: "rebuild/",
    };
    let first = over(&bucket).start()?;
    entries.write(&mut *connect(&first)?, 0..200)?;
    wait_until_spilled(&first)?;
    destroy(first)?;
    // A node that has nothing but the bucket.
    let node = over(&bucket).start()?;
    wait_until_ready(&node)?;

    // A careless hand moves everything away, and puts it back.
    let moved: Vec<_> = bucket
        .segments()?
        .into_iter()
        .map(|it| (it.with_extension("moved"), it))
        .collect();
    for (aside, object) in &moved {
        fs::rename(object, aside)?;
    }
    assert!(
        !fonnctl(&admin(&node), &["cold", "verify"])?
            .status
            .success()
    );
    text(&admin(&node), &["cold", "rebuild"])?;
    let mut cache = connect(&node)?;
    assert_eq!(cache.get(&entries.key(0))?, None);
    let gone = lines(&admin(&node), &["cold", "ls"])?;
    assert!(
        gone.iter().all(|it| it["state"] == "lost") && !gone.is_empty(),
        "{gone:?}"
    );
    for (aside, object) in &moved {
        fs::rename(aside, object)?;
    }
    let told = text(&admin(&node), &["cold", "rebuild"])?;
    assert!(told.contains("the index is complete"), "{told}");
    entries.check(&mut *cache, 0..200)?;
    assert!(metric(&node, "fonn_hits_total{tier=\"cold\"}")? >= 200.0);
    text(&admin(&node), &["cold", "verify"])?;
    Ok(())
}

#[test]
fn without_its_index_a_node_makes_it_anew_from_the_bucket_while_it_serves() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, LEN);
    let entries = Entries {
        pool: &pool,
        lens: &[LEN],
        prefix: "anew/",
    };
    let first = over(&bucket).start()?;
    entries.write(&mut *connect(&first)?, 0..200)?;
    wait_until_spilled(&first)?;
    destroy(first)?;
    // It has entries of its own on disk, and others only in the bucket; one was overwritten here.
    let mut node = over(&bucket).start()?;
    wait_until_ready(&node)?;
    entries.write(&mut *connect(&node)?, 200..300)?;
    connect(&node)?.set(&entries.key(0), b"newer", None)?;
    connect(&node)?.delete(&entries.key(1))?;
    wait_until_spilled(&node)?;

    // The procedure of docs/cold-tier.md.
    node.stop()?;
    fs::remove_dir_all(node.data_dir().join("cold"))?;
    node.start_again()?;
    entries.check(&mut *connect(&node)?, 200..300)?;
    wait_until_ready(&node)?;
    let mut cache = connect(&node)?;
    assert_eq!(cache.get(&entries.key(0))?.as_deref(), Some(&b"newer"[..]));
    assert_eq!(cache.get(&entries.key(1))?, None);
    entries.check(&mut *cache, 2..300)?;
    assert!(metric(&node, "fonn_hits_total{tier=\"cold\"}")? >= 198.0);
    text(&admin(&node), &["cold", "verify"])?;
    Ok(())
}

/// What the doctor says is wrong with the bucket: the check, what was found and the remedy.
fn first_failure(options: NodeOptions) -> Result<(String, String)> {
    let node = options.start()?;
    let found = findings(&node)?;
    let code = fonnctl(&admin(&node), &["doctor"])?.status.code();
    let failed = found.iter().find(|(_, severity, _)| severity == "failed");
    let (check, _, finding) = failed.with_context(|| format!("all is well: {found:?}"))?;
    assert_eq!(code, Some(1));
    // The rest is not guessed at.
    assert!(
        found.iter().any(|(_, severity, _)| severity == "skipped"),
        "{found:?}"
    );
    let remedy = finding["remedy"].as_str().unwrap_or_default();
    Ok((check.clone(), remedy.to_owned()))
}

#[test]
fn the_doctor_says_what_is_wrong_and_what_to_do() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let node = over(&bucket).start()?;
    let found = findings(&node)?;
    for check in [
        "admin port",
        "readiness",
        "client port",
        "reach",
        "bucket",
        "credentials",
        "clock",
        "put",
        "get",
        "list",
        "conditional put",
        "delete",
    ] {
        let is_well = found
            .iter()
            .any(|(name, severity, _)| name == check && severity == "ok");
        assert!(is_well, "{check}: {found:?}");
    }
    assert!(bucket.segments().is_ok_and(|it| it.is_empty()) || bucket.segments().is_err());

    let (check, remedy) = first_failure(over(&bucket).flag("--cold-tier", "s3://absent/team"))?;
    assert_eq!(check, "bucket");
    assert!(remedy.contains("create the bucket"), "{remedy}");
    let (check, remedy) = first_failure(over(&bucket).env("AWS_SECRET_ACCESS_KEY", "wrong"))?;
    assert_eq!(check, "credentials");
    assert!(remedy.contains("AWS_SECRET_ACCESS_KEY"), "{remedy}");
    let nobody = fonn_tests::process::free_address()?;
    let endpoint = format!("http://{nobody}");
    let (check, remedy) = first_failure(over(&bucket).env("AWS_ENDPOINT_URL", endpoint))?;
    assert_eq!(check, "reach");
    assert!(remedy.contains("AWS_ENDPOINT_URL"), "{remedy}");
    Ok(())
}

#[test]
fn a_new_machine_is_warmed_from_the_bucket() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, LEN);
    let entries = Entries {
        pool: &pool,
        lens: &[LEN],
        prefix: "warm/",
    };
    let first = over(&bucket).start()?;
    entries.write(&mut *connect(&first)?, 0..300)?;
    connect(&first)?.delete(&entries.key(7))?;
    wait_until_spilled(&first)?;
    destroy(first)?;

    let node = over(&bucket).start()?;
    wait_until_ready(&node)?;
    let some = lines(&admin(&node), &["warm", "--newest", "100"])?;
    let some = some.last().context("no news")?;
    assert_eq!(
        (&some["from_cold"], &some["end"]),
        (&100.into(), &"limit".into()),
        "{some}"
    );
    let rest = lines(&admin(&node), &["warm"])?;
    let rest = rest.last().context("no news")?;
    assert_eq!(
        (&rest["from_cold"], &rest["end"]),
        (&199.into(), &"all".into()),
        "{rest}"
    );
    let hits = |tier: &str| metric(&node, &format!("fonn_hits_total{{tier=\"{tier}\"}}"));
    entries.check(&mut *connect(&node)?, 0..7)?;
    entries.check(&mut *connect(&node)?, 8..300)?;
    assert_eq!(connect(&node)?.get(&entries.key(7))?, None);
    assert_eq!(
        (hits("ram")?, hits("disk")?, hits("cold")?),
        (299.0, 0.0, 0.0)
    );
    Ok(())
}

/// One object that may not be read keeps the index from being complete: it may be newer than all
/// that is known. The node says which it is and what is missing, and goes on by itself once it may
/// read it.
#[test]
fn a_footer_that_may_not_be_read_is_named_with_the_right_that_is_missing() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 4 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &[4 << 10],
        prefix: "denied/",
    };
    let first = over(&bucket).start()?;
    let mut cache = connect(&first)?;
    for part in 0..3 {
        entries.write(&mut *cache, part * 20..(part + 1) * 20)?;
        wait_until_spilled(&first)?;
    }
    let segments = names(&first)?;
    let name = segments.first().context("there is no segment")?.clone();
    destroy(first)?;

    bucket.deny(Some(&name));
    let node = over(&bucket).start()?;
    wait_until("it says what it waits for", Duration::from_secs(60), || {
        let told = text(&admin(&node), &["cold", "status"])?;
        Ok(told.contains(&name) && told.contains("s3:GetObject"))
    })?;
    assert_eq!(metric(&node, "fonn_cold_index_ready")?, 0.0);
    let found = findings(&node)?;
    let index = found.iter().find(|(check, _, _)| check == "cold index");
    let (_, severity, finding) = index.with_context(|| format!("no such check: {found:?}"))?;
    assert_eq!(severity, "failed");
    let said = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    assert!(said("message").contains(&name), "{finding}");
    assert!(said("remedy").contains("s3:GetObject"), "{finding}");
    // It takes traffic meanwhile.
    assert_eq!(node.http_get("/readyz")?.status, 200);

    bucket.deny(None);
    wait_until_ready(&node)?;
    entries.check(&mut *connect(&node)?, 0..60)?;
    wait_until("nothing is wrong any more", Duration::from_secs(60), || {
        let told = text(&admin(&node), &["cold", "status"])?;
        Ok(!told.contains("trouble"))
    })
}
