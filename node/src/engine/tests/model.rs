//! The engine against a map: every outcome is what the rules say for the map's entry, whichever
//! tier has the entry, across eviction, restarts, and a clock that moves both ways. The disk
//! suffices, so nothing may be missed either.

use std::collections::BTreeMap;

use fonn_proto::{Arith, ArithOp, Hit, SetRange, StoreMode};
use proptest::prelude::*;

use super::*;

const KEYS: u8 = 20;

/// Bytes of a value.
#[derive(Clone, Debug)]
enum Blob {
    Number(u16),
    Repeated(usize),
    Noise(usize),
}

impl Blob {
    fn bytes(&self) -> Vec<u8> {
        match *self {
            Self::Number(number) => number.to_string().into_bytes(),
            Self::Repeated(len) => b"fonn ".iter().copied().cycle().take(len).collect(),
            Self::Noise(len) => {
                let mut random = fonn_base::random::SplitMix64::new(len as u64);
                (0..len).map(|_| random.next_u64() as u8).collect()
            }
        }
    }
}

/// A CAS token.
#[derive(Clone, Debug)]
enum Token {
    Right,
    Wrong(u64),
}

#[derive(Clone, Debug)]
enum Kind {
    Get {
        want_value: bool,
        vivify: Option<ExpirySpec>,
        claim: Option<Option<u32>>,
        delete: bool,
    },
    Store {
        mode: StoreMode,
        flags: u32,
        expiry: ExpirySpec,
        invalidate_if_older: bool,
        vivify: Option<ExpirySpec>,
        want_previous: bool,
    },
    Arith {
        op: ArithOp,
        initial: Option<(u64, ExpirySpec)>,
        absent_is_zero: bool,
    },
    Delete {
        mark_stale: bool,
        keep_entry: bool,
    },
    Touch(ExpirySpec, ExpireCondition),
    SetRange(u64),
}

/// A command, with what several kinds have.
#[derive(Clone, Debug)]
struct Request {
    key: u8,
    kind: Kind,
    blob: Blob,
    compare: Option<Token>,
    new_version: Option<u64>,
    touch: Option<ExpirySpec>,
}

#[derive(Clone, Debug)]
enum Step {
    Request(Request),
    StoreAllIfNone(Vec<(u8, Blob)>),
    Flush(u32),
    MoveClock(i64),
    Upkeep,
    EvictAll,
    Compact,
    Scan(usize),
    Reopen,
    DropAndOpen,
}

fn expiry() -> impl Strategy<Value = ExpirySpec> {
    prop_oneof![
        4 => Just(ExpirySpec::Never),
        1 => Just(ExpirySpec::Keep),
        2 => (1..100_000_u64).prop_map(ExpirySpec::InMs),
        1 => (0..200_000_u64).prop_map(|ms| ExpirySpec::AtMs(START_MS - 100_000 + ms)),
        1 => Just(ExpirySpec::Immediately),
    ]
}

fn blob() -> impl Strategy<Value = Blob> {
    prop_oneof![
        2 => any::<u16>().prop_map(Blob::Number),
        1 => (0..200_usize).prop_map(Blob::Repeated),
        2 => (0..20_000_usize).prop_map(Blob::Repeated),
        3 => (0..20_000_usize).prop_map(Blob::Noise),
    ]
}

fn maybe<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(0.2, value)
}

