//! Members under TLS, and which clients count as members.

use std::path::PathBuf;
use std::sync::Arc;

use fonn_auth::testing::{Authority, FAR, directory};
use fonn_auth::tls::{Tls, TlsFiles};
use fonn_auth::{Authenticator, Security};
use fonn_rpc::CallError;
use tempfile::TempDir;

use super::*;

/// A server with users and a certificate, and the authority of its members.
struct Rig {
    running: Running,
    authority: Authority,
    tls: Arc<Tls>,
    ca: PathBuf,
    dir: TempDir,
}

impl Rig {
    fn start(manner: Manner) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let files = authority.files(dir.path(), "127.0.0.1", FAR);
        let users = Authenticator::new(directory(&[("ci", "read-write")])).unwrap();
        let tls = Arc::new(Tls::load(files.clone()).unwrap());
        let security = Security {
            users: Some(Arc::new(users)),
            tls: Some(Arc::clone(&tls)),
            is_insecure: false,
        };
        Self {
            running: Running::protected(manner, security),
            authority,
            tls,
            ca: files.client_ca.unwrap(),
            dir,
        }
    }

    /// A peer that trusts the server, with a certificate of `authority`.
    fn peer(&self, authority: &Authority, year: i32, name: &str) -> Client {
        let files = TlsFiles {
            client_ca: Some(self.ca.clone()),
            ..authority.files(self.dir.path(), "peer.test", year)
        };
        self.with(Some(Arc::new(Tls::load(files).unwrap())), name)
    }

    fn with(&self, tls: Option<Arc<Tls>>, name: &str) -> Client {
        let options = Options {
            tls,
            ..Options::new(self.running.address(), name)
        };
        Client::start(options, PeerMetrics::register(&Metrics::new()).stats())
    }
}

async fn outcome(client: &Client, request: &Request<'_>) -> Result<Answer, CallError> {
    client
        .call(request, Envelope::default(), None, PATIENCE)
        .await
}

/// That no client is admitted, without anything being done.
async fn refused(client: Client) {
    let answer = outcome(&client, &set(b"k", b"v")).await;
    let error = answer.map(|answer| format!("{:?}", answer.reply()));
    assert!(
        matches!(
            error,
            Err(CallError::Closed | CallError::Lost | CallError::Unavailable)
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_member_with_a_certificate_is_let_in_where_clients_log_in() {
    let rig = Rig::start(Manner::AtOnce);
    let client = rig.peer(&rig.authority, FAR, "router");
    outcome(&client, &set(b"k", b"v")).await.unwrap();
    let found = outcome(&client, &get(b"k")).await.unwrap();
    assert_eq!(value(&found).unwrap(), b"v");
    // Though its address alone would not do.
    let afar = rig.peer(&rig.authority, FAR, "afar");
    let found = outcome(&afar, &get(b"k")).await.unwrap();
    assert_eq!(value(&found).unwrap(), b"v");
}

#[tokio::test]
async fn other_clients_are_not() {
    let rig = Rig::start(Manner::AtOnce);
    refused(rig.with(None, "router")).await;
    refused(rig.peer(&rig.authority, 2021, "router")).await;
    refused(rig.peer(&Authority::new(), FAR, "router")).await;
    // A server that is not the one that was meant.
    let other = Authority::new();
    let files = other.files(rig.dir.path(), "wary.test", FAR);
    refused(rig.with(Some(Arc::new(Tls::load(files).unwrap())), "router")).await;
    assert_eq!(rig.running.service().executed(), 0);
}

#[tokio::test]
async fn a_member_is_let_in_no_longer_than_its_certificate_is_good() {
    let rig = Rig::start(Manner::AtOnce);
    let client = rig.peer(&rig.authority, FAR, "router");
    outcome(&client, &set(b"k", b"v")).await.unwrap();
    std::fs::write(&rig.ca, Authority::new().0.pem()).unwrap();
    rig.tls.reload().unwrap();
    // The connection ends, and there is no other.
    let ended = async { while outcome(&client, &get(b"k")).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, ended)
        .await
        .expect("it goes on");
    refused(client).await;
}

#[tokio::test]
async fn large_values_and_many_requests_arrive_whole() {
    let rig = Rig::start(Manner::AtOnce);
    let client = rig.peer(&rig.authority, FAR, "router");
    let large: Vec<u8> = (0..3_000_000_u32)
        .map(|it| (it * 7 + it / 251) as u8)
        .collect();
    outcome(&client, &set(b"large", &large)).await.unwrap();
    for round in 0..3 {
        let found = outcome(&client, &get(b"large")).await.unwrap();
        assert!(value(&found).unwrap() == large, "round {round}");
    }
    let keys: Vec<String> = (0..2000).map(|number| format!("key-{number}")).collect();
    let middle = vec![b'm'; 3000];
    let stored: Vec<Pending> = keys
        .iter()
        .map(|key| ask(&client, &set(key.as_bytes(), &middle)))
        .collect();
    for pending in stored {
        pending.await.unwrap();
    }
    let found: Vec<Pending> = keys
        .iter()
        .map(|key| ask(&client, &get(key.as_bytes())))
        .collect();
    for pending in found {
        assert_eq!(value(&pending.await.unwrap()).unwrap(), middle);
    }
}
