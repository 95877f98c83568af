//! `fonnctl cold`.

use fonn_base::clock::Clock;
use fonn_proto::grpc::v1::verify_response::Event;
use fonn_proto::grpc::v1::{
    ColdStatus, InspectSegmentRequest, InspectSegmentResponse, ListSegmentsRequest,
    ListSegmentsResponse, RebuildProgress, RebuildRequest, Segment, SegmentDamage, SegmentState,
    VerifyProgress, VerifyRequest, VerifyResponse,
};

use super::Verdict;
use super::args;
use super::connection::Connection;
use super::error::CtlError;
use super::output::{Of, Output};
use super::progress::Progress;
use super::table::{Table, pairs, printable};
use super::words::{bytes, count, dollars, duration, percent, relative};

/// Items of a page, the most that a node gives.
const PAGE: usize = 1000;

pub(super) async fn run(
    node: &Connection,
    command: args::Cold,
    output: &Output,
) -> Result<Verdict, CtlError> {
    match command {
        args::Cold::Status => status(node, output).await,
        args::Cold::Ls { region, limit } => list(node, region, limit, output).await,
        args::Cold::Inspect { segment, limit } => inspect(node, segment, limit, output).await,
        args::Cold::Verify { segment } => verify(node, segment, output).await,
        args::Cold::Rebuild => rebuild(node, output).await,
    }
}

/// At a router, of each member: they share the bucket, but each has an index, a backlog and a bill
/// of its own.
async fn status(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    for (member, way) in node.ways().await? {
        let status = super::status::opened(&way).await?.cold.ok_or_else(|| {
            let why = "this node has no cold tier; start it with --cold-tier s3://bucket/prefix";
            CtlError::Refused(why.to_owned())
        })?;
        let status = Of::new(member.as_deref(), status);
        output.show(&status, |it| it.headed(|it| pairs(&status_lines(it))))?;
    }
    Ok(Verdict::Good)
}

/// Lines about the cold tier, here and in `fonnctl status`.
pub(super) fn status_lines(status: &ColdStatus) -> Vec<(&'static str, String)> {
    let index = if status.ready {
        ""
    } else {
        ", index still loading"
    };
    let mut lines = vec![(
        "cold",
        format!("{} as region {}{index}", status.url, status.region),
    )];
    if !status.trouble.is_empty() {
        lines.push(("trouble", status.trouble.clone()));
    }
    let budget = match status.budget_bytes {
        0 => String::new(),
        budget => format!(
            " of {} ({})",
            bytes(budget),
            percent(status.stored_bytes, budget)
        ),
    };
    let live = match status.stored_bytes {
        0 => String::new(),
        stored => format!(", {} live", percent(status.live_bytes, stored)),
    };
    lines.push((
        "bucket",
        format!(
            "{}{budget} in {}, {}{live}",
            bytes(status.stored_bytes),
            count(status.segments, "segment", "segments"),
            count(status.entries, "entry", "entries"),
        ),
    ));
    if let Some(lag) = &status.lag {
        let text = format!(
            "{} entries, {}, oldest {}",
            lag.entries,
            bytes(lag.bytes),
            duration(lag.age_ms)
        );
        lines.push(("to spill", text));
    }
    if let Some(cost) = &status.cost {
        let kinds: Vec<String> = cost
            .requests
            .iter()
            .map(|it| match it.failed {
                0 => format!("{} {}", it.count, it.kind),
                failed => format!("{} {} ({failed} failed)", it.count, it.kind),
            })
            .collect();
        let requests = if kinds.is_empty() {
            "none".to_owned()
        } else {
            kinds.join(", ")
        };
        lines.push(("requests", requests));
        lines.push((
            "moved",
            format!(
                "{} up, {} down",
                bytes(cost.uploaded_bytes),
                bytes(cost.downloaded_bytes)
            ),
        ));
        lines.push((
            "cost",
            format!(
                "about {} for requests since the start, {} a month for storage",
                dollars(cost.requests_dollars),
                dollars(cost.storage_dollars_per_month)
            ),
        ));
    }
    lines
}

