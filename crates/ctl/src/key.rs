//! `fonnctl key`.

use std::os::unix::ffi::OsStringExt as _;

use fonn_proto::grpc::v1::{
    DeleteKeyRequest, DeleteKeyResponse, KeyCopy, KeyRequest, KeyResponse, Tier,
};

use super::Verdict;
use super::args;
use super::connection::Connection;
use super::error::CtlError;
use super::output::{Of, Output};
use super::table::{Table, printable};
use super::words::{bytes, relative};

/// Bits of a version below its milliseconds.
const VERSION_COUNTER_BITS: u32 = 16;

/// Bad is a key that a get would miss, or one that is to be deleted and is not there.
pub(super) async fn run(
    node: &Connection,
    args: args::Key,
    output: &Output,
) -> Result<Verdict, CtlError> {
    if args.delete {
        return delete(node, args, output).await;
    }
    let request = KeyRequest {
        key: args.key.into_vec(),
        namespace: args.namespace,
        database: args.db,
    };
    let mut answers = Vec::new();
    if let Some(everybody) = node.everybody().await? {
        for (name, member) in &everybody.members {
            let (answer, _) = ask(member, &request).await?;
            answers.push(show(Some(name), answer, output)?);
        }
        return Ok(verdict(&answers));
    }
    let (answer, own_name) = ask(node, &request).await?;
    // One member is asked: what clients get is what the owners have, unless only it was wanted.
    let Some(own_name) = own_name.filter(|_| !node.is_to_member() && !answer.owners.is_empty())
    else {
        return Ok(verdict(&[show(None, answer, output)?]));
    };
    let owners = answer.owners.clone();
    answers.push(show(Some(&own_name), answer, output)?);
    for owner in owners.iter().filter(|it| **it != own_name) {
        let (answer, _) = ask(&node.to_member(owner)?, &request).await?;
        answers.push(show(Some(owner), answer, output)?);
    }
    Ok(verdict(&answers))
}

/// The answer, and the member that it is of, in a cluster.
async fn ask(
    node: &Connection,
    request: &KeyRequest,
) -> Result<(KeyResponse, Option<String>), CtlError> {
    let mut admin = node.admin();
    node.call_signed(admin.key(request.clone())).await
}

/// Shows the answer, with its member if there are several.
fn show(
    member: Option<&str>,
    answer: KeyResponse,
    output: &Output,
) -> Result<KeyResponse, CtlError> {
    let answer = Of::new(member, answer);
    output.show(&answer, |it| it.headed(render))?;
    Ok(answer.answer)
}

/// Good if the newest copy that any of them has is served.
pub(super) fn verdict(answers: &[KeyResponse]) -> Verdict {
    let copies = answers.iter().flat_map(|it| &it.copies);
    let newest = copies.map(|it| it.version).max();
    let is_served = |answer: &KeyResponse| {
        let newest = answer.copies.iter().filter(|it| Some(it.version) == newest);
        newest
            .map(|it| state(it, answer))
            .any(|it| it == State::Served)
    };
    match answers.iter().any(is_served) {
        true => Verdict::Good,
        false => Verdict::Bad,
    }
}

async fn delete(node: &Connection, args: args::Key, output: &Output) -> Result<Verdict, CtlError> {
    let request = DeleteKeyRequest {
        key: args.key.into_vec(),
        namespace: args.namespace,
        database: args.db,
    };
    let mut admin = node.admin();
    let answer = node.call(admin.delete_key(request)).await?;
    output.show(&answer, |it: &DeleteKeyResponse| {
        let text = match it.existed {
            true => "deleted",
            false => "not there",
        };
        format!("{text}\n")
    })?;
    Ok(match answer.existed {
        true => Verdict::Good,
        false => Verdict::Bad,
    })
}

/// What a copy is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A get returns it, or what a faster tier has of the same version.
    Served,
    /// There is a newer one.
    Superseded,
    Deleted,
    Expired,
    Flushed,
    Purged,
    Damaged,
}

pub(super) fn state(copy: &KeyCopy, answer: &KeyResponse) -> State {
    let newest = answer.copies.iter().map(|it| it.version).max();
    if newest.is_some_and(|version| copy.version < version) {
        State::Superseded
    } else if copy.tombstone {
        State::Deleted
    } else if copy.version < answer.flushed_below_version {
        State::Flushed
    } else if copy.purged {
        State::Purged
    } else if copy.expires_at_ms != 0 && copy.expires_at_ms <= answer.now_ms {
        State::Expired
    } else if copy.damaged {
        State::Damaged
    } else {
        State::Served
    }
}

fn words(state: State) -> &'static str {
    match state {
        State::Served => "served",
        State::Superseded => "superseded",
        State::Deleted => "deleted",
        State::Expired => "expired",
        State::Flushed => "flushed",
        State::Purged => "purged",
        State::Damaged => "damaged",
    }
}

/// When a copy was written. Versions may be ahead of the clock (ADR 0038), and none is of the
/// future.
fn written(version: u64, now_ms: u64) -> String {
    relative((version >> VERSION_COUNTER_BITS).min(now_ms), now_ms)
}

pub(super) fn render(answer: &KeyResponse) -> String {
    let owners = match answer.owners.as_slice() {
        [] => String::new(),
        owners => format!("owned by {}\n", printable(&owners.join(", "))),
    };
    if answer.copies.is_empty() {
        return format!("{owners}no tier has this key\n");
    }
    let mut table = Table::new(&[
        "TIER", "STATE", "WRITTEN", "WRITER", "EXPIRES", ">VALUE", ">STORED", "CODEC", ">VERSION",
        "PLACE",
    ]);
    for copy in &answer.copies {
        let tier = Tier::try_from(copy.tier);
        let dirty = if copy.dirty { ", not on disk yet" } else { "" };
        let size = |size: u64, known: bool| match known {
            true => bytes(size),
            false => String::new(),
        };
        // The index of the cold tier knows records, not values.
        let knows_value = !copy.tombstone && !copy.damaged && tier != Ok(Tier::Cold);
        table.row([
            tier.map_or_else(|_| copy.tier.to_string(), Tier::name),
            format!("{}{dirty}", words(state(copy, answer))),
            written(copy.version, answer.now_ms),
            printable(&copy.writer),
            match copy.expires_at_ms {
                0 => "never".to_owned(),
                at => relative(at, answer.now_ms),
            },
            size(copy.value_bytes, knows_value),
            size(copy.stored_bytes, knows_value || tier == Ok(Tier::Cold)),
            copy.codec.clone(),
            copy.version.to_string(),
            copy.location.clone(),
        ]);
    }
    owners + &table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_ahead_of_the_clock_was_written_now() {
        let version = |ms: u64| ms << VERSION_COUNTER_BITS;
        assert_eq!(written(version(5000), 7000), "2 s ago");
        assert_eq!(written(version(7000), 7000), "now");
        assert_eq!(written(version(127_000), 7000), "now");
    }
}
