//! Every variant of every request and reply.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::command::*;
use crate::outcome::{Hit, Number, Stored, Value};
use crate::peer::{Content, Entry, Envelope, Refusal, SlotSet};
use crate::placement::SLOT_COUNT;
use crate::request::{ServerOutcome, StatsKind};
use crate::{
    Base, Batch, BatchStep, Failure, Outcome, Seen, ServerCommand, Space, StepOutcomes, Transfer,
    Watched, WriterId,
};

/// Server commands, server outcomes and outcomes that go from process to process.
pub const SERVER_COMMANDS: usize = 7;
pub const SERVER_OUTCOMES: usize = 10;
pub const OUTCOMES: usize = 13;

/// Bytes that requests and replies borrow from. Sometimes long enough to be shared.
#[derive(Clone, Debug)]
pub struct Pool {
    pub key: Vec<u8>,
    pub value: Bytes,
    pub words: Vec<Vec<u8>>,
}

pub fn pools() -> impl Strategy<Value = Pool> {
    let key = prop_oneof![8 => vec(any::<u8>(), 0..80), 1 => vec(any::<u8>(), 500..600)];
    let value = prop_oneof![
        8 => vec(any::<u8>(), 0..100),
        2 => vec(any::<u8>(), 400..700),
        1 => any::<u8>().prop_map(|byte| vec![byte; 20_000]),
    ];
    let words = vec(vec(any::<u8>(), 0..20), 0..6);
    (key, value, words).prop_map(|(key, value, words)| Pool {
        key,
        value: value.into(),
        words,
    })
}

pub fn envelopes() -> impl Strategy<Value = Envelope> {
    (
        any::<u32>(),
        any::<u16>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(|(id, slot, space, budget_ms, epoch, writer)| Envelope {
            id,
            slot,
            space,
            budget_ms,
            epoch: u64::from(epoch),
            writer: WriterId::new(writer),
        })
}

fn expiries() -> impl Strategy<Value = ExpirySpec> {
    prop_oneof![
        Just(ExpirySpec::Never),
        Just(ExpirySpec::Keep),
        any::<u64>().prop_map(ExpirySpec::InMs),
        any::<u64>().prop_map(ExpirySpec::AtMs),
        Just(ExpirySpec::Immediately),
    ]
}

fn modes() -> impl Strategy<Value = StoreMode> {
    prop_oneof![
        Just(StoreMode::Set),
        Just(StoreMode::Add),
        Just(StoreMode::Replace),
        Just(StoreMode::Append),
        Just(StoreMode::Prepend),
    ]
}

fn conditions() -> impl Strategy<Value = ExpireCondition> {
    prop_oneof![
        Just(ExpireCondition::Always),
        Just(ExpireCondition::IfNone),
        Just(ExpireCondition::IfSome),
        Just(ExpireCondition::IfLater),
        Just(ExpireCondition::IfEarlier),
        Just(ExpireCondition::IfSomeAndEarlier),
    ]
}

fn operations() -> impl Strategy<Value = ArithOp> {
    prop_oneof![
        any::<u64>().prop_map(ArithOp::Increment),
        any::<u64>().prop_map(ArithOp::Decrement),
        any::<i64>().prop_map(ArithOp::Signed),
        // What is no number would not be equal to itself.
        proptest::num::f64::ANY
            .prop_filter("a number", |it| !it.is_nan())
            .prop_map(ArithOp::Float),
    ]
}

/// A command without its bytes, which are the pool's.
pub fn commands() -> impl Strategy<Value = Command<'static>> {
    let gets = (
        any::<[bool; 4]>(),
        option::of(expiries()),
        option::of(expiries()),
        option::of(any::<u32>()),
        option::of(any::<u64>()),
    )
        .prop_map(
            |([want_value, bump, claim, delete], touch, vivify, recache_below_s, new_version)| {
                Command::Get(Get {
                    key: b"",
                    want_value,
                    touch,
                    bump,
                    vivify,
                    claim,
                    recache_below_s,
                    new_version,
                    delete,
                })
            },
        );
    let stores = (
        any::<u32>(),
        expiries(),
        modes(),
        option::of(any::<u64>()),
        option::of(any::<u64>()),
        option::of(expiries()),
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(flags, expiry, mode, compare, new_version, vivify, [invalidate, previous])| {
                Command::Store(Store {
                    key: b"",
                    value: b"",
                    flags,
                    expiry,
                    mode,
                    compare,
                    invalidate_if_older: invalidate,
                    new_version,
                    vivify,
                    want_previous: previous,
                })
            },
        );
    let ariths = (
        operations(),
        option::of((any::<u64>(), expiries())),
        any::<bool>(),
        option::of(expiries()),
        option::of(any::<u64>()),
        option::of(any::<u64>()),
    )
        .prop_map(
            |(op, initial, absent_is_zero, touch, compare, new_version)| {
                Command::Arith(Arith {
                    key: b"",
                    op,
                    initial,
                    absent_is_zero,
                    touch,
                    compare,
                    new_version,
                })
            },
        );
    let deletes = (
        option::of(any::<u64>()),
        any::<[bool; 2]>(),
        option::of(expiries()),
        option::of(any::<u64>()),
    )
        .prop_map(|(compare, [mark_stale, keep_entry], touch, new_version)| {
            Command::Delete(Delete {
                key: b"",
                compare,
                mark_stale,
                keep_entry,
                touch,
                new_version,
            })
        });
    let touches = (expiries(), conditions()).prop_map(|(expiry, condition)| {
        Command::Touch(Touch {
            key: b"",
            expiry,
            condition,
        })
    });
    let ranges = any::<u64>().prop_map(|offset| {
        Command::SetRange(SetRange {
            key: b"",
            offset,
            value: b"",
        })
    });
    let bits = (any::<u64>(), any::<bool>()).prop_map(|(offset, is_set)| {
        Command::SetBit(SetBit {
            key: b"",
            offset,
            is_set,
        })
    });
    prop_oneof![gets, stores, ariths, deletes, touches, ranges, bits]
}

