use fonn_proto::{ArithOp, Number};

use super::*;

const NOW: u64 = 1_000_000;
const RULES: Rules = Rules {
    now_ms: NOW,
    value_len_max: 100,
    ttl_ms_max: None,
};
const FRESH: Version = 77;

fn run(command: Command<'_>, present: Option<Present<'_>>) -> (Change, Outcome<'static>) {
    apply(&command, present, RULES, || FRESH)
}

fn there(value: &[u8]) -> Present<'_> {
    let meta = Meta {
        version: 5,
        cas_override: None,
        flags: 9,
        ..Meta::new(5, 9, NOW + 10_000)
    };
    Present {
        meta,
        value,
        shared: None,
        value_len: value.len(),
        fetched: true,
        idle_s: 3,
    }
}

fn set<'a>(value: &'a [u8]) -> Store<'a> {
    Store::set(b"k", value, 1, ExpirySpec::Never)
}

fn stored(version: Version, value_len: usize) -> Outcome<'static> {
    Outcome::Stored(Stored {
        version,
        value_len,
        previous: None,
    })
}

#[test]
fn a_set_writes_whatever_was_there() {
    for present in [None, Some(there(b"old"))] {
        let (change, outcome) = run(Command::Store(set(b"new")), present);
        assert_eq!(change, Change::PutRequest(Meta::new(FRESH, 1, 0)));
        assert_eq!(outcome, stored(FRESH, 3));
    }
}

#[test]
fn a_set_that_expires_at_once_removes_what_was_there_and_says_stored() {
    let store = Store {
        expiry: ExpirySpec::Immediately,
        ..set(b"new")
    };
    let (change, outcome) = run(Command::Store(store), Some(there(b"old")));
    assert_eq!(change, Change::Remove(FRESH));
    assert_eq!(outcome, stored(FRESH, 3));
}

#[test]
fn add_and_replace_look_at_what_is_there() {
    let add = Store {
        mode: StoreMode::Add,
        want_previous: true,
        ..set(b"new")
    };
    let (change, outcome) = run(Command::Store(add.clone()), Some(there(b"old")));
    assert_eq!(
        (change, outcome),
        (Change::Keep, Outcome::NotStored(Some(Bytes::from("old"))))
    );
    assert!(matches!(
        run(Command::Store(add), None).0,
        Change::PutRequest(_)
    ));
    let replace = Store {
        mode: StoreMode::Replace,
        ..set(b"new")
    };
    assert_eq!(
        run(Command::Store(replace.clone()), None).1,
        Outcome::NotStored(None)
    );
    assert!(matches!(
        run(Command::Store(replace), Some(there(b""))).0,
        Change::PutRequest(_)
    ));
}

#[test]
fn append_and_prepend_keep_flags_and_expiry_and_respect_the_limit() {
    let append = Store {
        mode: StoreMode::Append,
        ..set(b"+")
    };
    let (change, outcome) = run(Command::Store(append.clone()), Some(there(b"ab")));
    let meta = Meta::new(FRESH, 9, NOW + 10_000);
    assert_eq!(change, Change::PutGrown(meta));
    assert_eq!(outcome, stored(FRESH, 3));
    assert_eq!(grown(&Command::Store(append.clone()), b"ab"), b"ab+");
    let prepend = Command::Store(Store {
        mode: StoreMode::Prepend,
        ..set(b"+")
    });
    let (change, _) = run(prepend.clone(), Some(there(b"ab")));
    assert_eq!(change, Change::PutGrown(meta));
    assert_eq!(grown(&prepend, b"ab"), b"+ab");
    let full = [0; 100];
    let (change, outcome) = run(Command::Store(append.clone()), Some(there(&full)));
    assert_eq!(
        (change, outcome),
        (Change::Keep, Outcome::Failed(Failure::TooLarge))
    );
    assert_eq!(
        run(Command::Store(append.clone()), None).1,
        Outcome::NotStored(None)
    );
    let vivified = Store {
        vivify: Some(ExpirySpec::InMs(5)),
        ..append
    };
    let (change, _) = run(Command::Store(vivified), None);
    assert_eq!(change, Change::PutRequest(Meta::new(FRESH, 1, NOW + 5)));
}

