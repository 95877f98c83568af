//! What SIGHUP does: the configuration is read again, and what can change in a running node is
//! applied.

use fonn_auth::Security;
use fonn_base::config::{Early, InForce, Layer as _, parse_setting};
use fonn_base::events::{Events, Topic};
use fonn_base::size::ByteCount;
use fonn_base::telemetry::LogControl;

use super::Sizes;
use crate::admin::codecs::Codecs;
use crate::config::{self, Config, LIVE, Settings};
use crate::engine::Engine;
use crate::server::SettingsChange;

/// What a reload changes, and what it goes by.
pub(super) struct Reload<'n> {
    /// What is in force.
    pub config: Config,
    /// What of it an administrator has set, until the next reload.
    pub set: Settings,
    /// The same, for a caller.
    pub settings: InForce,
    /// What the tiers were opened with.
    pub sizes: Sizes,
    pub engine: &'n Engine,
    pub codecs: &'n Codecs,
    pub security: &'n Security,
    pub log: &'n LogControl,
    pub events: &'n Events,
}

impl Reload<'_> {
    /// Reads the configuration again, and applies what can change in a running node.
    pub(super) fn all(&mut self) {
        let new = match config::load(std::env::args_os()) {
            Ok(new) => new,
            Err(Early::Bad(error)) => {
                tracing::error!(%error, "the configuration was not reloaded");
                let message = format!("the configuration was not reloaded: {error}");
                self.events.error(Topic::Settings, message);
                return;
            }
            Err(Early::Info(_)) => return,
        };
        self.set = Settings::default();
        self.tell_what_stays(&new);
        self.log.set(&new.common.log);
        self.security();
        self.apply(new);
        // Last, since a change of a codec meanwhile is to be overruled in what is done and in
        // what is told.
        self.codecs.reload(&self.config);
        let new = &self.config;
        tracing::info!(
            ram_budget = %new.ram_budget,
            disk_budget = %new.disk_budget,
            codec_ram = %new.codec_ram,
            codec_fresh = %new.codec_fresh,
            codec_compacted = %new.codec_compacted,
            codec_cold = %new.codec_cold,
            log = %new.common.log,
            "configuration reloaded"
        );
        self.events
            .info(Topic::Settings, "the configuration was reloaded");
    }

    /// Reads users and certificates again.
    pub(super) fn security(&self) {
        let config = &self.config.common.security;
        match config.reload(self.security) {
            Ok(()) if config.proves_clients() => {
                tracing::info!("users and certificates reloaded");
                self.events
                    .info(Topic::Settings, "users and certificates were reloaded");
            }
            Ok(()) => {}
            Err(error) => {
                tracing::error!(%error, "users and certificates stay as they were");
                self.events.error(
                    Topic::Settings,
                    format!("users and certificates stay as they were: {error}"),
                );
            }
        }
        let users = || self.security.users.as_ref().map(|it| it.directory());
        self.engine.set_users(users);
    }

    /// What differs in `new` and takes a restart.
    fn tell_what_stays(&self, new: &Config) {
        let fixed = self.config.needs_restart(new);
        if !fixed.is_empty() {
            let settings = fixed.join(" ");
            tracing::warn!(settings, "these settings change only with a restart");
            let names = fixed.join(", ");
            let message = format!("these settings change only with a restart: {names}");
            self.events.warning(Topic::Settings, message);
        }
        let (sizes, wanted) = (self.sizes, Sizes::of(new.ram_budget));
        let mut kept = Vec::new();
        let mut keeps = |what: &str, size: u64, wanted: u64| {
            if size != wanted {
                let [size, wanted] = [size, wanted].map(ByteCount::new);
                kept.push(format!("{what} {size} instead of {wanted}"));
            }
        };
        if self.engine.disk().is_some() {
            let bytes = |size: usize| size as u64;
            let [queue, memory] = [sizes.disk_queue, sizes.disk_memory].map(bytes);
            keeps("disk queue", queue, bytes(wanted.disk_queue));
            keeps("disk memory", memory, bytes(wanted.disk_memory));
        }
        if self.engine.cold().is_some() {
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
            self.events.warning(Topic::Settings, message);
        }
    }

    /// Applies what can be, and notes what is in force then.
    fn apply(&mut self, mut new: Config) {
        self.engine.ram().set_budget(new.ram_budget.as_usize());
        if let Some(disk) = self.engine.disk()
            && let Err(error) = disk.set_budget(new.disk_budget.bytes())
        {
            tracing::error!(%error, "--disk-budget was not changed");
            new.disk_budget = self.config.disk_budget;
            let origins = &self.config.origins;
            new.origins.take_over(&["disk_budget"], origins);
        }
        if let (Some(cold), Some(new)) = (self.engine.cold(), &new.cold) {
            cold.tier().set_budget(new.budget.map(ByteCount::bytes));
        }
        self.config.adopt(&new, &LIVE);
        let settings = self.config.settings_before(&new);
        self.settings.reload(settings, self.engine.now_ms());
    }

    /// Changes settings as `CONFIG SET` asks for, all or none. They stay so until the next reload.
    pub(super) fn change(&mut self, change: SettingsChange) {
        let SettingsChange { pairs, answer } = change;
        let changed = self.try_change(&pairs);
        if changed.is_ok() {
            let keys: Vec<&str> = pairs.iter().map(|(key, _)| key.as_str()).collect();
            let keys = keys.join(", ");
            tracing::info!(keys, "settings changed by CONFIG SET");
            let message = format!("settings were changed by CONFIG SET: {keys}");
            self.events.info(Topic::Settings, message);
        }
        // A client that is gone needs no answer.
        let _ = answer.send(changed);
    }

    fn try_change(&mut self, pairs: &[(String, String)]) -> Result<(), (String, String)> {
        let mut set = self.set.clone();
        for (key, value) in pairs {
            let needs = match key.as_str() {
                "disk_budget" if self.engine.disk().is_none() => Some("there is no disk tier"),
                "cold_budget" if self.engine.cold().is_none() => Some("there is no cold tier"),
                _ => None,
            };
            if let Some(why) = needs {
                return Err((key.clone(), why.to_owned()));
            }
            let is_list = key == "codec";
            let one = parse_setting::<Settings>(key, value, is_list);
            set = one.map_err(|why| (key.clone(), why))?.over(set);
        }
        let first = || pairs.first().map_or(String::new(), |(key, _)| key.clone());
        let new = match config::load_below(std::env::args_os(), set.clone()) {
            Ok(new) => new,
            Err(Early::Bad(error)) => return Err((first(), error.to_string())),
            Err(Early::Info(_)) => return Err((first(), "the configuration is gone".to_owned())),
        };
        // What else has changed in the file waits for a reload.
        let is_meant = |live: &&'static str| pairs.iter().any(|(key, _)| key == live);
        let keys: Vec<&'static str> = LIVE.into_iter().filter(|it| is_meant(it)).collect();
        let mut changed = self.config.clone();
        changed.adopt(&new, &keys);
        self.set = set;
        self.log.set(&changed.common.log);
        self.apply(changed);
        if pairs.iter().any(|(key, _)| key.starts_with("codec")) {
            self.codecs.reload(&self.config);
        }
        Ok(())
    }
}
