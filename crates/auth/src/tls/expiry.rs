//! When a certificate expires.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, Error, RootCertStore};

use crate::Expiry;

/// When every certificate has expired.
const END_OF_TIME: UnixTime = UnixTime::since_unix_epoch(Duration::MAX);

/// The `notAfter` of a certificate; none if it cannot be read.
///
/// rustls reads it, but tells it only with the refusal of an expired certificate. So the
/// certificate is verified as of the end of time. The dates are checked before all else.
pub(super) fn of(
    certificate: &CertificateDer<'_>,
    provider: &Arc<CryptoProvider>,
) -> Option<Expiry> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).ok()?;
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let verifier = verifier.build().ok()?;
    // Names are checked last.
    let name = ServerName::try_from("localhost").ok()?;
    match verifier.verify_server_cert(certificate, &[], &name, &[], END_OF_TIME) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Expiry::from_unix_ms(not_after.as_secs().saturating_mul(1000)).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fonn_base::metrics::Metrics;

    use super::*;
    use crate::metrics::register_certificate;
    use crate::testing::{Authority, FAR};
    use crate::tls::{Tls, provider};

    fn at(text: &str) -> Expiry {
        text.parse().unwrap()
    }

    #[test]
    fn the_end_of_a_certificate_is_read_whatever_else_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        for (year, end) in [
            (2021, "2021-01-01T00:00:00Z"),
            (FAR, "2200-01-01T00:00:00Z"),
        ] {
            let tls = Tls::load(authority.files(dir.path(), "a.test", year)).unwrap();
            assert_eq!(tls.expiry(), Some(at(end)));
        }
        // A certificate of an authority, which is not one of a server.
        assert!(of(authority.0.der(), &Arc::new(provider())).is_some());
        assert_eq!(of(&vec![1_u8, 2, 3].into(), &Arc::new(provider())), None);
    }

    #[test]
    fn an_expired_certificate_and_one_of_the_last_14_days_are_warned_of() {
        let dir = tempfile::tempdir().unwrap();
        let tls = Tls::load(Authority::new().files(dir.path(), "a.test", 2021)).unwrap();
        let warning = |now: &str| tls.expiry_warning(at(now).unix_ms());
        assert_eq!(warning("2020-12-17T23:59:59Z"), None);
        let soon = warning("2020-12-18T00:00:00Z").unwrap();
        assert!(soon.contains("expires at 2021-01-01T00:00:00Z"), "{soon}");
        assert!(soon.contains("a.test-2021-cert.pem"), "{soon}");
        let late = warning("2021-01-01T00:00:00Z").unwrap();
        assert!(late.contains("expired at 2021-01-01T00:00:00Z"), "{late}");
    }

    #[test]
    fn the_metric_tells_the_certificate_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let files = authority.files(dir.path(), "a.test", 2021);
        let tls = Arc::new(Tls::load(files.clone()).unwrap());
        let shows = |metrics: &Metrics, value: &str| {
            let text = metrics.render().unwrap();
            let line = format!("fonn_tls_certificate_expiry_timestamp_seconds {value}\n");
            assert!(text.contains(&line), "{text}");
        };
        let metrics = Metrics::new();
        register_certificate(&metrics, Some(Arc::clone(&tls)));
        shows(&metrics, "1609459200");
        let renewed = authority.files(dir.path(), "a.test", FAR);
        std::fs::copy(&renewed.cert, &files.cert).unwrap();
        std::fs::copy(&renewed.key, &files.key).unwrap();
        tls.reload().unwrap();
        shows(&metrics, "7258118400");

        let without = Metrics::new();
        register_certificate(&without, None);
        shows(&without, "0");
    }
}
