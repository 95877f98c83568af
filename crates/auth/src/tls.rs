//! TLS: certificate, key and the authority of members, read from files and again without a restart.
//!
//! A [`Tls`] is in one of two roles at a time for each connection: it answers clients
//! ([`Tls::server`]) and members ([`Tls::members_server`]), and it calls other members, showing the
//! same certificate ([`Tls::client`]).
//! Connections that exist keep what they began with, as long as the certificate of the other end is
//! good by what is in force ([`Standing`]).

mod expiry;
mod handshakes;
mod link;
mod standing;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::kx_group;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::sync::watch;

use self::handshakes::Handshakes;
pub use self::link::{Link, Place};
pub use self::standing::{Side, Standing, Watched};
use crate::Expiry;

/// The files that the flags name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `--tls-cert`: the certificate and those between it and its authority, PEM.
    pub cert: PathBuf,
    /// `--tls-key`: its private key, PEM.
    pub key: PathBuf,
    /// `--tls-client-ca`: the authorities of members and of clients that show a certificate, PEM.
    pub client_ca: Option<PathBuf>,
    /// `--tls-client-crl`: the certificates that these authorities have revoked, PEM.
    pub client_crl: Option<PathBuf>,
}

/// What a program that only calls is told by flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerFiles {
    /// `--tls-ca`: the authorities of the server, PEM.
    pub ca: PathBuf,
    /// `--tls-cert` and `--tls-key`: what to show if the server asks for a certificate, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

const CA: &str = "--tls-ca";
const CLIENT_CA: &str = "--tls-client-ca";
const CLIENT_CRL: &str = "--tls-client-crl";

/// From so long before its end on, the operator is warned of a certificate: 14 days.
const WARNING_MS: u64 = 14 * 24 * 60 * 60 * 1000;

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
    /// For every peer; a certificate that is shown has to be good.
    server: Arc<ServerConfig>,
    members: Option<Members>,
    /// When the own certificate expires, if that can be read.
    expiry: Option<Expiry>,
}

/// How members know each other: by certificates of `--tls-client-ca`.
struct Members {
    /// For peers that show a good certificate.
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// What judges the certificates of peers that call.
    clients: Arc<dyn ClientCertVerifier>,
    /// What judges the certificates of peers that are called.
    servers: Arc<WebPkiServerVerifier>,
}

/// The certificate in force.
pub struct Tls {
    files: TlsFiles,
    loaded: RwLock<Loaded>,
    generation: watch::Sender<u64>,
    /// None if its thread could not be started.
    handshakes: OnceLock<Option<Handshakes>>,
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
        Ok(Self {
            files,
            loaded,
            generation: watch::Sender::new(1),
            handshakes: OnceLock::new(),
        })
    }

    /// Reads the files again. What is in force stays so if they are not usable. Connections whose
    /// certificate is no longer good by what was read end ([`Standing`]).
    ///
    /// # Errors
    /// As [`Tls::load`].
    pub fn reload(&self) -> Result<(), TlsError> {
        let loaded = read(&self.files)?;
        *self.loaded.write() = loaded;
        self.generation.send_modify(|generation| *generation += 1);
        Ok(())
    }

    /// When the own certificate expires; none if that cannot be read. Certificates of authorities
    /// that the file has besides do not count.
    #[must_use]
    pub fn expiry(&self) -> Option<Expiry> {
        self.loaded.read().expiry
    }

    /// What to tell the operator at `now_ms`, if the own certificate has expired or is in its last
    /// 14 days.
    #[must_use]
    pub fn expiry_warning(&self, now_ms: u64) -> Option<String> {
        let expiry = self.expiry()?;
        let verb = if expiry.has_passed(now_ms) {
            "expired"
        } else if expiry.has_passed(now_ms.saturating_add(WARNING_MS)) {
            "expires"
        } else {
            return None;
        };
        Some(format!(
            "the certificate --tls-cert {} {verb} at {expiry}: put a renewed one in its place, which \
             is read without a restart",
            self.files.cert.display()
        ))
    }

    /// What makes handshakes apart.
    fn handshakes(&self) -> Option<&Handshakes> {
        let start = || {
            let started = Handshakes::start();
            started
                .inspect_err(|error| tracing::warn!(%error, "no thread for TLS handshakes"))
                .ok()
        };
        self.handshakes.get_or_init(start).as_ref()
    }

    /// How often the files were read.
    fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Whether a certificate is good at `now` by what is in force.
    fn judge(
        &self,
        side: &Side,
        chain: &[CertificateDer<'static>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let loaded = self.loaded.read();
        let (Some(members), Some((end, between))) = (&loaded.members, chain.split_first()) else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        match side {
            Side::Client => {
                let judge = &members.clients;
                judge.verify_client_cert(end, between, now).map(|_| ())
            }
            Side::Server(name) => {
                let judge = &members.servers;
                judge
                    .verify_server_cert(end, between, name, &[], now)
                    .map(|_| ())
            }
        }
    }

    /// How to answer a peer that needs no certificate. One that it shows has to be good.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.loaded.read().server)
    }

    /// How to answer a peer that has to show a good certificate; none without `--tls-client-ca`, by
    /// which members are known.
    #[must_use]
    pub fn members_server(&self) -> Option<Arc<ServerConfig>> {
        let loaded = self.loaded.read();
        loaded.members.as_ref().map(|it| Arc::clone(&it.server))
    }

    /// How to call another member; none without `--tls-client-ca`.
    #[must_use]
    pub fn client(&self) -> Option<Arc<ClientConfig>> {
        let loaded = self.loaded.read();
        loaded.members.as_ref().map(|it| Arc::clone(&it.client))
    }
}

