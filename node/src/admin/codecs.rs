//! The codecs of the levels, as the engine has them. What changes the settings in force changes
//! them, too ([`crate::cli`]).

use fonn_disk_tier::levels::{CodecChoice, Level, LevelCodec, LevelSetting};
use fonn_proto::grpc::v1;

use crate::engine::Engine;

/// The levels that there are with their codecs, the fastest first, and the length below which
/// values are stored verbatim.
#[must_use]
pub fn list(engine: &Engine) -> (Vec<v1::LevelCodec>, u64) {
    let levels = Level::ALL.into_iter().filter_map(|level| {
        let codec = of_level(engine, level)?;
        Some(v1::LevelCodec {
            level: level.to_string(),
            codec: codec.choice().to_string(),
            active: codec.active().0.to_string(),
        })
    });
    (levels.collect(), engine.ram_codec().active().1 as u64)
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

/// The codec that a level of this node shall have, both as in `--codec`, and the one that is chosen
/// for it now.
///
/// # Errors
/// A sentence that says what would be accepted.
pub fn parse(
    engine: &Engine,
    level: &str,
    codec: &str,
) -> Result<(CodecChoice, CodecChoice), String> {
    let setting: LevelSetting = format!("{level}={codec}").parse()?;
    if let Some(level) = of_level(engine, setting.level) {
        return Ok((setting.codec, level.choice()));
    }
    let (tier, why) = match setting.level {
        Level::Cold => ("cold", "no --cold-tier"),
        _ => ("disk", "--data-dir none"),
    };
    Err(format!(
        "`{level}` is a level of the {tier} tier, and this node has none ({why})"
    ))
}