/// Gives a command its bytes.
pub fn fill<'p>(command: Command<'p>, pool: &'p Pool) -> Command<'p> {
    let (key, value) = (&pool.key[..], &pool.value[..]);
    match command {
        Command::Get(get) => Command::Get(Get { key, ..get }),
        Command::Store(store) => Command::Store(Store {
            key,
            value,
            ..store
        }),
        Command::Arith(arith) => Command::Arith(Arith { key, ..arith }),
        Command::Delete(delete) => Command::Delete(Delete { key, ..delete }),
        Command::Touch(touch) => Command::Touch(Touch { key, ..touch }),
        Command::SetRange(range) => Command::SetRange(SetRange {
            key,
            value,
            ..range
        }),
        Command::SetBit(bit) => Command::SetBit(SetBit { key, ..bit }),
    }
}

/// The server command of a number, with the pool's bytes.
pub fn server_command(number: usize, fact: u64, flag: bool, pool: &Pool) -> ServerCommand<'_> {
    let kinds = [
        StatsKind::General,
        StatsKind::Items,
        StatsKind::Reset,
        StatsKind::Namespace,
    ];
    match number % SERVER_COMMANDS {
        0 => ServerCommand::Flush {
            all_databases: flag,
            delay_s: fact as u32,
        },
        1 => ServerCommand::Stats(kinds[fact as usize % kinds.len()]),
        2 => ServerCommand::Count,
        3 => ServerCommand::Scan {
            cursor: fact,
            pattern: flag.then_some(&pool.key),
            count: fact as usize,
        },
        4 => ServerCommand::RandomKey,
        5 => ServerCommand::CountInSlot(fact as u16 % SLOT_COUNT),
        _ => ServerCommand::Atomic(batch(fact, flag, pool)),
    }
}

/// A batch with a watched key a word, and steps of both kinds.
fn batch(fact: u64, flag: bool, pool: &Pool) -> Batch<'_> {
    let watched = pool.words.iter().map(|key| Watched {
        database: fact as u8 % 16,
        key,
        seen: flag.then_some(Seen {
            version: fact,
            expires_at_ms: fact / 2,
        }),
    });
    let store = Store::set(&pool.key, &pool.value, fact as u32, ExpirySpec::InMs(fact));
    let transfer = Transfer {
        from: &pool.key,
        to: &pool.key,
        database: fact as u8 % 16,
        removes: flag,
        replaces: fact.is_multiple_of(2),
    };
    Batch {
        writer: WriterId::NONE,
        all_absent: fact.is_multiple_of(3),
        base: flag.then_some(match fact % 2 {
            0 => Base::of(Space(fact as u32)),
            _ => Base::of_overlay(Space(fact as u32)),
        }),
        watched: watched.collect(),
        steps: vec![
            BatchStep::Command(Command::Store(store)),
            BatchStep::Command(Command::Get(Get::new(&pool.key))),
            BatchStep::Transfer(transfer),
        ],
    }
}

