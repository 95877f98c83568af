//! When a certificate expires, read from its DER form (RFC 5280, section 4.1).
//!
//! No more of a certificate is looked at than what stands before its dates. Whether it is good is
//! not judged here.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use time::{Date, Month, PrimitiveDateTime, Time};

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The tag of the version, which a certificate of version 1 has not.
const VERSION: u8 = 0xa0;

/// The last second in which the certificate is valid, since the Unix epoch. None if it is none that
/// can be read.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Option<Duration> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    if fields.first() == Some(&VERSION) {
        (_, _, fields) = element(fields)?;
    }
    // Serial number, signature, issuer.
    for _ in 0..3 {
        (_, _, fields) = element(fields)?;
    }
    let (SEQUENCE, validity, _) = element(fields)? else {
        return None;
    };
    let (_, _, rest) = element(validity)?;
    let (tag, time, _) = element(rest)?;
    seconds(tag, time).map(Duration::from_secs)
}

/// The tag and content of the first element, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk::<2>()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let len = digits.iter();
            (
                len.fold(0, |len, &digit| len << 8 | usize::from(digit)),
                rest,
            )
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, the only forms that certificates have.
fn seconds(tag: u8, text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"Z")?;
    let number = |at: usize| -> Option<i32> {
        let pair = digits.get(at..at.checked_add(2)?)?;
        match pair.iter().all(u8::is_ascii_digit) {
            true => Some(i32::from(pair[0] - b'0') * 10 + i32::from(pair[1] - b'0')),
            false => None,
        }
    };
    let (year, at) = match (tag, digits.len()) {
        // RFC 5280, section 4.1.2.5.1.
        (UTC_TIME, 12) => match number(0)? {
            year @ 0..50 => (2000 + year, 2),
            year => (1900 + year, 2),
        },
        (GENERALIZED_TIME, 14) => (number(0)? * 100 + number(2)?, 4),
        _ => return None,
    };
    let part = |nth: usize| u8::try_from(number(at + 2 * nth)?).ok();
    let month = Month::try_from(part(0)?).ok()?;
    let date = Date::from_calendar_date(year, month, part(1)?).ok()?;
    let time = Time::from_hms(part(2)?, part(3)?, part(4)?).ok()?;
    let moment = PrimitiveDateTime::new(date, time).assume_utc();
    u64::try_from(moment.unix_timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_last_second_is_read_from_certificates_of_both_forms() {
        for (year, expected) in [
            (2021, 1_609_459_200),
            (2049, 2_493_072_000),
            (2050, 2_524_608_000),
            (2200, 7_258_118_400),
        ] {
            let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(year, 1, 1);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let read = not_after(certificate.der());
            assert_eq!(read, Some(Duration::from_secs(expected)), "{year}");
            let whole = certificate.der();
            for len in 0..whole.len() {
                assert_eq!(not_after(&CertificateDer::from(&whole[..len])), None);
            }
        }
    }

    #[test]
    fn dates_are_counted_as_the_calendar_does() {
        let at = |text: &[u8]| seconds(GENERALIZED_TIME, text);
        assert_eq!(at(b"19700101000000Z"), Some(0));
        assert_eq!(at(b"20000229235959Z"), Some(951_868_799));
        assert_eq!(at(b"20240301000000Z"), Some(1_709_251_200));
        assert_eq!(seconds(UTC_TIME, b"991231235959Z"), Some(946_684_799));
        for malformed in [
            &b""[..],
            b"Z",
            b"20241301000000Z",
            b"20240100000000Z",
            b"20230229000000Z",
            b"2024010100000Z",
            b"20240101000000",
            b"2024010100000aZ",
            b"19691231235959Z",
        ] {
            assert_eq!(at(malformed), None, "{malformed:?}");
        }
    }
}
