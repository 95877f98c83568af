//! `CONFIG SET`: settings that change while the node runs. The part of the process that reads the
//! configuration again for SIGHUP applies them.

use fonn_proto::Failure;
use fonn_proto::request::ServerOutcome;
use fonn_server::{IMMUTABLE, all_immutable, refused_setting, unknown_setting};
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use crate::config::LIVE;
use crate::report;

/// Changes that wait to be applied.
const QUEUE: usize = 4;

/// Names of Redis, with those of the settings that they mean here.
const REDIS_NAMES: [(&str, &str); 2] = [("maxmemory", "ram_budget"), ("loglevel", "log")];

/// Levels of Redis, with those of the setting `log`.
const REDIS_LEVELS: [(&str, &str); 3] =
    [("verbose", "info"), ("notice", "info"), ("warning", "warn")];

/// Why a setting was not changed: the key, and what is wrong.
pub(crate) type RefusedSetting = (String, String);

/// Settings that an administrator changes, all or none.
#[derive(Debug)]
pub struct SettingsChange {
    /// Keys of the configuration file, with their values.
    pub(crate) pairs: Vec<(String, String)>,
    /// The event that is recorded if they are changed.
    pub(crate) message: String,
    /// Gets the reason if nothing was changed.
    pub(crate) answer: oneshot::Sender<Result<(), RefusedSetting>>,
}

/// Where changes are handed in.
#[derive(Clone, Debug)]
pub struct LiveSettings(mpsc::Sender<SettingsChange>);

impl LiveSettings {
    /// A way to hand changes in, and where they come out to be applied.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<SettingsChange>) {
        let (tx, rx) = mpsc::channel(QUEUE);
        (Self(tx), rx)
    }

    /// Changes settings, given as keys of the configuration file with their values. `message` is
    /// the event that is recorded then. The inner result tells whether they were accepted.
    ///
    /// # Errors
    /// [`Failure::Busy`] if many changes wait, [`Failure::Unavailable`] if the node stops.
    ///
    /// # Cancel safety
    /// Cancelling it loses the answer. The settings are changed all the same.
    pub(crate) async fn set(
        &self,
        pairs: Vec<(String, String)>,
        message: String,
    ) -> Result<Result<(), RefusedSetting>, Failure> {
        let (answer, answered) = oneshot::channel();
        let change = SettingsChange {
            pairs,
            message,
            answer,
        };
        self.0.try_send(change).map_err(|_| Failure::Busy)?;
        answered.await.map_err(|_| Failure::Unavailable)
    }
}

/// Changes settings, all or none.
pub(super) async fn change(shared: &Shared, pairs: &[(&[u8], &[u8])]) -> ServerOutcome {
    let is_known = |name: &[u8]| !report::config(shared, &[name]).is_empty() || key(name).is_some();
    let Some(live) = &shared.service.live else {
        return all_immutable(pairs, is_known);
    };
    let mut wanted: Vec<(String, String)> = Vec::new();
    for (name, value) in pairs {
        let Some(key) = key(name) else {
            return match is_known(name) {
                true => refused_setting(name, IMMUTABLE),
                false => unknown_setting(name),
            };
        };
        if wanted.iter().any(|(known, _)| known == key) {
            return refused_setting(name, "duplicate parameter");
        }
        let Ok(value) = std::str::from_utf8(value) else {
            return refused_setting(name, "argument must be text");
        };
        wanted.push((key.to_owned(), spelled(key, value)));
    }
    let keys: Vec<&str> = wanted.iter().map(|(key, _)| key.as_str()).collect();
    let message = format!("settings were changed by CONFIG SET: {}", keys.join(", "));
    match live.set(wanted, message).await {
        Ok(Ok(())) => ServerOutcome::Done,
        Ok(Err((key, why))) => refused_setting(key.as_bytes(), &why),
        Err(failure) => ServerOutcome::Failed(failure),
    }
}

/// The setting that a name means, if it changes while the node runs.
fn key(name: &[u8]) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let redis = REDIS_NAMES
        .iter()
        .find(|(redis, _)| redis.as_bytes() == name);
    let key = redis.map_or(&name[..], |(_, key)| key.as_bytes());
    LIVE.into_iter().find(|live| live.as_bytes() == key)
}

/// A value as the configuration file spells it.
fn spelled(key: &str, value: &str) -> String {
    let value = value.to_ascii_lowercase();
    let mut levels = REDIS_LEVELS.iter();
    let level = levels.find(|(redis, _)| key == "log" && *redis == value);
    level.map_or(value, |(_, level)| (*level).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_of_redis_are_understood() {
        assert_eq!(key(b"MAXMEMORY"), Some("ram_budget"));
        assert_eq!(key(b"ram_budget"), Some("ram_budget"));
        assert_eq!(key(b"loglevel"), Some("log"));
        assert_eq!(key(b"listen"), None);
        assert_eq!(spelled("log", "WARNING"), "warn");
        assert_eq!(spelled("log", "debug"), "debug");
        // Redis counts `mb` in 1024s, too.
        assert_eq!(spelled("ram_budget", "100MB"), "100mb");
        assert_eq!(spelled("ram_budget", "104857600"), "104857600");
        assert_eq!(spelled("codec", "ram=lz4"), "ram=lz4");
    }
}
