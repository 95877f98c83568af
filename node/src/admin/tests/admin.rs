//! `fonn.v1.Admin`.

use fonn_proto::Delete;
use fonn_proto::grpc::v1::{
    FlushRequest, KeyRequest, KeyResponse, SetCodecRequest, StatusRequest, Tier,
};
use tonic::Code;

use super::*;

const SPACE: Space = Space(0);

fn request(key: &[u8]) -> KeyRequest {
    KeyRequest {
        key: key.to_vec(),
        ..KeyRequest::default()
    }
}

/// The tiers that have a copy.
fn tiers(answer: &KeyResponse) -> Vec<Tier> {
    answer.copies.iter().map(|it| it.tier()).collect()
}

#[tokio::test]
async fn the_status_tells_about_every_tier() {
    let rig = Rig::over_a_bucket().await;
    rig.set(SPACE, b"k", b"v", ExpirySpec::Never).await;
    let get = Command::Get(fonn_proto::Get::new(b"k"));
    rig.execute(SPACE, &get, None).await;
    let absent = Command::Get(fonn_proto::Get::new(b"absent"));
    rig.execute(SPACE, &absent, None).await;
    let status = rig.admin().await.status(StatusRequest {}).await;
    let status = status.unwrap().into_inner();
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(status.not_ready_reason, "");
    assert_eq!(status.listeners, ["127.0.0.1:11211"]);
    assert_eq!(status.durability, "batched");
    assert_eq!(status.connections_max, 100);
    let ram = status.ram.unwrap();
    assert_eq!(ram.budget_bytes, 16 << 20);
    assert_eq!(ram.entries, 1);
    assert!(ram.used_bytes > 0);
    let disk = status.disk.unwrap();
    assert_eq!(disk.budget_bytes, 256 << 20);
    assert!(disk.entries > 0, "about");
    assert!(!disk.directory.is_empty() && disk.queue_bytes_max > 0);
    let lookups = status.lookups.unwrap();
    let count = |counts: &[fonn_proto::grpc::v1::Count], name: &str| {
        counts.iter().find(|it| it.name == name).unwrap().count
    };
    assert_eq!(count(&lookups.hits, "ram"), 1);
    assert_eq!(count(&lookups.hits, "disk"), 0);
    assert_eq!(count(&lookups.misses, "absent"), 1);
    assert_eq!(status.codecs[0].level, "ram");
    assert_eq!(status.cold.unwrap().region, "local");
}

#[tokio::test]
async fn before_the_store_is_open_only_the_status_answers() {
    let rig = Rig::starting(true).await;
    let mut admin = rig.admin().await;
    let status = admin.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.not_ready_reason, "starting");
    assert!(status.ram.is_none() && status.now_ms > 0);
    let refused = admin.key(request(b"k")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    rig.open_store();
    assert!(
        admin
            .key(request(b"k"))
            .await
            .unwrap()
            .into_inner()
            .copies
            .is_empty()
    );
}

#[tokio::test]
async fn a_key_is_found_in_each_tier_with_its_form() {
    let rig = Rig::over_a_bucket().await;
    let value = vec![b'x'; 5000];
    rig.set(SPACE, b"k", &value, ExpirySpec::InMs(60_000)).await;
    let mut admin = rig.admin().await;
    let answer = admin.key(request(b"k")).await.unwrap().into_inner();
    assert_eq!(tiers(&answer), [Tier::Ram, Tier::Disk]);
    let [ram, disk] = &answer.copies[..] else {
        panic!("two copies");
    };
    assert_eq!(ram.version, disk.version);
    assert_eq!((ram.value_bytes, ram.stored_bytes), (5000, 5000));
    assert_eq!((ram.codec.as_str(), disk.codec.as_str()), ("none", "lz4"));
    assert_eq!(disk.value_bytes, 5000);
    assert!(disk.stored_bytes < 1000, "{disk:?}");
    assert!(disk.location.starts_with("generation "), "{disk:?}");
    assert_eq!((ram.flags, disk.flags), (7, 7));
    assert!(ram.expires_at_ms > answer.now_ms && ram.expires_at_ms == disk.expires_at_ms);
    assert!(!disk.tombstone && !disk.damaged);
    rig.spill().await;
    let answer = admin.key(request(b"k")).await.unwrap().into_inner();
    let [_, disk, cold] = &answer.copies[..] else {
        panic!("three copies");
    };
    assert_eq!((cold.tier(), cold.version), (Tier::Cold, disk.version));
    assert_eq!((cold.value_bytes, cold.flags), (5000, 7));
    assert_eq!(cold.expires_at_ms, disk.expires_at_ms);
    assert!(cold.location.starts_with("segment local/"), "{cold:?}");
    assert!(
        cold.stored_bytes > 0 && cold.stored_bytes < 5000,
        "{cold:?}"
    );
    // Looking is no use, and databases are apart.
    let get = Command::Delete(Delete::new(b"k"));
    rig.execute(SPACE, &get, None).await;
    let answer = admin.key(request(b"k")).await.unwrap().into_inner();
    // The bucket has not heard of it yet.
    let mut here = answer.copies.iter().filter(|it| it.tier() != Tier::Cold);
    assert!(here.all(|it| it.tombstone), "{answer:?}");
    let elsewhere = KeyRequest {
        database: 1,
        ..request(b"k")
    };
    assert!(
        admin
            .key(elsewhere)
            .await
            .unwrap()
            .into_inner()
            .copies
            .is_empty()
    );
}

