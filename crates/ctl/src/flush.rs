//! `fonnctl flush`.

use fonn_proto::grpc::v1::FlushRequest;

use super::Verdict;
use super::args;
use super::connection::Connection;
use super::error::CtlError;
use super::output::Output;

pub(super) async fn run(
    node: &Connection,
    args: args::Flush,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = FlushRequest {
        namespace: args.namespace.clone(),
        database: args.db,
    };
    let mut admin = node.admin();
    let flushed = node.call(admin.flush(request)).await?;
    output.show(&flushed, |flushed| {
        let (name, count) = (&args.namespace, flushed.databases);
        format!("flushed `{name}`: {count} databases\n")
    })?;
    Ok(Verdict::Good)
}
