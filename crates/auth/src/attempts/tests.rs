//! What guessing brings, and what it costs those that do not guess.

use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use futures_util::future::join_all;

use super::*;
use crate::Authenticator;
use crate::testing::{PASSWORD, directory};

/// More than may stand in line.
const FLOOD: u32 = 3000;
const AT_ONCE: Duration = Duration::from_millis(100);

fn authenticator() -> Authenticator {
    Authenticator::new(directory(&[("ci", "read-write"), ("dev", "read")])).unwrap()
}

fn here() -> Option<IpAddr> {
    address(0)
}

fn address(number: u32) -> Option<IpAddr> {
    Some(IpAddr::from((0x0a00_0000 + number).to_be_bytes()))
}

/// A guess at the password of `ci`.
async fn guess(auth: &Authenticator, number: u32) -> Result<Identity, Refusal> {
    let guess = format!("guess {number}");
    auth.check(b"ci", guess.as_bytes(), here()).await
}

/// Guesses that differ, all at once. Returns those that were not answered at once; the others were
/// too many.
fn flood(
    auth: &Authenticator,
    count: u32,
) -> Vec<Pin<Box<impl Future<Output = Result<Identity, Refusal>>>>> {
    let mut waiting = Vec::new();
    for number in 0..count {
        let mut guess = Box::pin(guess(auth, number));
        match poll(guess.as_mut()) {
            Poll::Pending => waiting.push(guess),
            Poll::Ready(answer) => assert_eq!(answer.err(), Some(Refusal::Busy)),
        }
    }
    waiting
}

/// How many of these were checked.
fn tried(results: &[Result<Identity, Refusal>]) -> usize {
    assert!(results.iter().all(Result::is_err));
    let wrong = results.iter();
    wrong.filter(|it| matches!(it, Err(Refusal::Wrong))).count()
}

