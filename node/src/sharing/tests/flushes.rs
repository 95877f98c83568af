//! Flushes have one cutoff, whatever the clocks of members.

use fonn_base::hlc;
use fonn_forward::{Flush, Hidden, envelope};
use fonn_proto::peer::{Reply, Request};
use fonn_proto::{Failure, Version};
use fonn_rpc::Client as PeerClient;

use super::copies::runtime;
use super::*;

const SPACE: Space = Space(0);

/// Moves the versions of a member ahead of those of others, past the one returned.
fn set_ahead(member: &Member, ms: u64) -> Version {
    let versions = member.engine.versions();
    let ahead = versions.newest() + hlc::at_ms(ms);
    versions.observe(ahead).unwrap();
    ahead
}

fn cutoffs<const N: usize>(members: [&Member; N]) -> [Version; N] {
    members.map(|it| it.engine.flushed_below(SPACE))
}

/// Asks a member as another one does that has applied the map of `epoch`.
fn ask(member: &Member, request: &Request<'_>, epoch: u64) -> Asked {
    runtime().block_on(async {
        let stats = PeerMetrics::register(&Metrics::new()).stats();
        let client = PeerClient::start(peers(&member.address, "test"), stats);
        let call = client.call(request, envelope(0, SPACE, epoch), None, PATIENCE);
        let answer = call.await.unwrap();
        match answer.reply().unwrap() {
            Reply::Version(cutoff) => Asked::Cutoff(cutoff),
            Reply::WrongOwner => Asked::WrongOwner,
            other => panic!("{other:?}"),
        }
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Cutoff(Version),
    WrongOwner,
}

#[test]
fn what_is_written_behind_a_flush_stays_at_all_owners_and_at_one_that_was_away_whatever_the_clocks()
{
    let members = ["a", "b", "c"].map(Member::start);
    let [a, b, c] = &members;
    let first = map(1, 2, &[(a, Active), (b, Active), (c, Active)]);
    go_by(&[a, b, c], &first);
    let mut client = a.client();
    let keys: Vec<String> = (0..30).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        assert_eq!(client.set(key, "before"), "STORED");
    }
    // One is away; clocks are not together.
    let second = map(2, 2, &[(a, Active), (b, Active), (c, Down)]);
    go_by(&[a, b], &second);
    let ahead = set_ahead(b, 20_000);
    assert_eq!(client.ask("flush_all\r\n"), "OK");
    let [of_a, of_b] = cutoffs([a, b]);
    assert!(of_a == of_b && of_a > ahead, "{of_a} {of_b} {ahead}");
    for key in &keys {
        assert_eq!(client.get(key), None);
        assert_eq!(client.set(key, "behind"), "STORED");
        assert!(a.has(key) > Some(of_a) && a.has(key) == b.has(key), "{key}");
    }
    let third = map(3, 2, &[(a, Active), (b, Active), (c, Active)]);
    go_by(&[a, b], &third);
    c.sharing.go_by(third, false);
    c.take_over();
    until("all is taken over", || c.is_filled());
    until("all flushes are known", || {
        c.sharing.held.lock().told_flushes.is_none()
    });
    assert_eq!(cutoffs([c]), [of_a]);
    for key in &keys {
        for member in &members {
            let found = member.client().get(key);
            assert_eq!(found.as_deref(), Some("behind"), "{}", member.describe(key));
        }
    }
}

#[test]
fn a_flush_hides_what_was_written_ahead_of_the_clock_of_its_member() {
    let members = ["a", "b"].map(Member::start);
    let [a, b] = &members;
    let first = map(1, 1, &[(a, Active), (b, Active)]);
    go_by(&[a, b], &first);
    set_ahead(b, 20_000);
    let key = key_of(&first, b, 0);
    assert_eq!(b.client().set(&key, "old"), "STORED");
    assert_eq!(a.client().ask("flush_all\r\n"), "OK");
    // The copy would show where the slot is another one's.
    let [of_a, of_b] = cutoffs([a, b]);
    let version = runtime().block_on(b.engine.newest(SPACE, key.as_bytes()));
    let version = version.unwrap().unwrap();
    assert!(of_a == of_b && of_a > version, "{of_a} {of_b} {version}");
}

#[test]
fn a_flush_by_an_older_map_hides_nothing() {
    let member = Member::start("a");
    go_by(&[&member], &map(1, 1, &[(&member, Active)]));
    go_by(&[&member], &map(2, 1, &[(&member, Active)]));
    let mut client = member.client();
    assert_eq!(client.set("key", "x"), "STORED");
    let now = Request::Flush {
        all_databases: false,
        cutoff: None,
        purge: None,
    };
    // It was given up by the next map, and that one's has been done.
    assert_eq!(ask(&member, &now, 1), Asked::WrongOwner);
    assert_eq!(client.get("key").as_deref(), Some("x"));
    let Asked::Cutoff(drawn) = ask(&member, &now, 2) else {
        panic!("a flush by the same map");
    };
    assert_eq!(cutoffs([&member]), [drawn]);
    assert_eq!(client.get("key"), None);
    let below = |cutoff| Request::Flush {
        all_databases: true,
        cutoff: Some(cutoff),
        purge: None,
    };
    let agreed = drawn + hlc::at_ms(1000);
    assert_eq!(ask(&member, &below(agreed), 2), Asked::Cutoff(agreed));
    assert_eq!(cutoffs([&member]), [agreed]);
    for space in Space::of_namespace(0) {
        assert_eq!(member.engine.flushed_below(space), agreed);
    }
    assert_eq!(client.set("key", "y"), "STORED");
    assert!(member.has("key") > Some(agreed));
}

#[test]
fn a_member_that_stood_still_begins_no_flush_and_takes_part_in_none() {
    let member = Member::start("a");
    let upstreams = Upstreams::new(
        Arc::new(Map::default()),
        Options::new("", "a"),
        PeerMetrics::register(&Metrics::new()),
    );
    let time = ManualClock::new(1_700_000_000_000);
    let forwarder = Forwarder::new(upstreams.of_member("a"), OWNERS_WAIT);
    let sharing = Sharing::new("a", forwarder, time.clock());
    let all = Flush::new(SPACE, false, Instant::now() + PATIENCE);
    let begin = || runtime().block_on(sharing.try_flush(&member.engine, all));
    assert_eq!(begin(), Err(Failure::Busy), "nobody is known yet");
    assert_eq!(cutoffs([&member]), [0]);
    sharing.go_by(map(1, 1, &[(&member, Active)]), true);
    assert_eq!(begin(), Ok(()));
    let hidden = Hidden::Spaces(vec![SPACE]);
    let flush = |cutoff| runtime().block_on(sharing.flush_own(&member.engine, &hidden, cutoff));
    let first = flush(None).unwrap();
    time.advance(Duration::from_secs(2));
    // Others may have flushed without it, and gone on.
    assert_eq!(flush(None), Err(Failure::Busy));
    assert_eq!(begin(), Err(Failure::Busy));
    assert_eq!(cutoffs([&member]), [first]);
    // What is agreed on is old, whenever it comes.
    assert_eq!(flush(Some(first + 1)), Ok(first + 1));
}

#[test]
fn a_flush_begins_again_without_a_member_that_falls_meanwhile() {
    let mut members = ["a", "b", "c"].map(Member::start);
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let first = map(1, 2, &all);
    go_by(&members.each_ref(), &first);
    let mut client = members[0].client();
    assert_eq!(client.set("key", "old"), "STORED");
    members[2].kill();
    let [a, b, c] = &members;
    let second = map(2, 2, &[(a, Active), (b, Active), (c, Down)]);
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| a.client().ask("flush_all\r\n"));
        until("one has drawn its cutoff", || cutoffs([a]) != [0]);
        go_by(&[a, b], &second);
        assert_eq!(flushing.join().unwrap(), "OK");
    });
    let [of_a, of_b] = cutoffs([a, b]);
    assert_eq!(of_a, of_b);
    assert_eq!(client.get("key"), None);
    assert_eq!(client.set("key", "new"), "STORED");
    assert_eq!(b.client().get("key").as_deref(), Some("new"));
}

