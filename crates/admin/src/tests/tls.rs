//! TLS on the port: which clients are admitted, which are not, and what works without it.

use fonn_auth::Authenticator;
use fonn_auth::testing::{Authority, FAR, directory};
use fonn_auth::tls::{CallerFiles, Tls, TlsFiles, caller};
use rcgen::SerialNumber;
use rustls::ClientConfig;
use tempfile::TempDir;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::*;
use crate::connection::Peer;

/// A server with a certificate for the address that it has.
struct Rig {
    server: Fixture,
    authority: Authority,
    tls: Arc<Tls>,
    files: TlsFiles,
    dir: TempDir,
}

impl Rig {
    /// One that asks for certificates, or for passwords.
    async fn start(asks: Asks) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let files = authority.files(dir.path(), "127.0.0.1", FAR);
        let tls = Arc::new(Tls::load(files.clone()).unwrap());
        let users = match asks {
            Asks::Certificate => None,
            Asks::Password => {
                let users = Authenticator::new(directory(&[("root", "admin")]));
                Some(Arc::new(users.unwrap()))
            }
        };
        let security = Security {
            users,
            tls: Some(Arc::clone(&tls)),
            is_insecure: false,
        };
        Self {
            server: start_with(Options::default(), security).await,
            authority,
            tls,
            files,
            dir,
        }
    }

    /// A client that trusts the server, with a certificate of `authority`.
    fn client(&self, authority: &Authority, year: i32) -> Arc<ClientConfig> {
        let files = authority.files(self.dir.path(), "client.test", year);
        self.trusting(Some((files.cert, files.key)))
    }

    fn trusting(
        &self,
        identity: Option<(std::path::PathBuf, std::path::PathBuf)>,
    ) -> Arc<ClientConfig> {
        let ca = self.files.client_ca.clone().unwrap();
        caller(&CallerFiles { ca, identity }).unwrap()
    }

    /// Whether a call is answered.
    async fn answers(&self, config: Option<Arc<ClientConfig>>) -> bool {
        let addr = self.server.addr.to_string();
        let Ok(channel) = Channel::connect_by(&addr, config, SOON, Liveness::Operator).await else {
            return false;
        };
        let mut health = HealthClient::with_origin(channel.clone(), channel.origin());
        health.check(HealthCheckRequest::default()).await.is_ok()
    }
}

enum Asks {
    Certificate,
    Password,
}

/// For what comes at once.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn certificates_that_are_wrong_expired_or_missing_are_refused() {
    let rig = Rig::start(Asks::Certificate).await;
    assert!(rig.answers(Some(rig.client(&rig.authority, FAR))).await);
    assert!(!rig.answers(Some(rig.trusting(None))).await, "missing");
    let expired = rig.client(&rig.authority, 2021);
    assert!(!rig.answers(Some(expired)).await, "expired");
    let stranger = rig.client(&Authority::new(), FAR);
    assert!(!rig.answers(Some(stranger)).await, "of another authority");
    // Clients on the same machine need none.
    assert!(rig.answers(None).await);
    assert!(rig.server.get("/healthz").await.ends_with("ok\n"));
}

