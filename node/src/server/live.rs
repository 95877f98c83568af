//! `CONFIG SET`: settings that change while the node runs. The part of the process that reads the
//! configuration again for SIGHUP applies them.

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

/// Settings to change, all or none.
#[derive(Debug)]
pub struct SettingsChange {
    /// Keys of the configuration file, with their values.
    pub pairs: Vec<(String, String)>,
    /// Gets the reason if nothing was changed: the key, and what is wrong.
    pub answer: oneshot::Sender<Result<(), (String, String)>>,
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
    let (answer, answered) = oneshot::channel();
    let change = SettingsChange {
        pairs: wanted,
        answer,
    };
    if live.0.try_send(change).is_err() {
        return ServerOutcome::Failed(fonn_proto::Failure::Busy);
    }
    match answered.await {
        Ok(Ok(())) => ServerOutcome::Done,
        Ok(Err((key, why))) => refused_setting(key.as_bytes(), &why),
        Err(_) => ServerOutcome::Failed(fonn_proto::Failure::Unavailable),
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
    match key {
        "log" => {
            let level = REDIS_LEVELS.iter().find(|(redis, _)| *redis == value);
            level.map_or(value.clone(), |(_, level)| (*level).to_owned())
        }
        // Redis counts `mb` in 1024s, too.
        "ram_budget" | "disk_budget" | "cold_budget" | "codec_min_bytes" => {
            value.strip_suffix('b').unwrap_or(&value).to_owned()
        }
        _ => value,
    }
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
        assert_eq!(spelled("ram_budget", "100MB"), "100m");
        assert_eq!(spelled("ram_budget", "104857600"), "104857600");
        assert_eq!(spelled("codec", "ram=lz4"), "ram=lz4");
    }
}
