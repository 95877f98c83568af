//! Fetches the documents of an issuer: its configuration and its keys.
//!
//! HTTP/1.1 over TLS, one connection for each document. Plain HTTP is for issuers on the same machine. Redirects are not followed
//! and no proxy is used, since an answer decides which tokens are believed.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::keys::KeySet;
use crate::verifier::{Issuer, KeySource};

/// Longest document in bytes.
pub const DOCUMENT_LEN_MAX: usize = 256 << 10;

/// A fetch of keys that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(5);

/// Why the keys of an issuer could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The file cannot be read.
    #[error("cannot read {}: {kind}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        kind: io::ErrorKind,
    },
    /// The URL is not one that is fetched.
    #[error("the URL {url} is not fetched; expected https, or http of this machine")]
    Url {
        /// The URL.
        url: String,
    },
    /// There is no certificate authority by which the issuer could be known.
    #[error(
        "no certificate authority can be read: name a PEM file with `ca` in the [[oidc]] table"
    )]
    Authorities,
    /// The issuer cannot be reached.
    #[error("cannot connect to {url}: {why}")]
    Connect {
        /// The URL.
        url: String,
        /// Why.
        why: String,
    },
    /// It did not answer as HTTP does.
    #[error("no answer from {url}: {why}")]
    Answer {
        /// The URL.
        url: String,
        /// Why.
        why: String,
    },
    /// Its answer is no success.
    #[error("{url} answered with the status {status}")]
    Status {
        /// The URL.
        url: String,
        /// The status.
        status: u16,
    },
    /// The document is malformed, or too long.
    #[error(
        "malformed document from {from}: expected {expected} of at most {DOCUMENT_LEN_MAX} bytes"
    )]
    Document {
        /// The URL or file.
        from: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The configuration is that of another issuer.
    #[error(
        "the configuration at {url} names another issuer: set `issuer` in the [[oidc]] table to its exact text"
    )]
    OtherIssuer {
        /// The URL.
        url: String,
    },
    /// It took too long.
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Deadline,
    /// The last attempt failed a moment ago.
    #[error("the last attempt failed a moment ago")]
    Recently,
}

/// The part of the configuration of an issuer that is needed (OpenID Connect Discovery 1.0, section 3).
#[derive(Deserialize)]
struct Configuration {
    issuer: String,
    jwks_uri: String,
}

/// The keys of an issuer as they are now.
pub(crate) async fn keys(issuer: &Issuer) -> Result<KeySet, FetchError> {
    timeout(DEADLINE, fetch_keys(issuer))
        .await
        .unwrap_or(Err(FetchError::Deadline))
}

async fn fetch_keys(issuer: &Issuer) -> Result<KeySet, FetchError> {
    let (from, document) = match &issuer.keys {
        KeySource::File(path) => (path.display().to_string(), read(path.clone()).await?),
        KeySource::Discovery => {
            let client = Client::new(&issuer.url, issuer.ca.clone()).await?;
            let base = issuer.url.trim_end_matches('/');
            let url = format!("{base}/.well-known/openid-configuration");
            let document = client.get(&url).await?;
            let configuration: Configuration =
                serde_json::from_slice(&document).map_err(|_| FetchError::Document {
                    from: url.clone(),
                    expected: "the configuration of an issuer",
                })?;
            if configuration.issuer != issuer.url {
                return Err(FetchError::OtherIssuer { url });
            }
            let document = client.get(&configuration.jwks_uri).await?;
            (configuration.jwks_uri, document)
        }
    };
    KeySet::parse(&document).ok_or(FetchError::Document {
        from,
        expected: "a JSON Web Key Set",
    })
}

