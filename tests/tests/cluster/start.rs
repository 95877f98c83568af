//! A router that starts before it knows the users that members agree on.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use fonn_tests::router::FonnRouter;
use fonn_tests::secured::{PASSWORD, Secured, ctl_with};

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// So long a router that starts waits for map and users at most before it answers.
const WAIT: Duration = Duration::from_secs(2);

/// Starts of which one at least has to be asked within that time.
const STARTS: usize = 10;

/// So long no client may be answered; an answer that is due comes far sooner.
const SILENCE: Duration = Duration::from_millis(400);

const SECRET: &str = "battery-staple";

/// A door to a member. When it is shut, it keeps the connections that come.
#[derive(Clone)]
struct Gate {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    is_shut: bool,
    /// Connections since it was shut.
    came: usize,
}

impl Gate {
    fn to(member: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let gate = Self {
            address: listener.local_addr()?,
            state: Arc::default(),
        };
        let door = gate.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let is_kept = door.change(|it| {
                    it.came += 1;
                    it.is_shut
                });
                let door = door.clone();
                std::thread::spawn(move || {
                    if is_kept {
                        door.wait(|it| !it.is_shut);
                    }
                    // An error is the end of the connection, which both sides see.
                    let _ = pass_on(&client, member);
                });
            }
        });
        Ok(gate)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (state, changed) = &*self.state;
        let done = change(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
        done
    }

    /// Waits until it is so, or nothing changes for a while.
    fn wait(&self, is_so: impl Fn(&State) -> bool) -> bool {
        let (state, changed) = &*self.state;
        let held = state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(held, LIMIT, |it| !is_so(it));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

fn pass_on(client: &TcpStream, member: SocketAddr) -> std::io::Result<()> {
    let server = TcpStream::connect(member)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    std::thread::scope(|scope| {
        for (mut from, mut to) in [(client, &server), (&server, client)] {
            scope.spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    Ok(())
}

#[test]
fn a_user_that_comes_before_the_router_knows_the_users_waits_for_them() -> Result<()> {
    let secured = Secured::start()?;
    let environment = [("FONN_NEW_PASSWORD", SECRET)];
    let put = ["user", "put", "new", "--role", "read-write"];
    let root = Some(("root", PASSWORD));
    let (code, text) = ctl_with(secured.router.admin(), root, &environment, &put)?;
    ensure!(code == Some(0), "{text}");

    let gate = Gate::to(secured.listens()[0])?;
    let mut router = secured.router_by(gate.address)?;
    for _ in 0..STARTS {
        router.stop()?;
        let (started, is_shown) = start_and_ask(router, &gate)?;
        router = started;
        if is_shown {
            return router.stop();
        }
    }
    bail!("none of {STARTS} routers was asked while it waited")
}

/// Starts a router that hears of the users only when it was asked. Says whether that was in time
/// for it to wait: on a machine that stands still it answers before.
fn start_and_ask(mut router: FonnRouter, gate: &Gate) -> Result<(FonnRouter, bool)> {
    gate.change(|it| (it.is_shut, it.came) = (true, 0));
    let (door, begun) = (router.addr(), Instant::now());
    let starting = std::thread::spawn(move || router.start_again().map(|()| router));
    // The users come with the map.
    ensure!(gate.wait(|it| it.came >= 1), "no member is asked");
    let mut client = loop {
        match TcpStream::connect(door) {
            Ok(client) => break client,
            Err(error) => ensure!(begun.elapsed() < LIMIT, "{error}"),
        }
    };
    client.write_all(format!("AUTH new {SECRET}\r\n").as_bytes())?;
    let mut answer = [0; 5];
    client.set_read_timeout(Some(SILENCE))?;
    let early = client.read(&mut answer).map_err(|error| error.kind());
    let is_silent = matches!(early, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut));
    let is_late = || begun.elapsed() >= WAIT;
    let shown = |answer: &[u8]| String::from_utf8_lossy(answer).into_owned();
    ensure!(is_silent || is_late(), "{early:?}: {}", shown(&answer));
    gate.change(|it| it.is_shut = false);
    if is_silent {
        client.set_read_timeout(Some(LIMIT))?;
        client.read_exact(&mut answer)?;
    }
    let is_let_in = is_silent && answer == *b"+OK\r\n";
    ensure!(is_let_in || is_late(), "{}", shown(&answer));
    let started = starting.join().map_err(|_| anyhow!("the router"))?;
    Ok((started?, is_let_in))
}