#[test]
fn the_first_member_to_flush_at_its_time_has_all_do_it() {
    let times = [(); 2].map(|()| ManualClock::new(1_700_000_000_000));
    let start = |name: &str, time: &ManualClock| {
        Member::start_in(name, tempfile::tempdir().unwrap(), |dir| EngineOptions {
            clock: time.clock(),
            ..options(dir)
        })
    };
    let (a, b) = (start("a", &times[0]), start("b", &times[1]));
    let first = map(1, 1, &[(&a, Active), (&b, Active)]);
    go_by(&[&a, &b], &first);
    set_ahead(&b, 20_000);
    let mut client = b.client();
    let keys = [key_of(&first, &a, 0), key_of(&first, &b, 0)];
    for key in &keys {
        assert_eq!(client.set(key, "old"), "STORED");
    }
    assert_eq!(client.ask("flush_all 60\r\n"), "OK");
    times[0].advance(Duration::from_secs(60));
    runtime().block_on(a.engine.upkeep_once(&mut 0));
    let run = super::super::flushes::run(Arc::clone(&a.sharing), Arc::clone(&a.engine));
    runtime().block_on(async {
        let is_done = || matches!(cutoffs([&a, &b]), [of_a, of_b] if of_b > 0 && of_a == of_b);
        let done = async {
            while !is_done() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let both = futures_util::future::select(Box::pin(run), Box::pin(done));
        let both = tokio::time::timeout(PATIENCE, both).await;
        assert!(both.is_ok(), "the other one does not do it before its time");
    });
    let to_come = |member: &Member| {
        let flushes = member.engine.known_flushes().into_iter();
        flushes.filter(|it| it.at_ms != 0).count()
    };
    assert_eq!((to_come(&a), to_come(&b)), (0, 0));
    for key in &keys {
        assert_eq!(client.get(key), None);
        assert_eq!(client.set(key, "new"), "STORED");
    }
    // At its own time there is nothing left to do.
    times[1].advance(Duration::from_secs(60));
    runtime().block_on(b.engine.upkeep_once(&mut 0));
    for key in &keys {
        assert_eq!(client.get(key).as_deref(), Some("new"));
    }
}