async fn list(
    node: &Connection,
    region: Option<String>,
    limit: Option<usize>,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let mut cold = node.cold();
    let mut all = ListSegmentsResponse::default();
    loop {
        let left = limit.map_or(PAGE, |limit| {
            limit.saturating_sub(all.segments.len()).min(PAGE)
        });
        if left == 0 {
            break;
        }
        let request = ListSegmentsRequest {
            region: region.clone().unwrap_or_default(),
            page_size: left as u32,
            page_token: all.next_page_token,
        };
        let page = node.call(cold.list_segments(request)).await?;
        all.segments.extend(page.segments);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            break;
        }
    }
    if output.is_json() {
        for segment in &all.segments {
            output.show(segment, |_| String::new())?;
        }
    } else {
        output.show(&all, |all| render_list(all, Clock::system().wall_ms()))?;
    }
    Ok(Verdict::Good)
}

pub(super) fn render_list(list: &ListSegmentsResponse, now_ms: u64) -> String {
    if list.segments.is_empty() {
        return "there are no segments\n".to_owned();
    }
    let mut table = Table::new(&[
        "SEGMENT", "WRITTEN", ">SIZE", ">LIVE", ">ENTRIES", ">DELETES", "READ", "STATE",
    ]);
    for segment in &list.segments {
        table.row(segment_row(segment, now_ms));
    }
    let total: u64 = list.segments.iter().map(|it| it.size_bytes).sum();
    let count = list.segments.len();
    let more = if list.next_page_token.is_empty() {
        ""
    } else {
        ", and there are more"
    };
    format!(
        "{}{count} segments, {}{more}\n",
        table.render(),
        bytes(total)
    )
}

fn segment_row(segment: &Segment, now_ms: u64) -> [String; 8] {
    let state = SegmentState::try_from(segment.state);
    [
        segment.name.clone(),
        relative(segment.created_at_ms, now_ms),
        bytes(segment.size_bytes),
        percent(segment.live_bytes, segment.data_bytes),
        segment.entries.to_string(),
        segment.tombstones.to_string(),
        match segment.last_read_at_ms {
            0 => "never".to_owned(),
            at => relative(at, now_ms),
        },
        state.map_or_else(|_| segment.state.to_string(), SegmentState::name),
    ]
}

async fn inspect(
    node: &Connection,
    name: String,
    limit: usize,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let mut cold = node.cold();
    let mut all: Option<InspectSegmentResponse> = None;
    loop {
        let known = all.as_ref().map_or(0, |all| all.entries.len());
        let token = all.as_ref().map(|all| all.next_page_token.clone());
        // The head is wanted in any case.
        let left = limit.saturating_sub(known).clamp(1, PAGE);
        let request = InspectSegmentRequest {
            name: name.clone(),
            page_size: left as u32,
            page_token: token.unwrap_or_default(),
        };
        let page = node.call(cold.inspect_segment(request)).await?;
        let all = match &mut all {
            Some(all) => {
                all.next_page_token = page.next_page_token;
                all.entries.extend(page.entries);
                all
            }
            None => all.insert(page),
        };
        if all.next_page_token.is_empty() || all.entries.len() >= limit {
            break;
        }
    }
    if let Some(mut all) = all {
        all.entries.truncate(limit);
        output.show(&all, |all| {
            render_inspection(&name, all, Clock::system().wall_ms())
        })?;
    }
    Ok(Verdict::Good)
}

