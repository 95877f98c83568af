//! `fonn.v1.Cold`.

use fonn_cold_tier::ObjectKey;
use fonn_cold_tier::store::fault::{Fault, Rule};
use fonn_cold_tier::store::{Operation, StoreErrorKind};
use fonn_proto::grpc::v1::verify_response::Event;
use fonn_proto::grpc::v1::{
    DoctorRequest, InspectSegmentRequest, ListSegmentsRequest, RebuildRequest, Segment,
    SegmentState, Severity, StatusRequest, VerifyRequest,
};
use tonic::{Code, Streaming};

use super::*;

/// Entries in each of the two segments.
const ENTRIES: u64 = 3;

/// A node that has brought two segments into the bucket.
async fn rig() -> Rig {
    let rig = Rig::over_a_bucket().await;
    for segment in 0..2 {
        for number in 0..ENTRIES {
            let key = format!("{segment}/{number}");
            rig.set(Space(3), key.as_bytes(), b"value", ExpirySpec::Never)
                .await;
        }
        rig.spill().await;
    }
    rig
}

/// The segments that the node knows.
async fn segments(cold: &mut ColdClient<Channel>) -> Vec<Segment> {
    let listed = cold.list_segments(ListSegmentsRequest::default()).await;
    listed.unwrap().into_inner().segments
}

/// All messages of a stream, and how it ended.
async fn all<T>(mut stream: Streaming<T>) -> (Vec<T>, Option<Code>) {
    let mut messages = Vec::new();
    loop {
        match stream.message().await {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, None),
            Err(status) => return (messages, Some(status.code())),
        }
    }
}

#[tokio::test]
async fn a_node_without_cold_tier_says_how_to_get_one() {
    let rig = Rig::open().await;
    let mut cold = rig.cold().await;
    let inspect = InspectSegmentRequest::default();
    let refusals = [
        cold.doctor(DoctorRequest {}).await.unwrap_err(),
        cold.list_segments(ListSegmentsRequest::default())
            .await
            .unwrap_err(),
        cold.inspect_segment(inspect).await.unwrap_err(),
        cold.verify(VerifyRequest::default()).await.unwrap_err(),
        cold.rebuild(RebuildRequest {}).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.code(), Code::FailedPrecondition);
        assert_eq!(
            refusal.message(),
            "this node has no cold tier; start it with --cold-tier s3://bucket/prefix"
        );
    }
}

#[tokio::test]
async fn the_status_has_lag_and_cost() {
    let rig = rig().await;
    let mut cold = rig.cold().await;
    let status = rig.admin().await.status(StatusRequest {}).await.unwrap();
    let status = status.into_inner().cold.unwrap();
    assert!(status.url.starts_with("file:///"), "{status:?}");
    assert!(status.ready && status.trouble.is_empty(), "{status:?}");
    let known = segments(&mut cold).await;
    let stored: u64 = known.iter().map(|it| it.size_bytes).sum();
    assert_eq!((status.segments, status.stored_bytes), (2, stored));
    assert!(status.live_bytes > 0 && status.live_bytes < stored);
    let lag = status.lag.unwrap();
    assert_eq!((lag.entries, lag.bytes), (0, 0));
    let cost = status.cost.unwrap();
    let puts = cost.requests.iter().filter(|it| it.kind.starts_with("put"));
    assert!(puts.map(|it| it.count).sum::<u64>() >= 2);
    assert!(cost.uploaded_bytes >= stored && cost.requests_dollars == 0.0);
}

#[tokio::test]
async fn findings_come_in_the_order_of_the_checks() {
    let rig = rig().await;
    let call = rig.cold().await.doctor(DoctorRequest {}).await;
    let (findings, end) = all(call.unwrap().into_inner()).await;
    assert_eq!(end, None);
    let findings: Vec<_> = findings.into_iter().map(|it| it.finding.unwrap()).collect();
    assert!(findings.iter().all(|it| it.severity() == Severity::Ok));
    assert_eq!(findings[0].check, "reach");
    assert_eq!(findings.last().unwrap().check, "cold index");
}