#[test]
fn compare_and_store_needs_the_token_of_the_entry() {
    let cas = |token| Store {
        compare: Some(token),
        ..set(b"new")
    };
    assert!(matches!(
        run(Command::Store(cas(5)), Some(there(b""))).0,
        Change::PutRequest(_)
    ));
    assert_eq!(
        run(Command::Store(cas(4)), Some(there(b""))).1,
        Outcome::Exists
    );
    assert_eq!(run(Command::Store(cas(5)), None).1, Outcome::NotFound);
    for mode in [StoreMode::Append, StoreMode::Prepend] {
        let extend = Store { mode, ..cas(5) };
        let outcome = run(Command::Store(extend), None).1;
        assert_eq!(
            outcome,
            Outcome::NotStored(None),
            "memcached looks for the entry first"
        );
    }
    let older = Store {
        invalidate_if_older: true,
        ..cas(4)
    };
    let (change, _) = run(Command::Store(older), Some(there(b"")));
    assert!(matches!(change, Change::PutRequest(meta) if meta.stale));
    // What tells clients that the entry is not good enough stays (memcached's do_store_item).
    let mut present = there(b"old");
    present.meta.token_sent = true;
    present.meta.expires_at_ms = NOW + 30;
    let longer = Store {
        invalidate_if_older: true,
        expiry: ExpirySpec::InMs(90_000),
        ..cas(4)
    };
    let (change, _) = run(Command::Store(longer), Some(present));
    assert!(matches!(change, Change::PutRequest(meta)
        if meta.stale && meta.token_sent && meta.expires_at_ms == NOW + 30 && meta.flags == 1));
    let newer = Store {
        invalidate_if_older: true,
        ..cas(6)
    };
    assert_eq!(
        run(Command::Store(newer), Some(there(b""))).1,
        Outcome::Exists
    );
}

#[test]
fn a_token_chosen_by_the_client_replaces_the_version_in_what_clients_see() {
    let chosen = Store {
        new_version: Some(1234),
        ..set(b"new")
    };
    let (change, outcome) = run(Command::Store(chosen), None);
    let Change::PutRequest(meta) = change else {
        panic!("{change:?}")
    };
    assert_eq!((meta.version, meta.cas()), (FRESH, 1234));
    assert_eq!(outcome, stored(1234, 3));
}

#[test]
fn a_touch_moves_the_expiry_and_keeps_the_token() {
    let touch = |expiry, condition| {
        Command::Touch(Touch {
            key: b"k",
            expiry,
            condition,
        })
    };
    let (change, outcome) = run(
        touch(ExpirySpec::InMs(50), ExpireCondition::Always),
        Some(there(b"v")),
    );
    let Change::Meta(meta) = change else {
        panic!("{change:?}")
    };
    assert_eq!(
        (meta.version, meta.cas(), meta.expires_at_ms),
        (FRESH, 5, NOW + 50)
    );
    assert_eq!(outcome, Outcome::Touched { version: 5 });
    let gone = run(
        touch(ExpirySpec::AtMs(NOW), ExpireCondition::Always),
        Some(there(b"v")),
    );
    assert_eq!(gone.0, Change::Remove(FRESH));
    assert_eq!(
        run(touch(ExpirySpec::Never, ExpireCondition::Always), None).1,
        Outcome::NotFound
    );
}

#[test]
fn touch_conditions_follow_redis() {
    use ExpireCondition::{IfEarlier, IfLater, IfNone, IfSome};
    let forever = Present {
        meta: Meta::new(5, 0, 0),
        ..there(b"v")
    };
    let timed = there(b"v");
    let later = ExpirySpec::InMs(20_000);
    let earlier = ExpirySpec::InMs(5_000);
    for (present, expiry, condition, met) in [
        (forever, later, IfNone, true),
        (timed, later, IfNone, false),
        (forever, later, IfSome, false),
        (timed, later, IfSome, true),
        (timed, later, IfLater, true),
        (timed, earlier, IfLater, false),
        (forever, later, IfLater, false),
        (timed, earlier, IfEarlier, true),
        (timed, later, IfEarlier, false),
        (forever, later, IfEarlier, true),
    ] {
        let touch = Command::Touch(Touch {
            key: b"k",
            expiry,
            condition,
        });
        let touched = matches!(run(touch, Some(present)).1, Outcome::Touched { .. });
        assert_eq!(touched, met, "{expiry:?} {condition:?}");
    }
}

#[test]
fn only_one_client_wins_the_right_to_recache_a_stale_entry() {
    let get = Get {
        claim: true,
        ..Get::new(b"k")
    };
    let mut present = there(b"v");
    present.meta.stale = true;
    let (change, outcome) = run(Command::Get(get.clone()), Some(present));
    assert_eq!(change, Change::TokenSent);
    assert!(matches!(outcome, Outcome::Hit(hit) if hit.won && hit.stale && !hit.lost));
    present.meta.token_sent = true;
    let (change, outcome) = run(Command::Get(get), Some(present));
    assert_eq!(change, Change::Keep);
    assert!(matches!(outcome, Outcome::Hit(hit) if !hit.won && hit.stale && hit.lost));
    // A client that knows nothing of recaching does not use the token up.
    present.meta.token_sent = false;
    let (change, outcome) = run(Command::Get(Get::new(b"k")), Some(present));
    assert_eq!(change, Change::Keep);
    assert!(matches!(outcome, Outcome::Hit(hit) if !hit.won));
}

