//! Arithmetic on numbers kept as decimal text, by the rules of the protocol that asked for it.

use fonn_proto::{ArithOp, Outcome};
use smallvec::SmallVec;

/// Decimal text.
pub type Text = SmallVec<[u8; 24]>;

/// Why a number could not be added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberError {
    /// The present value is no number of the kind.
    NotANumber,
    /// The result is out of range.
    Overflow,
}

impl From<NumberError> for Outcome<'static> {
    fn from(error: NumberError) -> Self {
        match error {
            NumberError::NotANumber => Self::NotANumber,
            NumberError::Overflow => Self::Overflow,
        }
    }
}

/// Longest text of a number in bytes. Redis copies it into a buffer of 5 KiB that ends with a zero
/// (`string2ld` in `util.c`). The kinds of integers are shorter by far.
pub const TEXT_LEN_MAX: usize = 5 * 1024 - 1;

/// Decimal digits of a number, as the fraction that Redis prints (`%.17Lf`).
const FRACTION_DIGITS: usize = 17;

/// The decimal text of an integer.
#[must_use]
pub fn decimal(number: impl itoa::Integer) -> Text {
    Text::from_slice(itoa::Buffer::new().format(number).as_bytes())
}

/// Adds to the number in `present`. Of a text longer than [`TEXT_LEN_MAX`] no byte is read.
///
/// # Errors
/// [`NumberError::NotANumber`] if `present` is no number of the operation's kind,
/// [`NumberError::Overflow`] if the sum is out of its range.
pub fn add(op: &ArithOp, present: &[u8]) -> Result<Text, NumberError> {
    if present.len() > TEXT_LEN_MAX {
        return Err(NumberError::NotANumber);
    }
    match *op {
        ArithOp::Increment(delta) => Ok(decimal(unsigned(present)?.wrapping_add(delta))),
        ArithOp::Decrement(delta) => Ok(decimal(unsigned(present)?.saturating_sub(delta))),
        ArithOp::Signed(delta) => {
            let number = signed(present).ok_or(NumberError::NotANumber)?;
            number
                .checked_add(delta)
                .map(decimal)
                .ok_or(NumberError::Overflow)
        }
        ArithOp::Float(delta) => float(delta, present),
    }
}

/// Memcached numbers: up to 20 digits within 64 bits; blanks behind are left over from a memcached
/// that shortened a number in place.
fn unsigned(text: &[u8]) -> Result<u64, NumberError> {
    let text = text.trim_ascii_end();
    if text.is_empty() || text.len() > 20 || !text.iter().all(u8::is_ascii_digit) {
        return Err(NumberError::NotANumber);
    }
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(NumberError::NotANumber)
}

/// Redis integers (`string2ll`): no plus sign, no leading zero, no blank.
fn signed(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    canonical
        .then(|| std::str::from_utf8(text).ok()?.parse().ok())
        .flatten()
}

/// Adds decimal fractions. Where both have at most 17 digits behind the point and 20 before it, as
/// all practical ones do, the sum is exact in fixed point, which is what Redis's 80-bit floats show
/// for them (0.1 + 0.2 = 0.3).
fn float(delta: f64, present: &[u8]) -> Result<Text, NumberError> {
    let text = std::str::from_utf8(present).map_err(|_| NumberError::NotANumber)?;
    let blank = text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace);
    let number: f64 = text.parse().map_err(|_| NumberError::NotANumber)?;
    if blank || number.is_nan() {
        return Err(NumberError::NotANumber);
    }
    let sum = number + delta;
    if !sum.is_finite() {
        return Err(NumberError::Overflow);
    }
    let exact = fixed_point(text).zip(fixed_point(&delta.to_string()));
    let text = match exact.and_then(|(a, b)| a.checked_add(b)) {
        Some(sum) => fixed_text(sum),
        None => sum.to_string(),
    };
    Ok(Text::from_slice(text.as_bytes()))
}