#[tokio::test]
async fn segments_are_listed_in_pages() {
    let rig = rig().await;
    let mut cold = rig.cold().await;
    let known = segments(&mut cold).await;
    let mut request = ListSegmentsRequest {
        page_size: 1,
        ..ListSegmentsRequest::default()
    };
    let first = cold.list_segments(request.clone()).await.unwrap();
    let first = first.into_inner();
    assert_eq!(first.segments, known[..1]);
    request.page_token = first.next_page_token;
    let second = cold.list_segments(request).await.unwrap().into_inner();
    assert_eq!(second.segments, known[1..]);
    assert_eq!(second.next_page_token, "");
    for segment in &known {
        assert_eq!(
            (segment.entries, segment.state()),
            (ENTRIES, SegmentState::Live)
        );
    }
    let far = ListSegmentsRequest {
        region: "far".to_owned(),
        ..ListSegmentsRequest::default()
    };
    let page = cold.list_segments(far).await.unwrap().into_inner();
    assert!(page.segments.is_empty());
    let bad = ListSegmentsRequest {
        page_token: "?".to_owned(),
        ..ListSegmentsRequest::default()
    };
    let refused = cold.list_segments(bad).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_segment_is_shown_with_its_entries() {
    let rig = rig().await;
    let mut cold = rig.cold().await;
    let segment = segments(&mut cold).await.remove(0);
    let mut request = InspectSegmentRequest {
        name: segment.name.clone(),
        page_size: 2,
        ..InspectSegmentRequest::default()
    };
    let first = cold.inspect_segment(request.clone()).await.unwrap();
    let first = first.into_inner();
    assert_eq!((first.records, first.entries.len()), (ENTRIES, 2));
    assert!(first.footer_bytes > 0);
    assert_eq!(first.segment, Some(segment.clone()));
    let entry = &first.entries[0];
    assert!(entry.key.starts_with(b"0/"), "{entry:?}");
    assert_eq!((entry.namespace.as_str(), entry.database), ("default", 3));
    assert!(entry.current && !entry.tombstone);
    request.page_token = first.next_page_token;
    let second = cold.inspect_segment(request.clone()).await.unwrap();
    let second = second.into_inner();
    assert_eq!(
        (second.entries.len(), second.next_page_token.as_str()),
        (1, "")
    );
    request.page_token = "?".to_owned();
    let refused = cold.inspect_segment(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let absent = InspectSegmentRequest {
        name: format!("far{}", segment.name.trim_start_matches("local")),
        ..InspectSegmentRequest::default()
    };
    let refused = cold.inspect_segment(absent).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
}

#[tokio::test]
async fn verifying_tells_progress_and_damage() {
    let rig = rig().await;
    let mut cold = rig.cold().await;
    let known = segments(&mut cold).await;
    let key = |name: &str| ObjectKey::new(&format!("v1/seg/{name}.seg")).unwrap();
    let store = &rig.bucket.as_ref().unwrap().store;
    let mut bytes = store.get(&key(&known[1].name)).await.unwrap().to_vec();
    bytes[100] ^= 1;
    store.put(&key(&known[1].name), bytes.into()).await.unwrap();
    let call = cold.verify(VerifyRequest::default()).await.unwrap();
    let (news, end) = all(call.into_inner()).await;
    assert_eq!(end, None);
    let events: Vec<Event> = news.into_iter().map(|it| it.event.unwrap()).collect();
    let [
        Event::Progress(_),
        Event::Progress(_),
        Event::Damage(damage),
        Event::Progress(last),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(damage.segment, known[1].name);
    assert_eq!((last.segments_done, last.segments_total), (2, 2));
    assert_eq!(last.bytes_done, last.bytes_total);
    assert_eq!((last.records_sound, last.damages), (ENTRIES, 1));
    store.delete(&key(&known[0].name)).await.unwrap();
    let absent = VerifyRequest {
        segment: known[0].name.clone(),
    };
    let (_, end) = all(cold.verify(absent).await.unwrap().into_inner()).await;
    assert_eq!(end, Some(Code::NotFound));
}

#[tokio::test]
async fn a_rebuild_tells_how_far_it_is() {
    let rig = rig().await;
    let call = rig.cold().await.rebuild(RebuildRequest {}).await.unwrap();
    let (news, end) = all(call.into_inner()).await;
    assert_eq!(end, None);
    let last = news.last().unwrap().progress.as_ref().unwrap();
    assert_eq!(last.phase, "done");
    assert_eq!((last.segments_done, last.segments_total), (2, 2));
    assert!(last.entries >= 2 * ENTRIES && last.bytes_read > 0);
}

#[tokio::test]
async fn a_rebuild_that_fails_says_so_after_its_progress() {
    let rig = rig().await;
    let deny = Rule::new(Fault::Error(StoreErrorKind::Denied)).on(Operation::GetSuffix);
    let faults = rig.faults.as_ref().unwrap();
    faults.add(deny.matching("v1/seg/"));
    let call = rig.cold().await.rebuild(RebuildRequest {}).await.unwrap();
    let (news, end) = all(call.into_inner()).await;
    assert_eq!(end, Some(Code::Unavailable));
    let last = news.last().unwrap().progress.as_ref().unwrap();
    assert_eq!(last.phase, "reading footers");
    assert_eq!((last.segments_done, last.segments_total), (1, 2));
}

#[tokio::test]
async fn one_piece_of_long_work_runs_at_a_time_and_a_lost_client_ends_it() {
    let rig = rig().await;
    let mut cold = rig.cold().await;
    let faults = rig.faults.as_ref().unwrap();
    let hang = Rule::new(Fault::Hang).on(Operation::Get);
    faults.add(hang.matching("v1/seg/"));
    let verify = cold.verify(VerifyRequest::default()).await.unwrap();
    let mut running = verify.into_inner();
    running.message().await.unwrap();
    for refused in [
        cold.verify(VerifyRequest::default()).await.unwrap_err(),
        cold.rebuild(RebuildRequest {}).await.unwrap_err(),
        cold.doctor(DoctorRequest {}).await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
    drop(running);
    // The node learns of it a moment later.
    let again = async {
        while cold.doctor(DoctorRequest {}).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(GRACE, again).await.unwrap();
}
