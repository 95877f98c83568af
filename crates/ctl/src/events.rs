//! `fonnctl events`.

use std::fmt::Write as _;

use fonn_proto::grpc::v1::{Event, EventLevel, EventsRequest, WatchRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Verdict;
use super::args;
use super::connection::Connection;
use super::error::CtlError;
use super::output::{Of, Output};
use super::table::{Table, printable};
use super::words::instant;

/// Events that wait to be shown.
const NEWS_MAX: usize = 64;

/// An event, and the member that tells it where there are several.
type Told = Of<Event>;

/// The way to the asked process, with its name where there are several.
type Way = (Option<String>, Connection);

pub(super) async fn run(
    node: &Connection,
    args: args::Events,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let ways = node.ways().await?;
    match args.follow {
        true => follow(ways, args.after, output).await,
        false => list(ways, args.after, output).await,
    }
}

async fn list(ways: Vec<Way>, after: u64, output: &Output) -> Result<Verdict, CtlError> {
    let mut all = Vec::new();
    for (member, way) in ways {
        let request = EventsRequest {
            after_sequence: after,
        };
        let answer = way.call(way.telemetry().events(request)).await?;
        let events = answer.events.into_iter();
        all.extend(events.map(|event| Of::new(member.as_deref(), event)));
    }
    // Of one process they are in order already, whatever its clock did.
    all.sort_by_key(|told| told.member.is_some().then_some(told.answer.at_ms));
    if output.is_json() {
        for told in &all {
            output.show(told, |_| String::new())?;
        }
    } else {
        output.show(&all, |all| render(all))?;
    }
    Ok(Verdict::Good)
}

/// Shows what is remembered, and then what comes, until the first that tells no more.
async fn follow(ways: Vec<Way>, after: u64, output: &Output) -> Result<Verdict, CtlError> {
    let (news_in, mut news) = mpsc::channel(NEWS_MAX);
    let mut followed = JoinSet::new();
    for way in ways {
        followed.spawn(watch(way, after, news_in.clone()));
    }
    drop(news_in);
    while let Some(told) = news.recv().await {
        output.show(&told?, line)?;
    }
    Ok(Verdict::Good)
}

/// Sends on what one tells, and at last why it tells no more.
async fn watch((member, way): Way, after: u64, to: mpsc::Sender<Result<Told, CtlError>>) {
    let watched = async {
        let request = WatchRequest { history_seconds: 0 };
        let mut stream = way.call(way.telemetry().watch(request)).await?;
        while let Some(message) = way.next(&mut stream).await? {
            for event in message.events {
                let is_new = event.sequence > after;
                let told = Of::new(member.as_deref(), event);
                if is_new && to.send(Ok(told)).await.is_err() {
                    return Ok(());
                }
            }
        }
        let name = printable(member.as_deref().unwrap_or(way.addr()));
        Err(CtlError::NotNow(format!("{name} stops and tells no more")))
    };
    if let Err(error) = watched.await {
        // No receiver is left when the command ends.
        let _ = to.send(Err(error)).await;
    }
}

fn level(event: &Event) -> String {
    EventLevel::try_from(event.level).map_or_else(|_| event.level.to_string(), EventLevel::name)
}

fn render(all: &[Told]) -> String {
    let mut table = Table::new(&[
        ">EVENT",
        "AT (UTC)",
        "MEMBER",
        "LEVEL",
        "ABOUT",
        "WHAT HAPPENED",
    ]);
    for it in all {
        let event = &it.answer;
        table.row([
            event.sequence.to_string(),
            instant(event.at_ms),
            it.member.clone().unwrap_or_else(|| "-".to_owned()),
            level(event),
            event.topic.clone(),
            event.message.clone(),
        ]);
    }
    table.render()
}

/// The same of one that came just now.
fn line(told: &Told) -> String {
    let event = &told.answer;
    let mut line = format!("{} {}", event.sequence, instant(event.at_ms));
    if let Some(member) = &told.member {
        // Writing to a string does not fail.
        let _ = write!(line, " {}", printable(member));
    }
    let (level, topic) = (level(event), printable(&event.topic));
    let _ = writeln!(line, " {level} {topic}: {}", printable(&event.message));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(member: Option<&str>, sequence: u64, level: EventLevel, message: &str) -> Told {
        let event = Event {
            sequence,
            at_ms: 1_700_000_000_000,
            level: level.into(),
            topic: "settings".to_owned(),
            message: message.to_owned(),
        };
        Of::new(member, event)
    }

    #[test]
    fn events_are_told_with_time_level_and_topic() {
        let all = [
            told(None, 9, EventLevel::Info, "the configuration was reloaded"),
            told(Some("b"), 10, EventLevel::Error, "bad\u{1b}[2J"),
        ];
        assert_eq!(
            render(&all),
            "\
EVENT  AT (UTC)             MEMBER  LEVEL  ABOUT     WHAT HAPPENED
    9  2023-11-14 22:13:20  -       info   settings  the configuration was reloaded
   10  2023-11-14 22:13:20  b       error  settings  bad\u{FFFD}[2J
"
        );
        assert_eq!(
            line(&all[1]),
            "10 2023-11-14 22:13:20 b error settings: bad\u{FFFD}[2J\n"
        );
        let json = serde_json::to_value(&all[0]).unwrap();
        assert_eq!(
            (&json["level"], &json["sequence"]),
            (&"info".into(), &9.into())
        );
        assert!(json.get("member").is_none());
    }
}