fn kind() -> impl Strategy<Value = Kind> {
    let mode = prop_oneof![
        5 => Just(StoreMode::Set),
        1 => Just(StoreMode::Add),
        1 => Just(StoreMode::Replace),
        1 => Just(StoreMode::Append),
        1 => Just(StoreMode::Prepend),
    ];
    let op = prop_oneof![
        (0..100_u64).prop_map(ArithOp::Increment),
        (0..100_u64).prop_map(ArithOp::Decrement),
        (-100..100_i64).prop_map(ArithOp::Signed),
        (-8..8_i8).prop_map(|eighths| ArithOp::Float(f64::from(eighths) / 8.0)),
    ];
    let condition = prop_oneof![
        Just(ExpireCondition::Always),
        Just(ExpireCondition::IfNone),
        Just(ExpireCondition::IfSome),
        Just(ExpireCondition::IfLater),
        Just(ExpireCondition::IfEarlier),
    ];
    let rarely = || proptest::bool::weighted(0.15);
    prop_oneof![
        6 => (proptest::bool::weighted(0.8), maybe(expiry()), maybe(maybe(0..100_u32)), rarely())
            .prop_map(|(want_value, vivify, claim, delete)| Kind::Get { want_value, vivify, claim, delete }),
        6 => (mode, 0..3_u32, expiry(), rarely(), maybe(expiry()), rarely()).prop_map(
            |(mode, flags, expiry, invalidate_if_older, vivify, want_previous)| Kind::Store {
                mode, flags, expiry, invalidate_if_older, vivify, want_previous,
            }),
        2 => (op, maybe((0..50_u64, expiry())), any::<bool>())
            .prop_map(|(op, initial, absent_is_zero)| Kind::Arith { op, initial, absent_is_zero }),
        2 => (rarely(), rarely()).prop_map(|(mark_stale, keep_entry)| Kind::Delete { mark_stale, keep_entry }),
        2 => (expiry(), condition).prop_map(|(expiry, condition)| Kind::Touch(expiry, condition)),
        1 => (0..30_000_u64).prop_map(Kind::SetRange),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let token = prop_oneof![3 => Just(Token::Right), 1 => (0..100_u64).prop_map(Token::Wrong)];
    let parts = (
        0..KEYS,
        kind(),
        blob(),
        maybe(token),
        maybe(1..100_u64),
        maybe(expiry()),
    );
    parts.prop_map(|(key, kind, blob, compare, new_version, touch)| Request {
        key,
        kind,
        blob,
        compare,
        new_version,
        touch,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        60 => request().prop_map(Step::Request),
        3 => proptest::collection::vec((0..KEYS, blob()), 1..4).prop_map(Step::StoreAllIfNone),
        1 => prop_oneof![Just(0), 1..60_u32].prop_map(Step::Flush),
        3 => (-100_000..150_000_i64).prop_map(Step::MoveClock),
        3 => Just(Step::Upkeep),
        6 => Just(Step::EvictAll),
        1 => Just(Step::Compact),
        2 => (1..8_usize).prop_map(Step::Scan),
        2 => Just(Step::Reopen),
        2 => Just(Step::DropAndOpen),
    ]
}

/// A codec of a level, of those that are compiled in.
fn codec() -> impl Strategy<Value = CodecChoice> {
    let all = ["none", "lz4", "snappy", "zlib:1", "zstd:3"];
    let choices: Vec<CodecChoice> = all.iter().filter_map(|name| name.parse().ok()).collect();
    proptest::sample::select(choices)
}

/// What the store should hold.
#[derive(Default)]
struct Model {
    items: BTreeMap<Vec<u8>, (Meta, Vec<u8>)>,
    flush_at_ms: Option<u64>,
}

impl Model {
    /// Executes a command that the engine executed with `version`.
    fn execute(&mut self, command: &Command<'_>, now_ms: u64, version: u64) -> Outcome<'static> {
        let item = self.items.get(command.key());
        let has_expired = item.is_some_and(|(meta, _)| meta.is_expired(now_ms));
        let present = item.filter(|_| !has_expired).map(|(meta, value)| Present {
            meta: *meta,
            value,
            shared: None,
            value_len: value.len(),
            fetched: false,
            idle_s: 0,
        });
        let rules = semantics::Rules {
            now_ms,
            value_len_max: VALUE_LEN_MAX,
            ttl_ms_max: None,
        };
        let (change, mut outcome) = semantics::apply(command, present, rules, || version);
        if let (
            Outcome::Hit(hit),
            Command::Get(Get {
                want_value: true, ..
            }),
            Some(present),
        ) = (&mut outcome, command, present)
        {
            hit.value = Value::Shared(Bytes::copy_from_slice(present.value));
        }
        let key = command.key().to_vec();
        match change {
            Change::Keep if has_expired && matches!(command, Command::Delete(_)) => {
                self.items.remove(&key);
            }
            Change::Keep | Change::TokenSent => {}
            Change::Meta(meta) => self.items.get_mut(&key).unwrap().0 = meta,
            Change::PutRequest(meta) => {
                let Command::Store(store) = command else {
                    unreachable!()
                };
                self.items.insert(key, (meta, store.value.to_vec()));
            }
            Change::PutBuilt(meta, value) => {
                self.items.insert(key, (meta, value));
            }
            Change::PutGrown(meta) => {
                let value = semantics::grown(command, present.map_or(&[][..], |it| it.value));
                self.items.insert(key, (meta, value));
            }
            Change::Remove(_) => {
                self.items.remove(&key);
            }
        }
        outcome
    }

    fn flush_if_due(&mut self, now_ms: u64) {
        if self.flush_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            *self = Self::default();
        }
    }

    fn visible(&self, now_ms: u64) -> Vec<Vec<u8>> {
        let visible = self
            .items
            .iter()
            .filter(|(_, (meta, _))| !meta.is_expired(now_ms));
        visible.map(|(key, _)| key.clone()).collect()
    }
}

/// What is the same whichever tier an entry is in. The holder of a recache token is kept in RAM
/// only.
fn essence(outcome: Outcome<'static>) -> Outcome<'static> {
    match outcome {
        Outcome::Hit(hit) => Outcome::Hit(Hit {
            value: Value::Shared(Bytes::copy_from_slice(hit.value.as_slice())),
            idle_s: 0,
            fetched_before: false,
            won: false,
            lost: false,
            ..hit
        }),
        other => other,
    }
}

/// What the short way answers, without leaving a trace.
fn short_way(engine: &Engine, command: &Command<'_>) -> Option<Outcome<'static>> {
    let Command::Get(get) = command else {
        return None;
    };
    let get = Get {
        bump: false,
        ..get.clone()
    };
    hits::answer(engine, &get)
}

struct Bench {
    rig: Rig,
    model: Model,
    now_ms: u64,
}

impl Bench {
    async fn take(&mut self, step: &Step) {
        match step {
            Step::Request(request) => self.request(request).await,
            Step::StoreAllIfNone(pairs) => self.store_all_if_none(pairs).await,
            Step::Flush(delay_s) => {
                self.rig.engine().flush(&[SPACE], *delay_s).await.unwrap();
                if *delay_s == 0 {
                    self.model = Model::default();
                } else {
                    self.model.flush_at_ms = Some(self.now_ms + u64::from(*delay_s) * 1000);
                }
            }
            Step::MoveClock(by_ms) => {
                self.now_ms = self.now_ms.saturating_add_signed(*by_ms);
                self.rig.clock.set_wall_ms(self.now_ms);
            }
            Step::Upkeep => {
                let mut shard = 0;
                for _ in 0..16 {
                    self.rig.engine().upkeep_once(&mut shard).await;
                }
                self.model.flush_if_due(self.now_ms);
            }
            Step::EvictAll => evict_all(self.rig.engine()),
            Step::Compact => self.rig.engine().disk().unwrap().compact_all().await,
            Step::Scan(count) => self.scan(*count).await,
            Step::Reopen => {
                self.rig.reopen();
                self.model.flush_if_due(self.now_ms);
            }
            Step::DropAndOpen => {
                // Without acknowledgements only a clean stop keeps everything.
                match self.rig.choice.durability {
                    Durability::None => self.rig.reopen(),
                    _ => self.rig.drop_and_open(),
                }
                self.model.flush_if_due(self.now_ms);
            }
        }
    }

    async fn request(&mut self, request: &Request) {
        let key = name(request.key);
        let value = request.blob.bytes();
        let right = self.model.items.get(&key).map_or(1, |(meta, _)| meta.cas());
        let compare = request.compare.as_ref().map(|token| match token {
            Token::Right => right,
            Token::Wrong(token) => *token,
        });
        self.check(&command(request, &key, &value, compare)).await;
    }

    async fn check(&mut self, command: &Command<'_>) {
        let short = short_way(self.rig.engine(), command);
        let outcome = self.rig.run(command).await;
        if let Some(short) = short {
            assert_eq!(short, outcome, "{command:?} on the short way");
        }
        let version = self.rig.engine().ledger.hlc.last();
        let expected = self.model.execute(command, self.now_ms, version);
        assert_eq!(essence(outcome), essence(expected), "{command:?}");
    }

    async fn store_all_if_none(&mut self, pairs: &[(u8, Blob)]) {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(key, blob)| (name(*key), blob.bytes()))
            .collect();
        let sets = pairs
            .iter()
            .map(|(key, value)| Command::Store(Store::set(key, value, 0, ExpirySpec::Never)));
        let batch = Batch {
            all_absent: true,
            steps: sets.map(BatchStep::Command).collect(),
            ..Batch::default()
        };
        let engine = self.rig.engine();
        let mut acks = Acks::default();
        let outcome = engine.execute_batch(SPACE, &batch, &mut acks).await;
        assert_eq!(acks.wait().await, []);
        let visible = self.model.visible(self.now_ms);
        let is_free = pairs.iter().all(|(key, _)| !visible.contains(key));
        assert_eq!(is_stored(&outcome), is_free);
        if !is_free {
            return;
        }
        for (key, value) in &pairs {
            let Outcome::Hit(hit) = self.rig.run(&Command::Get(Get::facts(key))).await else {
                panic!("what was stored is not there");
            };
            let item = (Meta::new(hit.version, 0, 0), value.clone());
            self.model.items.insert(key.clone(), item);
        }
    }

    async fn scan(&self, count: usize) {
        let engine = self.rig.engine();
        let (mut found, mut cursor) = (Vec::new(), 0);
        loop {
            let (next, keys) = engine
                .scan(SPACE, cursor, count, &[])
                .await
                .unwrap()
                .unwrap();
            found.extend(keys);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let expected = self.model.visible(self.now_ms);
        assert_eq!(found, expected);
        let counted = engine.count_entries(SPACE).await;
        assert_eq!(counted, Ok(expected.len() as u64));
    }
}

fn name(key: u8) -> Vec<u8> {
    format!("key{key:02}").into_bytes()
}

fn command<'a>(
    request: &Request,
    key: &'a [u8],
    value: &'a [u8],
    compare: Option<u64>,
) -> Command<'a> {
    let &Request {
        new_version, touch, ..
    } = request;
    match request.kind.clone() {
        Kind::Get {
            want_value,
            vivify,
            claim,
            delete,
        } => Command::Get(Get {
            want_value,
            touch,
            vivify,
            claim: claim.is_some(),
            recache_below_s: claim.flatten(),
            new_version,
            delete,
            ..Get::new(key)
        }),
        Kind::Store {
            mode,
            flags,
            expiry,
            invalidate_if_older,
            vivify,
            want_previous,
        } => Command::Store(Store {
            mode,
            compare,
            invalidate_if_older,
            new_version,
            vivify,
            want_previous,
            ..Store::set(key, value, flags, expiry)
        }),
        Kind::Arith {
            op,
            initial,
            absent_is_zero,
        } => Command::Arith(Arith {
            key,
            op,
            initial,
            absent_is_zero,
            touch,
            compare,
            new_version,
        }),
        Kind::Delete {
            mark_stale,
            keep_entry,
        } => Command::Delete(Delete {
            compare,
            mark_stale,
            keep_entry,
            touch,
            new_version,
            ..Delete::new(key)
        }),
        Kind::Touch(expiry, condition) => Command::Touch(Touch {
            key,
            expiry,
            condition,
        }),
        Kind::SetRange(offset) => Command::SetRange(SetRange { key, offset, value }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_outcome_is_that_of_a_map(
        steps in proptest::collection::vec(step(), 1..150),
        is_durable in any::<bool>(),
        ram_codec in codec(),
        disk_codecs in (codec(), codec()),
    ) {
        let choice = Choice {
            durability: if is_durable { Durability::Batched } else { Durability::None },
            ram_codec,
            disk_codecs,
            ..Choice::default()
        };
        block_on(async {
            let mut bench = Bench { rig: Rig::new(choice), model: Model::default(), now_ms: START_MS };
            for step in &steps {
                bench.take(step).await;
            }
            for key in 0..KEYS {
                bench.check(&Command::Get(Get::new(&name(key)))).await;
            }
            bench.scan(3).await;
        });
    }
}