/// What computes. Key exchange with P-384 is left out: a stranger would choose it, since it costs
/// four times as much. All clients know one of the others.
fn provider() -> CryptoProvider {
    CryptoProvider {
        kx_groups: vec![kx_group::X25519, kx_group::SECP256R1],
        ..rustls::crypto::ring::default_provider()
    }
}

fn read(files: &TlsFiles) -> Result<Loaded, TlsError> {
    let provider = Arc::new(provider());
    let mismatch = |error: rustls::Error| TlsError::Mismatch {
        cert: files.cert.clone(),
        key: files.key.clone(),
        problem: error.to_string(),
    };
    let own = identity(&files.cert, &files.key, &provider)?;
    let expiry = own.cert.first().and_then(|it| expiry::of(it, &provider));
    let own = Arc::new(SingleCertAndKey::from(own));
    let crls = match &files.client_crl {
        Some(path) => revocations(path)?,
        None => Vec::new(),
    };
    let server = |verifier: Arc<dyn ClientCertVerifier>| -> Result<Arc<ServerConfig>, TlsError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(mismatch)?;
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&own) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    };
    let Some(path) = &files.client_ca else {
        return Ok(Loaded {
            server: server(WebPkiClientVerifier::no_client_auth())?,
            members: None,
            expiry,
        });
    };
    let roots = Arc::new(authorities(CLIENT_CA, path)?);
    let trust = Trust {
        flag: CLIENT_CA,
        path,
        roots: &roots,
        crls: &crls,
    };
    let asking = |allow_none| clients(&trust, allow_none, &provider);
    let (any, clients, servers) = (asking(true)?, asking(false)?, servers(&trust, &provider)?);
    let client = calling(Arc::clone(&servers), Some(Arc::clone(&own)), &provider);
    Ok(Loaded {
        server: server(any)?,
        members: Some(Members {
            server: server(Arc::clone(&clients))?,
            client: client.map_err(mismatch)?,
            clients,
            servers,
        }),
        expiry,
    })
}

/// What judges callers.
fn clients(
    trust: &Trust<'_>,
    allow_none: bool,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::clone(trust.roots);
    // An authority without a list has revoked nothing.
    let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider))
        .with_crls(trust.crls.iter().cloned())
        .allow_unknown_revocation_status();
    let builder = match allow_none {
        true => builder.allow_unauthenticated(),
        false => builder,
    };
    builder.build().map_err(|error| trust.unusable(&error))
}

/// What judges those that are called.
fn servers(
    trust: &Trust<'_>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let roots = Arc::clone(trust.roots);
    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
        .with_crls(trust.crls.iter().cloned())
        .allow_unknown_revocation_status()
        .build()
        .map_err(|error| trust.unusable(&error))
}

/// How a program calls a server that it trusts by `--tls-ca`.
///
/// # Errors
/// As [`Tls::load`].
pub fn caller(files: &CallerFiles) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(authorities(CA, &files.ca)?);
    let own = match &files.identity {
        Some((cert, key)) => {
            let own = identity(cert, key, &provider)?;
            Some(Arc::new(SingleCertAndKey::from(own)))
        }
        None => None,
    };
    let trust = Trust {
        flag: CA,
        path: &files.ca,
        roots: &roots,
        crls: &[],
    };
    let verifier = servers(&trust, &provider)?;
    calling(verifier, own, &provider).map_err(|error| trust.unusable(&error))
}

/// The name, or the address, that the certificate of HOST:PORT has to be for.
#[must_use]
pub fn server_name(addr: &str) -> Option<ServerName<'static>> {
    let (host, _) = addr.rsplit_once(':')?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(bare.to_owned()).ok()
}

/// A certificate with its key.
fn identity(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let chain = certificates("--tls-cert", cert)?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| file("--tls-key", key, &error, "a private key"))?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| TlsError::Mismatch {
        cert: cert.to_owned(),
        key: key.to_owned(),
        problem: match error {
            rustls::Error::InconsistentKeys(_) => {
                "the key does not belong to the certificate".to_owned()
            }
            error => error.to_string(),
        },
    })
}

/// The trusted authority, and where it was set.
struct Trust<'t> {
    flag: &'static str,
    path: &'t Path,
    roots: &'t Arc<RootCertStore>,
    crls: &'t [CertificateRevocationListDer<'static>],
}

impl Trust<'_> {
    fn unusable(&self, error: &dyn fmt::Display) -> TlsError {
        TlsError::File {
            flag: self.flag,
            path: self.path.to_owned(),
            problem: error.to_string(),
        }
    }
}

/// How to call those that `verifier` takes, showing `own`.
fn calling(
    verifier: Arc<WebPkiServerVerifier>,
    own: Option<Arc<SingleCertAndKey>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .with_webpki_verifier(verifier);
    Ok(Arc::new(match own {
        Some(own) => builder.with_client_cert_resolver(own),
        None => builder.with_no_client_auth(),
    }))
}

/// The lists of revoked certificates in a file.
fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let wrong = |problem: String| TlsError::File {
        flag: CLIENT_CRL,
        path: path.to_owned(),
        problem,
    };
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| file(CLIENT_CRL, path, &error, "a list of revoked certificates"));
    match all? {
        all if all.is_empty() => Err(wrong(
            "there is no list of revoked certificates in it; expected PEM (-----BEGIN X509 CRL-----)"
                .to_owned(),
        )),
        all => Ok(all),
    }
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

fn authorities(flag: &'static str, path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(flag, path)? {
        roots.add(certificate).map_err(|error| TlsError::File {
            flag,
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

#[cfg(test)]
mod tests;