/// Server outcomes by number.
pub fn server_outcome(number: usize, fact: u64, flag: bool, pool: &Pool) -> ServerOutcome {
    let text = |it: &Vec<u8>| String::from_utf8_lossy(it).into_owned();
    match number % SERVER_OUTCOMES {
        0 => ServerOutcome::Done,
        1 => ServerOutcome::Pairs(pool.words.iter().map(|it| (text(it), text(it))).collect()),
        2 => ServerOutcome::Integer(fact as i64),
        3 => ServerOutcome::Scan {
            cursor: fact,
            keys: pool.words.clone(),
        },
        4 => ServerOutcome::Key(flag.then(|| pool.key.clone())),
        5 => ServerOutcome::InvalidCursor,
        6 => ServerOutcome::Changed,
        7 => ServerOutcome::CrossSlot,
        8 => ServerOutcome::Outcomes(StepOutcomes::from(vec![
            Outcome::Miss,
            Outcome::NotStored(flag.then(|| pool.value.clone())),
            Outcome::Deleted { version: fact },
        ])),
        _ => ServerOutcome::Failed(Failure::ALL[fact as usize % Failure::ALL.len()]),
    }
}

/// Facts of a hit.
pub fn hits() -> impl Strategy<Value = Hit<'static>> {
    (
        any::<(u32, u64, u32)>(),
        option::of(any::<u64>()),
        option::of(any::<u64>()),
        any::<[bool; 4]>(),
        option::of(any::<usize>()),
    )
        .prop_map(
            |((flags, version, idle_s), ttl_ms, expires_at_ms, bits, value_len)| {
                let [fetched_before, stale, won, lost] = bits;
                Hit {
                    value: Value::Copied(b""),
                    value_len: value_len.unwrap_or(0),
                    flags,
                    version,
                    ttl_ms,
                    expires_at_ms,
                    idle_s,
                    fetched_before,
                    stale,
                    won,
                    lost,
                }
            },
        )
}

/// An outcome by number.
pub fn outcome<'p>(number: usize, hit: &Hit<'p>, pool: &'p Pool) -> Outcome<'p> {
    let version = hit.version;
    let previous = hit.stale.then(|| pool.value.clone());
    match number % OUTCOMES {
        0 => Outcome::Hit(hit.clone()),
        1 => Outcome::Hit(Hit {
            value: Value::Copied(&pool.value),
            value_len: pool.value.len(),
            ..hit.clone()
        }),
        2 => Outcome::Miss,
        3 => Outcome::Stored(Stored {
            version,
            value_len: hit.value_len,
            previous,
        }),
        4 => Outcome::NotStored(previous),
        5 => Outcome::Exists,
        6 => Outcome::NotFound,
        7 => Outcome::Deleted { version },
        8 => Outcome::Touched { version },
        9 => Outcome::Number(Number {
            text: pool.key.as_slice().into(),
            version,
            ttl_ms: hit.ttl_ms,
        }),
        10 => Outcome::NotANumber,
        11 => Outcome::Overflow,
        _ => Outcome::Failed(Failure::ALL[version as usize % Failure::ALL.len()]),
    }
}

/// An entry by number of its content.
pub fn entry<'p>(number: usize, space: u32, hit: &Hit<'_>, pool: &'p Pool) -> Entry<'p> {
    Entry {
        space,
        key: &pool.key,
        flags: hit.flags,
        version: hit.version,
        expires_at_ms: hit.expires_at_ms,
        cas: hit.ttl_ms,
        is_stale: hit.stale,
        is_token_given: hit.won,
        writer: WriterId::new(hit.flags),
        content: match number % 4 {
            0 => Content::Tombstone,
            1 => Content::Value(Value::Copied(&pool.value)),
            2 => Content::Frame(Value::Copied(&pool.value)),
            _ => Content::Omitted {
                len: hit.value_len as u64,
            },
        },
    }
}

pub fn refusal(number: usize) -> Refusal {
    [
        Refusal::Unsupported,
        Refusal::Malformed,
        Refusal::TooLong,
        Refusal::Damaged,
    ][number % 4]
}

pub fn slot_sets() -> impl Strategy<Value = SlotSet> {
    vec(0_u16..16_384, 0..50).prop_map(|slots| slots.into_iter().collect())
}
