//! The codecs of the levels, as the engine has them. What changes the settings in force changes
//! them, too ([`crate::cli`]).

use fonn_codec::CodecSpec;
use fonn_disk_tier::levels::{CodecChoice, Level, LevelCodec, LevelSetting};

use crate::engine::Engine;

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

/// The levels that there are with their codecs, the fastest first, and the length below which
/// values are stored verbatim.
#[must_use]
pub fn list(engine: &Engine) -> (Vec<CodecInForce>, usize) {
    let levels = Level::ALL.into_iter().filter_map(|level| {
        let codec = of_level(engine, level)?;
        let (active, _) = codec.active();
        let choice = match codec.is_auto() {
            true => CodecChoice::Auto,
            false => CodecChoice::Fixed(active),
        };
        Some(CodecInForce {
            level,
            choice,
            active,
        })
    });
    (levels.collect(), engine.ram_codec().active().1)
}

/// The codec of a level; None if there is no such level.
#[must_use]
pub fn of_level(engine: &Engine, level: Level) -> Option<&LevelCodec> {
    match level {
        Level::Ram => Some(engine.ram_codec()),
        Level::Fresh => engine.disk().map(|disk| disk.fresh()),
        Level::Compacted => engine.disk().map(|disk| disk.compacted()),
        Level::Cold => engine.cold().map(|cold| cold.codec()),
    }
}

/// The codec for a level of this node, both as in `--codec`.
///
/// # Errors
/// A sentence that says what would be accepted.
pub fn parse(engine: &Engine, level: &str, codec: &str) -> Result<LevelSetting, String> {
    let setting: LevelSetting = format!("{level}={codec}").parse()?;
    if of_level(engine, setting.level).is_some() {
        return Ok(setting);
    }
    let (tier, why) = match setting.level {
        Level::Cold => ("cold", "no --cold-tier"),
        _ => ("disk", "--data-dir none"),
    };
    Err(format!(
        "`{level}` is a level of the {tier} tier, and this node has none ({why})"
    ))
}
