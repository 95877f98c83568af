//! `fonnctl status` at a router: a line about the router, and a row for each member.

use std::pin::pin;

use fonn_proto::grpc::v1::{RouterStatusResponse, StatusRequest, StatusResponse};
use futures_util::stream::{self, StreamExt as _};
use serde::Serialize;

use super::{filled_short, sum};
use crate::Verdict;
use crate::connection::Everybody;
use crate::error::CtlError;
use crate::output::{Of, Output};
use crate::table::Table;
use crate::words::{bytes, duration, percent};

/// Members that are asked at the same time.
const AT_ONCE: usize = 16;

/// What is known of a member.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Standing {
    /// As the map has it: `active`, `draining`, `down`, …
    pub state: String,
    /// Its own status, unless it is down or did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<StatusResponse>,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl Standing {
    /// What is wrong with the member, in a few words; empty if nothing is.
    fn trouble(&self) -> String {
        let Some(status) = &self.status else {
            return self.error.clone();
        };
        if !status.not_ready_reason.is_empty() {
            return format!("not ready: {}", status.not_ready_reason);
        }
        status
            .cold
            .as_ref()
            .map_or_else(String::new, |cold| cold.trouble.clone())
    }

    fn is_good(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.not_ready_reason.is_empty())
    }
}

/// The router's own status among those of members.
#[derive(Debug, Serialize)]
struct OfRouter<'a> {
    router: &'a RouterStatusResponse,
}

/// A router that has been behind for longer has lost its members, and its clients lose hits.
const BEHIND_MAX_MS: u64 = 2000;

/// Asks all members. Bad is a member that is down, takes no traffic or does not answer, and a
/// router that is behind.
pub(super) async fn run(
    everybody: &Everybody,
    router: &RouterStatusResponse,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let members = everybody
        .map
        .members
        .iter()
        .filter_map(|it| it.member.as_ref());
    let standings = stream::iter(members.map(|member| async move {
        let way = everybody
            .members
            .iter()
            .find(|(name, _)| *name == member.id);
        let mut standing = Standing {
            state: member.state().name(),
            ..Standing::default()
        };
        if let Some((_, way)) = way {
            let mut admin = way.admin();
            match way.call(admin.status(StatusRequest {})).await {
                Ok(status) => standing.status = Some(status),
                Err(error) => standing.error = error.to_string(),
            }
        }
        Of::new(Some(&member.id), standing)
    }))
    .buffered(AT_ONCE)
    .collect::<Vec<_>>();
    let standings = pin!(standings).await;
    if output.is_json() {
        output.show(&OfRouter { router }, |_| String::new())?;
        for it in &standings {
            output.show(it, |_| String::new())?;
        }
    } else {
        output.show(&(), |()| {
            format!("{}\n\n{}", router_line(router), render(&standings))
        })?;
    }
    let is_good = router.behind_ms <= BEHIND_MAX_MS;
    Ok(
        match is_good && standings.iter().all(|it| it.answer.is_good()) {
            true => Verdict::Good,
            false => Verdict::Bad,
        },
    )
}

/// `router 0.1.0 applies epoch 12 since 3 min, follows 10.0.0.1:11290, 10.0.0.2:11290`
pub(crate) fn router_line(router: &RouterStatusResponse) -> String {
    let since = duration(router.now_ms.saturating_sub(router.applied_at_ms));
    let applies = match router.epoch {
        0 => "knows no topology yet".to_owned(),
        epoch => format!("applies epoch {epoch} since {since}"),
    };
    let follows = match router.followed.as_slice() {
        [] => "no member is heard (see its log)".to_owned(),
        members => format!("follows {}", members.join(", ")),
    };
    let behind = match router.behind_ms {
        0 => String::new(),
        ms => format!(", may be behind by {}", duration(ms)),
    };
    format!("router {} {applies}, {follows}{behind}", router.version)
}

pub(crate) fn render(standings: &[Of<Standing>]) -> String {
    let mut table = Table::new(&[
        "MEMBER",
        "STATE",
        "VERSION",
        ">UP",
        ">HITS",
        ">RAM",
        ">DISK",
        ">TO SPILL",
        "TROUBLE",
    ]);
    for it in standings {
        let standing = &it.answer;
        let row = standing.status.as_ref().map_or_else(Default::default, row);
        let [version, up, hits, ram, disk, to_spill] = row;
        table.row([
            it.member.clone().unwrap_or_default(),
            standing.state.clone(),
            version,
            up,
            hits,
            ram,
            disk,
            to_spill,
            standing.trouble(),
        ]);
    }
    table.render()
}

fn row(status: &StatusResponse) -> [String; 6] {
    let hits = status.lookups.as_ref().map_or_else(String::new, |it| {
        let hits = sum(&it.hits);
        percent(hits, hits + sum(&it.misses))
    });
    let ram = status.ram.as_ref();
    let disk = status.disk.as_ref();
    let lag = status.cold.as_ref().and_then(|cold| cold.lag.as_ref());
    [
        status.version.clone(),
        duration(status.uptime_ms),
        hits,
        ram.map_or_else(String::new, |it| {
            filled_short(it.used_bytes, it.budget_bytes)
        }),
        disk.map_or_else(String::new, |it| {
            filled_short(it.used_bytes, it.budget_bytes)
        }),
        lag.map_or_else(String::new, |lag| bytes(lag.bytes)),
    ]
}
