//! Fetches the documents of an issuer: its configuration and its keys.
//!
//! HTTP/1.1 over TLS, one connection for each document. Plain HTTP is for issuers on the same
//! machine. Redirects are not followed and no proxy is used, since an answer decides which tokens
//! are believed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fonn_http_client::{ConnectError, Connection, NoAuthority, empty, trusting};
use http_body_util::{BodyExt as _, Limited};
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use serde::Deserialize;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::issuer::Issuer;
use crate::keys::KeySet;

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

/// The part of the configuration of an issuer that is needed (OpenID Connect Discovery 1.0, section
/// 3).
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
    let (from, document) = match &issuer.jwks {
        Some(path) => (path.display().to_string(), read(path.clone()).await?),
        None => {
            let tls = connector(issuer).await?;
            let base = issuer.url.trim_end_matches('/');
            let url = format!("{base}/.well-known/openid-configuration");
            let document = get(&url, tls.as_ref()).await?;
            let configuration: Configuration =
                serde_json::from_slice(&document).map_err(|_| FetchError::Document {
                    from: url.clone(),
                    expected: "the configuration of an issuer",
                })?;
            if configuration.issuer != issuer.url {
                return Err(FetchError::OtherIssuer { url });
            }
            let document = get(&configuration.jwks_uri, tls.as_ref()).await?;
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

/// How an issuer is called; None for one on this machine that is fetched without TLS.
async fn connector(issuer: &Issuer) -> Result<Option<TlsConnector>, FetchError> {
    if !issuer.url.starts_with("https:") {
        return Ok(None);
    }
    let ca = issuer.ca.clone();
    let config = tokio::task::spawn_blocking(move || trusting(ca.as_deref())).await;
    let config = config.map_err(|_| FetchError::Authorities)?;
    let config = config.map_err(|NoAuthority| FetchError::Authorities)?;
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

/// Fetches a document of an issuer.
async fn get(url: &str, tls: Option<&TlsConnector>) -> Result<Bytes, FetchError> {
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
    let default_port = match (uri.scheme_str(), tls) {
        (Some("https"), Some(_)) => 443,
        (Some("http"), None) if is_local => 80,
        _ => return Err(refused()),
    };
    let port = uri.port_u16().unwrap_or(default_port);
    let connection = Connection::open(host, port, tls).await;
    match connection {
        Ok(connection) => exchange(connection, &uri, url).await,
        Err(ConnectError::Host(_)) => Err(refused()),
        Err(ConnectError::Stream(error)) => Err(FetchError::Connect {
            url: url.to_owned(),
            why: error.to_string(),
        }),
        Err(ConnectError::Http(error)) => Err(FetchError::Answer {
            url: url.to_owned(),
            why: error.to_string(),
        }),
    }
}

/// Asks for a document over a connection.
async fn exchange(mut connection: Connection, uri: &Uri, url: &str) -> Result<Bytes, FetchError> {
    let answer = |why: String| FetchError::Answer {
        url: url.to_owned(),
        why,
    };
    let authority = uri.authority().map_or("", |it| it.as_str());
    let request = Request::get(uri.path_and_query().map_or("/", |it| it.as_str()))
        .header(HOST, authority)
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("fonn/", env!("CARGO_PKG_VERSION")))
        .body(empty())
        .map_err(|error| answer(error.to_string()))?;
    let response = connection.send(request).await;
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
}

#[cfg(test)]
mod tests;
