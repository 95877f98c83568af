//! `fonn.v1.Telemetry`, and deletes, which are told there.

use fonn_base::metrics::cells::LocalCounter;
use fonn_proto::grpc::v1::telemetry_client::TelemetryClient;
use fonn_proto::grpc::v1::{
    DeleteKeyRequest, EventLevel, EventsRequest, KeyRequest, SetCodecRequest, WatchRequest,
    WatchResponse,
};
use tonic::{Code, Streaming};

use super::*;

const HOUR: WatchRequest = WatchRequest {
    history_seconds: 3600,
};

impl Rig {
    async fn telemetry(&self) -> TelemetryClient<Channel> {
        let channel = self.channel().await;
        let origin = channel.origin();
        TelemetryClient::with_origin(channel, origin)
    }
}

/// Publishes a counter, and returns its cell.
fn counter(metrics: &Metrics, name: &'static str) -> Arc<LocalCounter> {
    let cell = Arc::new(LocalCounter::default());
    let scraped = Arc::clone(&cell);
    metrics.on_scrape(move |snapshot| snapshot.counter(name, "Test.", &[], scraped.get()));
    cell
}

async fn next(stream: &mut Streaming<WatchResponse>) -> WatchResponse {
    let message = tokio::time::timeout(GRACE, stream.message()).await;
    message.expect("news in time").unwrap().expect("no end")
}

#[tokio::test]
async fn a_reader_gets_the_past_and_then_what_changes() {
    let rig = Rig::open().await;
    let gets = counter(&rig.metrics, "fonn_gets_total");
    rig.metrics
        .on_scrape(|snapshot| snapshot.gauge("fonn_still", "Still.", &[], 5.0));
    for _ in 0..3 {
        gets.inc();
        rig.telemetry.take_sample();
    }
    let mut client = rig.telemetry().await;
    let mut stream = client.watch(HOUR).await.unwrap().into_inner();
    let past = next(&mut stream).await;
    assert_eq!(past.not_ready_reason, "");
    assert!(past.started_at_ms > 0);
    let id = |name: &str| past.series.iter().find(|it| it.name == name).unwrap().id;
    let (gets_id, still_id) = (id("fonn_gets_total"), id("fonn_still"));
    assert_eq!(past.samples.len(), 3);
    let first = &past.samples[0];
    let value = |id| first.values[first.ids.iter().position(|it| *it == id).unwrap()];
    assert_eq!((value(gets_id), value(still_id)), (1.0, 5.0));
    for (sample, expected) in past.samples[1..].iter().zip([2.0, 3.0]) {
        assert_eq!(
            (&*sample.ids, &*sample.values),
            (&[gets_id][..], &[expected][..])
        );
    }

    gets.add(10);
    let late = counter(&rig.metrics, "fonn_late_total");
    rig.telemetry.take_sample();
    let news = next(&mut stream).await;
    assert_eq!(news.samples.len(), 1);
    assert_eq!(news.series.len(), 1, "only the new one");
    assert_eq!(news.series[0].name, "fonn_late_total");
    assert_eq!(news.samples[0].ids, [gets_id, news.series[0].id]);
    assert_eq!(news.samples[0].values, [13.0, 0.0]);
    late.inc();
    rig.readiness.set_not_ready("draining");
    rig.telemetry.take_sample();
    assert_eq!(next(&mut stream).await.not_ready_reason, "draining");
}

#[tokio::test]
async fn a_reader_that_wants_no_past_gets_none() {
    let rig = Rig::open().await;
    let clock = fonn_base::clock::ManualClock::new(1_000_000);
    let events = Events::new(clock.clock(), 10);
    let telemetry = Telemetry::new(clock.clock(), Metrics::new(), rig.readiness.clone(), events);
    telemetry.take_sample();
    clock.advance(Duration::from_secs(5));
    let server = fonn_admin::Grpc::new().with(telemetry.server());
    let routes = Routes::new().with_grpc(server);
    let server = Server::bind(([127, 0, 0, 1], 0).into(), routes, Options::default());
    let server = server.await.unwrap();
    let addr = server.local_addr().to_string();
    let (_stop, stopped) = shutdown::channel();
    tokio::spawn(server.run(stopped));
    let channel = Channel::connect(&addr, GRACE).await.unwrap();
    let origin = channel.origin();
    let mut client = TelemetryClient::with_origin(channel, origin);
    let mut stream = client
        .watch(WatchRequest::default())
        .await
        .unwrap()
        .into_inner();
    telemetry.take_sample();
    let news = next(&mut stream).await;
    let at: Vec<u64> = news.samples.iter().map(|it| it.at_ms).collect();
    assert_eq!(at, [1_005_000]);
}

#[tokio::test]
async fn what_an_operator_changes_is_told_at_once() {
    let rig = Rig::open().await;
    let mut client = rig.telemetry().await;
    let mut stream = client.watch(HOUR).await.unwrap().into_inner();
    let change = SetCodecRequest {
        level: "fresh".to_owned(),
        codec: "zstd:1".to_owned(),
    };
    rig.admin().await.set_codec(change).await.unwrap();
    let news = next(&mut stream).await;
    assert!(news.samples.is_empty());
    let [event] = &news.events[..] else {
        panic!("one event: {news:?}");
    };
    assert_eq!((event.sequence, event.level()), (1, EventLevel::Info));
    assert_eq!(event.topic, "settings");
    assert_eq!(
        event.message,
        "codec of fresh was set to zstd:1, before lz4"
    );
    let after = |after_sequence| EventsRequest { after_sequence };
    let all = client.events(after(0)).await.unwrap().into_inner().events;
    assert_eq!(all, std::slice::from_ref(event));
    let none = client.events(after(1)).await.unwrap().into_inner().events;
    assert!(none.is_empty());
}

#[tokio::test]
async fn a_deleted_key_is_gone_from_all_tiers_and_is_not_named() {
    let rig = Rig::open().await;
    let space = Space(0);
    rig.set(space, b"secret-key", b"value", ExpirySpec::Never)
        .await;
    let mut admin = rig.admin().await;
    let request = || DeleteKeyRequest {
        key: b"secret-key".to_vec(),
        ..DeleteKeyRequest::default()
    };
    let deleted = admin.delete_key(request()).await.unwrap().into_inner();
    assert!(deleted.existed);
    let again = admin.delete_key(request()).await.unwrap().into_inner();
    assert!(!again.existed);
    let where_is = KeyRequest {
        key: b"secret-key".to_vec(),
        ..KeyRequest::default()
    };
    let copies = admin.key(where_is).await.unwrap().into_inner().copies;
    assert!(copies.iter().all(|copy| copy.tombstone), "{copies:?}");
    let refused = admin.delete_key(DeleteKeyRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    let events = rig.telemetry().await.events(EventsRequest::default()).await;
    let events = events.unwrap().into_inner().events;
    assert!(!events.is_empty() && events.iter().all(|it| !it.message.contains("secret")));
}
