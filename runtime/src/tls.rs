//! TLS: certificate, key and the authority of members, read from files and again without a restart.
//!
//! A [`Tls`] is in one of two roles at a time for each connection: it answers clients and members
//! ([`Tls::server`]), and it calls other members, showing the same certificate ([`Tls::client`]).
//! Connections that exist keep what they began with.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The files that the flags name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `--tls-cert`: the certificate and those between it and its authority, PEM.
    pub cert: PathBuf,
    /// `--tls-key`: its private key, PEM.
    pub key: PathBuf,
    /// `--tls-client-ca`: the authorities of members and of clients that show a certificate, PEM.
    pub client_ca: Option<PathBuf>,
}

/// Whether who connects has to show a certificate of `--tls-client-ca`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Anybody may come; a certificate that is shown has to be good.
    Anybody,
    /// Nobody without a good certificate.
    Certified,
}

/// TLS that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read, or is not PEM.
    #[error("{flag} {}: {problem}", path.display())]
    File {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what would be accepted.
        problem: String,
    },
    /// Something between the files does not fit.
    #[error("--tls-cert {} with --tls-key {}: {problem}", cert.display(), key.display())]
    Mismatch {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// What does not fit.
        problem: String,
    },
}

/// What one reading of the files gave.
struct Loaded {
    /// For anybody, and for holders of a certificate alone.
    servers: [Arc<ServerConfig>; 2],
    client: Option<Arc<ClientConfig>>,
}

/// The certificate in force.
pub struct Tls {
    files: TlsFiles,
    loaded: RwLock<Loaded>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// One sentence that names the flag, the file and the remedy.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let loaded = RwLock::new(read(&files)?);
        Ok(Self { files, loaded })
    }

    /// Reads the files again. What is in force stays so if they are not usable.
    ///
    /// # Errors
    /// As [`Tls::load`].
    pub fn reload(&self) -> Result<(), TlsError> {
        let loaded = read(&self.files)?;
        *self.loaded.write() = loaded;
        Ok(())
    }

    /// How to answer who connects. Without `--tls-client-ca` nobody is [`Peers::Certified`], so every
    /// handshake of that kind fails.
    #[must_use]
    pub fn server(&self, peers: Peers) -> Arc<ServerConfig> {
        let [anybody, certified] = &self.loaded.read().servers;
        Arc::clone(match peers {
            Peers::Anybody => anybody,
            Peers::Certified => certified,
        })
    }

    /// How to call another member; none without `--tls-client-ca`, by which members are known.
    #[must_use]
    pub fn client(&self) -> Option<Arc<ClientConfig>> {
        self.loaded.read().client.clone()
    }
}

fn read(files: &TlsFiles) -> Result<Loaded, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = certificates("--tls-cert", &files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| file("--tls-key", &files.key, &error, "a private key"))?;
    let mismatch = |error: rustls::Error| TlsError::Mismatch {
        cert: files.cert.clone(),
        key: files.key.clone(),
        problem: error.to_string(),
    };
    let certified = CertifiedKey::from_der(chain, key, &provider).map_err(mismatch)?;
    let own = Arc::new(SingleCertAndKey::from(certified));
    let roots = match &files.client_ca {
        Some(path) => Some(Arc::new(authorities(path)?)),
        None => None,
    };

    let server = |peers: Peers| -> Result<Arc<ServerConfig>, TlsError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(mismatch)?;
        let verifier = match (&roots, peers) {
            (None, Peers::Anybody) => WebPkiClientVerifier::no_client_auth(),
            (None, Peers::Certified) => Arc::new(Nobody(Arc::clone(&provider))),
            (Some(roots), peers) => {
                let builder = WebPkiClientVerifier::builder_with_provider(
                    Arc::clone(roots),
                    Arc::clone(&provider),
                );
                let builder = match peers {
                    Peers::Anybody => builder.allow_unauthenticated(),
                    Peers::Certified => builder,
                };
                builder.build().map_err(|error| unusable(files, &error))?
            }
        };
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&own) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    };
    let client = match &roots {
        None => None,
        Some(roots) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(
                Arc::clone(roots),
                Arc::clone(&provider),
            )
            .build()
            .map_err(|error| unusable(files, &error))?;
            let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
                .map_err(mismatch)?
                .with_webpki_verifier(verifier)
                .with_client_cert_resolver(Arc::clone(&own) as _);
            Some(Arc::new(config))
        }
    };
    Ok(Loaded {
        servers: [server(Peers::Anybody)?, server(Peers::Certified)?],
        client,
    })
}

fn certificates(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| file(flag, path, &error, "certificates"));
    match all? {
        all if all.is_empty() => Err(TlsError::File {
            flag,
            path: path.to_owned(),
            problem: "there is no certificate in it; expected PEM (-----BEGIN CERTIFICATE-----)"
                .to_owned(),
        }),
        all => Ok(all),
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("--tls-client-ca", path)? {
        roots.add(certificate).map_err(|error| TlsError::File {
            flag: "--tls-client-ca",
            path: path.to_owned(),
            problem: format!("a certificate in it is no authority: {error}"),
        })?;
    }
    Ok(roots)
}

fn file(
    flag: &'static str,
    path: &Path,
    error: &rustls::pki_types::pem::Error,
    what: &str,
) -> TlsError {
    use rustls::pki_types::pem::Error as Pem;
    let problem = match error {
        Pem::Io(error) => format!("cannot read the file: {error}"),
        Pem::NoItemsFound => format!("there is nothing of PEM in it; expected {what}"),
        other => format!("{other}; expected {what} in PEM"),
    };
    TlsError::File {
        flag,
        path: path.to_owned(),
        problem,
    }
}

fn unusable(files: &TlsFiles, error: &dyn fmt::Display) -> TlsError {
    TlsError::File {
        flag: "--tls-client-ca",
        path: files.client_ca.clone().unwrap_or_default(),
        problem: error.to_string(),
    }
}

/// Trusts no certificate: members cannot be told from others without their authority.
#[derive(Debug)]
struct Nobody(Arc<CryptoProvider>);

impl rustls::server::danger::ClientCertVerifier for Nobody {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::server::danger::ClientCertVerified, rustls::Error> {
        Err(rustls::CertificateError::UnknownIssuer.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let supported = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, supported)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let supported = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, supported)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
