//! `fonn.v1.Cold`.

use fonn_proto::grpc::v1::verify_response::Event;
use fonn_proto::grpc::v1::{
    ColdStatusRequest, DoctorRequest, InspectSegmentRequest, ListSegmentsRequest, RebuildRequest,
    SegmentState, Severity, VerifyRequest,
};
use tonic::{Code, Streaming};

use super::fake::{Fake, segment};
use super::*;

async fn rig() -> Rig {
    Rig::open(Some(Arc::new(Fake::default()))).await
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
    let rig = Rig::open(None).await;
    let mut cold = rig.cold().await;
    let inspect = InspectSegmentRequest::default();
    let refusals = [
        cold.status(ColdStatusRequest {}).await.unwrap_err(),
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
    let status = rig.cold().await.status(ColdStatusRequest {}).await.unwrap();
    let status = status.into_inner().status.unwrap();
    assert_eq!(status.url, "s3://bucket/prefix");
    assert!(status.ready);
    assert_eq!(
        (status.segments, status.stored_bytes, status.budget_bytes),
        (3, 3000, 10_000)
    );
    assert_eq!((status.entries, status.live_bytes), (15, 1350));
    let lag = status.lag.unwrap();
    assert_eq!((lag.age_ms, lag.entries, lag.bytes), (1500, 2, 200));
    let cost = status.cost.unwrap();
    assert_eq!((cost.requests[0].count, cost.requests[0].failed), (10, 1));
    assert!((cost.requests_dollars - 0.004).abs() < 1e-9);
    assert_eq!((cost.uploaded_bytes, cost.downloaded_bytes), (3000, 100));
}

#[tokio::test]
async fn findings_come_in_the_order_of_the_checks() {
    let rig = rig().await;
    let call = rig.cold().await.doctor(DoctorRequest {}).await;
    let (findings, end) = all(call.unwrap().into_inner()).await;
    assert_eq!(end, None);
    let findings: Vec<_> = findings.into_iter().map(|it| it.finding.unwrap()).collect();
    let severities: Vec<Severity> = findings.iter().map(|it| it.severity()).collect();
    assert_eq!(
        severities,
        [
            Severity::Ok,
            Severity::Failed,
            Severity::Skipped,
            Severity::Warning
        ]
    );
    assert_eq!(findings[1].check, "credentials");
    assert_eq!(findings[1].remedy, "set AWS_ACCESS_KEY_ID");
    assert_eq!(findings[1].duration_ms, 3);
}

#[tokio::test]
async fn segments_are_listed_in_pages() {
    let rig = rig().await;
    let mut cold = rig.cold().await;
    let mut names = Vec::new();
    let mut request = ListSegmentsRequest {
        page_size: 2,
        ..ListSegmentsRequest::default()
    };
    loop {
        let page = cold
            .list_segments(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert!(page.segments.len() <= 2);
        names.extend(
            page.segments
                .into_iter()
                .map(|it| (it.name.clone(), it.state())),
        );
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(
        names,
        [
            (segment("local", 0).name, SegmentState::Live),
            (segment("local", 1).name, SegmentState::Doomed),
            (segment("far", 2).name, SegmentState::Lost),
        ]
    );
    assert_eq!(names[0].0, "local/W/0000000000000000");
    let far = ListSegmentsRequest {
        region: "far".to_owned(),
        ..ListSegmentsRequest::default()
    };
    let page = cold.list_segments(far).await.unwrap().into_inner();
    assert_eq!(page.segments.len(), 1);
    assert_eq!(
        (page.segments[0].sequence, page.segments[0].last_read_at_ms),
        (2, 1_700_000_001_000)
    );
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
    let mut request = InspectSegmentRequest {
        name: segment("local", 0).name,
        page_size: 2,
        ..InspectSegmentRequest::default()
    };
    let first = cold
        .inspect_segment(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (first.format_version, first.footer_bytes, first.records),
        (1, 200, 3)
    );
    assert_eq!(first.segment.unwrap().entries, 5);
    assert_eq!(first.entries.len(), 2);
    let entry = &first.entries[0];
    assert_eq!(
        (entry.key.as_slice(), entry.offset, entry.length),
        (&b"key 0"[..], 64, 100)
    );
    assert_eq!((entry.namespace.as_str(), entry.database), ("default", 3));
    assert!(entry.current && !entry.tombstone);
    request.page_token = first.next_page_token;
    let second = cold.inspect_segment(request).await.unwrap().into_inner();
    assert_eq!(
        (second.entries.len(), second.next_page_token.as_str()),
        (1, "")
    );
    assert!(second.entries[0].tombstone);
    let absent = InspectSegmentRequest {
        name: "local/W/7".to_owned(),
        ..InspectSegmentRequest::default()
    };
    let refused = cold.inspect_segment(absent).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
}

#[tokio::test]
async fn verifying_tells_progress_and_damage() {
    let rig = rig().await;
    let mut cold = rig.cold().await;
    let call = cold.verify(VerifyRequest::default()).await.unwrap();
    let (news, end) = all(call.into_inner()).await;
    assert_eq!(end, None);
    let events: Vec<Event> = news.into_iter().map(|it| it.event.unwrap()).collect();
    let [
        Event::Progress(_),
        Event::Damage(damage),
        Event::Progress(last),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(
        (damage.segment.as_str(), damage.offset),
        ("local/W/1", Some(64))
    );
    assert_eq!((last.segments_done, last.segments_total), (2, 2));
    assert_eq!((last.bytes_done, last.bytes_total), (2000, 2000));
    assert_eq!((last.records_sound, last.damages), (10, 1));
    let absent = VerifyRequest {
        segment: "local/W/7".to_owned(),
    };
    let (news, end) = all(cold.verify(absent).await.unwrap().into_inner()).await;
    assert_eq!((news.len(), end), (0, Some(Code::NotFound)));
}

#[tokio::test]
async fn a_rebuild_that_fails_says_so_after_its_progress() {
    let rig = rig().await;
    let call = rig.cold().await.rebuild(RebuildRequest {}).await.unwrap();
    let (news, end) = all(call.into_inner()).await;
    assert_eq!(end, Some(Code::DataLoss));
    let last = news.last().unwrap().progress.as_ref().unwrap();
    assert_eq!(last.phase, "reading footers");
    assert_eq!(
        (
            last.segments_done,
            last.segments_total,
            last.entries,
            last.bytes_read
        ),
        (3, 3, 15, 600)
    );
}

#[tokio::test]
async fn one_piece_of_long_work_runs_at_a_time_and_a_lost_client_ends_it() {
    let rig = Rig::open(Some(Arc::new(Fake { endless: true }))).await;
    let mut cold = rig.cold().await;
    let mut running = cold
        .verify(VerifyRequest::default())
        .await
        .unwrap()
        .into_inner();
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
