//! A cold tier that says what the tests expect.

use fonn_base::boxed::BoxFuture;
use fonn_base::entry::Space;
use fonn_proto::grpc::v1::{
    ColdStatus, Cost, Finding, InspectSegmentRequest, InspectSegmentResponse, ListSegmentsRequest,
    ListSegmentsResponse, RebuildProgress, RequestCost, Segment, SegmentDamage, SegmentEntry,
    SegmentState, Severity, SpillLag, VerifyProgress,
};
use tokio_stream::StreamExt as _;

use crate::admin::cold::{ColdAdmin, ColdError, ColdLocation, News, VerifyEvent, namespace_name};

/// Three segments: two of region `local`, one of `far`.
#[derive(Default)]
pub(super) struct Fake {
    /// Long work does not end by itself.
    pub endless: bool,
}

pub(super) fn segment(region: &str, sequence: u64) -> Segment {
    let states = [SegmentState::Live, SegmentState::Doomed, SegmentState::Lost];
    Segment {
        name: format!("{region}/W/{sequence:016x}"),
        region: region.to_owned(),
        writer: "W".to_owned(),
        sequence,
        size_bytes: 1000,
        data_bytes: 900,
        live_bytes: 450,
        entries: 5,
        tombstones: 1,
        created_at_ms: 1_700_000_000_000,
        last_read_at_ms: if sequence > 0 { 1_700_000_001_000 } else { 0 },
        state: states[sequence as usize % 3].into(),
    }
}

fn answer<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(async { value })
}

/// A part of a list and the token of the next part. Tokens are positions.
fn page<T>(all: Vec<T>, page_size: u32, token: &str) -> Result<(Vec<T>, String), ColdError> {
    let start = match token {
        "" => 0,
        token => token
            .parse()
            .map_err(|_| ColdError::Invalid(format!("`{token}` is no page token")))?,
    };
    let end = start + page_size as usize;
    let next = (end < all.len()).then(|| end.to_string());
    let items = all.into_iter().take(end).skip(start).collect();
    Ok((items, next.unwrap_or_default()))
}

impl Fake {
    fn news<T: Send + 'static>(&self, news: Vec<T>) -> News<T> {
        let news = tokio_stream::iter(news);
        match self.endless {
            true => Box::pin(news.chain(tokio_stream::pending())),
            false => Box::pin(news),
        }
    }
}

impl ColdAdmin for Fake {
    fn status(&self) -> BoxFuture<'_, ColdStatus> {
        answer(ColdStatus {
            url: "s3://bucket/prefix".to_owned(),
            region: "local".to_owned(),
            ready: true,
            segments: 3,
            stored_bytes: 3000,
            budget_bytes: 10_000,
            entries: 15,
            live_bytes: 1350,
            lag: Some(SpillLag {
                age_ms: 1500,
                entries: 2,
                bytes: 200,
            }),
            cost: Some(Cost {
                requests: vec![RequestCost {
                    kind: "get".to_owned(),
                    count: 10,
                    failed: 1,
                    dollars: 0.004,
                }],
                uploaded_bytes: 3000,
                downloaded_bytes: 100,
                requests_dollars: 0.004,
                ..Cost::default()
            }),
            ..ColdStatus::default()
        })
    }

    fn find(
        &self,
        _: Space,
        key: Vec<u8>,
    ) -> BoxFuture<'_, Result<Option<ColdLocation>, ColdError>> {
        answer(Ok((key == b"in the bucket").then(|| ColdLocation {
            segment: "local/W/0".to_owned(),
            offset: 64,
            length: 300,
            version: 42,
            expires_at_ms: 0,
            tombstone: false,
            record: None,
        })))
    }

    fn doctor(&self) -> News<Finding> {
        let finding = |check: &str, severity: Severity, remedy: &str| Finding {
            check: check.to_owned(),
            severity: severity.into(),
            message: format!("{check} was checked"),
            remedy: remedy.to_owned(),
            duration_ms: 3,
        };
        self.news(vec![
            finding("reach", Severity::Ok, ""),
            finding("credentials", Severity::Failed, "set AWS_ACCESS_KEY_ID"),
            finding("rights", Severity::Skipped, ""),
            finding("clock", Severity::Warning, "run NTP"),
        ])
    }

    fn segments(
        &self,
        query: ListSegmentsRequest,
    ) -> BoxFuture<'_, Result<ListSegmentsResponse, ColdError>> {
        let mut all = vec![segment("local", 0), segment("local", 1), segment("far", 2)];
        all.retain(|it| query.region.is_empty() || query.region == it.region);
        let page = page(all, query.page_size, &query.page_token);
        answer(
            page.map(|(segments, next_page_token)| ListSegmentsResponse {
                segments,
                next_page_token,
            }),
        )
    }

    fn inspect(
        &self,
        query: InspectSegmentRequest,
    ) -> BoxFuture<'_, Result<InspectSegmentResponse, ColdError>> {
        if query.name != segment("local", 0).name {
            let text = format!("there is no segment `{}`", query.name);
            return answer(Err(ColdError::NotFound(text)));
        }
        let entry = |index: u64| SegmentEntry {
            key: format!("key {index}").into_bytes(),
            namespace: namespace_name(Space(3)),
            database: Space(3).database().into(),
            offset: 64 + 100 * index,
            length: 100,
            version: 1000 + index,
            expires_at_ms: 0,
            tombstone: index == 2,
            current: index == 0,
        };
        let entries = (0..3).map(entry).collect();
        let page = page(entries, query.page_size, &query.page_token);
        answer(
            page.map(|(entries, next_page_token)| InspectSegmentResponse {
                segment: Some(segment("local", 0)),
                format_version: 1,
                footer_bytes: 200,
                records: 3,
                entries,
                next_page_token,
            }),
        )
    }

    fn verify(&self, segment: Option<String>) -> News<Result<VerifyEvent, ColdError>> {
        if let Some(absent) = segment {
            let text = format!("there is no segment `{absent}`");
            return self.news(vec![Err(ColdError::NotFound(text))]);
        }
        let progress = |done, damages| {
            VerifyEvent::Progress(VerifyProgress {
                segments_done: done,
                segments_total: 2,
                bytes_done: done * 1000,
                bytes_total: 2000,
                records_sound: done * 5,
                damages,
            })
        };
        self.news(vec![
            Ok(progress(1, 0)),
            Ok(VerifyEvent::Damage(SegmentDamage {
                segment: "local/W/1".to_owned(),
                offset: Some(64),
                message: "the checksum is wrong".to_owned(),
            })),
            Ok(progress(2, 1)),
        ])
    }

    fn rebuild(&self) -> News<Result<RebuildProgress, ColdError>> {
        let progress = |phase: &str, done| RebuildProgress {
            phase: phase.to_owned(),
            segments_done: done,
            segments_total: 3,
            entries: done * 5,
            bytes_read: done * 200,
        };
        self.news(vec![
            Ok(progress("listing", 0)),
            Ok(progress("reading footers", 3)),
            Err(ColdError::Damaged("a footer cannot be read".to_owned())),
        ])
    }
}