#[tokio::test]
async fn where_passwords_are_asked_for_a_certificate_may_be_left_out() {
    let rig = Rig::start(Asks::Password).await;
    assert!(rig.answers(Some(rig.trusting(None))).await);
    let stranger = rig.client(&Authority::new(), FAR);
    assert!(!rig.answers(Some(stranger)).await, "a wrong one is shown");
    // A client that does not trust the server.
    let elsewhere = Authority::new().files(rig.dir.path(), "elsewhere.test", FAR);
    let ca = elsewhere.client_ca.unwrap();
    let wary = caller(&CallerFiles { ca, identity: None }).unwrap();
    let addr = rig.server.addr.to_string();
    let refused = Channel::connect_by(&addr, Some(wary), SOON, Liveness::Operator).await;
    assert!(matches!(refused, Err(ChannelError::Tls(_))), "{refused:?}");
    // The certificate is for an address, not for this name.
    let named = format!("localhost:{}", rig.server.addr.port());
    let refused =
        Channel::connect_by(&named, Some(rig.trusting(None)), SOON, Liveness::Operator).await;
    assert!(matches!(refused, Err(ChannelError::Tls(_))), "{refused:?}");
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_and_connections_go_on() {
    let rig = Rig::start(Asks::Password).await;
    let addr = rig.server.addr.to_string();
    let config = rig.trusting(None);
    let channel =
        Channel::connect_by(&addr, Some(Arc::clone(&config)), SOON, Liveness::Operator).await;
    let channel = channel.unwrap();
    let mut before = HealthClient::with_origin(channel.clone(), channel.origin());
    before.check(HealthCheckRequest::default()).await.unwrap();
    // Of another authority, which the client does not trust: it shows which one is in force.
    let other = Authority::new().files(rig.dir.path(), "127.0.0.1", FAR - 1);
    std::fs::copy(other.cert, &rig.files.cert).unwrap();
    std::fs::copy(other.key, &rig.files.key).unwrap();
    rig.tls.reload().unwrap();
    assert!(!rig.answers(Some(config)).await);
    before.check(HealthCheckRequest::default()).await.unwrap();
}

/// As the streams of the topology and of the users, which a router opens and keeps.
#[tokio::test]
async fn a_connection_to_a_member_ends_when_the_certificate_of_the_member_is_revoked() {
    const STOLEN: u64 = 7;
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let issue = |name: &str, serial: u64| {
        authority.issue(&dir.path().join(name), name, |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        })
    };
    let member = Tls::load(issue("127.0.0.1", STOLEN)).unwrap();
    let security = Security {
        tls: Some(Arc::new(member)),
        ..Security::default()
    };
    let server = start_with(Options::default(), security).await;
    let crl = dir.path().join("crl.pem");
    std::fs::write(&crl, authority.revoked(&[])).unwrap();
    let files = TlsFiles {
        client_crl: Some(crl.clone()),
        ..issue("router.test", STOLEN + 1)
    };
    let tls = Arc::new(Tls::load(files).unwrap());
    let addr = server.addr.to_string();
    let connect = || Channel::connect_to_member(&addr, Some(&tls), SOON);

    let channel = connect().await.unwrap();
    let mut health = HealthClient::with_origin(channel.clone(), channel.origin());
    let request = HealthCheckRequest::default;
    let mut stream = health.watch(request()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    tls.reload().unwrap();
    health.check(request()).await.unwrap();

    std::fs::write(&crl, authority.revoked(&[STOLEN])).unwrap();
    tls.reload().unwrap();
    let ended = tokio::time::timeout(SOON, stream.message()).await;
    assert!(ended.expect("it goes on").is_err());
    assert!(health.check(request()).await.is_err());
    let refused = connect().await;
    assert!(matches!(refused, Err(ChannelError::Tls(_))), "{refused:?}");
}

#[tokio::test]
async fn what_is_silent_or_no_handshake_makes_room() {
    let rig = Rig::start(Asks::Password).await;
    for bytes in [&b"\x16\x03\x01"[..], &[0x16; 600], b"\x16"] {
        let mut stream = rig.server.connect().await;
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(rest.len() < 16, "an alert at most: {rest:?}");
    }
    assert!(rig.answers(Some(rig.trusting(None))).await);
}

#[tokio::test]
async fn without_tls_other_machines_may_only_ask_how_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let files = Authority::new().files(dir.path(), "a.test", FAR);
    let security = Security {
        tls: Some(Arc::new(Tls::load(files).unwrap())),
        ..Security::default()
    };
    let site = |security: Security| {
        let routes = Routes::new().with_standard(Metrics::new(), Readiness::new());
        Site::new(routes, Options::default(), security)
    };
    let takes = |site: &Site, path: &str, address: [u8; 4], is_encrypted: bool| {
        let peer = Peer {
            address: address.into(),
            is_encrypted,
        };
        let request = hyper::Request::get(path).body(()).unwrap();
        let is_grpc = path.contains('.');
        site.is_probe(&request, is_grpc) || site.takes(peer)
    };
    let strict = site(security.clone());
    let (near, far) = ([127, 0, 0, 1], [10, 0, 0, 7]);
    let health = "/grpc.health.v1.Health/Check";
    for probe in ["/healthz", "/readyz", health] {
        assert!(takes(&strict, probe, far, false), "{probe}");
    }
    for path in [
        "/",
        "/metrics",
        "/fonn.v1.Admin/Status",
        "/fonn.v1.Health/x",
    ] {
        assert!(!takes(&strict, path, far, false), "{path}");
        assert!(takes(&strict, path, far, true), "{path}");
        assert!(takes(&strict, path, near, false), "{path}");
    }
    let insecure = site(Security {
        is_insecure: true,
        ..security
    });
    assert!(takes(&insecure, "/metrics", far, false));
    let without = site(Security::default());
    assert!(takes(&without, "/metrics", far, false));
}
