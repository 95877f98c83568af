//! What of the settings changes while the node runs, and what is told of them.

use fonn_base::config::Setting;
use fonn_disk_tier::levels::{CodecChoice, Level};

use super::{Config, Settings};

/// The settings that a reload applies; the rest takes a restart.
pub const LIVE: [&str; 6] = [
    "ram_budget",
    "disk_budget",
    "cold_budget",
    "codec",
    "codec_min_bytes",
    "log",
];

impl Config {
    /// The settings as they are in force, in the order of `--help`.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        self.settings_before(self)
    }

    /// The same, with what a restart would make of them by `new`.
    #[must_use]
    pub fn settings_before(&self, new: &Self) -> Vec<Setting> {
        Setting::all::<Settings>(self.pairs(), &new.pairs(), &LIVE, &self.origins)
    }

    /// The codec of a level.
    #[must_use]
    pub const fn codec(&self, level: Level) -> CodecChoice {
        self.codec_of_level[level as usize]
    }

    /// Takes over what `new` has of these settings, which change while the node runs.
    pub fn adopt(&mut self, new: &Self, keys: &[&'static str]) {
        let is_meant = |key| keys.contains(&key);
        if is_meant("ram_budget") {
            self.ram_budget = new.ram_budget;
            self.ram_budget_source.clone_from(&new.ram_budget_source);
        }
        if is_meant("disk_budget") {
            self.disk_budget = new.disk_budget;
        }
        if let (true, Some(cold), Some(new)) = (is_meant("cold_budget"), &mut self.cold, &new.cold)
        {
            cold.budget = new.budget;
        }
        if is_meant("codec") {
            self.codec_of_level = new.codec_of_level;
        }
        if is_meant("codec_min_bytes") {
            self.codec_min_bytes = new.codec_min_bytes;
        }
        if is_meant("log") {
            self.common.log = new.common.log.clone();
        }
        self.origins.take_over(keys, &new.origins);
    }

    /// What differs in `new` from this and takes effect only after a restart: the flags' names.
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Vec<String> {
        Setting::awaiting_restart(&self.settings_before(new))
    }
}
