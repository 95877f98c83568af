//! The forms that answer one command, and what of an entry they tell.

use super::super::data::BitRange;
use super::super::encode::{
    Protocol, begin_bulk, end_bulk, put_bulk, put_error, put_integer, put_null, put_ok, put_status,
};
use super::super::number;
use super::super::table::Moment;
use super::super::wording;
use super::{Form, put_exception};
use crate::outcome::{Hit, Outcome, Value};
use crate::{Failure, Out};

/// The forms that answer one command and are not the busiest ones.
pub(super) fn put_single(
    out: &mut Out,
    protocol: Protocol,
    form: &Form<'_>,
    outcome: &Outcome<'_>,
) {
    match (form, outcome) {
        (Form::Previous, Outcome::Stored(stored)) => {
            put_previous(out, protocol, stored.previous.as_ref());
        }
        (Form::Previous, Outcome::NotStored(previous)) => {
            put_previous(out, protocol, previous.as_ref());
        }
        (Form::OneIfStored | Form::OneIfRenamed, Outcome::Stored(_))
        | (Form::OneIfTouched, Outcome::Touched { .. }) => put_integer(out, 1),
        (Form::Renamed, Outcome::Stored(_)) => put_ok(out),
        (Form::Renamed | Form::OneIfRenamed, Outcome::NotFound) => {
            put_error(out, &wording::NO_SUCH_KEY);
        }
        (Form::OneIfStored, Outcome::NotStored(_) | Outcome::NotFound)
        | (Form::OneIfRenamed, Outcome::NotStored(_))
        | (Form::Bit { .. } | Form::BitCount(_), Outcome::Miss)
        | (Form::OneIfTouched, Outcome::NotStored(_) | Outcome::NotFound)
        | (Form::HitLen, Outcome::Miss) => put_integer(out, 0),
        (Form::ValueLen, Outcome::Stored(stored)) => put_len(out, stored.value_len),
        (Form::ValueLen, Outcome::Failed(Failure::TooLarge)) => {
            put_error(out, &wording::STRING_TOO_LONG);
        }
        (Form::HitLen, Outcome::Hit(hit)) => put_len(out, hit.value_len),
        (Form::Range { .. }, Outcome::Miss) => put_bulk(out, b""),
        (Form::Range { first, last }, Outcome::Hit(hit)) => {
            let range = range_of(*first, *last, hit.value.as_slice().len());
            begin_bulk(out, range.len());
            match &hit.value {
                Value::Copied(bytes) => out.put(bytes.get(range).unwrap_or_default()),
                Value::Shared(bytes) => out.put_shared(&bytes.slice(range)),
            }
            end_bulk(out);
        }
        (Form::Integer, Outcome::Number(number)) => {
            out.put(b":");
            out.put(&number.text);
            out.put(b"\r\n");
        }
        (Form::Float, Outcome::Number(number)) => put_bulk(out, &number.text),
        (Form::Expiry(_), Outcome::Miss) => put_integer(out, -2),
        (Form::Expiry(moment), Outcome::Hit(hit)) => put_integer(out, expiry_of(hit, *moment)),
        (Form::Type, Outcome::Hit(_)) => put_status(out, "string"),
        (Form::Type, Outcome::Miss) => put_status(out, "none"),
        (Form::Encoding | Form::Frequency | Form::IdleTime, Outcome::Miss) => {
            put_null(out, protocol);
        }
        (Form::Encoding, Outcome::Hit(hit)) => {
            put_bulk(out, encoding_of(hit.value.as_slice()).as_bytes());
        }
        (Form::Frequency, Outcome::Hit(_)) => put_error(out, &wording::NO_FREQUENCY),
        (Form::IdleTime, Outcome::Hit(hit)) => put_integer(out, hit.idle_s.into()),
        (Form::Bit { offset }, Outcome::Hit(hit)) => {
            put_integer(out, i64::from(bit_of(hit.value.as_slice(), *offset)));
        }
        (Form::BitCount(Err(error)), Outcome::Hit(_)) => put_error(out, error),
        (Form::BitCount(Ok(range)), Outcome::Hit(hit)) => {
            put_integer(out, bit_count(hit.value.as_slice(), *range));
        }
        _ => put_exception(out, matches!(form, Form::Float), outcome),
    }
}