#[test]
fn an_entry_about_to_expire_hands_out_its_token_early() {
    let get = |below| Get {
        claim: true,
        recache_below_s: Some(below),
        ..Get::new(b"k")
    };
    let won = |below| {
        let (_, outcome) = run(Command::Get(get(below)), Some(there(b"v")));
        matches!(outcome, Outcome::Hit(hit) if hit.won)
    };
    assert!(won(11) && !won(10), "10 seconds are left");
}

#[test]
fn a_vivified_miss_is_an_empty_entry_that_its_creator_won() {
    let get = Get {
        claim: true,
        vivify: Some(ExpirySpec::InMs(9)),
        ..Get::new(b"k")
    };
    let (change, outcome) = run(Command::Get(get), None);
    let Change::PutBuilt(meta, value) = change else {
        panic!("{change:?}")
    };
    assert!(meta.token_sent && value.is_empty() && meta.expires_at_ms == NOW + 9);
    assert!(matches!(outcome, Outcome::Hit(hit) if hit.won && hit.value_len == 0));
}

#[test]
fn arithmetic_creates_where_it_was_told_to() {
    let incr = |initial, absent_is_zero| Arith {
        key: b"k",
        op: ArithOp::Increment(3),
        initial,
        absent_is_zero,
        touch: None,
        compare: None,
        new_version: None,
    };
    let text = |outcome| match outcome {
        Outcome::Number(Number { text, .. }) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        run(Command::Arith(incr(None, false)), None).1,
        Outcome::NotFound
    );
    let initial = incr(Some((10, ExpirySpec::Never)), false);
    assert_eq!(text(run(Command::Arith(initial), None).1), "10");
    assert_eq!(text(run(Command::Arith(incr(None, true)), None).1), "3");
    let (change, outcome) = run(Command::Arith(incr(None, false)), Some(there(b"4")));
    assert_eq!(text(outcome), "7");
    assert_eq!(
        change,
        Change::PutBuilt(Meta::new(FRESH, 9, NOW + 10_000), b"7".to_vec())
    );
    let (change, outcome) = run(Command::Arith(incr(None, false)), Some(there(b"x")));
    assert_eq!((change, outcome), (Change::Keep, Outcome::NotANumber));
    let compared = Arith {
        compare: Some(1),
        ..incr(None, false)
    };
    assert_eq!(
        run(Command::Arith(compared.clone()), Some(there(b"4"))).1,
        Outcome::Exists
    );
    assert_eq!(
        run(Command::Arith(compared), Some(there(b""))).1,
        Outcome::NotANumber
    );
}

#[test]
fn deleting_removes_marks_stale_or_empties() {
    let delete = Delete::new(b"k");
    let removed = run(Command::Delete(delete.clone()), Some(there(b"v")));
    assert_eq!(
        removed,
        (Change::Remove(FRESH), Outcome::Deleted { version: 0 })
    );
    assert_eq!(
        run(Command::Delete(delete.clone()), None).1,
        Outcome::NotFound
    );
    let compared = Delete {
        compare: Some(1),
        ..delete.clone()
    };
    assert_eq!(
        run(Command::Delete(compared), Some(there(b"v"))).1,
        Outcome::Exists
    );
    let stale = Delete {
        mark_stale: true,
        touch: Some(ExpirySpec::InMs(30)),
        ..delete.clone()
    };
    let (change, _) = run(Command::Delete(stale), Some(there(b"v")));
    assert!(matches!(change, Change::Meta(meta)
        if meta.stale && meta.version == FRESH && meta.expires_at_ms == NOW + 30 && meta.flags == 9));
    let emptied = Delete {
        keep_entry: true,
        ..delete
    };
    let (change, _) = run(Command::Delete(emptied), Some(there(b"v")));
    assert!(matches!(change, Change::PutBuilt(meta, value) if value.is_empty() && meta.flags == 0));
}

#[test]
fn set_range_pads_with_zeros_and_an_empty_one_changes_nothing() {
    let range = |offset, value| {
        Command::SetRange(SetRange {
            key: b"k",
            offset,
            value,
        })
    };
    let (change, outcome) = run(range(4, b"xy"), Some(there(b"ab")));
    assert!(matches!(change, Change::PutGrown(_)));
    assert_eq!(outcome, stored(FRESH, 6));
    assert_eq!(grown(&range(4, b"xy"), b"ab"), b"ab\0\0xy");
    let (change, outcome) = run(range(1, b"x"), Some(there(b"abc")));
    assert!(matches!(change, Change::PutGrown(_)));
    assert_eq!(outcome, stored(FRESH, 3));
    assert_eq!(grown(&range(1, b"x"), b"abc"), b"axc");
    assert_eq!(run(range(9, b""), None), (Change::Keep, stored(0, 0)));
    for offset in [100, u64::MAX] {
        assert_eq!(
            run(range(offset, b"x"), None).1,
            Outcome::Failed(Failure::TooLarge)
        );
    }
}

