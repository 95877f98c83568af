//! Routers that follow the map at members of a cluster.

use tonic::Streaming;

use fonn_proto::grpc::v1::{ClusterMap, MapRequest};

use super::world::{Node, PATIENCE, World};

/// The stream of the map for a router that clients reach at `router`.
async fn follow(at: &Node, router: &str) -> Streaming<ClusterMap> {
    let address = format!("http://{}", at.address());
    let endpoint = tonic::transport::Endpoint::from_shared(address).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let request = MapRequest {
        cluster: 0,
        router: router.to_owned(),
    };
    let mut client = crate::cluster::participant::client(channel);
    client.map(request).await.unwrap().into_inner()
}

/// Waits until a stream tells these routers.
async fn told(stream: &mut Streaming<ClusterMap>, wanted: &[&str]) {
    let comes = async {
        loop {
            let map = stream.message().await.unwrap().unwrap();
            assert_eq!(map.members.len(), 3, "each message is a whole map");
            if map.routers == wanted {
                return;
            }
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, comes).await;
    assert!(in_time.is_ok(), "{wanted:?} are not told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routers_are_told_of_each_other_wherever_they_follow_the_map() {
    let world = World::new();
    let nodes = world.form(&["a", "b", "c"]).await;
    let (first, second) = ("127.0.0.1:7001", "127.0.0.1:7002");
    let mut one = follow(&nodes[1], first).await;
    told(&mut one, &[first]).await;
    let other = follow(&nodes[2], second).await;
    told(&mut one, &[first, second]).await;
    // A client that is no router, or names an unusable address, is told of none.
    for nobody in ["", "0.0.0.0:7003", "a b:7003"] {
        let map = follow(&nodes[0], nobody).await.message().await;
        assert_eq!(map.unwrap().unwrap().routers, [""; 0], "{nobody:?}");
    }
    // Its stream is its life.
    drop(other);
    told(&mut one, &[first]).await;
    for node in &nodes {
        let mut known = node.cluster.participant.routers.all();
        let forgotten = known.wait_for(|it| **it == [first.to_owned()]);
        let in_time = tokio::time::timeout(PATIENCE, forgotten).await;
        assert!(
            in_time.is_ok(),
            "{} knows {:?}",
            node.id(),
            node.cluster.routers()
        );
    }
    drop(one);
    for node in nodes {
        node.stop().await;
    }
}
