//! `fonnctl codec`.

use fonn_proto::grpc::v1::{
    GetCodecsRequest, GetCodecsResponse, LevelCodec, SetCodecRequest, SetCodecResponse,
};

use super::Verdict;
use super::args::CodecSetting;
use super::connection::Connection;
use super::error::CtlError;
use super::output::Output;
use super::table::{Side, Table};

pub(super) async fn run(
    node: &Connection,
    setting: Option<CodecSetting>,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let mut admin = node.admin();
    match setting {
        None => {
            let codecs = node.call(admin.get_codecs(GetCodecsRequest {})).await?;
            output.show(&codecs, render)?;
        }
        Some(CodecSetting { level, codec }) => {
            let request = SetCodecRequest {
                level: level.clone(),
                codec,
            };
            let set = node.call(admin.set_codec(request)).await?;
            output.show(&set, |set| changed(&level, set))?;
        }
    }
    Ok(Verdict::Good)
}

pub(super) fn render(codecs: &GetCodecsResponse) -> String {
    let mut table = Table::new(&[("LEVEL", Side::Left), ("CODEC", Side::Left)]);
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
    format!(
        "{level}: {}, was {}, until the next restart or reload; to keep it, set --codec {level}={}\n",
        set.codec, set.previous, set.codec
    )
}
