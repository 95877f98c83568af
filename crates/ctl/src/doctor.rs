//! `fonnctl doctor`: ports, readiness and clock, seen from here; the bucket, seen by the node. At a
//! router, of each member.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_proto::grpc::v1::{
    ClusterMember, DoctorRequest, Finding, MemberState, Severity, StatusRequest, StatusResponse,
};
use tokio::net::TcpStream;

use super::Verdict;
use super::cluster::status_line;
use super::connection::Connection;
use super::error::CtlError;
use super::output::{Of, Output};
use super::table::printable;
use super::words::duration;

const PORT_TIMEOUT: Duration = Duration::from_secs(3);
/// S3 refuses requests whose clock is 15 minutes off; entries expire by the clock of each machine.
const CLOCK_FAILED_MS: u64 = 10 * 60 * 1000;
const CLOCK_WARNING_MS: u64 = 2000;

/// Where findings go: of one member among others, below its name or with it.
struct Findings<'a> {
    member: Option<&'a str>,
    output: &'a Output,
    is_headed: bool,
    verdict: Verdict,
}

impl<'a> Findings<'a> {
    fn new(member: Option<&'a str>, output: &'a Output) -> Self {
        Self {
            member,
            output,
            is_headed: false,
            verdict: Verdict::Good,
        }
    }

    fn tell(&mut self, finding: Finding) -> Result<(), CtlError> {
        if finding.severity() == Severity::Failed {
            self.verdict = Verdict::Bad;
        }
        let is_headed = std::mem::replace(&mut self.is_headed, true);
        let of = Of::new(self.member, finding);
        let text = |of: &Of<Finding>| match is_headed {
            true => render(&of.answer),
            false => of.headed(render),
        };
        Ok(self.output.show(&of, text)?)
    }
}

/// Bad is any check that failed; at a router, of any member, and a member that is down or does not
/// answer.
pub(super) async fn run(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    let Some(everybody) = node.everybody().await? else {
        let mut findings = Findings::new(None, output);
        examine(node, None, &mut findings).await?;
        return Ok(findings.verdict);
    };
    let mut all = Verdict::Good;
    for entry in &everybody.map.members {
        let Some(member) = &entry.member else {
            continue;
        };
        let mut findings = Findings::new(Some(&member.id), output);
        let way = everybody.members.iter().find(|(id, _)| *id == member.id);
        let examined = match way {
            Some((_, way)) => examine(way, Some(member), &mut findings).await,
            None => Err(CtlError::NotNow("it is down by the map".to_owned())),
        };
        match examined {
            Ok(()) => {}
            // The others would say the same, or no reader is left.
            Err(error @ (CtlError::Denied(_) | CtlError::Output(_))) => return Err(error),
            Err(error) => findings.tell(finding(
                "member",
                Severity::Failed,
                error.to_string(),
                "look whether its process runs, and whether the router reaches its --cluster-listen",
            ))?,
        }
        if findings.verdict == Verdict::Bad {
            all = Verdict::Bad;
        }
    }
    Ok(all)
}

/// Checks a node, at its own admin port; or a member, through the router that is asked.
async fn examine(
    node: &Connection,
    member: Option<&ClusterMember>,
    findings: &mut Findings<'_>,
) -> Result<(), CtlError> {
    let asked = Instant::now();
    let status = node.call(node.admin().status(StatusRequest {})).await?;
    let took_ms = asked.elapsed().as_millis() as u64;
    findings.tell(match member {
        None => admin_port(node.addr(), &status, took_ms),
        Some(_) => through_router(node.addr(), &status, took_ms),
    })?;
    findings.tell(readiness(&status))?;
    if let Some(finding) = no_member(&status) {
        findings.tell(finding)?;
    }
    findings.tell(clock(status.now_ms, Clock::system().wall_ms(), took_ms))?;
    let admin_host = node.addr().rsplit_once(':').map_or("", |(host, _)| host);
    // A member may be on another machine than the router: what counts is where it says that clients
    // reach it.
    let told = member.map(|it| vec![it.client_address.clone()]);
    for listener in told.as_ref().unwrap_or(&status.listeners) {
        findings.tell(client_port(listener, admin_host).await)?;
    }
    if status.cold.is_none() && status.ram.is_some() {
        let message = "this node has no cold tier (--cold-tier)".to_owned();
        return findings.tell(finding("bucket", Severity::Skipped, message, ""));
    }
    let mut told = node.call(node.cold().doctor(DoctorRequest {})).await?;
    while let Some(news) = node.next(&mut told).await? {
        if let Some(finding) = news.finding {
            findings.tell(finding)?;
        }
    }
    Ok(())
}

fn finding(check: &str, severity: Severity, message: String, remedy: &str) -> Finding {
    Finding {
        check: check.to_owned(),
        severity: severity.into(),
        message,
        remedy: remedy.to_owned(),
        duration_ms: 0,
    }
}

fn admin_port(addr: &str, status: &StatusResponse, took_ms: u64) -> Finding {
    let message = format!("fonn-node {} answers at {addr}", status.version);
    Finding {
        duration_ms: took_ms,
        ..finding("admin port", Severity::Ok, message, "")
    }
}

