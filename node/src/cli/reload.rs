//! The settings in force, and what changes them while the node runs: SIGHUP, for which the
//! configuration is read again, and an administrator.

use std::ffi::OsString;

use fonn_auth::Security;
use fonn_base::config::{Early, InForce, Layer as _, parse_setting};
use fonn_base::events::{Events, Topic};
use fonn_base::size::ByteCount;
use fonn_base::telemetry::LogControl;
use fonn_disk_tier::DiskError;
use fonn_disk_tier::levels::Level;

use super::Sizes;
use crate::admin::codecs;
use crate::config::{self, Config, LIVE, Settings};
use crate::engine::Engine;
use crate::server::{RefusedSetting, SettingsChange};

/// The setting that has the codecs of all levels.
const CODEC: &str = "codec";

/// The owner of the settings in force. No other part of the node changes one.
pub(crate) struct Reload<'n> {
    /// The arguments of the process.
    args: Vec<OsString>,
    config: Config,
    /// The configuration as it was read last.
    read: Config,
    /// What administrators have set since.
    set: Settings,
    /// What is in force, for others to see.
    settings: InForce,
    /// What the tiers were opened with.
    sizes: Sizes,
    parts: Parts<'n>,
}

/// The parts of a node that settings change.
pub(crate) struct Parts<'n> {
    pub engine: &'n Engine,
    pub security: &'n Security,
    pub log: &'n LogControl,
    pub events: &'n Events,
}

impl<'n> Reload<'n> {
    /// A node that was started with these arguments, which say `config`.
    pub(crate) fn new(
        args: impl IntoIterator<Item = OsString>,
        config: Config,
        settings: InForce,
        parts: Parts<'n>,
    ) -> Self {
        Self {
            args: args.into_iter().collect(),
            sizes: Sizes::of(config.ram_budget),
            read: config.clone(),
            config,
            set: Settings::default(),
            settings,
            parts,
        }
    }

    /// Reads the configuration again, and applies what can change in a running node.
    pub(super) fn all(&mut self) {
        let new = match config::load(&self.args) {
            Ok(new) => new,
            Err(Early::Bad(error)) => {
                tracing::error!(%error, "the configuration was not reloaded");
                let message = format!("the configuration was not reloaded: {error}");
                self.parts.events.error(Topic::Settings, message);
                return;
            }
            Err(Early::Info(_)) => return,
        };
        self.tell_what_stays(&new);
        let mut keys = LIVE.to_vec();
        if let Err(error) = self.set_disk_budget(&new) {
            tracing::error!(%error, "--disk-budget was not changed");
            keys.retain(|key| *key != "disk_budget");
        }
        self.set = Settings::default();
        self.config.adopt(&new, &keys);
        self.read = new;
        self.enforce();
        self.security();
        let new = &self.config;
        tracing::info!(
            ram_budget = %new.ram_budget,
            disk_budget = %new.disk_budget,
            codec = %new.codecs(),
            log = %new.common.log,
            "configuration reloaded"
        );
        let events = self.parts.events;
        events.info(Topic::Settings, "the configuration was reloaded");
    }

    /// Reads users and certificates again.
    pub(super) fn security(&self) {
        let Parts {
            engine,
            security,
            events,
            ..
        } = self.parts;
        for reloaded in self.config.common.security.reload(security) {
            match reloaded {
                Ok(message) => events.info(Topic::Settings, message),
                Err(message) => events.error(Topic::Settings, message),
            }
        }
        engine.set_users(|| security.users.as_ref().map(|it| it.directory()));
    }

