//! A connection to an admin port, and the clients on it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fonn_admin::{Channel, ChannelError, Liveness, MEMBER, ROUTER};
use fonn_auth::tls::{self, CallerFiles};
use fonn_proto::grpc::v1::admin_client::AdminClient;
use fonn_proto::grpc::v1::cold_client::ColdClient;
use fonn_proto::grpc::v1::membership_client::MembershipClient;
use fonn_proto::grpc::v1::router_client::RouterClient;
use fonn_proto::grpc::v1::settings_client::SettingsClient;
use fonn_proto::grpc::v1::telemetry_client::TelemetryClient;
use fonn_proto::grpc::v1::tools_client::ToolsClient;
use fonn_proto::grpc::v1::users_client::UsersClient;
use fonn_proto::grpc::v1::{MapEntry, MemberState, MembershipMapRequest, MembershipMapResponse};
use rustls::{ClientConfig, InvalidMessage};
use tonic::Code;

use super::args::{AdminAddr, TlsArgs};
use super::error::CtlError;
use super::login::Login;

/// Until the connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Until a call is answered; for a stream, until it begins.
const CALL_TIMEOUT: Duration = fonn_admin::ANSWER_TIMEOUT;

/// How to call a node; None without TLS.
pub(super) fn tls_config(
    admin: &AdminAddr,
    args: &TlsArgs,
) -> Result<Option<Arc<ClientConfig>>, CtlError> {
    let input = |text: &str| Err(CtlError::Input(text.to_owned()));
    let identity = args.tls_cert.clone().zip(args.tls_key.clone());
    let Some(ca) = args.tls_ca.clone() else {
        return match (admin.is_https, identity) {
            (false, None) => Ok(None),
            (true, _) => {
                input("https needs --tls-ca FILE: the authority of the node's certificate")
            }
            (false, Some(_)) => input("--tls-cert is given without --tls-ca FILE"),
        };
    };
    match tls::caller(&CallerFiles { ca, identity }) {
        Ok(config) => Ok(Some(config)),
        Err(error) => Err(CtlError::Input(error.to_string())),
    }
}

/// A connection to a node.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    addr: String,
    channel: Channel,
    /// One member was named.
    is_to_member: bool,
}

/// The members that a router answers for.
#[derive(Debug)]
pub(super) struct Everybody {
    /// As one of them told it.
    pub map: MembershipMapResponse,
    /// The ways to those that are not down, by name.
    pub members: Vec<(String, Connection)>,
}

/// The name of a member, unless it is down.
fn answering(entry: &MapEntry) -> Option<&str> {
    let member = entry.member.as_ref()?;
    (member.state() != MemberState::Down).then_some(member.id.as_str())
}

/// Whether a handshake failed because the other end answered without TLS.
fn is_plain(error: &std::io::Error) -> bool {
    let cause = error
        .get_ref()
        .and_then(|it| it.downcast_ref::<rustls::Error>());
    let no_record = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
    cause == Some(&no_record)
}

impl Connection {
    /// Connects; every call is that of `login`, and is for `member` if there is one.
    ///
    /// # Errors
    /// [`CtlError::Unreachable`], or [`CtlError::Foreign`] if what is there breaks HTTP/2 at once.
    pub(super) async fn open(
        admin: &AdminAddr,
        tls: &TlsArgs,
        login: Option<&Login>,
        member: Option<&str>,
    ) -> Result<Self, CtlError> {
        let config = tls_config(admin, tls)?;
        let addr = admin.addr.clone();
        match Channel::connect_by(&addr, config, CONNECT_TIMEOUT, Liveness::Operator).await {
            Ok(channel) => {
                let channel = match login {
                    Some(login) => channel.with_login(&login.user, &login.password),
                    None => channel,
                };
                let node = Self {
                    addr,
                    channel,
                    is_to_member: false,
                };
                match member {
                    Some(member) => node.to_member(member),
                    None => Ok(node),
                }
            }
            Err(ChannelError::Tls(error)) if is_plain(&error) => Err(CtlError::Plain { addr }),
            Err(ChannelError::Tls(error)) => Err(CtlError::Tls {
                addr,
                reason: error.to_string(),
            }),
            Err(error @ ChannelError::Protocol(_)) => Err(CtlError::Foreign {
                addr,
                reason: error.to_string(),
            }),
            Err(error) => Err(CtlError::Unreachable {
                addr,
                reason: error.to_string(),
            }),
        }
    }

    /// The address, for messages.
    pub(super) fn addr(&self) -> &str {
        &self.addr
    }

    /// Whether one member was named.
    pub(super) fn is_to_member(&self) -> bool {
        self.is_to_member
    }

    /// The client of the admin service.
    pub(super) fn admin(&self) -> AdminClient<Channel> {
        AdminClient::with_origin(self.channel.clone(), self.channel.origin())
    }

    /// The client of the cold service. Pages of a thousand long keys are larger than the default
    /// limit.
    pub(super) fn cold(&self) -> ColdClient<Channel> {
        ColdClient::with_origin(self.channel.clone(), self.channel.origin())
            .max_decoding_message_size(64 << 20)
    }

    /// The client of the membership service. Maps of hundreds of members fit the default limit.
    pub(super) fn membership(&self) -> MembershipClient<Channel> {
        MembershipClient::with_origin(self.channel.clone(), self.channel.origin())
    }

    /// The client of the service that a router has of its own.
    pub(super) fn router(&self) -> RouterClient<Channel> {
        RouterClient::with_origin(self.channel.clone(), self.channel.origin())
    }

