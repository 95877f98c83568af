//! Runs generated sequences against two servers.

#![allow(clippy::print_stdout, reason = "a run tells how much it compared")]

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fonn_tests::component::program;
use fonn_tests::node::FonnNode;
use fonn_tests::peers::Peer;
use fonn_tests::rng::{Rng, mix};

/// Sequences of one run.
const SEQUENCES: u64 = 100;

/// Commands of one sequence.
pub const COMMANDS: usize = 60;

/// The seed of the first sequence; the others follow from it.
const SEED: u64 = 0x0019_0002;

/// One side of a comparison: sends commands, and returns replies without what may differ.
pub trait Side<C>: Sized {
    fn connect(addr: SocketAddr) -> Result<Self>;
    fn call(&mut self, command: &C) -> Result<Vec<u8>>;
}

/// The replies of the two servers to one command.
#[derive(Clone, Copy)]
pub struct Replies<'a> {
    pub expected: &'a [u8],
    pub got: &'a [u8],
    /// By how many seconds two times to live may differ: row `clock`. Each server reads its clock
    /// at some moment between the first command of the sequence and this reply. One second more is
    /// for rounding.
    pub slack_s: u64,
}

/// The real server of a protocol.
#[derive(Clone, Copy)]
pub enum Real {
    Memcached,
    Redis,
}

impl Real {
    /// Starts it; None on a developer's machine that has none.
    pub fn start(self) -> Result<Option<Peer>> {
        Ok(match self {
            Self::Memcached => match program("memcached")? {
                Some(memcached) => Some(Peer::memcached(&memcached, 1)?),
                None => None,
            },
            Self::Redis => match program("redis-server")? {
                Some(redis) => Some(Peer::redis(&redis)?),
                None => None,
            },
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis",
        }
    }
}

fn knob(name: &str) -> Result<Option<u64>> {
    let Ok(value) = std::env::var(name) else {
        return Ok(None);
    };
    let number = value.parse().with_context(|| format!("{name}={value}"))?;
    Ok(Some(number))
}

/// Gives the next command of a sequence from random numbers.
pub type Generator<C> = Box<dyn FnMut(&mut Rng) -> C>;

/// Runs sequences of the protocol that `what` names. `new_generator` begins a sequence.
pub fn compare<C: std::fmt::Display, S: Side<C>>(
    what: &str,
    real: Real,
    new_generator: impl Fn(u64) -> Generator<C>,
    is_same: impl Fn(&C, Replies<'_>) -> bool,
) -> Result<()> {
    let Some(peer) = real.start()? else {
        return Ok(());
    };
    let node = FonnNode::start()?;
    let replayed = knob("FONN_DIFFERENTIAL_SEED")?;
    let count = match replayed {
        Some(_) => 1,
        None => knob("FONN_DIFFERENTIAL_SEQUENCES")?.unwrap_or(SEQUENCES),
    };
    for number in 0..count {
        let seed = replayed.unwrap_or_else(|| mix(SEED + number));
        let sides = (S::connect(peer.addr)?, S::connect(node.addr())?);
        let mut history = String::new();
        run(
            sides,
            seed,
            new_generator(seed),
            &is_same,
            real,
            &mut history,
        )
        .with_context(|| format!("FONN_DIFFERENTIAL_SEED={seed} replays this:\n{history}"))?;
    }
    println!("{what}: {count} sequences of {COMMANDS} commands have equal replies");
    Ok(())
}

/// Runs one sequence, up to the first reply that differs.
fn run<C: std::fmt::Display, S: Side<C>>(
    (mut theirs, mut ours): (S, S),
    seed: u64,
    mut generate: Generator<C>,
    is_same: &impl Fn(&C, Replies<'_>) -> bool,
    real: Real,
    history: &mut String,
) -> Result<()> {
    let mut rng = Rng::new(seed);
    let begun = Instant::now();
    for _ in 0..COMMANDS {
        let command = generate(&mut rng);
        history.push_str(&format!("{command} => "));
        let expected = theirs.call(&command).context(real.name())?;
        history.push_str(&format!("{}\n", expected.escape_ascii()));
        let got = ours.call(&command).context("fonn")?;
        let replies = Replies {
            expected: &expected,
            got: &got,
            slack_s: begun.elapsed().as_secs() + 2,
        };
        ensure!(
            is_same(&command, replies),
            "expected {}\nbut got  {}",
            expected.escape_ascii(),
            got.escape_ascii()
        );
    }
    Ok(())
}

/// Chooses one of several.
pub fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

impl Replies<'_> {
    /// Whether the replies are equal but for numbers behind one of `marks` at the start of a word,
    /// which may differ by the slack.
    pub fn are_same_but_for_times(self, marks: &[u8]) -> bool {
        let words = |bytes: &[u8]| -> Vec<Vec<u8>> {
            let words = bytes.split(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
            words.map(<[u8]>::to_vec).collect()
        };
        let time = |word: &[u8]| -> Option<u64> {
            let (mark, digits) = word.split_first()?;
            let text = std::str::from_utf8(digits).ok()?;
            marks.contains(mark).then(|| text.parse().ok()).flatten()
        };
        let (expected, got) = (words(self.expected), words(self.got));
        let is_close = |(expected, got): (&Vec<u8>, &Vec<u8>)| match (time(expected), time(got)) {
            (Some(expected), Some(got)) => expected.abs_diff(got) <= self.slack_s,
            _ => expected == got,
        };
        self.expected == self.got
            || expected.len() == got.len() && expected.iter().zip(&got).all(is_close)
    }
}
