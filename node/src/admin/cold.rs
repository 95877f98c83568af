//! `fonn.v1.Cold`: what the operator sees of the cold tier, and does about it.
//!
//! The service bounds pages, and lets one long piece of work run at a time. [`ColdAdmin`] answers.

pub(super) mod news;
mod service;
mod tier;

use std::pin::Pin;

use fonn_base::entry::Space;
use tokio_stream::Stream;

pub(super) use service::{ColdService, WORK_MAX};
pub use tier::ColdAdmin;
pub(super) use tier::ColdCopy;

use super::DEFAULT_NAMESPACE;

/// News of a longer piece of work, which goes on only while the stream is polled, and ends when it
/// is dropped.
pub(super) type News<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// How the page names the namespace of a key.
fn namespace_name(space: Space) -> String {
    match space.namespace() {
        0 => DEFAULT_NAMESPACE.to_owned(),
        // Of a node that had users: there is no name for it here.
        number => format!("#{number}"),
    }
}
