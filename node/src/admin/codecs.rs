//! The codecs of the levels, which may change while the node runs: by the admin service, or by a
//! reload.

use std::sync::Arc;

use fonn_base::config::{InForce, Origin};
use fonn_codec::CodecSpec;
use fonn_disk_tier::levels::{CodecChoice, Level, LevelSetting};
use parking_lot::Mutex;

use crate::config::Config;
use crate::engine::Engine;

/// The setting.
const KEY: &str = "codec";

/// The codecs that were chosen. Every change goes through here, so that what is told is what is
/// done.
pub struct Codecs {
    engine: Arc<Engine>,
    chosen: Mutex<Chosen>,
    settings: InForce,
}

#[derive(Clone, Copy)]
struct Chosen {
    ram: CodecChoice,
    fresh: CodecChoice,
    compacted: CodecChoice,
    cold: CodecChoice,
    min_bytes: usize,
}

impl Chosen {
    fn of(config: &Config) -> Self {
        Self {
            ram: config.codec_ram,
            fresh: config.codec_fresh,
            compacted: config.codec_compacted,
            cold: config.codec_cold,
            min_bytes: config.codec_min_bytes,
        }
    }

    /// As in `--codec`.
    fn setting(mut self) -> String {
        let levels = Level::ALL.map(|level| format!("{level}={}", self.level(level)));
        levels.join(",")
    }

    fn level(&mut self, level: Level) -> &mut CodecChoice {
        match level {
            Level::Ram => &mut self.ram,
            Level::Fresh => &mut self.fresh,
            Level::Compacted => &mut self.compacted,
            Level::Cold => &mut self.cold,
        }
    }
}

/// The codec of one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecInForce {
    /// The level.
    pub level: Level,
    /// What was chosen for it.
    pub choice: CodecChoice,
    /// What the next value gets: what `auto` has found, or the choice itself.
    pub active: CodecSpec,
}

impl Codecs {
    /// The codecs that the engine was opened with; changes are noted in `settings`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, config: &Config, settings: InForce) -> Self {
        Self {
            engine,
            chosen: Mutex::new(Chosen::of(config)),
            settings,
        }
    }

    /// Notes what was chosen; the lock on it is held, so that what is told last is what was done
    /// last.
    fn note(&self, chosen: Chosen, origin: Origin) {
        let now_ms = self.engine.now_ms();
        self.settings.set(KEY, chosen.setting(), origin, now_ms);
    }

    /// Applies what the configuration says.
    pub fn reload(&self, config: &Config) {
        let (mut chosen, new) = (self.chosen.lock(), Chosen::of(config));
        for level in Level::ALL {
            self.apply(level, new);
        }
        *chosen = new;
        self.note(new, config.origins.of(KEY));
    }

    /// The levels that there are with their codecs, the fastest first, and the length below which
    /// values are stored verbatim.
    #[must_use]
    pub fn list(&self) -> (Vec<CodecInForce>, usize) {
        let mut chosen = *self.chosen.lock();
        let levels = Level::ALL.into_iter().filter_map(|level| {
            Some(CodecInForce {
                level,
                choice: *chosen.level(level),
                active: self.active(level)?,
            })
        });
        (levels.collect(), chosen.min_bytes)
    }

    /// Changes the codec of a level, both as in `--codec`; returns what was chosen before and what
    /// is now.
    ///
    /// # Errors
    /// A sentence that says what would be accepted.
    pub fn set(&self, level: &str, codec: &str) -> Result<(CodecChoice, CodecChoice), String> {
        let setting: LevelSetting = format!("{level}={codec}").parse()?;
        if self.active(setting.level).is_none() {
            let (tier, why) = match setting.level {
                Level::Cold => ("cold", "no --cold-tier"),
                _ => ("disk", "--data-dir none"),
            };
            return Err(format!(
                "`{level}` is a level of the {tier} tier, and this node has none ({why})"
            ));
        }
        let mut chosen = self.chosen.lock();
        let previous = std::mem::replace(chosen.level(setting.level), setting.codec);
        self.apply(setting.level, *chosen);
        self.note(*chosen, Origin::Admin);
        Ok((previous, setting.codec))
    }

    /// What the next value of a level gets; None if there is no such level.
    fn active(&self, level: Level) -> Option<CodecSpec> {
        let engine = &self.engine;
        match level {
            Level::Ram => Some(engine.ram_codec().active().0),
            Level::Fresh => engine.disk().map(|disk| disk.fresh().active().0),
            Level::Compacted => engine.disk().map(|disk| disk.compacted().active().0),
            Level::Cold => engine.cold().map(|cold| cold.codec().active().0),
        }
    }

    fn apply(&self, level: Level, mut chosen: Chosen) {
        let (choice, min_bytes) = (*chosen.level(level), chosen.min_bytes);
        let (disk, cold) = (self.engine.disk(), self.engine.cold());
        match level {
            Level::Ram => self.engine.ram_codec().set(choice, min_bytes),
            Level::Fresh => {
                if let Some(disk) = disk {
                    disk.fresh().set(choice, min_bytes);
                }
            }
            Level::Compacted => {
                if let Some(disk) = disk {
                    disk.compacted().set(choice, min_bytes);
                }
            }
            Level::Cold => {
                if let Some(cold) = cold {
                    cold.codec().set(choice, min_bytes);
                }
            }
        }
    }
}
