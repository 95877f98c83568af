//! The plain types as messages.

use fonn_proto::grpc::v1;
use v1::verify_response::Event;

use super::{
    ColdError, Cost, Finding, Inspection, Page, RebuildProgress, Segment, SegmentDamage,
    SegmentEntry, SegmentState, Severity, Status, VerifyNews, VerifyProgress,
};
use crate::admin::DEFAULT_NAMESPACE;

impl From<ColdError> for tonic::Status {
    fn from(error: ColdError) -> Self {
        match error {
            ColdError::NotFound(text) => Self::not_found(text),
            ColdError::Invalid(text) => Self::invalid_argument(text),
            ColdError::Unavailable(text) => Self::unavailable(text),
            ColdError::Damaged(text) => Self::data_loss(text),
        }
    }
}

pub(in crate::admin) fn status(status: Status) -> v1::ColdStatus {
    v1::ColdStatus {
        url: status.url,
        region: status.region,
        ready: status.ready,
        trouble: status.trouble,
        segments: status.segments,
        stored_bytes: status.stored_bytes,
        budget_bytes: status.budget_bytes.unwrap_or(0),
        entries: status.entries,
        live_bytes: status.live_bytes,
        lag: Some(v1::SpillLag {
            age_ms: status.lag.age_ms,
            entries: status.lag.entries,
            bytes: status.lag.bytes,
        }),
        cost: Some(cost(status.cost)),
    }
}

fn cost(cost: Cost) -> v1::Cost {
    let requests = cost.requests.into_iter().map(|it| v1::RequestCost {
        kind: it.kind,
        count: it.count,
        failed: it.failed,
        dollars: it.dollars,
    });
    v1::Cost {
        requests: requests.collect(),
        uploaded_bytes: cost.uploaded_bytes,
        downloaded_bytes: cost.downloaded_bytes,
        requests_dollars: cost.requests_dollars,
        storage_dollars_per_month: cost.storage_dollars_per_month,
    }
}

pub(super) fn finding(finding: Finding) -> v1::DoctorResponse {
    let severity = match finding.severity {
        Severity::Ok => v1::Severity::Ok,
        Severity::Warning => v1::Severity::Warning,
        Severity::Failed => v1::Severity::Failed,
        Severity::Skipped => v1::Severity::Skipped,
    };
    v1::DoctorResponse {
        finding: Some(v1::Finding {
            check: finding.check,
            severity: severity.into(),
            message: finding.message,
            remedy: finding.remedy,
            duration_ms: finding.duration_ms,
        }),
    }
}

fn segment(segment: Segment) -> v1::Segment {
    let state = match segment.state {
        SegmentState::Live => v1::SegmentState::Live,
        SegmentState::Doomed => v1::SegmentState::Doomed,
        SegmentState::Lost => v1::SegmentState::Lost,
    };
    v1::Segment {
        name: segment.name(),
        region: segment.region,
        writer: segment.writer,
        sequence: segment.sequence,
        size_bytes: segment.size_bytes,
        data_bytes: segment.data_bytes,
        live_bytes: segment.live_bytes,
        entries: segment.entries,
        tombstones: segment.tombstones,
        created_at_ms: segment.created_at_ms,
        last_read_at_ms: segment.last_read_at_ms.unwrap_or(0),
        state: state.into(),
    }
}

pub(super) fn segments(page: Page<Segment>) -> v1::ListSegmentsResponse {
    v1::ListSegmentsResponse {
        segments: page.items.into_iter().map(segment).collect(),
        next_page_token: page.next.unwrap_or_default(),
    }
}

pub(super) fn inspection(it: Inspection) -> v1::InspectSegmentResponse {
    v1::InspectSegmentResponse {
        segment: it.segment.map(segment),
        format_version: it.format_version,
        footer_bytes: it.footer_bytes,
        records: it.records,
        entries: it.entries.items.into_iter().map(entry).collect(),
        next_page_token: it.entries.next.unwrap_or_default(),
    }
}

fn entry(entry: SegmentEntry) -> v1::SegmentEntry {
    let namespace = match entry.space.namespace() {
        0 => DEFAULT_NAMESPACE.to_owned(),
        // Of a node that had users: there is no name for it here.
        number => format!("#{number}"),
    };
    v1::SegmentEntry {
        key: entry.key,
        namespace,
        database: entry.space.database().into(),
        offset: entry.offset,
        length: entry.length,
        version: entry.version,
        expires_at_ms: entry.expires_at_ms,
        tombstone: entry.tombstone,
        current: entry.current,
    }
}

pub(super) fn verify(news: VerifyNews) -> v1::VerifyResponse {
    let event = match news {
        VerifyNews::Progress(progress) => Event::Progress(verify_progress(progress)),
        VerifyNews::Damage(damage) => Event::Damage(segment_damage(damage)),
    };
    v1::VerifyResponse { event: Some(event) }
}

fn verify_progress(progress: VerifyProgress) -> v1::VerifyProgress {
    v1::VerifyProgress {
        segments_done: progress.segments.done,
        segments_total: progress.segments.total,
        bytes_done: progress.bytes.done,
        bytes_total: progress.bytes.total,
        records_sound: progress.records_sound,
        damages: progress.damages,
    }
}

fn segment_damage(damage: SegmentDamage) -> v1::SegmentDamage {
    v1::SegmentDamage {
        segment: damage.segment,
        offset: damage.offset,
        message: damage.message,
    }
}

pub(super) fn rebuild(progress: RebuildProgress) -> v1::RebuildResponse {
    v1::RebuildResponse {
        progress: Some(v1::RebuildProgress {
            phase: progress.phase,
            segments_done: progress.segments.done,
            segments_total: progress.segments.total,
            entries: progress.entries,
            bytes_read: progress.bytes_read,
        }),
    }
}