async fn read(path: PathBuf) -> Result<Bytes, FetchError> {
    let of = |path: &Path, kind| FetchError::File {
        path: path.to_owned(),
        kind,
    };
    let there = path.clone();
    let read = tokio::task::spawn_blocking(move || {
        let len = std::fs::metadata(&there)?.len();
        match usize::try_from(len).is_ok_and(|len| len <= DOCUMENT_LEN_MAX) {
            true => std::fs::read(&there),
            false => Err(io::ErrorKind::FileTooLarge.into()),
        }
    });
    match read.await {
        Ok(Ok(document)) => Ok(document.into()),
        Ok(Err(error)) => Err(of(&path, error.kind())),
        Err(_) => Err(of(&path, io::ErrorKind::Interrupted)),
    }
}

/// Fetches documents of one issuer.
struct Client {
    /// None for an issuer on this machine that is fetched without TLS.
    tls: Option<TlsConnector>,
}

impl Client {
    async fn new(issuer: &str, ca: Option<PathBuf>) -> Result<Self, FetchError> {
        if !issuer.starts_with("https:") {
            return Ok(Self { tls: None });
        }
        let roots = tokio::task::spawn_blocking(move || roots(ca.as_deref())).await;
        let roots = roots.ok().flatten().ok_or(FetchError::Authorities)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| FetchError::Authorities)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls: Some(TlsConnector::from(Arc::new(config))),
        })
    }

    async fn get(&self, url: &str) -> Result<Bytes, FetchError> {
        let refused = || FetchError::Url {
            url: url.to_owned(),
        };
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let host = uri.host().ok_or_else(refused)?;
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let is_local = name == "localhost"
            || name
                .parse()
                .is_ok_and(|it: std::net::IpAddr| it.is_loopback());
        let unreachable = |error: io::Error| FetchError::Connect {
            url: url.to_owned(),
            why: error.to_string(),
        };
        match (uri.scheme_str(), &self.tls) {
            (Some("https"), Some(tls)) => {
                let server = ServerName::try_from(name.to_owned()).map_err(|_| refused())?;
                let stream = TcpStream::connect((name, uri.port_u16().unwrap_or(443))).await;
                let stream = tls.connect(server, stream.map_err(unreachable)?).await;
                exchange(stream.map_err(unreachable)?, &uri, url).await
            }
            (Some("http"), None) if is_local => {
                let stream = TcpStream::connect((name, uri.port_u16().unwrap_or(80))).await;
                exchange(stream.map_err(unreachable)?, &uri, url).await
            }
            _ => Err(refused()),
        }
    }
}

/// The authorities of a file, or those of the machine; `None` if there are none.
fn roots(ca: Option<&Path>) -> Option<RootCertStore> {
    let certificates: Vec<CertificateDer<'static>> = match ca {
        Some(path) => CertificateDer::pem_file_iter(path)
            .ok()?
            .collect::<Result<_, _>>()
            .ok()?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    // Authorities of a machine that cannot be read are of no use, and no reason to believe none.
    let (added, _) = roots.add_parsable_certificates(certificates);
    (added > 0).then_some(roots)
}

/// Asks for a document over a connection.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    uri: &Uri,
    url: &str,
) -> Result<Bytes, FetchError> {
    let answer = |why: String| FetchError::Answer {
        url: url.to_owned(),
        why,
    };
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| answer(error.to_string()))?;
    let ask = async {
        let authority = uri.authority().map_or("", |it| it.as_str());
        let request = Request::get(uri.path_and_query().map_or("/", |it| it.as_str()))
            .header(HOST, authority)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("fonn/", env!("CARGO_PKG_VERSION")))
            .body(Empty::<Bytes>::new())
            .map_err(|error| answer(error.to_string()))?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| answer(error.to_string()))?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status {
                url: url.to_owned(),
                status: response.status().as_u16(),
            });
        }
        let body = Limited::new(response.into_body(), DOCUMENT_LEN_MAX).collect();
        let body = body.await.map_err(|error| answer(error.to_string()))?;
        Ok(body.to_bytes())
    };
    let (mut ask, mut connection) = (pin!(ask), pin!(connection));
    let mut is_open = true;
    loop {
        // Cancel safe: both are polled again, the connection until its end.
        tokio::select! {
            biased;
            document = &mut ask => return document,
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}

#[cfg(test)]
mod tests;
