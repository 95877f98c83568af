//! What the process may use and what it uses: memory limit, resident memory, CPU time.
//!
//! The limit is the smallest that applies: cgroup v2 `memory.max` and cgroup v1
//! `memory.limit_in_bytes` of the process's own group and every group above it, and the memory of
//! the host. Formats: the kernel's `Documentation/admin-guide/cgroup-v2.rst`,
//! `cgroup-v1/memory.rst`, and `proc(5)`. Reading goes through a function argument, so tests give
//! sample trees.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::size::ByteCount;

/// The memory that this process may use; a cautious 1 GiB if nothing can be read. Reads some small
/// files.
#[must_use]
pub fn available() -> ByteCount {
    limit_from(&|path: &Path| fs::read_to_string(path).ok())
}

/// [`available`] over any set of files.
fn limit_from(read: &dyn Fn(&Path) -> Option<String>) -> ByteCount {
    let host = read(Path::new("/proc/meminfo")).and_then(|text| parse_mem_total(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let v2 = parse_cgroup_v2(&groups).and_then(|path| {
        // The second root is the hybrid layout, where v2 is mounted beside the v1 controllers.
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .iter()
            .filter_map(|root| smallest_limit(read, Path::new(root), path, "memory.max"))
            .min()
    });
    let v1 = parse_cgroup_v1_memory(&groups).and_then(|path| {
        smallest_limit(
            read,
            Path::new("/sys/fs/cgroup/memory"),
            path,
            "memory.limit_in_bytes",
        )
    });
    let smallest = [v2, v1, host].into_iter().flatten().min();
    smallest.map_or(ByteCount::GIB, ByteCount::new)
}

/// The smallest limit in `file` of the group `path` below `root` and of all groups above it.
///
/// In a container without a cgroup namespace `path` is the host's, while `root` shows only the
/// container's own part; walking up to `root` finds it there.
fn smallest_limit(
    read: &dyn Fn(&Path) -> Option<String>,
    root: &Path,
    path: &str,
    file: &str,
) -> Option<u64> {
    let relative = Path::new(path.trim_start_matches('/'));
    // A group outside of the namespace is shown as `/../x`; only the root is visible then.
    let relative = if path.split('/').any(|part| part == "..") {
        Path::new("")
    } else {
        relative
    };
    relative
        .ancestors()
        .filter_map(|group| read(&[root, group, Path::new(file)].iter().collect::<PathBuf>()))
        .filter_map(|text| parse_limit(&text))
        .min()
}

/// The path in the v2 line `0::PATH` of `/proc/self/cgroup`.
fn parse_cgroup_v2(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The path in the v1 line `N:…,memory,…:PATH` of `/proc/self/cgroup`.
fn parse_cgroup_v1_memory(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|name| name == "memory")
            .then_some(path)
    })
}

/// A limit file: a number of bytes, or `max`. v1 writes "no limit" as a number near 2^63, which
/// loses against the host's memory.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// `MemTotal` of `/proc/meminfo` in bytes (the file has KiB).
fn parse_mem_total(text: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Resident memory of this process, or `None` where `/proc` is not mounted. Reads one file.
#[must_use]
pub fn resident() -> Option<ByteCount> {
    let pages = parse_statm_resident(&fs::read_to_string("/proc/self/statm").ok()?)?;
    let page_size = u64::try_from(rustix::param::page_size()).ok()?;
    pages.checked_mul(page_size).map(ByteCount::new)
}

/// The second field of `/proc/self/statm`: resident pages.
fn parse_statm_resident(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// CPU time that all threads of this process have used, in user mode and in the kernel.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Open file descriptors of this process, or `None` where `/proc` is not mounted. Costs one
/// directory listing.
#[must_use]
pub fn open_fds() -> Option<u64> {
    // The listing itself holds one.
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(count).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests;
