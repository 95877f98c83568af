//! Any bytes, cut into any reads, give the same requests, and never a panic or a standstill; and
//! what the cluster looks like can be worded whatever was asked.
#![no_main]

use std::sync::Arc;

use fonn_proto::cluster::ClusterView;
use fonn_proto::drive::drive;
use fonn_proto::request::ServerOutcome;
use fonn_proto::resp::Parser;
use fonn_proto::{Body, Limits, Moved, Out, Outcome, ServerCommand, Step};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits { value_len_max: 64 };

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (reads, bytes) = input;
    let reads: Vec<usize> = reads.into_iter().map(usize::from).collect();
    let requests =
        |reads: &[usize]| drive(&mut Parser::new(LIMITS, 1), Parser::parse, &bytes, reads);
    let whole = requests(&[]);
    assert_eq!(requests(&[1]), whole);
    assert_eq!(requests(&reads), whole);
    answer(&bytes);
});

/// Answers all requests of `bytes`: as if each key were another's, and as if there were one member.
fn answer(bytes: &[u8]) {
    let mut parser = Parser::new(LIMITS, 1);
    let mut out = Out::new();
    let mut start = 0;
    while start < bytes.len() {
        let (mut request, len) = match parser.parse(&bytes[start..]) {
            Step::Need { .. } => return,
            Step::Skip { len } => {
                start += usize::try_from(len)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len() - start);
                continue;
            }
            Step::Request { request, len } => (request, len),
        };
        start += len;
        match &request.body {
            Body::Data(commands) => {
                let redirects = request.reply.redirects();
                assert!(commands.len() == 1 || redirects == Default::default());
                let moved = Moved {
                    slot: 1,
                    host: "h".to_owned(),
                    port: 1,
                };
                for command in commands {
                    request
                        .reply
                        .each(command, &Outcome::Moved(moved.clone()), &mut out);
                }
                request.reply.finish(&mut out);
            }
            Body::Server(command @ ServerCommand::ClusterView) => {
                let view = ClusterView::alone("fuzz", "[::1]:1".parse().ok());
                let outcome = ServerOutcome::Cluster(Arc::new(view));
                request.reply.server(command, &outcome, &mut out);
            }
            Body::Server(command) => {
                request
                    .reply
                    .server(command, &ServerOutcome::Done, &mut out);
            }
            Body::Answer | Body::Queued(_) | Body::LogOut => request.reply.finish(&mut out),
            Body::Close | Body::Broken => return,
        }
        if out.len() > 1 << 20 {
            out = Out::new();
        }
    }
}
