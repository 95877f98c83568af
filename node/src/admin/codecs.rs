//! The codecs of the levels, which may change while the node runs: by the admin service, or by a reload.

use std::sync::Arc;

use fonn_codec::CodecSpec;
use parking_lot::Mutex;

use crate::config::{Config, Level, LevelCodec};
use crate::engine::Engine;

/// The codecs in force. Whoever changes one does it here, so that what is told is what is done.
pub struct Codecs {
    engine: Arc<Engine>,
    current: Mutex<Current>,
}

#[derive(Clone, Copy)]
struct Current {
    ram: CodecSpec,
    upper: CodecSpec,
    min_bytes: usize,
}

impl Current {
    fn of(config: &Config) -> Self {
        Self {
            ram: config.codec_ram,
            upper: config.codec_upper,
            min_bytes: config.codec_min_bytes,
        }
    }

    fn level(&mut self, level: Level) -> &mut CodecSpec {
        match level {
            Level::Ram => &mut self.ram,
            Level::Upper => &mut self.upper,
        }
    }
}

impl Codecs {
    /// The codecs that the engine was opened with.
    #[must_use]
    pub fn new(engine: Arc<Engine>, config: &Config) -> Self {
        Self {
            engine,
            current: Mutex::new(Current::of(config)),
        }
    }

    /// Applies what the configuration says.
    pub fn reload(&self, config: &Config) {
        self.apply(&mut self.current.lock(), Current::of(config));
    }

    /// The levels that there are with their codecs, the fastest first, and the length below which values
    /// are stored verbatim.
    #[must_use]
    pub fn list(&self) -> (Vec<(&'static str, CodecSpec)>, usize) {
        let current = *self.current.lock();
        let mut levels = vec![("ram", current.ram)];
        if self.engine.disk().is_some() {
            levels.push(("upper", current.upper));
        }
        (levels, current.min_bytes)
    }

    /// Changes the codec of a level, both as in `--codec`; returns what it was and what it is.
    ///
    /// # Errors
    /// A sentence that says what would be accepted.
    pub fn set(&self, level: &str, codec: &str) -> Result<(CodecSpec, CodecSpec), String> {
        let setting: LevelCodec = format!("{level}={codec}").parse()?;
        if setting.level != Level::Ram && self.engine.disk().is_none() {
            return Err(format!(
                "`{level}` is a level of the disk tier, and this node has none (--data-dir none)"
            ));
        }
        let mut current = self.current.lock();
        let mut new = *current;
        let previous = std::mem::replace(new.level(setting.level), setting.codec);
        self.apply(&mut current, new);
        Ok((previous, setting.codec))
    }

    fn apply(&self, current: &mut Current, new: Current) {
        self.engine.set_ram_codec(new.ram, new.min_bytes);
        if let Some(disk) = self.engine.disk() {
            disk.set_codec(new.upper, new.min_bytes);
        }
        *current = new;
    }
}
