//! The certificate authorities by which a server is known.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// There is no certificate authority by which the server could be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no certificate authority can be read: name a PEM file that has one")]
pub struct NoAuthority;

/// A TLS configuration that trusts the authorities of the PEM file `ca`, or without a file those of
/// the machine. It reads files, so it blocks.
///
/// # Errors
/// If there is no authority.
pub fn trusting(ca: Option<&Path>) -> Result<ClientConfig, NoAuthority> {
    let certificates: Vec<CertificateDer<'static>> = match ca {
        Some(path) => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|_| NoAuthority)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    // An authority of the machine that cannot be read is no reason to trust none of the others.
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(NoAuthority);
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| NoAuthority)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
