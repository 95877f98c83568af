//! Logs: to standard error, as text or JSON lines, with a level that can change while running.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;

use crate::text::from_text_or_integer;

/// What is logged: a level, and levels for single modules, like `info,fonn_node::disk=debug`.
#[derive(Clone, Debug, PartialEq)]
pub struct LogFilter {
    text: String,
    targets: Targets,
}

/// A text that is no [`LogFilter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a log level: off, error, warn, info, debug or trace, with optional MODULE=LEVEL \
     parts, like info,fonn_node=debug"
)]
pub struct LogFilterError;

impl Default for LogFilter {
    /// `info` for everything that is ours.
    fn default() -> Self {
        Self {
            text: "info".to_owned(),
            targets: quiet().with_default(LevelFilter::INFO),
        }
    }
}

/// What openraft says while members come and go belongs to every start and end of a cluster; an
/// operator that wants to read it names it. h2 has a line for each frame that a stranger sends
/// amiss, hundreds a second.
fn quiet() -> Targets {
    Targets::new()
        .with_target("openraft", LevelFilter::ERROR)
        .with_target("openraft::replication", LevelFilter::OFF)
        .with_target("h2", LevelFilter::ERROR)
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let mut targets = if text.contains("openraft") {
            Targets::new()
        } else {
            quiet()
        };
        for part in text.split(',').map(str::trim) {
            targets = match part.split_once('=') {
                Some((module, level)) => {
                    let module = module.trim();
                    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
                    if module.is_empty() || !module.chars().all(in_name) {
                        return Err(LogFilterError);
                    }
                    targets.with_target(module, parse_level(level.trim())?)
                }
                None => targets.with_default(parse_level(part)?),
            };
        }
        Ok(Self {
            text: text.to_owned(),
            targets,
        })
    }
}

fn parse_level(text: &str) -> Result<LevelFilter, LogFilterError> {
    // LevelFilter itself would also take numbers and the empty text.
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(LogFilterError),
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for LogFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text_or_integer(deserializer, "a log level like info")
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people; colored on a terminal.
    #[default]
    Text,
    /// One JSON object a line, its fields on the top level.
    Json,
}

/// A logger is installed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("logging was set up twice in one process")]
pub struct AlreadyInstalled;

/// Changes the level while the program runs; cheap to clone.
#[derive(Clone)]
pub struct LogControl(Arc<dyn Fn(&LogFilter) -> bool + Send + Sync>);

impl LogControl {
    /// Applies another filter. Returns `false` when the logger is gone, which ends with the
    /// process.
    pub fn set(&self, filter: &LogFilter) -> bool {
        (self.0)(filter)
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogControl")
    }
}

/// Sends the logs of this process to standard error.
///
/// # Errors
/// [`AlreadyInstalled`] when called twice.
pub fn init(filter: &LogFilter, format: LogFormat) -> Result<LogControl, AlreadyInstalled> {
    let (dispatch, control) = build(filter, format, io::stderr().is_terminal(), io::stderr);
    tracing::dispatcher::set_global_default(dispatch).map_err(|_| AlreadyInstalled)?;
    Ok(control)
}

/// A logger over any writer, for [`init`] and for tests (`tracing::dispatcher::with_default`).
pub fn build<W>(
    filter: &LogFilter,
    format: LogFormat,
    ansi: bool,
    writer: W,
) -> (Dispatch, LogControl)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => filtered(filter, lines.with_ansi(ansi)),
        LogFormat::Json => filtered(
            filter,
            lines.json().flatten_event(true).with_current_span(false),
        ),
    }
}

fn filtered<L>(filter: &LogFilter, lines: L) -> (Dispatch, LogControl)
where
    L: Layer<tracing_subscriber::Registry> + Send + Sync + 'static,
    tracing_subscriber::Registry: Subscriber,
{
    let (targets, handle) = reload::Layer::new(filter.targets.clone());
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(lines.with_filter(targets)));
    let set = move |filter: &LogFilter| handle.reload(filter.targets.clone()).is_ok();
    (dispatch, LogControl(Arc::new(set)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
        }
    }

    fn logger(filter: &str, format: LogFormat) -> (Dispatch, LogControl, Lines) {
        let lines = Lines::default();
        let writer = lines.clone();
        let (dispatch, control) = build(&filter.parse().unwrap(), format, false, move || {
            writer.clone()
        });
        (dispatch, control, lines)
    }

    #[test]
    fn level_decides_and_can_change_live() {
        let (dispatch, control, lines) = logger("info", LogFormat::Text);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::info!(port = 7, "started");
            tracing::debug!("hidden");
            let text = lines.take();
            assert!(
                text.contains("INFO") && text.contains("started port=7"),
                "{text}"
            );
            assert!(!text.contains("hidden") && text.lines().count() == 1);
            assert!(control.set(&"debug".parse().unwrap()));
            tracing::debug!("shown");
            assert!(lines.take().contains("shown"));
            assert!(control.set(&"off".parse().unwrap()));
            tracing::error!("silent");
            assert_eq!(lines.take(), "");
        });
        drop(dispatch);
        assert!(!control.set(&LogFilter::default()));
    }

    #[test]
    fn modules_have_their_own_level() {
        let (dispatch, _, lines) = logger("warn, fonn_base::telemetry=trace", LogFormat::Text);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::trace!("own");
            tracing::info!(target: "other", "foreign");
        });
        let text = lines.take();
        assert!(text.contains("own") && !text.contains("foreign"), "{text}");
    }

    #[test]
    fn openraft_is_heard_when_it_is_named() {
        for (filter, lines_heard) in [
            ("debug", 0),
            ("info,openraft=debug", 2),
            ("openraft=warn", 1),
        ] {
            let (dispatch, _, lines) = logger(filter, LogFormat::Text);
            tracing::dispatcher::with_default(&dispatch, || {
                tracing::debug!(target: "openraft::core", "state");
                tracing::warn!(target: "openraft::replication", "member is gone");
            });
            assert_eq!(lines.take().lines().count(), lines_heard, "{filter}");
        }
    }

    #[test]
    fn json_lines_have_their_fields_on_top() {
        let (dispatch, _, lines) = logger("info", LogFormat::Json);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::warn!(depth = 3, "queue \"full\"")
        });
        let text = lines.take();
        assert!(text.starts_with('{') && text.ends_with("}\n"), "{text}");
        assert!(
            text.contains(r#""depth":3"#) && text.contains(r#""level":"WARN""#),
            "{text}"
        );
        assert!(text.contains(r#""message":"queue \"full\"""#), "{text}");
    }

    #[test]
    fn what_is_no_level_is_refused_with_what_would_be_accepted() {
        for text in [
            "",
            "loud",
            "3",
            "info,",
            "=info",
            "a b=info",
            "fonn_node=",
            "fonn[x]=info",
        ] {
            let error = text.parse::<LogFilter>().unwrap_err();
            assert!(error.to_string().contains("off, error, warn"), "{text}");
        }
        let filter: LogFilter = "INFO,fonn_node::disk=Debug".parse().unwrap();
        assert_eq!(filter.to_string(), "INFO,fonn_node::disk=Debug");
    }
}
