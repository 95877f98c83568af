//! Members that know each other by certificates.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fonn_admin::{Channel, Liveness};
use fonn_auth::tls::{self, CallerFiles, Tls, TlsFiles};
use fonn_proto::grpc::v1::MapRequest;
use fonn_proto::grpc::v1::members_client::MembersClient;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::ClientConfig;

use super::world::{Node, World};
use crate::state::{Change, Put, Record, RecordKind};
use crate::{Options, Start};
use fonn_proto::member::MemberState::Active;

const FAR: i32 = 2200;
const SOON: Duration = Duration::from_secs(20);

/// An authority whose certificates are for members on this machine.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate until `year`, with trust in `trusted`.
    fn files(&self, dir: &Path, year: i32, trusted: &Self) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let cert = params.signed_by(&key, &self.0).unwrap();
        std::fs::create_dir_all(dir).unwrap();
        let files = TlsFiles {
            cert: dir.join("cert.pem"),
            key: dir.join("key.pem"),
            client_ca: Some(dir.join("ca.pem")),
            client_crl: None,
        };
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        std::fs::write(dir.join("ca.pem"), trusted.0.pem()).unwrap();
        files
    }

    fn tls(&self, world: &World, name: &str) -> Arc<Tls> {
        self.member(&world.dir(&format!("tls-{name}")))
    }

    /// A member of this authority.
    pub(crate) fn member(&self, dir: &Path) -> Arc<Tls> {
        Arc::new(Tls::load(self.files(dir, FAR, self)).unwrap())
    }
}

fn options(world: &World, id: &str, start: Start, tls: Option<Arc<Tls>>) -> Options {
    let mut options = world.options(id, start);
    options.tls = tls;
    options
}

/// Whether the members tell this one their map.
async fn is_told(node: &Node, tls: Option<&Tls>) -> bool {
    is_told_by(node, tls.and_then(Tls::client)).await
}