fn through_router(addr: &str, status: &StatusResponse, took_ms: u64) -> Finding {
    let message = format!(
        "fonn-node {} answers through the router at {addr}",
        status.version
    );
    Finding {
        duration_ms: took_ms,
        ..finding("member", Severity::Ok, message, "")
    }
}

pub(super) fn readiness(status: &StatusResponse) -> Finding {
    match status.not_ready_reason.as_str() {
        "" => finding(
            "readiness",
            Severity::Ok,
            "the node takes traffic".to_owned(),
            "",
        ),
        reason => finding(
            "readiness",
            Severity::Failed,
            format!("the node takes no traffic: {reason}"),
            "wait until its store is open, or look at its log; a draining node is about to end",
        ),
    }
}

/// A node that the others do not count as a member.
fn no_member(status: &StatusResponse) -> Option<Finding> {
    let cluster = status.cluster.as_ref()?;
    let is_none = !cluster.cluster.is_empty() && cluster.state() == MemberState::Unspecified;
    is_none.then(|| {
        finding(
            "cluster",
            Severity::Failed,
            status_line(cluster),
            "if it was removed, stop it, or let it join again with an empty data directory; if it has just been started, \
             wait until it is taken in",
        )
    })
}

pub(super) fn clock(node_ms: u64, local_ms: u64, took_ms: u64) -> Finding {
    // The node looked at its clock at some time during the call.
    let apart = node_ms.abs_diff(local_ms).saturating_sub(took_ms);
    let message = format!(
        "the clocks of this machine and the node are {} apart",
        duration(apart)
    );
    let remedy = "let NTP (chrony, systemd-timesyncd) set both clocks; S3 refuses requests whose clock \
                  is 15 min off, and entries expire by it";
    match apart {
        CLOCK_FAILED_MS.. => finding("clock", Severity::Failed, message, remedy),
        CLOCK_WARNING_MS.. => finding("clock", Severity::Warning, message, remedy),
        _ => finding("clock", Severity::Ok, message, ""),
    }
}

/// Where a client here would connect: the listener's address, or the admin port's host if the node
/// listens on all of its own. None for what is not reachable from elsewhere.
pub(super) fn client_addr(listener: &str, admin_host: &str) -> Option<String> {
    let (host, port) = listener.rsplit_once(':')?;
    if host == "unix" {
        return None;
    }
    let bare = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let is_here = admin_host == "localhost" || bare(admin_host).is_some_and(|ip| ip.is_loopback());
    match bare(host) {
        Some(ip) if ip.is_unspecified() => Some(format!("{admin_host}:{port}")),
        // Another machine's loopback.
        Some(ip) if ip.is_loopback() && !is_here => None,
        _ => Some(listener.to_owned()),
    }
}

async fn client_port(listener: &str, admin_host: &str) -> Finding {
    const CHECK: &str = "client port";
    let Some(addr) = client_addr(listener, admin_host) else {
        let message = format!("{listener} can be reached from the node's own machine only");
        return finding(CHECK, Severity::Skipped, message, "");
    };
    let started = Instant::now();
    let failed = |reason: String| {
        finding(
            CHECK,
            Severity::Failed,
            format!("cannot connect to {addr}: {reason}"),
            "let the firewall pass the port, or compare --listen with what clients use",
        )
    };
    match tokio::time::timeout(PORT_TIMEOUT, TcpStream::connect(&addr)).await {
        Ok(Ok(_)) => Finding {
            duration_ms: started.elapsed().as_millis() as u64,
            ..finding(
                CHECK,
                Severity::Ok,
                format!("{addr} accepts connections"),
                "",
            )
        },
        Ok(Err(error)) => failed(error.to_string()),
        Err(_) => failed("no connection within 3 s".to_owned()),
    }
}

/// A line, and the remedy below it.
pub(super) fn render(finding: &Finding) -> String {
    let mark = match finding.severity() {
        Severity::Ok => "ok",
        Severity::Warning => "WARNING",
        Severity::Failed => "FAILED",
        Severity::Skipped => "skipped",
        Severity::Unspecified => "?",
    };
    let took = match finding.duration_ms {
        0 => String::new(),
        ms => format!(" ({})", duration(ms)),
    };
    let (check, message) = (printable(&finding.check), printable(&finding.message));
    let mut text = format!("{mark:<8} {check}: {message}{took}\n");
    if !finding.remedy.is_empty() {
        let remedy = printable(&finding.remedy);
        text.push_str(&format!("         to cure it: {remedy}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use fonn_proto::grpc::v1::ClusterStatus;

    use super::*;

    #[test]
    fn a_node_that_its_cluster_has_removed_is_a_failed_check() {
        let of = |cluster: &str, state: MemberState| {
            let cluster = ClusterStatus {
                node: "a".to_owned(),
                cluster: cluster.to_owned(),
                state: state.into(),
                ..ClusterStatus::default()
            };
            let status = StatusResponse {
                cluster: Some(cluster),
                ..StatusResponse::default()
            };
            no_member(&status)
        };
        let removed = of("ci", MemberState::Unspecified).unwrap();
        assert_eq!(removed.severity(), Severity::Failed);
        assert!(removed.message.contains("no member of ci"));
        assert_eq!(of("ci", MemberState::Active), None);
        assert_eq!(of("", MemberState::Unspecified), None);
        assert_eq!(no_member(&StatusResponse::default()), None);
    }
}