/// The form in which Redis keeps a value that was just set.
fn encoding_of(value: &[u8]) -> &'static str {
    /// Redis's `OBJ_ENCODING_EMBSTR_SIZE_LIMIT`.
    const EMBEDDED_LEN_MAX: usize = 44;
    match value.len() {
        0..=20 if number::integer(value).is_some() => "int",
        0..=EMBEDDED_LEN_MAX => "embstr",
        _ => "raw",
    }
}

/// A bit, counted from the highest one of the first byte; false behind the end.
fn bit_of(value: &[u8], offset: u64) -> bool {
    let byte = usize::try_from(offset / 8)
        .ok()
        .and_then(|at| value.get(at));
    byte.is_some_and(|byte| byte & (0x80 >> (offset % 8)) != 0)
}

/// How many bits are set.
fn bit_count(value: &[u8], range: Option<BitRange>) -> i64 {
    let ones = |bytes: &[u8]| -> i64 {
        // Eight at a time: a long value would take milliseconds otherwise.
        let (words, rest) = bytes.as_chunks::<8>();
        let of_words = words
            .iter()
            .map(|word| u64::from_ne_bytes(*word).count_ones());
        let of_rest = rest.iter().map(|byte| byte.count_ones());
        of_words.chain(of_rest).map(i64::from).sum()
    };
    let Some(range) = range else {
        return ones(value);
    };
    let len = match range.in_bits {
        true => value.len().saturating_mul(8),
        false => value.len(),
    };
    let part = range_of(range.first, range.last, len);
    if !range.in_bits || part.is_empty() {
        return ones(value.get(part).unwrap_or_default());
    }
    let (first, last) = (part.start, part.end - 1);
    let bytes = value.get(first / 8..last / 8 + 1).unwrap_or_default();
    let (before, behind) = (first % 8, 7 - last % 8);
    let cut =
        |byte: Option<&u8>, mask: u8| byte.map_or(0, |byte| i64::from((byte & mask).count_ones()));
    let before = cut(bytes.first(), !(0xff_u8 >> before));
    let behind = cut(bytes.last(), !(0xff_u8 << behind));
    ones(bytes) - before - behind
}

fn put_previous(out: &mut Out, protocol: Protocol, previous: Option<&bytes::Bytes>) {
    match previous {
        None => put_null(out, protocol),
        Some(value) => {
            begin_bulk(out, value.len());
            out.put_shared(value);
            end_bulk(out);
        }
    }
}

fn put_len(out: &mut Out, len: usize) {
    put_integer(out, i64::try_from(len).unwrap_or(i64::MAX));
}

/// The bytes of a value that `GETRANGE` asks for (Redis documentation of `GETRANGE`): both ends are
/// included, negative ones count from the end, and what is outside is left out.
fn range_of(first: i64, last: i64, len: usize) -> std::ops::Range<usize> {
    let signed_len = i64::try_from(len).unwrap_or(i64::MAX);
    let position = |index: i64| {
        if index < 0 {
            index.saturating_add(signed_len).max(0)
        } else {
            index
        }
    };
    let crossed = first < 0 && last < 0 && first > last;
    let (first, last) = (position(first), position(last).min(signed_len - 1));
    if crossed || first > last {
        return 0..0;
    }
    // Both are in 0..len now.
    first as usize..last as usize + 1
}

/// The reply of `TTL` and its kin for an entry. Seconds are rounded to the nearest, as in Redis.
fn expiry_of(hit: &Hit<'_>, moment: Moment) -> i64 {
    let ms = match moment {
        Moment::InSeconds | Moment::InMs => hit.ttl_ms,
        Moment::AtSeconds | Moment::AtMs => hit.expires_at_ms,
    };
    let number = ms.map(|ms| match moment {
        Moment::InSeconds | Moment::AtSeconds => ms.saturating_add(500) / 1000,
        Moment::InMs | Moment::AtMs => ms,
    });
    number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}