async fn is_told_by(node: &Node, config: Option<Arc<ClientConfig>>) -> bool {
    let Ok(channel) = Channel::connect_by(&node.address(), config, SOON, Liveness::Operator).await
    else {
        return false;
    };
    let origin = channel.origin();
    let mut client = MembersClient::with_origin(channel, origin);
    let Ok(maps) = client.map(MapRequest::default()).await else {
        return false;
    };
    matches!(maps.into_inner().message().await, Ok(Some(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_one_authority_form_a_cluster_and_no_other_comes_in() {
    let world = World::new();
    let authority = Authority::new();
    let certified = |name: &str| Some(authority.tls(&world, name));
    let first = options(&world, "a", Start::Bootstrap, certified("a"));
    let mut nodes = vec![world.start(first).await];
    let at = Start::Join(vec![nodes[0].address()]);
    for id in ["b", "c"] {
        let joining = options(&world, id, at.clone(), certified(id));
        nodes.push(world.start(joining).await);
    }
    for node in &nodes {
        node.sees(&["a", "b", "c"], Active).await;
        node.status(|status| status.cluster != 0).await;
    }
    // All members reach the leader.
    for (node, replicas) in nodes.iter().zip([2, 3, 2]) {
        node.propose(Change::SetReplicas(replicas)).await.unwrap();
    }

    assert!(is_told(&nodes[1], certified("router").as_deref()).await);
    assert!(!is_told(&nodes[1], None).await, "without TLS");
    let dir = world.dir("strangers");
    let ca = authority
        .files(&dir.join("bare"), FAR, &authority)
        .client_ca;
    let bare = CallerFiles {
        ca: ca.unwrap(),
        identity: None,
    };
    let bare = tls::caller(&bare).unwrap();
    assert!(
        !is_told_by(&nodes[1], Some(bare)).await,
        "without a certificate"
    );
    let other = Authority::new();
    let stranger = Tls::load(other.files(&dir.join("other"), FAR, &authority)).unwrap();
    assert!(
        !is_told(&nodes[1], Some(&stranger)).await,
        "another authority"
    );
    let expired = Tls::load(authority.files(&dir.join("late"), 2021, &authority)).unwrap();
    assert!(!is_told(&nodes[1], Some(&expired)).await, "expired");

    // One that would join does not, with a certificate of another authority or with none.
    let wrong = options(&world, "d", at.clone(), Some(Arc::new(stranger)));
    let bare = options(&world, "e", at, None);
    let outside = [world.start(wrong).await, world.start(bare).await];
    nodes[2].propose(Change::SetReplicas(1)).await.unwrap();
    nodes[0].sees(&["a", "b", "c"], Active).await;
    for node in &outside {
        assert_eq!(node.cluster.status().cluster, 0, "{}", node.id());
    }
    let map = nodes[0].cluster.map().borrow().clone();
    assert!(map.member("d").is_none() && map.member("e").is_none());
    for node in nodes.into_iter().chain(outside) {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_the_map_has_the_users_first_and_when_they_are_changed_if_asked_for() {
    let world = World::new();
    let authority = Authority::new();
    let tls = Some(authority.tls(&world, "a"));
    let node = world
        .start(options(&world, "a", Start::Bootstrap, tls))
        .await;
    node.sees(&["a"], Active).await;
    node.status(|status| status.cluster != 0).await;
    let router = authority.tls(&world, "router");
    let channel =
        Channel::connect_by(&node.address(), router.client(), SOON, Liveness::Operator).await;
    let channel = channel.unwrap();
    let origin = channel.origin();
    let mut client = MembersClient::with_origin(channel, origin);
    let mut follow = async |with_users| {
        let request = MapRequest {
            cluster: 0,
            with_users,
        };
        client.map(request).await.unwrap().into_inner()
    };
    let (mut with, mut without) = (follow(true).await, follow(false).await);
    let first = with.message().await.unwrap().unwrap().users.unwrap();
    assert_eq!((first.revision, first.users.len()), (0, 0));
    assert_eq!(without.message().await.unwrap().unwrap().users, None);
    let text = r#"{"hash":"h","role":"read","namespace":"n"}"#;
    let put = Put {
        kind: RecordKind::User,
        name: "ci".to_owned(),
        record: Some(Record(text.to_owned())),
    };
    let put = Change::PutTogether {
        revision: 0,
        puts: vec![put],
    };
    node.propose(put).await.unwrap();
    let changed = with.message().await.unwrap().unwrap().users.unwrap();
    assert_eq!((changed.revision, changed.users["ci"].as_str()), (1, text));
    node.propose(Change::SetReplicas(2)).await.unwrap();
    for stream in [&mut with, &mut without] {
        let next = stream.message().await.unwrap().unwrap();
        assert_eq!((next.replicas, next.users), (2, None));
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_used_for_new_connections() {
    let world = World::new();
    let (old, new) = (Authority::new(), Authority::new());
    let dir = world.dir("tls");
    let files = old.files(&dir.join("a"), FAR, &old);
    let tls = Arc::new(Tls::load(files.clone()).unwrap());
    let node = options(&world, "a", Start::Bootstrap, Some(Arc::clone(&tls)));
    let node = world.start(node).await;
    node.sees(&["a"], Active).await;
    // Until it knows that it belongs to a cluster it tells no client its map.
    node.status(|status| status.cluster != 0).await;
    let caller = |authority: &Authority, name: &str| {
        Tls::load(authority.files(&dir.join(name), FAR, authority)).unwrap()
    };
    let (before, after) = (caller(&old, "before"), caller(&new, "after"));
    assert!(is_told(&node, Some(&before)).await);
    assert!(!is_told(&node, Some(&after)).await);
    new.files(&dir.join("a"), FAR, &new);
    tls.reload().unwrap();
    assert!(!is_told(&node, Some(&before)).await);
    assert!(is_told(&node, Some(&after)).await);
    node.stop().await;
}

/// Streams of members that last for hours end with the trust in them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_the_authority_is_another_one() {
    let world = World::new();
    let (old, new) = (Authority::new(), Authority::new());
    let dir = world.dir("tls");
    let tls = old.member(&dir.join("a"));
    let node = options(&world, "a", Start::Bootstrap, Some(Arc::clone(&tls)));
    let node = world.start(node).await;
    node.sees(&["a"], Active).await;
    node.status(|status| status.cluster != 0).await;
    let caller = old.member(&dir.join("stolen"));
    let channel =
        Channel::connect_by(&node.address(), caller.client(), SOON, Liveness::Operator).await;
    let channel = channel.unwrap();
    let origin = channel.origin();
    let mut client = MembersClient::with_origin(channel, origin);
    let mut maps = client
        .map(MapRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(maps.message().await.unwrap().is_some());
    new.files(&dir.join("a"), FAR, &new);
    tls.reload().unwrap();
    let ended = async { while let Ok(Some(_)) = maps.message().await {} };
    tokio::time::timeout(SOON, ended).await.expect("it goes on");
    assert!(client.map(MapRequest::default()).await.is_err());
    node.stop().await;
}
