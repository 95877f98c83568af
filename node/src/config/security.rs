//! The settings that say who is let in.

use std::path::{Path, PathBuf};

use fonn_runtime::config::ConfigError;
use fonn_runtime::serve::ListenAddr;
use fonn_runtime::tls::TlsFiles;

use super::Settings;

/// Who is let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SecurityConfig {
    /// The users file.
    pub users_file: Option<PathBuf>,
    /// Certificate, key and authority.
    pub tls: Option<TlsFiles>,
}

/// In the place of a file that is not given.
const NONE: &str = "none";

/// The files that are given; an error if some are that make no sense without others.
pub(super) fn resolve(settings: &Settings) -> Result<SecurityConfig, ConfigError> {
    let given = |path: &Option<PathBuf>| path.clone().filter(|path| path != Path::new(NONE));
    let cert = given(&settings.tls_cert);
    let key = given(&settings.tls_key);
    let client_ca = given(&settings.tls_client_ca);
    let alone = |flag, path: &Path, other| {
        let expected = format!("{other} FILE besides");
        Err(ConfigError::invalid(flag, path.display(), expected))
    };
    let tls = match (cert, key, client_ca) {
        (Some(cert), Some(key), client_ca) => Some(TlsFiles {
            cert,
            key,
            client_ca,
        }),
        (Some(cert), None, _) => return alone("--tls-cert", &cert, "--tls-key"),
        (None, Some(key), _) => return alone("--tls-key", &key, "--tls-cert"),
        (None, None, Some(ca)) => {
            return alone("--tls-client-ca", &ca, "--tls-cert FILE --tls-key");
        }
        (None, None, None) => None,
    };
    Ok(SecurityConfig {
        users_file: given(&settings.users_file),
        tls,
    })
}

impl SecurityConfig {
    /// Refuses addresses that others can reach although nobody has to prove who they are.
    pub(super) fn check_addresses(
        &self,
        listen: &[ListenAddr],
        admin: &str,
    ) -> Result<(), ConfigError> {
        let proves_clients = self.users_file.is_some()
            || self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let open = listen.iter().find(|addr| !addr.is_loopback());
        if let (Some(open), false) = (open, proves_clients) {
            let expected = "a loopback address or unix:PATH, since anybody who can reach another one may \
                            read and write everything; --users-file protects it, --insecure allows it";
            return Err(ConfigError::invalid("--listen", open, expected));
        }
        if !ListenAddr::Tcp(admin.to_owned()).is_loopback() && self.users_file.is_none() {
            let expected = "a loopback address, since anybody who can reach another one may administer the \
                            node; --users-file protects it, --insecure allows it";
            return Err(ConfigError::invalid("--admin-listen", admin, expected));
        }
        Ok(())
    }
}
