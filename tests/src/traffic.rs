//! Clients that read and write while something is done to the members, and hold each answer to what
//! they know.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::client::{Cache, Dialect, is_refusal};
use crate::rng::Rng;

/// Keys of a client.
pub const KEYS: u64 = 100;
/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(60);

/// What a key has; each key another length.
pub fn value(key: &str, generation: u64) -> Vec<u8> {
    let text = format!("{key} {generation} ");
    text.repeat(1 + key.len() * 37 % 200).into_bytes()
}

/// An entry that is there before, and stays as it is.
pub fn still(number: u64) -> String {
    format!("still-{number}")
}

/// A key that one client alone writes.
pub fn own(client: u64, number: u64) -> String {
    format!("own-{client}-{number}")
}

/// What clients do together, and count.
#[derive(Default)]
pub struct Load {
    still: u64,
    is_over: AtomicBool,
    /// Operations that were begun.
    pub operations: AtomicU64,
    /// Reads that found what was stored.
    pub hits: AtomicU64,
    /// Reads that found nothing although it was stored.
    pub misses: AtomicU64,
    /// Writes that were refused, and sent again.
    pub refused: AtomicU64,
}

impl Load {
    /// Stores so many entries that stay as they are.
    pub fn over(still_count: u64, client: &mut dyn Cache) -> Result<Self> {
        for number in 0..still_count {
            let key = still(number);
            client.set(&key, &value(&key, 1), None)?;
        }
        Ok(Self {
            still: still_count,
            ..Self::default()
        })
    }

    /// Has some work done while so many clients, in all dialects, read and write at these addresses
    /// in turn.
    pub fn beside<T>(
        &self,
        clients: u64,
        addresses: &[SocketAddr],
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let dialects = Dialect::ALL.iter().cycle();
        let connected = dialects.zip(addresses.iter().cycle()).zip(0..clients);
        let connected =
            connected.map(|((dialect, address), id)| Ok((id, dialect.connect(*address)?)));
        let connected = connected.collect::<Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let running = connected.into_iter();
            let running = running.map(|(id, client)| scope.spawn(move || self.run(id, client)));
            let running: Vec<_> = running.collect();
            let done = work();
            self.is_over.store(true, Ordering::Relaxed);
            for client in running {
                client.join().map_err(|_| anyhow!("a panic"))??;
            }
            done
        })
    }

    /// Waits until so many more operations are done.
    pub fn go_on(&self, more: u64) -> Result<()> {
        let (begun, before) = (Instant::now(), self.operations.load(Ordering::Relaxed));
        while self.operations.load(Ordering::Relaxed) < before + more {
            ensure!(begun.elapsed() < LIMIT, "nothing goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn count_hit(&self, is_hit: bool) {
        let count = if is_hit { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Has something written. It is refused where an owner does not take it within seconds, and
    /// sent again.
    fn write<T>(&self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        loop {
            match ask() {
                Err(error) if is_refusal(&error) && begun.elapsed() < LIMIT => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(50));
                }
                answer => return answer,
            }
        }
    }

    /// Reads and writes keys of its own, and reads what all have, until told to stop. Every answer
    /// has to be right.
    fn run(&self, id: u64, mut client: Box<dyn Cache>) -> Result<()> {
        let mut random = Rng::new(id);
        let mut generations = vec![0_u64; KEYS as usize];
        while !self.is_over.load(Ordering::Relaxed) {
            let count = self.operations.fetch_add(1, Ordering::Relaxed);
            let nth = random.below(KEYS);
            let key = own(id, nth);
            let generation = generations.get_mut(nth as usize).context("a key")?;
            match random.below(10) {
                0..3 => {
                    let next = count + 1;
                    let value = value(&key, next);
                    let set = self.write(|| client.set(&key, &value, None));
                    set.context("set")?;
                    *generation = next;
                }
                3 => {
                    self.write(|| client.delete(&key)).context("delete")?;
                    *generation = 0;
                }
                4..7 => match (client.get(&key).context("get")?, *generation) {
                    (None, 0) => {}
                    (Some(found), 1..) => {
                        ensure!(found == value(&key, *generation), "a wrong value of {key}");
                        self.count_hit(true);
                    }
                    (None, _) => self.count_hit(false),
                    (Some(_), 0) => bail!("{key} was deleted"),
                },
                _ => {
                    let key = still(random.below(self.still));
                    let found = client.get(&key).context("get")?;
                    let is_right = found.as_ref().is_none_or(|it| *it == value(&key, 1));
                    ensure!(is_right, "a wrong value of {key}");
                    self.count_hit(found.is_some());
                }
            }
        }
        Ok(())
    }
}