    /// The client of the settings service.
    pub(super) fn settings(&self) -> SettingsClient<Channel> {
        SettingsClient::with_origin(self.channel.clone(), self.channel.origin())
    }

    /// The client of the tools service. All rows of a table fit the default limit.
    pub(super) fn tools(&self) -> ToolsClient<Channel> {
        ToolsClient::with_origin(self.channel.clone(), self.channel.origin())
    }

    /// The client of the users service. Thousands of users fit the default limit.
    pub(super) fn users(&self) -> UsersClient<Channel> {
        UsersClient::with_origin(self.channel.clone(), self.channel.origin())
    }

    /// The client of the telemetry service. The first message has all series.
    pub(super) fn telemetry(&self) -> TelemetryClient<Channel> {
        TelemetryClient::with_origin(self.channel.clone(), self.channel.origin())
            .max_decoding_message_size(64 << 20)
    }

    /// The same way to one member.
    ///
    /// # Errors
    /// If that is no name.
    pub(super) fn to_member(&self, member: &str) -> Result<Self, CtlError> {
        let channel = self.channel.clone().for_member(member);
        let channel =
            channel.ok_or_else(|| CtlError::Input(format!("--member {member:?} is no name")))?;
        Ok(Self {
            addr: self.addr.clone(),
            channel,
            is_to_member: true,
        })
    }

    /// The members, if it is a router that is asked and none of them was named: what is of one
    /// member alone is asked of each then. What cannot be told here the call itself will tell.
    ///
    /// # Errors
    /// If a member has no name.
    pub(super) async fn everybody(&self) -> Result<Option<Everybody>, CtlError> {
        if self.is_to_member {
            return Ok(None);
        }
        let mut membership = self.membership();
        let asked = tokio::time::timeout(CALL_TIMEOUT, membership.map(MembershipMapRequest {}));
        let answer = match asked.await {
            Ok(Ok(answer)) => answer,
            // Not twice: each wrong login is one to wait for.
            Ok(Err(status)) if status.code() == Code::Unauthenticated => {
                return Err(CtlError::of(&status, &self.addr));
            }
            _ => return Ok(None),
        };
        if !answer.metadata().contains_key(ROUTER.as_str()) {
            return Ok(None);
        }
        let map = answer.into_inner();
        let names = map.members.iter().filter_map(answering);
        let members = names.map(|name| Ok((name.to_owned(), self.to_member(name)?)));
        let members = members.collect::<Result<_, CtlError>>()?;
        Ok(Some(Everybody { map, members }))
    }

    /// The ways to what is asked of one member alone: to all of [`Connection::everybody`], or as it
    /// is without a name.
    ///
    /// # Errors
    /// As [`Connection::everybody`].
    pub(super) async fn ways(&self) -> Result<Vec<(Option<String>, Self)>, CtlError> {
        Ok(match self.everybody().await? {
            None => vec![(None, self.clone())],
            Some(everybody) => {
                let members = everybody.members.into_iter();
                members.map(|(name, way)| (Some(name), way)).collect()
            }
        })
    }

    /// The members of the cluster that are not down, whichever process is asked; None of a node
    /// that is in no cluster.
    pub(super) async fn in_cluster(&self) -> Option<Vec<(String, Self)>> {
        let mut membership = self.membership();
        let map = self
            .call(membership.map(MembershipMapRequest {}))
            .await
            .ok()?;
        let names = map.members.iter().filter_map(answering);
        let members = names.map(|name| Some((name.to_owned(), self.to_member(name).ok()?)));
        members.collect()
    }

    /// The metrics of the process that is asked itself, if it tells them.
    pub(super) async fn metrics(&self) -> Option<String> {
        let page = self.channel.clone().get("/metrics");
        tokio::time::timeout(CALL_TIMEOUT, page).await.ok()?
    }

    /// Waits for the answer of a call, and says which member it is of, in a cluster.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub(super) async fn call_signed<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<(T, Option<String>), CtlError> {
        let signed = async {
            let response = call.await?;
            let member = response.metadata().get(MEMBER.as_str());
            let member = member.and_then(|it| it.to_str().ok()).map(str::to_owned);
            Ok(tonic::Response::new((response.into_inner(), member)))
        };
        self.call(signed).await
    }

    /// Waits for the answer of a call.
    ///
    /// # Errors
    /// As the node says, or [`CtlError::Late`].
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, CtlError> {
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(CtlError::of(&status, &self.addr)),
            Err(_) => Err(CtlError::Late {
                addr: self.addr.clone(),
                secs: CALL_TIMEOUT.as_secs(),
            }),
        }
    }

    /// The next message of a stream; None at its end. A node that is gone is noticed by the
    /// connection.
    ///
    /// # Errors
    /// As the node says.
    pub(super) async fn next<T>(
        &self,
        stream: &mut tonic::Streaming<T>,
    ) -> Result<Option<T>, CtlError> {
        let message = stream.message().await;
        message.map_err(|status| CtlError::of(&status, &self.addr))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn an_answer_without_tls_is_told_from_a_certificate_that_is_not_trusted() {
        let of = |error: rustls::Error| Error::new(ErrorKind::InvalidData, error);
        let plain = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert!(is_plain(&of(plain)));
        let stranger = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert!(!is_plain(&of(stranger)));
        assert!(!is_plain(&ErrorKind::UnexpectedEof.into()));
        let told = CtlError::Plain {
            addr: "a:1".to_owned(),
        };
        assert!(told.to_string().contains("leave out --tls-ca"));
    }
}
