//! Tells all members the names of identities that have logged in here. Entries have the number of
//! their writer alone; a member that is asked about an entry later needs the name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fonn_auth::{Authenticator, WriterNames};
use fonn_proto::Space;
use fonn_proto::peer::{Reply, Request};

use super::forward::envelope;
use super::upstream::{Target, Upstreams};

/// How long a member may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Between tries with a member that did not answer.
const RETRY: Duration = Duration::from_secs(2);

/// Names of one request, at most.
const NAMES_MAX: usize = 256;

/// Bytes of the names of one request, at most: more than the longest name has.
const NAMES_LEN_MAX: usize = 32 * 1024;

/// Tells each member each name once, for ever.
pub async fn tell_writers<'u>(users: Arc<Authenticator>, upstreams: impl Fn() -> &'u Upstreams) {
    // By member, how many names were told.
    let mut told = HashMap::<String, u64>::new();
    let mut changes = users.writers().changes();
    loop {
        changes.mark_unchanged();
        let epoch = upstreams().map().epoch();
        let topology = upstreams().map().topology();
        let members = topology.iter().flat_map(|topology| topology.members());
        let members: Vec<String> = members.map(|member| member.id.clone()).collect();
        told.retain(|id, _| members.contains(id));
        let mut are_all_told = true;
        for id in members {
            // Those that do not serve are told once they do, and this process knows.
            let Some(target) = upstreams().member(&id) else {
                continue;
            };
            let position = told.entry(id).or_default();
            are_all_told &= tell(users.writers(), &target, position).await;
        }
        let newer = upstreams().map().wait_for(epoch + 1, Duration::MAX);
        let retry = async {
            match are_all_told {
                true => std::future::pending().await,
                false => tokio::time::sleep(RETRY).await,
            }
        };
        tokio::select! {
            _ = newer => {}
            _ = changes.changed() => {}
            () = retry => {}
        }
    }
}

/// Tells a member the names behind `position`, which moves on. False if it did not take all.
async fn tell(writers: &WriterNames, target: &Target, position: &mut u64) -> bool {
    loop {
        let (names, end) = writers.after(*position, NAMES_MAX);
        if names.is_empty() {
            return true;
        }
        let mut len = 0;
        let taken = names.iter().take_while(|name| {
            len += name.len();
            len <= NAMES_LEN_MAX
        });
        let taken: Vec<&str> = taken.map(|name| &**name).collect();
        // What was forgotten meanwhile is before the first of them.
        let begin = end - names.len() as u64;
        let end = begin + taken.len() as u64;
        let request = Request::Writers { names: taken };
        let envelope = envelope(0, Space::default(), target.epoch);
        let call = target.client.call(&request, envelope, None, ANSWER_TIMEOUT);
        match call.await.as_ref().map(|answer| answer.reply()) {
            Ok(Ok(Reply::Applied)) => *position = end,
            _ => return false,
        }
    }
}
