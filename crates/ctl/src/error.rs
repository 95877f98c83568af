//! Why a command could not do its work.

use std::io;

use tonic::{Code, Status};

use super::table::printable;

/// Each is one sentence that names the remedy where there is one.
#[derive(Debug, thiserror::Error)]
pub(super) enum CtlError {
    /// Nothing answers at the address.
    #[error(
        "no node answers at {addr}: {reason}; start fonn-node, or name its admin port with --admin HOST:PORT or FONN_ADMIN"
    )]
    Unreachable {
        /// Where.
        addr: String,
        /// Why.
        reason: String,
    },
    /// Something answers that does not speak gRPC, or the connection broke.
    #[error(
        "{addr} does not answer as the admin port of a Fonn node ({reason}); it is named with --admin HOST:PORT or FONN_ADMIN, 11280 by default"
    )]
    Foreign {
        /// Where.
        addr: String,
        /// What was seen.
        reason: String,
    },
    /// The two do not trust each other, or there is no TLS.
    #[error(
        "no TLS with {addr}: {reason}; --tls-ca names the authority of the node's certificate, and that has to name the host; --tls-cert and --tls-key are for a node that asks for a certificate"
    )]
    Tls {
        /// Where.
        addr: String,
        /// Why.
        reason: String,
    },
    /// What answers is not under TLS.
    #[error(
        "{addr} speaks no TLS: name another port with --admin, or leave out --tls-ca (FONN_TLS_CA) if the node has no certificate"
    )]
    Plain {
        /// Where.
        addr: String,
    },
    /// No answer in time.
    #[error("{addr} did not answer within {secs} s; the node may be overloaded or stopped")]
    Late {
        /// Where.
        addr: String,
        /// For how long.
        secs: u64,
    },
    /// The node cannot at the moment.
    #[error("{0}")]
    NotNow(String),
    /// The node does not know the caller, or the user may not do that.
    #[error("{0}")]
    Denied(String),
    /// The node refuses.
    #[error("{0}")]
    Refused(String),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// A signal came before the end.
    #[error("{0} ended the command")]
    Stopped(&'static str),
    /// Flags, files or passwords that cannot be used.
    #[error("{0}")]
    Input(String),
}

impl CtlError {
    /// What a call came to.
    pub(super) fn of(status: &Status, addr: &str) -> Self {
        let text = printable(status.message());
        let text = text.as_str();
        // tonic makes these of whatever is no gRPC: HTTP errors, broken connections.
        let foreign = std::error::Error::source(status).is_some()
            || (status.code() == Code::Unknown && !status.metadata().contains_key("grpc-status"));
        match status.code() {
            Code::Unimplemented => Self::Refused(format!(
                "{addr} does not know this command ({text}): it is no admin port, or the node is older than this fonnctl"
            )),
            _ if foreign || text.is_empty() => Self::Foreign {
                addr: addr.to_owned(),
                reason: if text.is_empty() {
                    status.code().description().to_owned()
                } else {
                    text.to_owned()
                },
            },
            Code::Unavailable => Self::NotNow(text.to_owned()),
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied(text.to_owned()),
            _ => Self::Refused(text.to_owned()),
        }
    }

    /// What the process ends with.
    pub(super) const fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Denied(_) => 3,
            // As shells say it of an interrupt.
            Self::Stopped(_) => 130,
            _ => 1,
        }
    }

    /// Whether the same may succeed in a moment.
    pub(super) const fn is_passing(&self) -> bool {
        matches!(self, Self::NotNow(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_wrong_usage_from_a_failed_call() {
        for (error, code) in [
            (CtlError::Input("--user is missing".to_owned()), 2),
            (CtlError::Refused("no".to_owned()), 1),
            (CtlError::Denied("no".to_owned()), 3),
            (CtlError::Stopped("SIGINT"), 130),
        ] {
            assert_eq!(error.exit_code(), code, "{error}");
        }
    }

    #[test]
    fn an_unknown_command_may_be_of_another_port() {
        let text = CtlError::of(&Status::unimplemented("no service"), "a:1").to_string();
        assert!(
            text.starts_with("a:1 does not know this command (no service): it is no admin port")
        );
    }
}