    /// What differs in `new` and takes a restart.
    fn tell_what_stays(&self, new: &Config) {
        let Parts { engine, events, .. } = self.parts;
        let fixed = self.config.needs_restart(new);
        if !fixed.is_empty() {
            let settings = fixed.join(" ");
            tracing::warn!(settings, "these settings change only with a restart");
            let names = fixed.join(", ");
            let message = format!("these settings change only with a restart: {names}");
            events.warning(Topic::Settings, message);
        }
        let (sizes, wanted) = (self.sizes, Sizes::of(new.ram_budget));
        let mut kept = Vec::new();
        let mut keeps = |what: &str, size: u64, wanted: u64| {
            if size != wanted {
                let [size, wanted] = [size, wanted].map(ByteCount::new);
                kept.push(format!("{what} {size} instead of {wanted}"));
            }
        };
        if engine.disk().is_some() {
            let bytes = |size: usize| size as u64;
            let [queue, memory] = [sizes.disk_queue, sizes.disk_memory].map(bytes);
            keeps("disk queue", queue, bytes(wanted.disk_queue));
            keeps("disk memory", memory, bytes(wanted.disk_memory));
        }
        if engine.cold().is_some() {
            keeps("cold tier memory", sizes.cold_memory, wanted.cold_memory);
        }
        if !kept.is_empty() {
            let kept = kept.join(", ");
            tracing::warn!(
                kept,
                "what --ram-budget gives the tiers below RAM changes only with a restart"
            );
            let message = format!(
                "what --ram-budget gives the tiers below RAM changes only with a restart: {kept}"
            );
            events.warning(Topic::Settings, message);
        }
    }

    /// The one setting that the node may refuse when it is applied. It comes before all others.
    fn set_disk_budget(&self, new: &Config) -> Result<(), DiskError> {
        let disk = self.parts.engine.disk();
        disk.map_or(Ok(()), |disk| disk.set_budget(new.disk_budget.bytes()))
    }

    /// Has the node go by what is in force, and shows that.
    fn enforce(&self) {
        let (config, engine) = (&self.config, self.parts.engine);
        engine.ram().set_budget(config.ram_budget.as_usize());
        if let (Some(cold), Some(config)) = (engine.cold(), &config.cold) {
            cold.tier().set_budget(config.budget.map(ByteCount::bytes));
        }
        for level in Level::ALL {
            if let Some(codec) = codecs::of_level(engine, level) {
                codec.set(config.codec(level), config.codec_min_bytes);
            }
        }
        self.parts.log.set(&config.common.log);
        let settings = config.settings_before(&self.read);
        self.settings.reload(settings, engine.now_ms());
    }

    /// Changes settings as an administrator asks for. They stay so until the next reload.
    pub(crate) fn change(&mut self, change: SettingsChange) {
        let SettingsChange {
            pairs,
            message,
            answer,
        } = change;
        let changed = self.set(&pairs);
        if changed.is_ok() {
            tracing::info!("{message}");
            self.parts.events.info(Topic::Settings, message);
        }
        // A client that is gone needs no answer.
        let _ = answer.send(changed);
    }

    /// Changes settings, all or none.
    fn set(&mut self, pairs: &[(String, String)]) -> Result<(), RefusedSetting> {
        let mut set = self.set.clone();
        for (key, value) in pairs {
            let engine = self.parts.engine;
            let needs = match key.as_str() {
                "disk_budget" if engine.disk().is_none() => Some("there is no disk tier"),
                "cold_budget" if engine.cold().is_none() => Some("there is no cold tier"),
                _ => None,
            };
            if let Some(why) = needs {
                return Err((key.clone(), why.to_owned()));
            }
            let one = match key == CODEC {
                // Levels that are not named stay as they are: of two that are the last one counts.
                true => {
                    let value = format!("{},{value}", self.config.codecs());
                    parse_setting::<Settings>(key, &value, true)
                }
                false => parse_setting(key, value, false),
            };
            set = one.map_err(|why| (key.clone(), why))?.over(set);
        }
        let first = || pairs.first().map_or(String::new(), |(key, _)| key.clone());
        let new = match config::load_below(&self.args, set.clone()) {
            Ok(new) => new,
            Err(Early::Bad(error)) => return Err((first(), error.to_string())),
            Err(Early::Info(_)) => return Err((first(), "the configuration is gone".to_owned())),
        };
        // What else has changed in the file waits for a reload.
        let is_meant = |live: &&'static str| pairs.iter().any(|(key, _)| key == live);
        let keys: Vec<&'static str> = LIVE.into_iter().filter(|it| is_meant(it)).collect();
        if keys.contains(&"disk_budget") {
            let changed = self.set_disk_budget(&new);
            changed.map_err(|error| ("disk_budget".to_owned(), error.to_string()))?;
        }
        self.config.adopt(&new, &keys);
        self.set = set;
        self.enforce();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