/// Plain decimal text as a multiple of 10^-17; None if it does not fit.
fn fixed_point(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() > 20 || fraction.len() > FRACTION_DIGITS || !plain(whole) || !plain(fraction) {
        return None;
    }
    let all = format!("{whole}{fraction:0<FRACTION_DIGITS$}");
    let magnitude: i128 = all.parse().ok()?;
    Some(if negative { -magnitude } else { magnitude })
}

fn fixed_text(number: i128) -> String {
    let digits = format!(
        "{:0>width$}",
        number.unsigned_abs(),
        width = FRACTION_DIGITS + 1
    );
    let (whole, fraction) = digits.split_at(digits.len() - FRACTION_DIGITS);
    let fraction = fraction.trim_end_matches('0');
    let sign = if number < 0 { "-" } else { "" };
    if fraction.is_empty() {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(op: ArithOp, present: &str) -> Result<String, NumberError> {
        add(&op, present.as_bytes()).map(|text| String::from_utf8_lossy(&text).into_owned())
    }

    #[test]
    fn memcached_numbers_wrap_upwards_and_stop_at_zero_downwards() {
        assert_eq!(
            added(ArithOp::Increment(1), "18446744073709551615").unwrap(),
            "0"
        );
        assert_eq!(added(ArithOp::Decrement(7), "5").unwrap(), "0");
        assert_eq!(added(ArithOp::Increment(5), "9 ").unwrap(), "14");
        for text in [
            "",
            " 1",
            "-1",
            "1a",
            "184467440737095516160",
            "18446744073709551616",
        ] {
            assert_eq!(
                added(ArithOp::Increment(1), text),
                Err(NumberError::NotANumber),
                "{text:?}"
            );
        }
    }

    #[test]
    fn redis_integers_are_strict_and_refuse_overflow() {
        assert_eq!(added(ArithOp::Signed(-3), "1").unwrap(), "-2");
        assert_eq!(
            added(ArithOp::Signed(1), "9223372036854775807"),
            Err(NumberError::Overflow)
        );
        assert_eq!(
            added(ArithOp::Signed(-1), "-9223372036854775808"),
            Err(NumberError::Overflow)
        );
        for text in ["", "01", "+1", " 1", "1 ", "-0", "-", "1.0", "abc"] {
            assert_eq!(
                added(ArithOp::Signed(1), text),
                Err(NumberError::NotANumber),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_text_that_is_longer_than_any_number_is_none() {
        for (op, one, filler) in [
            (ArithOp::Increment(1), "1 ", " "),
            (ArithOp::Float(1.0), "1.", "0"),
        ] {
            let longest = one.to_owned() + &filler.repeat(TEXT_LEN_MAX - one.len());
            assert_eq!(added(op, &longest).unwrap(), "2");
            let longer = longest + filler;
            assert_eq!(added(op, &longer), Err(NumberError::NotANumber));
        }
    }

    #[test]
    fn decimal_fractions_add_up_as_people_expect() {
        assert_eq!(added(ArithOp::Float(0.2), "0.1").unwrap(), "0.3");
        assert_eq!(added(ArithOp::Float(0.1), "10.50").unwrap(), "10.6");
        assert_eq!(added(ArithOp::Float(200.0), "5.0e3").unwrap(), "5200");
        assert_eq!(added(ArithOp::Float(-5.0), "10.6").unwrap(), "5.6");
        assert_eq!(added(ArithOp::Float(-0.5), "0").unwrap(), "-0.5");
        assert_eq!(
            added(ArithOp::Float(f64::MAX), "1.7976931348623157e308"),
            Err(NumberError::Overflow)
        );
        for text in ["", " 1", "1 ", "abc", "nan"] {
            assert_eq!(
                added(ArithOp::Float(1.0), text),
                Err(NumberError::NotANumber),
                "{text:?}"
            );
        }
    }
}
