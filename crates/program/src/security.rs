//! The settings that control access: those of node and router.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fonn_auth::tls::{Tls, TlsError, TlsFiles};
use fonn_auth::{Authenticator, Directory, Security, UsersError};
use fonn_base::config::{ConfigError, FileWatch};
use fonn_server::ListenAddr;

use crate::common::CommonSettings;

/// The users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityConfig {
    /// The users file.
    pub users_file: Option<PathBuf>,
    /// Certificate, key and authority.
    pub tls: Option<TlsFiles>,
}

/// In the place of a file that is not given.
const NONE: &str = "none";

/// Users or a certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// The users file.
    #[error(transparent)]
    Users(#[from] UsersError),
    /// The certificate, its key, or the authority.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The thread that checks passwords does not start.
    #[error("cannot check passwords: {0}")]
    Io(#[from] std::io::Error),
}

impl SecurityConfig {
    /// The files that are given; an error if some are that need others.
    ///
    /// # Errors
    /// With the flag that is missing.
    pub(crate) fn resolve(settings: &CommonSettings) -> Result<Self, ConfigError> {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| path != Path::new(NONE));
        let cert = given(&settings.tls_cert);
        let key = given(&settings.tls_key);
        let client_ca = given(&settings.tls_client_ca);
        let client_crl = given(&settings.tls_client_crl);
        let alone = |flag, path: &Path, other| {
            let expected = format!("{other} FILE besides");
            Err(ConfigError::invalid(flag, path.display(), expected))
        };
        if let (Some(crl), None) = (&client_crl, &client_ca) {
            return alone("--tls-client-crl", crl, "--tls-client-ca");
        }
        let tls = match (cert, key, client_ca) {
            (Some(cert), Some(key), client_ca) => Some(TlsFiles {
                cert,
                key,
                client_ca,
                client_crl,
            }),
            (Some(cert), None, _) => return alone("--tls-cert", &cert, "--tls-key"),
            (None, Some(key), _) => return alone("--tls-key", &key, "--tls-cert"),
            (None, None, Some(ca)) => {
                return alone("--tls-client-ca", &ca, "--tls-cert FILE --tls-key");
            }
            (None, None, None) => None,
        };
        Ok(Self {
            users_file: given(&settings.users_file),
            tls,
        })
    }

    /// Whether clients have to log in: by a password, or by a certificate.
    #[must_use]
    pub fn proves_clients(&self) -> bool {
        self.users_file.is_some() || self.proves_members()
    }

    /// For the banner: the served clients.
    #[must_use]
    pub fn describe(&self, is_insecure: bool) -> String {
        let users = self
            .users_file
            .as_ref()
            .map(|file| format!("users of {}", file.display()));
        let certificates = self
            .proves_members()
            .then(|| "clients with a certificate of --tls-client-ca".to_owned());
        let everybody = if is_insecure {
            "every client that can reach it (--insecure)"
        } else {
            "every client on this machine"
        };
        users
            .or(certificates)
            .unwrap_or_else(|| everybody.to_owned())
    }

    /// How the URL of the admin port begins.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match self.tls {
            Some(_) => "https",
            None => "http",
        }
    }

    /// Names and values for `stats settings` and `CONFIG GET`: files, not what is in them.
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        let tls = self.tls.as_ref();
        let name = |path: Option<&PathBuf>| {
            path.map_or_else(|| "none".to_owned(), |path| path.display().to_string())
        };
        vec![
            ("users_file".to_owned(), name(self.users_file.as_ref())),
            ("tls_cert".to_owned(), name(tls.map(|tls| &tls.cert))),
            ("tls_key".to_owned(), name(tls.map(|tls| &tls.key))),
            (
                "tls_client_ca".to_owned(),
                name(tls.and_then(|tls| tls.client_ca.as_ref())),
            ),
            (
                "tls_client_crl".to_owned(),
                name(tls.and_then(|tls| tls.client_crl.as_ref())),
            ),
        ]
    }

    /// Whether members and routers know each other by certificates.
    #[must_use]
    pub fn proves_members(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// Refuses addresses that other machines can reach, unless clients log in, and
    /// under TLS.
    ///
    /// # Errors
    /// With the address and what would protect it.
    pub fn check_addresses(
        &self,
        listen: &[ListenAddr],
        admin: &str,
        http: Option<&str>,
    ) -> Result<(), ConfigError> {
        let risk = match (self.proves_clients(), &self.tls) {
            (true, Some(_)) => return Ok(()),
            (true, None) => {
                "passwords and entries would cross the network in the clear; --tls-cert FILE --tls-key FILE \
                 protects them, --insecure allows it"
            }
            (false, _) => {
                "a client that reaches another one may read and change everything; --users-file with --tls-cert, or \
                 --tls-client-ca, protects it, --insecure allows it"
            }
        };
        if let Some(open) = listen.iter().find(|addr| !addr.is_loopback()) {
            let expected = format!("a loopback address or unix:PATH, since {risk}");
            return Err(ConfigError::invalid("--listen", open, expected));
        }
        for (flag, address) in [("--admin-listen", Some(admin)), ("--http-listen", http)] {
            if let Some(address) = address
                && !ListenAddr::Tcp(address.to_owned()).is_loopback()
            {
                let expected = format!("a loopback address, since {risk}");
                return Err(ConfigError::invalid(flag, address, expected));
            }
        }
        Ok(())
    }

    /// Reads the files. With `is_insecure` the network is trusted.
    ///
    /// # Errors
    /// One sentence that names the flag, the file and the remedy.
    pub fn load(&self, is_insecure: bool) -> Result<Security, SecurityError> {
        let users = match &self.users_file {
            None => None,
            Some(path) => Some(Arc::new(Authenticator::new(Directory::load(path)?)?)),
        };
        let tls = match &self.tls {
            None => None,
            Some(files) => Some(Arc::new(Tls::load(files.clone())?)),
        };
        Ok(Security {
            users,
            tls,
            is_insecure,
        })
    }

    /// Watches the files; to be called before they are read.
    #[must_use]
    pub fn watch(&self) -> FileWatch {
        let tls = self.tls.as_ref();
        let tls = tls.map(|tls| {
            let authority = [tls.client_ca.as_ref(), tls.client_crl.as_ref()];
            [[Some(&tls.cert), Some(&tls.key)], authority].concat()
        });
        let files = tls.into_iter().flatten().chain([self.users_file.as_ref()]);
        FileWatch::new(files.flatten().cloned())
    }

    /// Reads users and certificate again; either stays as it was if its files cannot be used.
    ///
    /// # Errors
    /// As [`SecurityConfig::load`].
    pub fn reload(&self, security: &Security) -> Result<(), SecurityError> {
        let users = match (&security.users, &self.users_file) {
            (Some(users), Some(path)) => Directory::load(path).map(|new| users.replace(new)),
            _ => Ok(()),
        };
        if let Some(tls) = &security.tls {
            tls.reload()?;
        }
        Ok(users?)
    }
}
