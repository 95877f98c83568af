//! What there is to say about a bucket, and the client made of it.

use std::fmt;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{
    Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
};
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;

use crate::store::ObjectKey;

/// Where requests go and how they are signed. What is `None` is found as in every AWS program.
#[derive(Clone, Debug)]
pub struct S3Options {
    /// The bucket.
    pub bucket: String,
    /// What the keys of all objects begin with, before a slash; `None`: the store is all of the
    /// bucket.
    pub prefix: Option<ObjectKey>,
    /// The URL of a server that is not AWS; with one, buckets are named in the path. Otherwise that
    /// of `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, or AWS.
    pub endpoint: Option<String>,
    /// The region; otherwise that of `AWS_REGION` or the profile. Servers of others than AWS hardly
    /// ever look at it: with an endpoint it may be left out.
    pub region: Option<String>,
    /// Credentials; otherwise the standard chain (environment, profile, web identity, container,
    /// instance).
    pub credentials: Option<S3Credentials>,
    /// How long a request may take, apart from the transfer of its body.
    pub timeout: Duration,
    /// A transfer may take as long as it would at so many bytes in a second.
    pub throughput_bytes_min: u64,
}

impl S3Options {
    /// A bucket, everything else by default.
    #[must_use]
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            prefix: None,
            endpoint: None,
            region: None,
            credentials: None,
            timeout: Duration::from_secs(5),
            throughput_bytes_min: 512 << 10,
        }
    }
}

/// Credentials that do not change. Their `Debug` shows the key id alone.
#[derive(Clone)]
pub struct S3Credentials {
    /// The access key id.
    pub key_id: String,
    /// The secret access key.
    pub secret: String,
    /// The token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Credentials")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// Why a bucket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum S3OpenError {
    /// There is no region.
    #[error(
        "no region is known for the bucket `{bucket}`: set --s3-region or AWS_REGION \
         (and --s3-endpoint or AWS_ENDPOINT_URL for a server that is not AWS)"
    )]
    NoRegion {
        /// The bucket.
        bucket: String,
    },
    /// The endpoint is no URL.
    #[error(
        "the S3 endpoint `{endpoint}` is no URL of a server: give one like `https://host` or \
         `http://host:9000`"
    )]
    Endpoint {
        /// The endpoint, without what could be a password.
        endpoint: String,
    },
}

/// The time in which a connection has to be there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A transfer that stands still for so long has failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// For servers that have no regions.
const ANY_REGION: &str = "us-east-1";

/// The client; asks no bucket, but may ask the instance metadata for the region.
pub(super) async fn client(options: &S3Options) -> Result<Client, S3OpenError> {
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| variable("AWS_ENDPOINT_URL_S3"))
        .or_else(|| variable("AWS_ENDPOINT_URL"));
    if let Some(endpoint) = &endpoint {
        check_endpoint(endpoint)?;
    }
    let region = options
        .region
        .clone()
        .or_else(|| variable("AWS_REGION"))
        .or_else(|| variable("AWS_DEFAULT_REGION"))
        .or_else(|| endpoint.as_ref().map(|_| ANY_REGION.to_owned()));

    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        // Each call has its own, by the size of its body.
        .disable_operation_timeout()
        .disable_operation_attempt_timeout()
        .disable_read_timeout();
    let connections = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(connections)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts.build())
        .stalled_stream_protection(
            StalledStreamProtectionConfig::enabled()
                .grace_period(STALL_TIMEOUT)
                .build(),
        );
    if let Some(region) = region {
        loader = loader.region(Region::new(region));
    }
    if let Some(endpoint) = &endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(given) = &options.credentials {
        let (id, secret, token) = (&given.key_id, &given.secret, given.session_token.clone());
        loader = loader.credentials_provider(Credentials::new(id, secret, token, None, "options"));
    }
    let config = loader.load().await;
    if config.region().is_none() {
        let bucket = options.bucket.clone();
        return Err(S3OpenError::NoRegion { bucket });
    }
    let is_elsewhere = config.endpoint_url().is_some();
    let config = aws_sdk_s3::config::Builder::from(&config)
        .force_path_style(is_elsewhere)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    Ok(Client::from_conf(config.build()))
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Accepts `http://host[:port][/path]` and the same with `https`.
fn check_endpoint(endpoint: &str) -> Result<(), S3OpenError> {
    let rest = endpoint
        .strip_prefix("http://")
        .or_else(|| endpoint.strip_prefix("https://"));
    let host = rest.and_then(|rest| rest.split('/').next());
    let is_host = |host: &str| {
        !host.is_empty()
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:[]%".contains(&byte))
    };
    if host.is_some_and(is_host) && !endpoint.contains(['?', '#', '@']) {
        return Ok(());
    }
    // User names and passwords stand before an at sign.
    let shown = endpoint.rsplit('@').next().unwrap_or_default();
    Err(S3OpenError::Endpoint {
        endpoint: shown.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut options = S3Options::new("bucket");
        options.credentials = Some(S3Credentials {
            key_id: "AKIDEXAMPLE".to_owned(),
            secret: "topsecret".to_owned(),
            session_token: Some("tokentoken".to_owned()),
        });
        let shown = format!("{options:?}");
        assert!(shown.contains("AKIDEXAMPLE"), "{shown}");
        assert!(!shown.contains("topsecret") && !shown.contains("tokentoken"));
    }

    #[test]
    fn endpoints_are_urls_of_servers() {
        for endpoint in [
            "http://127.0.0.1:9000",
            "https://s3.example.org",
            "https://example.org/s3",
            "http://[::1]:7070",
        ] {
            assert!(check_endpoint(endpoint).is_ok(), "{endpoint}");
        }
        for endpoint in [
            "",
            "localhost:9000",
            "http://",
            "ftp://host",
            "http://a b",
            "http://host?x",
        ] {
            assert!(check_endpoint(endpoint).is_err(), "{endpoint}");
        }
        let error = check_endpoint("http://me:secret@host").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