#[tokio::test]
async fn keys_that_cannot_be_are_refused() {
    let rig = Rig::open().await;
    let mut admin = rig.admin().await;
    for (request, code) in [
        (request(b""), Code::InvalidArgument),
        (request(&vec![b'k'; (32 << 10) + 1]), Code::InvalidArgument),
        (
            KeyRequest {
                database: 16,
                ..request(b"k")
            },
            Code::InvalidArgument,
        ),
        (
            KeyRequest {
                namespace: "absent".to_owned(),
                ..request(b"k")
            },
            Code::NotFound,
        ),
        // Larger than any request may be.
        (request(&vec![b'k'; 1 << 20]), Code::OutOfRange),
    ] {
        assert_eq!(admin.key(request).await.unwrap_err().code(), code);
    }
    let longest = request(&vec![b'k'; 32 << 10]);
    assert!(
        admin
            .key(longest)
            .await
            .unwrap()
            .into_inner()
            .copies
            .is_empty()
    );
}

#[tokio::test]
async fn a_flush_hides_a_database_or_all() {
    let rig = Rig::open().await;
    let mut admin = rig.admin().await;
    for database in [0, 3] {
        rig.set(Space(database), b"k", b"v", ExpirySpec::Never)
            .await;
    }
    let one = FlushRequest {
        namespace: "default".to_owned(),
        database: Some(3),
    };
    assert_eq!(admin.flush(one).await.unwrap().into_inner().databases, 1);
    let cutoff = async |database| {
        let asked = KeyRequest {
            database,
            ..request(b"k")
        };
        let answer = rig.admin().await.key(asked).await.unwrap().into_inner();
        answer.copies[0].version < answer.flushed_below_version
    };
    assert!(!cutoff(0).await && cutoff(3).await);
    let all = FlushRequest {
        namespace: "default".to_owned(),
        database: None,
    };
    assert_eq!(admin.flush(all).await.unwrap().into_inner().databases, 16);
    assert!(cutoff(0).await);
    for (namespace, database, code) in [
        ("", None, Code::InvalidArgument),
        ("absent", None, Code::NotFound),
        ("default", Some(16), Code::InvalidArgument),
    ] {
        let request = FlushRequest {
            namespace: namespace.to_owned(),
            database,
        };
        assert_eq!(admin.flush(request).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn a_changed_codec_is_used_and_told() {
    let rig = Rig::open().await;
    let mut admin = rig.admin().await;
    let set = |level: &str, codec: &str| SetCodecRequest {
        level: level.to_owned(),
        codec: codec.to_owned(),
    };
    let changed = admin.set_codec(set("fresh", "zstd:1")).await.unwrap();
    let changed = changed.into_inner();
    assert_eq!(
        (changed.previous.as_str(), changed.codec.as_str()),
        ("lz4", "zstd:1")
    );
    admin.set_codec(set("ram", "lz4")).await.unwrap();
    let status = admin.status(StatusRequest {}).await.unwrap().into_inner();
    let words: Vec<String> = status
        .codecs
        .iter()
        .map(|it| format!("{}={}", it.level, it.codec))
        .collect();
    assert_eq!(words[..2], ["ram=lz4", "fresh=zstd:1"]);
    assert_eq!(status.codec_min_bytes, 256);
    rig.set(SPACE, b"k", &[b'x'; 5000], ExpirySpec::Never).await;
    let answer = admin.key(request(b"k")).await.unwrap().into_inner();
    let codecs: Vec<&str> = answer.copies.iter().map(|it| it.codec.as_str()).collect();
    assert_eq!(codecs, ["lz4", "zstd:1"]);
    for (level, codec) in [
        ("ram", "best"),
        ("attic", "lz4"),
        ("", ""),
        ("ram", "zstd:99"),
    ] {
        let refused = admin.set_codec(set(level, codec)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{level}={codec}");
        assert!(!refused.message().is_empty());
    }
}

#[tokio::test]
async fn a_node_without_disk_has_no_codec_for_it() {
    let rig = Rig::starting(false).await;
    rig.open_store();
    let mut admin = rig.admin().await;
    let status = admin.status(StatusRequest {}).await.unwrap();
    assert_eq!(status.into_inner().codecs.len(), 1);
    let request = SetCodecRequest {
        level: "fresh".to_owned(),
        codec: "lz4".to_owned(),
    };
    let refused = admin.set_codec(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("--data-dir none"), "{refused}");
    rig.set(SPACE, b"k", b"v", ExpirySpec::Never).await;
    let answer = admin.key(self::request(b"k")).await.unwrap().into_inner();
    assert_eq!(tiers(&answer), [Tier::Ram]);
}
