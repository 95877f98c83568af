//! Runs generated sequences against two servers.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use fonn_tests::cluster::undisturbed;
use fonn_tests::component::program;
use fonn_tests::node::FonnNode;
use fonn_tests::peers::Peer;
use fonn_tests::rng::{Rng, mix};

/// Sequences of one run.
const SEQUENCES: u64 = 60;

/// Commands of one sequence.
pub const COMMANDS: usize = 60;

/// The seed of the first sequence; the others follow from it.
const SEED: u64 = 0x0019_0002;

/// One side of a comparison: sends commands, and returns replies without what may differ.
pub trait Side<C>: Sized {
    fn connect(addr: SocketAddr) -> Result<Self>;
    fn call(&mut self, command: &C) -> Result<Vec<u8>>;
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
}

fn knob(name: &str) -> Result<Option<u64>> {
    let Ok(value) = std::env::var(name) else {
        return Ok(None);
    };
    let number = value.parse().with_context(|| format!("{name}={value}"))?;
    Ok(Some(number))
}

/// Runs sequences. `new_generator` begins one: it gives the next command from random numbers.
pub fn compare<C: std::fmt::Display, S: Side<C>>(
    real: Real,
    new_generator: impl Fn(u64) -> Box<dyn FnMut(&mut Rng) -> C>,
    is_same: impl Fn(&C, &[u8], &[u8]) -> bool,
) -> Result<()> {
    undisturbed(|| {
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
            let mut rng = Rng::new(seed);
            let (mut theirs, mut ours) = (S::connect(peer.addr)?, S::connect(node.addr())?);
            let mut generate = new_generator(seed);
            let mut history = String::new();
            for _ in 0..COMMANDS {
                let command = generate(&mut rng);
                let expected = theirs.call(&command)?;
                let got = ours.call(&command)?;
                history.push_str(&format!("{command} => {}\n", expected.escape_ascii()));
                assert!(
                    is_same(&command, &expected, &got),
                    "FONN_DIFFERENTIAL_SEED={seed} replays this:\n{history}expected {}\nbut got  {}",
                    expected.escape_ascii(),
                    got.escape_ascii()
                );
            }
        }
        Ok(())
    })
}

/// Chooses one of several.
pub fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}
