use std::collections::HashMap;

use super::*;

const MEMINFO: &str = "MemTotal:       16384000 kB\nMemFree:         1000000 kB\n";
const HOST: ByteCount = ByteCount::new(16_384_000 * 1024);

fn limit(files: &[(&str, &str)]) -> ByteCount {
    let files: HashMap<&Path, &str> = files
        .iter()
        .map(|&(path, text)| (Path::new(path), text))
        .collect();
    limit_from(&|path: &Path| files.get(path).map(|text| (*text).to_owned()))
}

#[test]
fn v2_limit_of_the_own_group() {
    let limit = limit(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "0::/system.slice/fonn.service\n"),
        (
            "/sys/fs/cgroup/system.slice/fonn.service/memory.max",
            "1073741824\n",
        ),
        ("/sys/fs/cgroup/system.slice/memory.max", "max\n"),
    ]);
    assert_eq!(limit, ByteCount::GIB);
}

#[test]
fn v2_limit_of_a_group_above_holds_too() {
    let limit = limit(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "0::/kubepods/pod1/box\n"),
        ("/sys/fs/cgroup/kubepods/pod1/box/memory.max", "max\n"),
        ("/sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
        ("/sys/fs/cgroup/kubepods/memory.max", "8589934592\n"),
    ]);
    assert_eq!(limit, ByteCount::mib(512));
}

#[test]
fn container_that_sees_the_host_path_finds_its_limit_at_the_root() {
    for group in ["0::/docker/0123abcd\n", "0::/\n", "0::/../../other\n"] {
        let limit = limit(&[
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", group),
            ("/sys/fs/cgroup/memory.max", "268435456\n"),
        ]);
        assert_eq!(limit, ByteCount::mib(256), "{group}");
    }
}

#[test]
fn v1_and_hybrid_layouts() {
    let groups = "5:cpu,cpuacct:/a\n4:memory:/docker/x\n0::/docker/x\n";
    let v1 = limit(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", groups),
        (
            "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
            "134217728\n",
        ),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
    ]);
    assert_eq!(v1, ByteCount::mib(128));
    let hybrid = limit(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", groups),
        ("/sys/fs/cgroup/unified/docker/x/memory.max", "67108864\n"),
    ]);
    assert_eq!(hybrid, ByteCount::mib(64));
}

#[test]
fn without_a_limit_the_host_counts() {
    let unlimited = limit(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "3:memory:/\n"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
    ]);
    assert_eq!(unlimited, HOST);
    let broken = limit(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "0::/a\nrubbish\n:::"),
        ("/sys/fs/cgroup/a/memory.max", "-5 potatoes\n"),
    ]);
    assert_eq!(broken, HOST);
}

#[test]
fn with_nothing_to_read_a_cautious_size_is_assumed() {
    assert_eq!(limit(&[]), ByteCount::GIB);
    let broken = limit(&[("/proc/meminfo", "MemTotal: many kB\n")]);
    assert_eq!(broken, ByteCount::GIB);
}

#[test]
fn statm_has_resident_pages_second() {
    assert_eq!(
        parse_statm_resident("8312 1234 900 10 0 500 0\n"),
        Some(1234)
    );
    assert_eq!(parse_statm_resident("8312"), None);
    assert_eq!(parse_statm_resident("a b"), None);
}

#[test]
fn own_process_is_measured() {
    let limit = available();
    assert!(limit >= ByteCount::mib(16), "{limit:?}");
    let before = (resident().unwrap(), cpu_time());
    assert!(before.0 > ByteCount::ZERO && before.0 < limit);
    assert!(open_fds().unwrap() >= 3);
    // Touching 32 MiB must be seen as resident memory and as CPU time.
    let block = vec![1u8; 32 << 20];
    let sum: u64 = std::hint::black_box(&block)
        .iter()
        .map(|&b| u64::from(b))
        .sum();
    assert_eq!(sum, 32 << 20);
    assert!(resident().unwrap().bytes() >= 16 << 20);
    assert!(cpu_time() > before.1);
}