#[test]
fn get_and_delete_returns_the_entry_it_removed() {
    let get = Get {
        delete: true,
        ..Get::new(b"k")
    };
    let (change, outcome) = run(Command::Get(get), Some(there(b"v")));
    assert_eq!(change, Change::Remove(FRESH));
    assert!(matches!(outcome, Outcome::Hit(hit) if hit.value_len == 1 && hit.version == 5));
}

#[test]
fn expiries_resolve_against_the_clock_and_never_to_zero() {
    for (spec, expected) in [
        (ExpirySpec::Never, 0),
        (ExpirySpec::InMs(5), NOW + 5),
        (ExpirySpec::InMs(u64::MAX), EXPIRY_MS_MAX),
        (ExpirySpec::AtMs(0), 1),
        (ExpirySpec::AtMs(u64::MAX), EXPIRY_MS_MAX),
        (ExpirySpec::Immediately, 1),
        (ExpirySpec::Keep, NOW + 10_000),
    ] {
        assert_eq!(
            RULES.expires_at_ms(spec, Some(&there(b"").meta)),
            expected,
            "{spec:?}"
        );
    }
}

#[test]
fn a_short_request_makes_no_long_value() {
    let rules = Rules {
        now_ms: NOW,
        value_len_max: 64 << 20,
        ttl_ms_max: None,
    };
    let append = |value| {
        Command::Store(Store {
            mode: StoreMode::Append,
            ..set(value)
        })
    };
    let range = |offset, value| {
        Command::SetRange(SetRange {
            key: b"k",
            offset,
            value,
        })
    };
    let bit = |offset| {
        Command::SetBit(SetBit {
            key: b"k",
            offset,
            is_set: true,
        })
    };
    let mebibyte = GROWN_LEN_MAX as u64;
    let long = vec![0; 1 << 20];
    for (command, old_len, len) in [
        (append(b"+"), GROWN_LEN_MAX - 1, Some(GROWN_LEN_MAX)),
        (append(b"+"), GROWN_LEN_MAX, None),
        (append(&long), 15 << 20, Some(16 << 20)),
        (append(&long), (15 << 20) + 1, None),
        (range(mebibyte - 1, b"x"), 0, Some(GROWN_LEN_MAX)),
        (range(mebibyte, b"x"), 0, None),
        (range(0, b"x"), GROWN_LEN_MAX + 1, None),
        (range(u64::MAX, b"x"), 0, None),
        (bit(8 * mebibyte - 1), 0, Some(GROWN_LEN_MAX)),
        (bit(8 * mebibyte), 0, None),
        (bit(0), GROWN_LEN_MAX + 1, None),
        (bit(u64::MAX), 0, None),
    ] {
        assert_eq!(grown_len(&command, old_len, rules), len, "from {old_len}");
        if old_len == 0 {
            let (change, _) = apply(&command, None, rules, || 1);
            assert_eq!(matches!(change, Change::PutGrown(_)), len.is_some());
        }
    }
}

#[test]
fn no_entry_outlives_the_time_of_its_namespace() {
    let rules = Rules {
        ttl_ms_max: Some(1000),
        ..RULES
    };
    let present = |expires_at_ms| Meta::new(5, 0, expires_at_ms);
    let latest = NOW + 1000;
    for (expiry, before, expected) in [
        (ExpirySpec::Never, None, latest),
        (ExpirySpec::Keep, None, latest),
        (ExpirySpec::Keep, Some(0), latest),
        (ExpirySpec::Keep, Some(NOW + 3), NOW + 3),
        (ExpirySpec::InMs(999), None, NOW + 999),
        (ExpirySpec::InMs(u64::MAX), None, latest),
        (ExpirySpec::AtMs(NOW + 7), Some(NOW + 3), NOW + 7),
        (ExpirySpec::AtMs(u64::MAX), None, latest),
        (ExpirySpec::Immediately, None, 1),
    ] {
        let present = before.map(present);
        let expires = rules.expires_at_ms(expiry, present.as_ref());
        assert_eq!(expires, expected, "{expiry:?}, before {before:?}");
    }
    let set_range = Command::SetRange(SetRange {
        key: b"k",
        offset: 0,
        value: b"v",
    });
    let set_bit = Command::SetBit(SetBit {
        key: b"k",
        offset: 0,
        is_set: true,
    });
    for command in [set_range, set_bit] {
        let (change, _) = apply(&command, None, rules, || FRESH);
        let Change::PutGrown(meta) = change else {
            panic!("{command:?}: {change:?}");
        };
        assert_eq!(meta.expires_at_ms, latest, "{command:?}");
    }
}
