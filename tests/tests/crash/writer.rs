//! One connection that writes to keys of its own and keeps their histories.

use std::net::SocketAddr;
use std::time::SystemTime;

use anyhow::{Context, Result};

use fonn_tests::checker::{Content, Expiry, History, State};
use fonn_tests::client::{Cache, Dialect, is_refusal};
use fonn_tests::rng::{Rng, mix};
use fonn_tests::values::ValuePool;

/// Longest value that is written.
pub const VALUE_LEN_MAX: usize = 1 << 20;

/// Short lives end within a test, long ones only when the clock is moved.
const TTLS: [u32; 4] = [3, 30, 7200, 86_400];

/// A writer with its keys; the process that it writes to may die at any moment.
#[derive(Debug)]
pub struct Writer {
    index: usize,
    dialect: Dialect,
    histories: Vec<History>,
    rng: Rng,
}

/// One operation with what it leads to.
struct Plan {
    action: Action,
    next: State,
}

enum Action {
    Set { value: Vec<u8>, ttl: Option<u32> },
    Delete,
    Touch { ttl: u32 },
    Increment { by: u64 },
}

impl Writer {
    /// A writer of `keys` keys over `dialect`.
    pub fn new(index: usize, dialect: Dialect, keys: usize, rng: Rng) -> Self {
        let key = |number| History::new(format!("writer-{index}/key-{number}"));
        Self {
            index,
            dialect,
            histories: (0..keys).map(key).collect(),
            rng,
        }
    }

    /// The histories of all keys.
    pub fn histories(&mut self) -> impl Iterator<Item = &mut History> {
        self.histories.iter_mut()
    }

    /// Writes until the connection breaks; returns the number of acknowledged operations.
    ///
    /// # Errors
    /// When the node answers something that no order of events explains.
    pub fn work(&mut self, addr: SocketAddr, pool: &ValuePool) -> Result<u64> {
        let Ok(mut client) = self.dialect.connect(addr) else {
            return Ok(0);
        };
        let mut acknowledged = 0;
        loop {
            let at = self.rng.below(self.histories.len() as u64) as usize;
            let sent = SystemTime::now();
            let plan = self.plan(at, pool, sent);
            let history = &mut self.histories[at];
            history.begin(plan.next);
            let outcome = execute(&mut *client, history.key(), &plan.action);
            let answered = SystemTime::now();
            match outcome {
                Ok(answer) => {
                    let state = confirm(history.state(), &plan, answer, sent, answered);
                    let state = state.with_context(|| {
                        format!(
                            "{:?} on {} was answered {answer:?}",
                            self.dialect,
                            history.key()
                        )
                    })?;
                    history.acknowledge(state);
                    acknowledged += 1;
                }
                // Refused: it did not happen, but may yet have reached the journal.
                Err(error) if is_refusal(&error) => {
                    anyhow::bail!("{:?} on {} was {error:#}", self.dialect, history.key());
                }
                Err(_) => return Ok(acknowledged),
            }
        }
    }

    /// Chooses the next operation on key `at`.
    fn plan(&mut self, at: usize, pool: &ValuePool, now: SystemTime) -> Plan {
        let history = &mut self.histories[at];
        let present = history.state();
        let ttl = TTLS[self.rng.below(4) as usize];
        let choice = self.rng.below(100);
        if let State::Present { content, expiry } = present {
            match (choice, content) {
                (0..15, _) => {
                    return Plan {
                        action: Action::Delete,
                        next: State::Absent,
                    };
                }
                (15..30, _) => {
                    let expiry = Some(Expiry::new(ttl, now, now));
                    let next = State::Present { content, expiry };
                    return Plan {
                        action: Action::Touch { ttl },
                        next,
                    };
                }
                // RESP creates a counter that is not there: only on those that stay.
                (30..75, Content::Counter(count)) if expiry.is_none() => {
                    let by = 1 + self.rng.below(1000);
                    let next = State::Present {
                        content: Content::Counter(count + by),
                        expiry,
                    };
                    return Plan {
                        action: Action::Increment { by },
                        next,
                    };
                }
                _ => {}
            }
        }
        if choice < 45 && at.is_multiple_of(5) {
            let count = self.rng.below(1000);
            let next = State::Present {
                content: Content::Counter(count),
                expiry: None,
            };
            let value = count.to_string().into_bytes();
            return Plan {
                action: Action::Set { value, ttl: None },
                next,
            };
        }
        let ttl = (choice < 70).then_some(ttl);
        // Mostly small, some of a size that the disk tier treats on its own.
        let magnitude = 4 + self.rng.below(17);
        let len = (16 + self.rng.below(1 << magnitude) as usize).min(VALUE_LEN_MAX);
        let number = mix(((self.index as u64) << 48) | ((at as u64) << 32) | history.next_number());
        let expiry = ttl.map(|ttl| Expiry::new(ttl, now, now));
        let next = State::Present {
            content: Content::Value { number, len },
            expiry,
        };
        Plan {
            action: Action::Set {
                value: pool.value(number, len).to_vec(),
                ttl,
            },
            next,
        }
    }

    /// Makes the histories agree with entries that were expired under a clock that has gone back
    /// since: they are deleted, with acknowledgement, and must stay gone from then on.
    pub fn forget_expired(&mut self, addr: SocketAddr) -> Result<()> {
        let mut client = self.dialect.connect(addr)?;
        for history in &mut self.histories {
            if history.state() == State::Absent {
                client.delete(history.key())?;
            }
        }
        Ok(())
    }
}

/// What a node said to an operation.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Done,
    NotFound,
    Number(u64),
}

fn execute(client: &mut dyn Cache, key: &str, action: &Action) -> Result<Answer> {
    let found = |found| {
        if found {
            Answer::Done
        } else {
            Answer::NotFound
        }
    };
    Ok(match action {
        Action::Set { value, ttl } => {
            client.set(key, value, *ttl)?;
            Answer::Done
        }
        Action::Delete => found(client.delete(key)?),
        Action::Touch { ttl } => found(client.touch(key, *ttl)?),
        Action::Increment { by } => client
            .incr(key, *by)?
            .map_or(Answer::NotFound, Answer::Number),
    })
}

/// The state after an answer, `None` when the answer contradicts what is known.
fn confirm(
    before: State,
    plan: &Plan,
    answer: Answer,
    sent: SystemTime,
    answered: SystemTime,
) -> Option<State> {
    let may_be_over = match before {
        State::Absent => true,
        State::Present { expiry, .. } => expiry.is_some_and(|expiry| expiry.may_be_over(answered)),
    };
    match (&plan.action, answer, plan.next) {
        (Action::Set { ttl, .. }, Answer::Done, State::Present { content, .. }) => {
            let expiry = ttl.map(|ttl| Expiry::new(ttl, sent, answered));
            Some(State::Present { content, expiry })
        }
        (Action::Touch { ttl }, Answer::Done, State::Present { content, .. }) => {
            let expiry = Some(Expiry::new(*ttl, sent, answered));
            Some(State::Present { content, expiry })
        }
        (Action::Delete, Answer::Done, next) => Some(next),
        (Action::Increment { .. }, Answer::Number(number), next) => match next {
            State::Present {
                content: Content::Counter(count),
                ..
            } if count == number => Some(next),
            _ => None,
        },
        (Action::Delete | Action::Touch { .. }, Answer::NotFound, _) if may_be_over => {
            Some(State::Absent)
        }
        _ => None,
    }
}
