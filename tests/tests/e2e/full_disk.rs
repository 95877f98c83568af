//! A disk without room: errors of the protocol, no wrong byte, and recovery when there is room.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_tests::client::{Cache, Dialect, is_refusal};
use fonn_tests::component::present;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::run;
use fonn_tests::values::{Content, ValuePool};

/// A small file system; unmounted when dropped.
struct SmallDisk {
    dir: PathBuf,
    _parent: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(size_mib: u64) -> Result<Option<Self>> {
        let root = rustix::process::geteuid().is_root();
        if present("root (to mount a small file system)", root.then_some(()))?.is_none() {
            return Ok(None);
        }
        let parent = tempfile::Builder::new().prefix("fonn-disk-").tempdir()?;
        let dir = parent.path().join("disk");
        std::fs::create_dir(&dir)?;
        let mut mount = Command::new("mount");
        mount
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size_mib}m"),
                "fonn-test",
            ])
            .arg(&dir);
        run(&mut mount)?;
        Ok(Some(Self {
            dir,
            _parent: parent,
        }))
    }

    /// Takes `mib` MiB away; given back by removing the file.
    fn ballast(&self, mib: u64) -> Result<PathBuf> {
        let path = self.dir.join("ballast");
        let file = File::create(&path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, mib << 20)?;
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("-l").arg(&self.dir));
    }
}

/// Sets values until one is refused; returns how many were acknowledged.
fn fill(client: &mut dyn Cache, name: &str, pool: &ValuePool, count: u64) -> Result<u64> {
    for number in 0..count {
        let value = pool.value(number, 100_000).to_vec();
        if let Err(error) = client.set(&format!("{name}-{number}"), &value, None) {
            ensure!(is_refusal(&error), "the connection broke: {error:#}");
            return Ok(number);
        }
    }
    Ok(count)
}

fn check(client: &mut dyn Cache, name: &str, pool: &ValuePool, count: u64) -> Result<u64> {
    let mut there = 0;
    for number in 0..count {
        if let Some(got) = client.get(&format!("{name}-{number}"))? {
            pool.value(number, 100_000)
                .check(&got)
                .with_context(|| format!("{name}-{number}"))?;
            there += 1;
        }
    }
    Ok(there)
}

#[test]
fn a_full_disk_is_an_error_of_the_protocol_and_passes() -> Result<()> {
    let Some(disk) = SmallDisk::mount(400)? else {
        return Ok(());
    };
    let ballast = disk.ballast(200)?;
    let data: &Path = &disk.dir.join("data");
    let mut node = NodeOptions::new()
        .data_dir(data)
        .flag("--ram-budget", "64m")
        .flag("--disk-budget", "10g")
        .start()?;
    let pool = ValuePool::new(Content::Random, 100_000);
    let mut acknowledged = Vec::new();
    // 4 × 300 MB do not fit into 200 MiB: each dialect meets the error.
    for dialect in Dialect::ALL {
        let mut client = dialect.connect(node.addr())?;
        let name = format!("{dialect:?}");
        let count = fill(&mut *client, &name, &pool, 3000)?;
        assert!(count < 3000, "{name}: 300 MB fit on a disk of 200 MiB");
        // The same connection goes on reading; RAM still answers and nothing is wrong.
        check(&mut *client, &name, &pool, count)?;
        assert_eq!(client.get("absent")?, None);
        acknowledged.push((name, count));
    }
    assert_eq!(node.http_get("/healthz")?.status, 200, "alive");

    std::fs::remove_file(ballast)?;
    let freed = Instant::now();
    let mut client = node.binary()?;
    while let Err(error) = client.set("after", b"room again", None) {
        ensure!(is_refusal(&error), "the connection broke: {error:#}");
        ensure!(
            freed.elapsed() < Duration::from_secs(60),
            "writes do not recover: {error:#}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    for _ in 0..2 {
        for (name, count) in &acknowledged {
            let there = check(&mut node.binary()?, name, &pool, *count)?;
            assert_eq!(there, *count, "{name}: acknowledged values are lost");
        }
        assert_eq!(
            node.binary()?.get("after")?.as_deref(),
            Some(&b"room again"[..])
        );
        node.kill9()?;
        node.start_again()?;
    }
    Ok(())
}
