//! A cold tier that says what the tests expect.

use fonn_base::boxed::BoxFuture;
use fonn_base::entry::Space;
use tokio_stream::StreamExt as _;

use crate::admin::cold::*;

/// Three segments: two of region `local`, one of `far`.
#[derive(Default)]
pub(super) struct Fake {
    /// Long work does not end by itself.
    pub endless: bool,
}

pub(super) fn segment(region: &str, sequence: u64) -> Segment {
    Segment {
        region: region.to_owned(),
        writer: "W".to_owned(),
        sequence,
        size_bytes: 1000,
        data_bytes: 900,
        live_bytes: 450,
        entries: 5,
        tombstones: 1,
        created_at_ms: 1_700_000_000_000,
        last_read_at_ms: (sequence > 0).then_some(1_700_000_001_000),
        state: [SegmentState::Live, SegmentState::Doomed, SegmentState::Lost]
            [sequence as usize % 3],
    }
}

fn answer<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(async { value })
}

/// A part of a list, whose tokens are positions.
fn page<T>(all: Vec<T>, limit: usize, token: Option<String>) -> Result<Page<T>, ColdError> {
    let start = match token {
        None => 0,
        Some(token) => token
            .parse()
            .map_err(|_| ColdError::Invalid(format!("`{token}` is no page token")))?,
    };
    let end = start + limit;
    let next = (end < all.len()).then(|| end.to_string());
    let items = all.into_iter().skip(start).take(limit).collect();
    Ok(Page { items, next })
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
    fn status(&self) -> BoxFuture<'_, Status> {
        answer(Status {
            url: "s3://bucket/prefix".to_owned(),
            region: "local".to_owned(),
            ready: true,
            segments: 3,
            stored_bytes: 3000,
            budget_bytes: Some(10_000),
            entries: 15,
            live_bytes: 1350,
            lag: SpillLag {
                age_ms: 1500,
                entries: 2,
                bytes: 200,
            },
            cost: Cost {
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
            },
            ..Status::default()
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
        let finding = |check: &str, severity, remedy: &str| Finding {
            check: check.to_owned(),
            severity,
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

    fn segments(&self, query: SegmentQuery) -> BoxFuture<'_, Result<Page<Segment>, ColdError>> {
        let mut all = vec![segment("local", 0), segment("local", 1), segment("far", 2)];
        all.retain(|it| {
            query
                .region
                .as_ref()
                .is_none_or(|region| *region == it.region)
        });
        answer(page(all, query.limit, query.token))
    }

    fn inspect(&self, query: InspectQuery) -> BoxFuture<'_, Result<Inspection, ColdError>> {
        if query.name != segment("local", 0).name() {
            let text = format!("there is no segment `{}`", query.name);
            return answer(Err(ColdError::NotFound(text)));
        }
        let entry = |index: u64| SegmentEntry {
            space: Space(3),
            key: format!("key {index}").into_bytes(),
            offset: 64 + 100 * index,
            length: 100,
            version: 1000 + index,
            expires_at_ms: 0,
            tombstone: index == 2,
            current: index == 0,
        };
        let entries = page((0..3).map(entry).collect(), query.limit, query.token);
        answer(entries.map(|entries| Inspection {
            segment: Some(segment("local", 0)),
            format_version: 1,
            footer_bytes: 200,
            records: 3,
            entries,
        }))
    }

    fn verify(&self, segment: Option<String>) -> News<Result<VerifyNews, ColdError>> {
        if let Some(absent) = segment {
            let text = format!("there is no segment `{absent}`");
            return self.news(vec![Err(ColdError::NotFound(text))]);
        }
        let progress = |done, damages| {
            VerifyNews::Progress(VerifyProgress {
                segments: Part { done, total: 2 },
                bytes: Part {
                    done: done * 1000,
                    total: 2000,
                },
                records_sound: done * 5,
                damages,
            })
        };
        self.news(vec![
            Ok(progress(1, 0)),
            Ok(VerifyNews::Damage(SegmentDamage {
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
            segments: Part { done, total: 3 },
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
