//! Reads through a router: of members that are slow, of the bucket, of very many clients.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;

use fonn_tests::bucket::Bucket;
use fonn_tests::client::Dialect;
use fonn_tests::cluster::Cluster;
use fonn_tests::delay::DelayProxy;
use fonn_tests::process::raise_open_files;
use fonn_tests::promised::at_most;
use fonn_tests::router::FonnRouter;
use fonn_tests::usage::rss_bytes;

fn total(router: &FonnRouter, event: &str) -> Result<f64> {
    router.metric(&format!("fonn_router_commands_total{{event=\"{event}\"}}"))
}

#[test]
fn a_read_of_a_paused_member_is_answered_by_the_next_owner() -> Result<()> {
    const KEYS: u64 = 300;
    let mut cluster = Cluster::form(3, None)?;
    cluster.ctl(0, &["replicas", "2"])?;
    cluster.wait_agreed()?;
    let router = cluster.router()?;
    let mut client = Dialect::Text.connect(router.addr())?;
    for number in 0..KEYS {
        client.set(&format!("key-{number}"), b"value", None)?;
    }
    for number in 0..KEYS {
        ensure!(client.get(&format!("key-{number}"))?.is_some());
    }
    let paused = (cluster.leader()? + 1) % 3;
    let daemon = cluster
        .nodes
        .get_mut(paused)
        .context("a member")?
        .daemon()?;
    daemon.signal(Signal::STOP)?;
    let mut slowest = Duration::ZERO;
    let read = (0..KEYS).try_for_each(|number| {
        let begun = Instant::now();
        let found = client.get(&format!("key-{number}"))?;
        slowest = slowest.max(begun.elapsed());
        ensure!(
            found.as_deref() == Some(&b"value"[..]),
            "key-{number} after {:?}",
            begun.elapsed()
        );
        Ok(())
    });
    let daemon = cluster
        .nodes
        .get_mut(paused)
        .context("a member")?
        .daemon()?;
    daemon.signal(Signal::CONT)?;
    read?;
    eprintln!("the slowest of {KEYS} reads took {slowest:?}");
    let (hedged, won) = (total(&router, "hedged")?, total(&router, "hedge_won")?);
    ensure!(won > 0.0, "{won} of {hedged}");
    ensure!(hedged <= 32.0 + 2.0 * KEYS as f64 / 20.0, "{hedged}");
    Ok(())
}

/// Three members, two owners a slot, whose bucket is far away and has entries that they have not.
struct Far {
    cluster: Cluster,
    // Dropped after what uses them.
    _proxy: DelayProxy,
    _bucket: Bucket,
}

impl Far {
    /// The bucket has the keys `cold-0` and so on; a round trip to it takes that long.
    fn form(keys: u64, round_trip: Duration) -> Result<Self> {
        let bucket = Bucket::in_process()?;
        {
            let cluster = Cluster::form(3, Some(&bucket))?;
            let router = cluster.router()?;
            let mut client = Dialect::Binary.connect(router.addr())?;
            for number in 0..keys {
                client.set(&format!("cold-{number}"), b"cold", None)?;
            }
            wait(&cluster, "not spilled", "fonn_cold_unspilled_bytes", 0.0)?;
            // The members go, with their disks.
        }
        let proxy = DelayProxy::start(bucket.address(), round_trip)?;
        let endpoint = format!("http://{}", proxy.address());
        let cluster = Cluster::form_through(3, &bucket, &endpoint)?;
        cluster.ctl(0, &["replicas", "2"])?;
        cluster.wait_agreed()?;
        wait(&cluster, "no index", "fonn_cold_index_ready", 1.0)?;
        Ok(Self {
            cluster,
            _proxy: proxy,
            _bucket: bucket,
        })
    }
}