pub(super) fn render_inspection(name: &str, it: &InspectSegmentResponse, now_ms: u64) -> String {
    let mut lines = vec![("segment", name.to_owned())];
    match &it.segment {
        Some(segment) => {
            let [_, written, size, live, entries, deletes, read, state] =
                segment_row(segment, now_ms);
            lines.extend([
                ("state", state),
                ("written", written),
                ("size", size),
                ("live", live),
                ("entries", entries),
                ("deletes", deletes),
                ("read", read),
            ]);
        }
        None => lines.push(("state", "the node's index does not know it".to_owned())),
    }
    lines.extend([
        ("format", it.format_version.to_string()),
        ("footer", bytes(it.footer_bytes)),
        ("records", it.records.to_string()),
    ]);
    let mut table = Table::new(&[
        ">OFFSET", ">LENGTH", ">VERSION", "EXPIRES", "STATE", "SPACE", "KEY",
    ]);
    for entry in &it.entries {
        let state = match (entry.tombstone, entry.current) {
            (true, true) => "delete",
            (true, false) => "delete, superseded",
            (false, true) => "current",
            (false, false) => "superseded",
        };
        table.row([
            entry.offset.to_string(),
            entry.length.to_string(),
            entry.version.to_string(),
            match entry.expires_at_ms {
                0 => "never".to_owned(),
                at => relative(at, now_ms),
            },
            state.to_owned(),
            format!("{}/{}", entry.namespace, entry.database),
            String::from_utf8_lossy(&entry.key).into_owned(),
        ]);
    }
    let shown = it.entries.len() as u64;
    let more = match it.records.saturating_sub(shown) {
        0 => String::new(),
        left => format!("{left} more; --limit shows them\n"),
    };
    format!("{}\n{}{more}", pairs(&lines), table.render())
}

async fn verify(
    node: &Connection,
    segment: Option<String>,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = VerifyRequest {
        segment: segment.unwrap_or_default(),
    };
    let mut news = node.call(node.cold().verify(request)).await?;
    let mut bar = Progress::new();
    let mut last = VerifyProgress::default();
    let mut damages = 0_u64;
    while let Some(it) = node.next(&mut news).await? {
        let Some(event) = &it.event else { continue };
        match event {
            Event::Progress(progress) => {
                last = *progress;
                let words = format!(
                    "{}/{} segments",
                    progress.segments_done, progress.segments_total
                );
                bar.set(progress.bytes_done, progress.bytes_total, &words);
            }
            Event::Damage(_) => damages += 1,
        }
        if output.is_json() || matches!(event, Event::Damage(_)) {
            bar.clear();
            output.show(&it, render_damage)?;
        }
    }
    bar.clear();
    let damages = damages.max(last.damages);
    if !output.is_json() {
        output.show(&last, |last| render_verified(last, damages))?;
    }
    Ok(if damages == 0 {
        Verdict::Good
    } else {
        Verdict::Bad
    })
}

fn render_damage(news: &VerifyResponse) -> String {
    match &news.event {
        Some(Event::Damage(damage)) => damage_line(damage),
        _ => String::new(),
    }
}

pub(super) fn damage_line(damage: &SegmentDamage) -> String {
    let (segment, message) = (printable(&damage.segment), printable(&damage.message));
    format!("BAD {segment}: {message}\n")
}

pub(super) fn render_verified(last: &VerifyProgress, damages: u64) -> String {
    let text = format!(
        "{} segments, {}, {} sound records",
        last.segments_done,
        bytes(last.bytes_done),
        last.records_sound
    );
    match damages {
        0 => format!("{text}, nothing wrong\n"),
        _ => format!("{text}, {damages} findings; damaged records are served as misses\n"),
    }
}

async fn rebuild(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    let mut news = node.call(node.cold().rebuild(RebuildRequest {})).await?;
    let mut bar = Progress::new();
    let mut last = RebuildProgress::default();
    while let Some(it) = node.next(&mut news).await? {
        if output.is_json() {
            output.show(&it, |_| String::new())?;
        }
        let Some(progress) = it.progress else {
            continue;
        };
        let words = format!(
            "{}, {} entries",
            printable(&progress.phase),
            progress.entries
        );
        bar.set(progress.segments_done, progress.segments_total, &words);
        last = progress;
    }
    bar.clear();
    if !output.is_json() {
        output.show(&last, |last| {
            format!(
                "the index is complete: {} entries of {} segments, {} read\n",
                last.entries,
                last.segments_done,
                bytes(last.bytes_read)
            )
        })?;
    }
    Ok(Verdict::Good)
}
