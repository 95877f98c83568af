//! `fonnctl codec`.

use fonn_proto::grpc::v1::{LevelCodec, SetCodecRequest, SetCodecResponse};
use serde::Serialize;

use super::args::CodecSetting;
use super::connection::Connection;
use super::error::CtlError;
use super::output::{Of, Output};
use super::table::{Table, printable};
use super::{Verdict, status};

/// The codecs of a node.
#[derive(Debug, Serialize)]
pub(super) struct Codecs {
    /// One a level, the fastest level first.
    pub codecs: Vec<LevelCodec>,
    /// Values below this are stored verbatim.
    pub codec_min_bytes: u64,
}

pub(super) async fn run(
    node: &Connection,
    setting: Option<CodecSetting>,
    output: &Output,
) -> Result<Verdict, CtlError> {
    for (member, way) in node.ways().await? {
        match &setting {
            None => {
                let codecs = Of::new(member.as_deref(), get(&way).await?);
                output.show(&codecs, |it| it.headed(render))?;
            }
            Some(setting) => {
                let set = Of::new(member.as_deref(), set(&way, setting).await?);
                output.show(&set, |it| it.headed(|set| changed(&setting.level, set)))?;
            }
        }
    }
    Ok(Verdict::Good)
}

async fn get(node: &Connection) -> Result<Codecs, CtlError> {
    let status = status::opened(node).await?;
    Ok(Codecs {
        codecs: status.codecs,
        codec_min_bytes: status.codec_min_bytes,
    })
}

async fn set(node: &Connection, setting: &CodecSetting) -> Result<SetCodecResponse, CtlError> {
    let request = SetCodecRequest {
        level: setting.level.clone(),
        codec: setting.codec.clone(),
    };
    let mut admin = node.admin();
    node.call(admin.set_codec(request)).await
}

pub(super) fn render(codecs: &Codecs) -> String {
    let mut table = Table::new(&["LEVEL", "CODEC"]);
    for it in &codecs.codecs {
        table.row([it.level.clone(), in_force(it)]);
    }
    let least = codecs.codec_min_bytes;
    format!(
        "{}values below {least} bytes are stored verbatim\n",
        table.render()
    )
}

/// The codec as it was chosen, and what `auto` has found.
pub(super) fn in_force(it: &LevelCodec) -> String {
    match it.active.as_str() {
        "" => it.codec.clone(),
        active if active == it.codec => it.codec.clone(),
        active => format!("{} ({active} now)", it.codec),
    }
}

pub(super) fn changed(level: &str, set: &SetCodecResponse) -> String {
    let (codec, previous) = (printable(&set.codec), printable(&set.previous));
    format!(
        "{level}: {codec}, was {previous}, until the next restart or reload; to keep it, set --codec {level}={codec}\n"
    )
}
