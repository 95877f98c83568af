//! Whatever comes to the port, members go on.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Status};

use fonn_base::random::SplitMix64;
use fonn_proto::grpc::v1::members_client::MembersClient;
use fonn_proto::grpc::v1::{
    JoinRequest, MapRequest, PingRequest, ProposeRequest, RaftEnds, RaftKind, RaftRequest,
};

use super::world::{Node, World};
use crate::peers::client;
use crate::state::{Change, Put, Record, RecordKind};
use fonn_proto::member::MemberState::Active;

async fn channel(node: &Node) -> tonic::transport::Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", node.address()));
    endpoint.unwrap().connect().await.unwrap()
}

fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> Code {
    answer.unwrap_err().code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_answered_or_cut_off_and_harms_no_member() {
    let world = World::new();
    let node = world.found("a").await;
    node.sees(&["a"], Active).await;
    let mut random = SplitMix64::new(1);
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut inputs = vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"set k 0 0 1\r\nx\r\n".to_vec(),
        b"*1\r\n$4\r\nPING\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        http2.clone(),
        [http2.as_slice(), &[0xff; 4096]].concat(),
    ];
    for len in [1, 9, 100, 70_000] {
        let junk: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        inputs.push(junk.clone());
        inputs.push([http2.as_slice(), &junk].concat());
    }
    for input in inputs {
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        // It may close while this is written: that is an answer too.
        let _ = stream.write_all(&input).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let ended = tokio::time::timeout(Duration::from_secs(30), read).await;
        assert!(
            ended.is_ok(),
            "still open after {:?}",
            &input[..input.len().min(40)]
        );
    }
    node.propose(Change::SetReplicas(2)).await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn well_formed_nonsense_is_refused() {
    let world = World::new();
    let node = world.found("a").await;
    node.sees(&["a"], Active).await;
    let status = node.status(|status| status.cluster != 0).await;
    let epoch = node.cluster.state().borrow().epoch;
    let ends = RaftEnds {
        cluster: status.cluster,
        source: 1,
        target: node.cluster.raft_id(),
    };
    let stranger = RaftEnds { cluster: 1, ..ends };
    let other = RaftEnds { target: 1, ..ends };
    let mut members = client(channel(&node).await);
    let request = |ends: Option<RaftEnds>, version, payload: &[u8]| RaftRequest {
        ends,
        version,
        payload: payload.to_vec(),
        ..RaftRequest::default()
    };
    let kinds = [
        RaftKind::Append,
        RaftKind::Vote,
        RaftKind::PreVote,
        RaftKind::Snapshot,
    ];
    for (request, expected) in [
        (request(None, 1, b"{}"), Code::InvalidArgument),
        (request(Some(stranger), 1, b"{}"), Code::FailedPrecondition),
        (request(Some(other), 1, b"{}"), Code::FailedPrecondition),
        (request(Some(ends), 2, b"{}"), Code::InvalidArgument),
        (request(Some(ends), 1, b""), Code::InvalidArgument),
        (
            request(Some(ends), 1, b"{\"vote\":7}"),
            Code::InvalidArgument,
        ),
        (
            request(Some(ends), 1, &[b'['; 100_000]),
            Code::InvalidArgument,
        ),
    ] {
        for kind in kinds {
            let kind = kind.into();
            let request = RaftRequest {
                kind,
                ..request.clone()
            };
            assert_eq!(code(members.raft(request).await), expected);
        }
    }
    for kind in [0, 99] {
        let unknown = RaftRequest {
            kind,
            ..request(Some(ends), 1, b"null")
        };
        assert_eq!(code(members.raft(unknown).await), Code::InvalidArgument);
    }
    // Longer than any message may be: refused by its length, before it is taken in.
    let mut unbounded = MembersClient::new(channel(&node).await);
    let long = request(Some(ends), 1, &vec![0; 5 << 20]);
    unbounded.raft(long).await.unwrap_err();
    let vote = r#"{"leader_id":{"term":99,"node_id":1},"committed":true}"#;
    let meta = r#"{"last_log_id":null,"last_membership":{"log_id":null,"membership":{"configs":[],"nodes":{}}},"snapshot_id":"x"}"#;
    let offset = u64::MAX - 1;
    let far = format!(r#"{{"vote":{vote},"meta":{meta},"offset":{offset},"data":[],"done":true}}"#);
    let far = RaftRequest {
        kind: RaftKind::Snapshot.into(),
        data: vec![1; 9],
        ..request(Some(ends), 1, far.as_bytes())
    };
    let refused = members.raft(far).await.unwrap_err();
    assert!(refused.message().contains("longer than"), "{refused}");
    let of_another = MapRequest {
        cluster: 1,
        ..MapRequest::default()
    };
    assert_eq!(
        code(members.map(of_another).await),
        Code::FailedPrecondition
    );
    let ping = PingRequest {
        ends: Some(stranger),
        ..PingRequest::default()
    };
    assert_eq!(code(members.ping(ping).await), Code::FailedPrecondition);
    let propose = |version, change: &[u8]| ProposeRequest {
        cluster: status.cluster,
        version,
        change: change.to_vec(),
    };
    for request in [
        propose(1, b"{\"Explode\":1}"),
        propose(9, b"{}"),
        propose(1, b"\xff"),
    ] {
        assert_eq!(code(members.propose(request).await), Code::InvalidArgument);
    }
    let long = format!("{{\"Drain\":{{\"id\":\"{}\"}}}}", "x".repeat(1 << 20));
    for refused in [b"{\"SetReplicas\":9}", long.as_bytes()] {
        assert_eq!(
            code(members.propose(propose(1, refused)).await),
            Code::FailedPrecondition
        );
    }
    let join = |id: &str, weight| JoinRequest {
        id: id.to_owned(),
        raft_id: 5,
        client_address: "h:1".to_owned(),
        cluster_address: "h:2".to_owned(),
        zone: "z".to_owned(),
        weight,
        ..JoinRequest::default()
    };
    assert_eq!(
        code(members.join(join("x y", 1)).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(members.join(join("x", 70_000)).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(members.join(join("a", 1)).await),
        Code::AlreadyExists,
        "it is alive"
    );
    let after = node.cluster.status();
    assert_eq!(after.term, status.term);
    assert_eq!(node.cluster.state().borrow().epoch, epoch);
    node.stop().await;
}

/// They would be let in from the first certificate on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reaches_the_port_cannot_become_a_user_where_members_have_no_certificates() {
    let world = World::new();
    let node = world.found("a").await;
    node.sees(&["a"], Active).await;
    let status = node.status(|status| status.cluster != 0).await;
    let put = |kind| Put {
        kind,
        name: "mallory".to_owned(),
        record: Some(Record(
            r#"{"hash":"h","role":"admin","namespace":"n"}"#.to_owned(),
        )),
    };
    let revision = node.cluster.state().borrow().users_revision;
    let mut members = client(channel(&node).await);
    for kind in [RecordKind::User, RecordKind::Namespace] {
        let change = Change::PutTogether {
            revision,
            puts: vec![put(kind)],
        };
        let request = ProposeRequest {
            cluster: status.cluster,
            version: 1,
            change: serde_json::to_vec(&change).unwrap(),
        };
        let refused = members.propose(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{change:?}");
        assert!(refused.message().contains("--tls-client-ca"), "{refused}");
    }
    let with_users = MapRequest {
        with_users: true,
        ..MapRequest::default()
    };
    let mut maps = members.map(with_users).await.unwrap().into_inner();
    let told = maps.message().await.unwrap().unwrap();
    assert_eq!(told.users, None);
    // What comes after it is agreed on, and nothing before it was.
    node.propose(Change::SetReplicas(2)).await.unwrap();
    let state = node.cluster.state().borrow().clone();
    assert!(state.users.is_empty() && state.namespaces.is_empty());
    assert_eq!(state.users_revision, revision);
    node.stop().await;
}
