//! Drives a parser the way a connection does, and writes down what it produced.
//!
//! For the tests and fuzz targets of all dialects. A parser has to give the same requests however
//! the network cuts the stream into reads: [`drive`] with different `reads` has to return equal
//! vectors.

use crate::request::{Body, Step};

/// Feeds `bytes` to a parser in reads of the sizes in `reads`, over and over (0 counts as 1; an
/// empty slice means one read of everything), and returns the requests in order, each as
/// `"<offset in bytes of its end> <Debug of the request>"`.
///
/// Stops at the first request that closes the connection, and when the bytes are used up. Call it
/// as `drive(&mut parser, text::Parser::parse, bytes, &[1])`.
///
/// # Panics
/// If the parser breaks the contract of [`Step`]: wants no more than it was given, skips nothing,
/// or takes a request of no bytes or of more than there are.
pub fn drive<P>(
    parser: &mut P,
    parse: impl for<'a> Fn(&'a mut P, &'a [u8]) -> Step<'a>,
    bytes: &[u8],
    reads: &[usize],
) -> Vec<String> {
    let mut read_sizes = reads.iter().map(|&size| size.max(1)).cycle();
    let mut requests = Vec::new();
    // Of `bytes`: consumed by the parser, and arrived so far.
    let (mut start, mut end) = (0_usize, 0_usize);
    let mut needed = 1_usize;
    let mut skip = 0_u64;
    while end < bytes.len() {
        end = read_sizes
            .next()
            .map_or(bytes.len(), |size| (end + size).min(bytes.len()));
        loop {
            let dropped = skip.min((end - start) as u64);
            skip -= dropped;
            start += dropped as usize;
            let buf = &bytes[start..end];
            if skip > 0 || buf.len() < needed {
                break;
            }
            match parse(parser, buf) {
                Step::Need { total } => {
                    assert!(
                        total > buf.len(),
                        "needs {total} bytes and was given {}",
                        buf.len()
                    );
                    needed = total;
                }
                Step::Skip { len } => {
                    assert!(len >= 1, "skips nothing");
                    skip = len;
                    needed = 1;
                }
                Step::Request { request, len } => {
                    assert!(
                        (1..=buf.len()).contains(&len),
                        "request of {len} bytes out of {}",
                        buf.len()
                    );
                    start += len;
                    needed = 1;
                    requests.push(format!("{start} {request:?}"));
                    if matches!(request.body, Body::Close | Body::Broken) {
                        return requests;
                    }
                }
            }
        }
    }
    requests
}