/// Waits until a metric of all members is as wanted.
fn wait(cluster: &Cluster, otherwise: &str, metric: &str, wanted: f64) -> Result<()> {
    for node in &cluster.nodes {
        let begun = Instant::now();
        while node.metric(metric)? != Some(wanted) {
            ensure!(begun.elapsed() < Duration::from_secs(60), "{otherwise}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn read_cold(router: &FonnRouter, key: &str) -> Result<Duration> {
    let mut client = Dialect::Binary.connect(router.addr())?;
    let begun = Instant::now();
    ensure!(client.get(key)?.as_deref() == Some(&b"cold"[..]), "{key}");
    Ok(begun.elapsed())
}

/// Reads what is at hand, again and again until it is over. How long each read took.
fn read_warm(router: &FonnRouter, keys: u64, is_over: impl Fn() -> bool) -> Result<Vec<Duration>> {
    let mut client = Dialect::Text.connect(router.addr())?;
    let mut latencies = Vec::new();
    for number in (0..keys).cycle() {
        if is_over() {
            break;
        }
        let begun = Instant::now();
        let found = client.get(&format!("warm-{number}"))?;
        ensure!(found.as_deref() == Some(&b"warm"[..]), "warm-{number}");
        latencies.push(begun.elapsed());
    }
    Ok(latencies)
}

/// 99 of 100 took at most that long.
fn high(latencies: &mut [Duration]) -> Result<Duration> {
    latencies.sort();
    let at = latencies.len() * 99 / 100;
    latencies.get(at).copied().context("nothing was read")
}

#[test]
fn a_cold_read_delays_no_other_and_is_one_request_to_the_bucket() -> Result<()> {
    const COLD: u64 = 4;
    const WARM: u64 = 200;
    let far = Far::form(COLD, Duration::from_secs(1))?;
    let router = far.cluster.router()?;
    let mut client = Dialect::Binary.connect(router.addr())?;
    for number in 0..WARM {
        client.set(&format!("warm-{number}"), b"warm", None)?;
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut hedged = 0.0;
    for number in 0..COLD {
        let took = std::thread::scope(|scope| {
            let cold = scope.spawn(|| read_cold(&router, &format!("cold-{number}")));
            with.append(&mut read_warm(&router, WARM, || cold.is_finished())?);
            cold.join().map_err(|_| anyhow!("a panic"))?
        })?;
        ensure!(
            took >= Duration::from_secs(1),
            "it was not far away: {took:?}"
        );
        // The same time with nothing beside it.
        let begun = Instant::now();
        without.append(&mut read_warm(&router, WARM, || begun.elapsed() >= took)?);
        // Past the budget a late read goes on alone.
        let now = total(&router, "hedged")? + total(&router, "hedge_denied")?;
        ensure!(now > hedged, "it was not late");
        hedged = now;
    }
    let counts = (with.len(), without.len());
    let (with, without) = (high(&mut with)?, high(&mut without)?);
    eprintln!("99 of 100 reads: {with:?} beside cold reads, {without:?} without; of {counts:?}");
    ensure!(counts.0 >= 200, "only {} beside cold reads", counts.0);
    // A read that waited for a cold one would have taken a second.
    let bound = at_most(
        without * 2 + Duration::from_millis(5),
        without * 10 + Duration::from_millis(250),
    );
    ensure!(with <= bound, "{with:?} where it is {without:?} else");
    // The next owner was asked for its copy, and had none; it did not go to the bucket for one.
    let mut cold = 0.0;
    for node in &far.cluster.nodes {
        let page = node.http_get("/metrics")?.body;
        let hits = page
            .lines()
            .find_map(|line| line.strip_prefix("fonn_hits_total{tier=\"cold\"} "));
        cold += hits.context("no metric about hits")?.parse::<f64>()?;
    }
    ensure!(cold == COLD as f64, "{cold} reads of the bucket");
    Ok(())
}

#[test]
fn a_router_that_is_told_to_end_answers_what_is_under_way() -> Result<()> {
    let far = Far::form(1, Duration::from_secs(2))?;
    let mut router = far.cluster.router()?;
    let late = |router: &FonnRouter| -> Result<f64> {
        Ok(total(router, "hedged")? + total(router, "hedge_denied")?)
    };
    let before = late(&router)?;
    let mut client = Dialect::Binary.connect(router.addr())?;
    let mut idle = Dialect::Text.connect(router.addr())?;
    ensure!(idle.get("nothing")?.is_none());
    let reading = std::thread::spawn(move || client.get("cold-0"));
    let begun = Instant::now();
    while late(&router)? <= before {
        ensure!(begun.elapsed() < Duration::from_secs(60), "it was not late");
        std::thread::yield_now();
    }
    ensure!(!reading.is_finished(), "it was answered before the end");
    router.stop()?;
    let found = reading
        .join()
        .map_err(|_| anyhow!("the client panicked"))??;
    ensure!(found.as_deref() == Some(&b"cold"[..]), "{found:?}");
    // No other client is served any more.
    ensure!(idle.get("nothing").is_err());
    ensure!(Dialect::Text.connect(router.addr()).is_err());
    Ok(())
}

#[test]
fn ten_thousand_clients_of_a_router_are_served_in_bounded_memory() -> Result<()> {
    const CLIENTS: usize = 10_000;
    const MIB: u64 = 1 << 20;
    raise_open_files(11_000)?;
    let cluster = Cluster::form_patient(3)?;
    cluster.wait_agreed()?;
    let router = cluster.router_with(vec![("--ram-budget", "64m".to_owned())])?;
    let mut writer = Dialect::Binary.connect(router.addr())?;
    let value = vec![b'v'; 2000];
    for number in 0..100 {
        writer.set(&format!("key-{number}"), &value, None)?;
    }
    let before = rss_bytes(router.pid()?)?;
    let mut clients = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        let stream = TcpStream::connect(router.addr());
        let stream = stream.with_context(|| format!("connection {number}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        clients.push(stream);
    }
    let mut highest = before;
    for round in 0..3 {
        // All ask before the first one looks at its answer.
        for (number, client) in clients.iter_mut().enumerate() {
            let key = (number + round) % 100;
            client.write_all(format!("get key-{key}\r\n").as_bytes())?;
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let key = (number + round) % 100;
            let head = format!("VALUE key-{key} 0 2000\r\n");
            let mut reply = vec![0; head.len() + value.len() + b"\r\nEND\r\n".len()];
            let read = client.read_exact(&mut reply);
            read.with_context(|| format!("client {number}, round {round}"))?;
            ensure!(reply.starts_with(head.as_bytes()) && reply.ends_with(b"v\r\nEND\r\n"));
        }
        highest = highest.max(rss_bytes(router.pid()?)?);
    }
    ensure!(router.metric("fonn_router_connections")? >= CLIENTS as f64);
    let idle = rss_bytes(router.pid()?)?;
    eprintln!(
        "{} MiB without clients, {} MiB with {CLIENTS}, {} MiB at most",
        before / MIB,
        idle / MIB,
        highest / MIB
    );
    // Two buffers of 16 KiB for each that asks, and the budget for what is under way.
    let bound = before + CLIENTS as u64 * 32 * 1024 + 64 * MIB;
    ensure!(highest < bound, "{} MiB", highest / MIB);
    Ok(())
}

#[test]
fn a_client_of_a_router_that_is_just_starting_misses_nothing() -> Result<()> {
    let cluster = Cluster::form(1, None)?;
    cluster.wait_agreed()?;
    let mut router = cluster.router()?;
    let addr = router.addr();
    Dialect::Text.connect(addr)?.set("key", b"value", None)?;
    for round in 0..5 {
        router.stop()?;
        let first = std::thread::spawn(move || {
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                match Dialect::Text.connect(addr) {
                    Ok(mut client) => return client.get("key"),
                    Err(error) if Instant::now() > end => return Err(error),
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        router.start_again()?;
        let found = first.join().map_err(|_| anyhow!("the client panicked"))??;
        ensure!(
            found.as_deref() == Some(&b"value"[..]),
            "round {round}: {found:?}"
        );
    }
    Ok(())
}
