//! `fonnctl warm`.

use fonn_proto::grpc::v1::{WarmEnd, WarmRequest, WarmResponse};

use super::Verdict;
use super::args;
use super::connection::Connection;
use super::error::CtlError;
use super::output::{Of, Output};
use super::progress::Progress;
use super::words::bytes;

pub(super) async fn run(
    node: &Connection,
    args: args::Warm,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = WarmRequest {
        namespace: args.namespace,
        newest: args.newest.unwrap_or(0),
        bytes: args.bytes.map_or(0, |it| it.bytes()),
        bytes_per_s: args.rate.map_or(0, |it| it.bytes()),
    };
    let mut all = Verdict::Good;
    for (member, way) in node.ways().await? {
        let last = one(&way, member.as_deref(), request.clone(), output).await?;
        if verdict(&last) == Verdict::Bad {
            all = Verdict::Bad;
        }
    }
    Ok(all)
}

/// Warms a node, and shows how; with the name of the member where there are several.
async fn one(
    node: &Connection,
    member: Option<&str>,
    request: WarmRequest,
    output: &Output,
) -> Result<WarmResponse, CtlError> {
    let mut news = node.call(node.admin().warm(request)).await?;
    let mut bar = Progress::new();
    let mut last = WarmResponse::default();
    while let Some(it) = node.next(&mut news).await? {
        if output.is_json() {
            output.show(&Of::new(member, it), |_| String::new())?;
        }
        let (done, total) = share(&it);
        bar.set(done, total, &words(&it));
        last = it;
    }
    bar.clear();
    if !output.is_json() {
        output.show(&Of::new(member, last), |it| it.headed(render))?;
    }
    Ok(last)
}

/// Good is only what came to its end with all entries read.
pub(super) fn verdict(last: &WarmResponse) -> Verdict {
    match (last.end(), last.failed) {
        (WarmEnd::Unspecified, _) | (_, 1..) => Verdict::Bad,
        (WarmEnd::All | WarmEnd::Limit | WarmEnd::RamFull, 0) => Verdict::Good,
    }
}

/// How far it is: by entries or by bytes, whichever ends it sooner.
pub(super) fn share(it: &WarmResponse) -> (u64, u64) {
    let entries = it.from_disk + it.from_cold + it.present;
    let of_entries = entries as f64 / it.entries_max.max(1) as f64;
    let of_bytes = it.bytes as f64 / it.bytes_max.max(1) as f64;
    if of_entries >= of_bytes {
        (entries, it.entries_max)
    } else {
        (it.bytes, it.bytes_max)
    }
}

fn words(it: &WarmResponse) -> String {
    let brought = it.from_disk + it.from_cold;
    format!("{brought} entries, {}", bytes(it.bytes))
}

pub(super) fn render(it: &WarmResponse) -> String {
    let mut text = format!(
        "{}: {} from disk, {} from the bucket, {} were in RAM already\n",
        words(it),
        it.from_disk,
        it.from_cold,
        it.present
    );
    if it.failed > 0 {
        text += &format!("{} entries could not be read\n", it.failed);
    }
    text += match it.end() {
        WarmEnd::RamFull => "RAM has no more room; what is left stays where it is\n",
        WarmEnd::Limit => "that is as much as was asked for\n",
        WarmEnd::All => "there is no more to bring\n",
        WarmEnd::Unspecified => "it was cut off\n",
    };
    text
}