#[tokio::test(start_paused = true)]
async fn guessing_is_slowed_and_other_sources_are_not() {
    let auth = authenticator();
    let start = Instant::now();
    for number in 0..12 {
        assert!(guess(&auth, number).await.is_err());
    }
    let elapsed = start.elapsed();
    assert!(elapsed > Duration::from_secs(20), "{elapsed:?}");
    let before = Instant::now();
    assert!(auth.check(b"ci", PASSWORD, address(1)).await.is_ok());
    assert!(before.elapsed() < AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn guesses_at_once_are_as_slow_as_one_after_the_other() {
    let auth = authenticator();
    let start = Instant::now();
    // No guess is answered before all of them have come.
    let busy = auth.occupy();
    let line = flood(&auth, 200);
    drop(busy);
    let tried = tried(&join_all(line).await);
    // Those that cost nothing, the first that costs, and what may wait behind a penalty.
    assert!((5..=14).contains(&tried), "{tried} of 200 were tried");
    let elapsed = start.elapsed();
    assert!(elapsed > Duration::from_secs(20), "{elapsed:?}");
}

/// The answer to a right password must not come from a memory that guesses can ask as fast as they
/// come.
#[tokio::test(start_paused = true)]
async fn a_flood_of_guesses_does_not_find_a_password_that_was_right_elsewhere() {
    let auth = authenticator();
    assert!(auth.check(b"ci", PASSWORD, address(1)).await.is_ok());
    let busy = auth.occupy();
    let line = flood(&auth, FLOOD);
    let right = poll(pin!(auth.check(b"ci", PASSWORD, here())));
    assert!(
        matches!(right, Poll::Ready(Err(Refusal::Busy))),
        "the line is full"
    );
    drop(busy);
    assert!(tried(&join_all(line).await) < 20);
}

#[tokio::test(start_paused = true)]
async fn a_flood_from_an_address_that_has_logged_in_compares_a_few_a_second() {
    let auth = authenticator();
    assert!(auth.check(b"ci", PASSWORD, here()).await.is_ok());
    let busy = auth.occupy();
    let line = flood(&auth, FLOOD);
    let right = poll(pin!(auth.check(b"ci", PASSWORD, here())));
    assert!(
        matches!(right, Poll::Ready(Err(Refusal::Busy))),
        "the line is full"
    );
    drop(busy);
    assert!(tried(&join_all(line).await) < 20);
    // The penalty is 30 s now. Those behind the same address wait no more than a second once the
    // flood is over.
    assert!(guess(&auth, FLOOD).await.is_err());
    tokio::time::advance(Duration::from_secs(1)).await;
    let before = Instant::now();
    for _ in 0..1000 {
        assert!(auth.check(b"ci", PASSWORD, here()).await.is_ok());
    }
    assert!(before.elapsed() < AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn an_old_password_that_is_repeated_slows_no_client_down_behind_its_address() {
    let auth = authenticator();
    let before = Instant::now();
    for _ in 0..1000 {
        let refused = auth.check(b"ci", b"of last month", here()).await;
        assert_eq!(refused.err(), Some(Refusal::Wrong));
    }
    for user in [&b"ci"[..], b"dev"] {
        assert!(auth.check(user, PASSWORD, here()).await.is_ok());
    }
    assert!(before.elapsed() < AT_ONCE, "{:?}", before.elapsed());
}

/// A stranger has another one for each attempt.
#[tokio::test(start_paused = true)]
async fn unknown_tokens_of_a_source_are_logged_once_a_minute() {
    let attempts = Attempts::new().unwrap();
    let source = Source::of(here());
    let log_due = |number: u8| attempts.wrong_token(&[number; 32], source);
    assert_eq!(log_due(0), Some(1));
    assert!((1..100).all(|number| log_due(number).is_none()));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(log_due(100), Some(100));
}

#[tokio::test]
async fn a_burst_of_one_right_password_is_let_in_whole() {
    let auth = authenticator();
    let logins = (0..500).map(|_| auth.check(b"ci", PASSWORD, here()));
    assert!(join_all(logins).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_fleet_with_one_password_is_one_check_after_a_restart() {
    let auth = authenticator();
    let busy = auth.occupy();
    let mut fleet = pin!(join_all((0..4000).map(|number| auth.check(
        b"ci",
        PASSWORD,
        address(number)
    ))));
    assert!(poll(fleet.as_mut()).is_pending());
    assert_eq!((auth.waiting(), auth.attempts().depth()), (4000, 1));
    drop(busy);
    assert!(fleet.await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_fleet_with_a_password_each_is_let_in_after_a_restart() {
    let names: Vec<String> = (0..1000).map(|number| format!("runner-{number}")).collect();
    let rows: Vec<_> = names.iter().map(|name| (name.as_str(), "read")).collect();
    for has_own_address in [true, false] {
        let auth = Authenticator::new(directory(&rows)).unwrap();
        let fleet = names.iter().enumerate().map(|(index, name)| {
            let address = address(if has_own_address { index as u32 } else { 0 });
            auth.check(name.as_bytes(), PASSWORD, address)
        });
        assert!(join_all(fleet).await.iter().all(Result::is_ok));
    }
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// As a client does that closes its connection before the answer.
#[tokio::test(start_paused = true)]
async fn a_guess_that_is_given_up_counts_as_well() {
    let auth = authenticator();
    for number in 0..8 {
        // No answer comes before the client is gone.
        let busy = auth.occupy();
        let mut attempt = Box::pin(guess(&auth, number));
        assert!(poll(attempt.as_mut()).is_pending());
        drop(attempt);
        drop(busy);
        while auth.attempts().is_checking() {
            tokio::task::yield_now().await;
        }
        // Past any penalty, and not so late that it is forgotten.
        tokio::time::advance(Duration::from_secs(31)).await;
    }
    let start = Instant::now();
    assert!(guess(&auth, 100).await.is_err());
    assert!(guess(&auth, 101).await.is_err());
    let elapsed = start.elapsed();
    assert!(elapsed > Duration::from_secs(5), "{elapsed:?}");
}

/// How long an answer takes does not tell which users there are.
#[tokio::test]
async fn a_user_that_does_not_exist_costs_a_hash_as_one_that_does() {
    let auth = authenticator();
    let busy = auth.occupy();
    let names = [&b"ci"[..], b"nobody", b"\xff"];
    let attempts = names.iter().enumerate().map(|(index, name)| {
        // Of another source each, so that none waits for its turn.
        auth.check(name, b"guess", address(index as u32))
    });
    let mut attempts = pin!(join_all(attempts));
    assert!(poll(attempts.as_mut()).is_pending());
    assert_eq!(auth.attempts().depth(), names.len());
    drop(busy);
    for attempt in attempts.await {
        assert_eq!(attempt.err(), Some(Refusal::Wrong));
    }
}

/// A long one took a digest for users that exist, and none for others.
#[tokio::test]
async fn what_is_too_long_is_refused_at_once_whether_or_not_the_user_exists() {
    let auth = authenticator();
    let _busy = auth.occupy();
    let long = vec![b'x'; PASSWORD_LEN_MAX + 1];
    for (user, password) in [
        (&b"ci"[..], &long[..]),
        (b"nobody", &long),
        (&long, b"hunter 2"),
    ] {
        let refused = poll(pin!(auth.check(user, password, here())));
        let Poll::Ready(Err(Refusal::Wrong)) = refused else {
            panic!("it was computed with");
        };
    }
    assert_eq!(auth.attempts().depth(), 0);
}

/// Guesses from thousands of addresses that lie in three networks.
#[tokio::test]
async fn guesses_from_few_networks_hold_up_no_client_of_another() {
    let (end, ended) = std::sync::mpsc::sync_channel::<()>(0);
    let (rests, ended) = (Mutex::new(0), Mutex::new(ended));
    let attempts = Attempts::new().unwrap().with_rest(move |_| {
        // More than one check for each network of the guessers is made after this test.
        let mut rests = rests.lock();
        *rests += 1;
        if *rests > 3 {
            drop(rests);
            let _ = ended.lock().recv();
        }
    });
    let users = Arc::new(directory(&[("ci", "read-write")]));
    let check =
        async |password: &[u8], source| attempts.check(&users, "ci", password, source).await;
    let busy = attempts.occupy();
    let guesses = (0..3000_u32).map(|number| {
        let [.., high, low] = number.to_be_bytes();
        let source = Source::V4([10, low % 3, high, low]);
        let guess = number.to_be_bytes();
        async move { check(&guess, source).await }
    });
    let mut guesses: Vec<_> = guesses.map(Box::pin).collect();
    assert!(guesses.iter_mut().all(|it| poll(it.as_mut()).is_pending()));
    let client = Source::V4([192, 0, 2, 1]);
    let mut login = pin!(check(PASSWORD, client));
    assert!(poll(login.as_mut()).is_pending());
    drop(busy);
    let login = tokio::time::timeout(Duration::from_secs(60), login).await;
    assert!(login.is_ok_and(|login| login.is_ok()));
    drop(end);
}

/// Guesses from many sources would keep a processor busy otherwise.
#[tokio::test]
async fn a_thread_rests_behind_each_wrong_password_as_long_as_its_check_took() {
    let rests = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&rests);
    let attempts = Attempts::new().unwrap();
    let attempts = attempts.with_rest(move |length| noted.lock().push(length));
    let users = Arc::new(directory(&[("ci", "read-write")]));
    let check = async |password: &[u8], number| {
        let source = Source::of(address(number));
        attempts.check(&users, "ci", password, source).await.is_ok()
    };
    let begun = Instant::now();
    for number in 0..5 {
        assert!(!check(b"guess", number).await);
    }
    assert!(check(PASSWORD, 5).await);
    // One thread or two have ended their checks when they begin these, and so have rested.
    let busy = attempts.occupy();
    let rested = std::mem::take(&mut *rests.lock());
    assert_eq!(rested.len(), 5, "a right password costs no rest");
    assert!(rested.iter().all(|length| *length > Duration::ZERO));
    assert!(rested.iter().sum::<Duration>() <= begun.elapsed());
    drop(busy);
}
