//! Following the users that members agreed on. The router asks one member after the other, because
//! a member that is cut off has old users. It keeps the last ones when it reaches no member.

use std::sync::Arc;
use std::time::Duration;

use fonn_admin::Channel;
use fonn_auth::tls::Tls;
use fonn_auth::{Authenticator, NamespaceRecord, Records, Role, UserRecord};
use fonn_base::backoff::Backoff;
use fonn_base::random::SplitMix64;
use fonn_base::size::ByteCount;
use fonn_forward::Map;
use fonn_proto::grpc::v1;
use fonn_proto::grpc::v1::members_client::MembersClient;
use fonn_proto::member::MemberState;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::follow::FollowError;

/// How long a member may take to accept, and to send the users first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long one member is listened to.
const TURN: Duration = Duration::from_secs(10);

/// Between tries, when no member answers.
const RETRY: Backoff = Backoff {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(2),
    attempts_max: u32::MAX,
};

/// A router's users, as far as a cluster decides.
#[derive(Debug)]
pub struct Followed {
    /// Those in force.
    pub users: Arc<Authenticator>,
    /// By it members are known.
    pub tls: Arc<Tls>,
    /// The members.
    pub map: Arc<Map>,
    /// Members to begin with, HOST:PORT of their cluster listeners.
    pub seeds: Vec<String>,
    /// Set when some member has told the users once.
    pub known: watch::Sender<bool>,
}

impl Followed {
    /// Follows the users for ever.
    pub async fn follow(self) {
        let mut random = SplitMix64::from_entropy();
        let (mut turn, mut failures, mut cluster) = (0_usize, 0_u32, 0);
        loop {
            let addresses = self.addresses();
            let Some(address) = addresses.get(turn % addresses.len().max(1)) else {
                return;
            };
            turn += 1;
            match self.follow_one(address, &mut cluster).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    tracing::debug!(%address, %error, "no users from a member");
                    failures += 1;
                }
            }
            // Every member has its turn before any member is asked again.
            let round = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
            if failures > 0 && failures.is_multiple_of(round) {
                if failures == round && self.users.records().revision > 0 {
                    tracing::warn!("no member tells its users; going by the last ones");
                }
                if let Some(delay) = RETRY.delay(failures / round, &mut random) {
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// The members to ask: those in the map that are not down, else those it began with.
    fn addresses(&self) -> Vec<String> {
        let topology = self.map.topology();
        let members = topology.iter().flat_map(|it| it.members());
        let up = members.filter(|it| it.state != MemberState::Down);
        let known: Vec<String> = up
            .map(|it| it.cluster_address.clone())
            .filter(|address| !address.is_empty())
            .collect();
        match known.is_empty() {
            true => self.seeds.clone(),
            false => known,
        }
    }

    /// Follows the users from one member, until its turn ends.
    async fn follow_one(&self, address: &str, cluster: &mut u64) -> Result<(), FollowError> {
        let end = Instant::now() + TURN;
        let channel = Channel::connect_to_member(address, Some(&self.tls), ANSWER_TIMEOUT).await?;
        let origin = channel.origin();
        let mut client = MembersClient::with_origin(channel, origin);
        let request = v1::UsersRequest { cluster: *cluster };
        let first = async {
            let mut versions = client.users(request).await?.into_inner();
            let first = versions.message().await?;
            Ok::<_, FollowError>((versions, first))
        };
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, first).await;
        let (mut versions, mut next) =
            asked.map_err(|_| FollowError::Timeout(ANSWER_TIMEOUT))??;
        loop {
            let told = next.ok_or(FollowError::Ended)?;
            *cluster = told.cluster;
            let records = records(told);
            let revision = records.revision;
            let users = Arc::clone(&self.users);
            // Thousands of users are checked.
            let put = tokio::task::spawn_blocking(move || users.replicate(records));
            if put.await.unwrap_or(false) {
                tracing::info!(revision, "users changed");
            }
            self.known.send_replace(true);
            next = match tokio::time::timeout_at(end, versions.message()).await {
                Ok(next) => next?,
                Err(_) => return Ok(()),
            };
        }
    }
}

/// What a message says. A user with an unknown role is left out.
fn records(told: v1::ClusterUsers) -> Records {
    let users = told.users.into_iter().filter_map(|it| {
        let role = match it.role() {
            v1::Role::Read => Role::Read,
            v1::Role::ReadWrite => Role::ReadWrite,
            v1::Role::Admin => Role::Admin,
            v1::Role::Unspecified => return None,
        };
        let record = UserRecord {
            hash: it.hash,
            role,
            namespace: it.namespace,
        };
        Some((it.name, record))
    });
    let namespaces = told.namespaces.into_iter().map(|it| {
        let record = NamespaceRecord {
            base: (!it.base.is_empty()).then_some(it.base),
            quota: it.quota_bytes.map(ByteCount::new),
        };
        (it.name, record)
    });
    Records {
        revision: told.revision,
        users: users.collect(),
        namespaces: namespaces.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_members_tell_is_what_they_agreed_on() {
        let user = |name: &str, role| v1::ClusterUser {
            name: name.to_owned(),
            hash: "h".to_owned(),
            role,
            namespace: "main".to_owned(),
        };
        let told = v1::ClusterUsers {
            cluster: 7,
            revision: 4,
            users: vec![
                user("ci", v1::Role::ReadWrite.into()),
                user("newer", 99),
                user("none", 0),
            ],
            namespaces: vec![v1::ClusterNamespace {
                name: "main".to_owned(),
                base: String::new(),
                quota_bytes: Some(5),
            }],
        };
        let records = records(told);
        assert_eq!(records.revision, 4);
        assert_eq!(records.users.keys().collect::<Vec<_>>(), ["ci"]);
        assert_eq!(records.users["ci"].role, Role::ReadWrite);
        let main = &records.namespaces["main"];
        assert_eq!((&main.base, main.quota), (&None, Some(ByteCount::new(5))));
    }
}
