//! The settings that control access: those of node and router.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fonn_auth::tls::{Tls, TlsError, TlsFiles};
use fonn_auth::{Authenticator, Directory, Security, UsersError};
use fonn_base::clock::Clock;
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

    /// Reads users and certificates again, each by itself. Those whose files cannot be used stay as
    /// they were. Logs what became of each, and returns it; of those that stay, as an error.
    pub fn reload(&self, security: &Security) -> Vec<Result<String, String>> {
        let users = security.users.as_ref().zip(self.users_file.as_ref());
        let users = users.map(|(users, path)| -> Result<(), SecurityError> {
            users.replace(Directory::load(path)?);
            self.warn_of_no_logins(security);
            Ok(())
        });
        let tls = security.tls.as_ref();
        let certificates = tls.map(|tls| -> Result<(), SecurityError> {
            tls.reload()?;
            Self::warn_of_expiry(security);
            Ok(())
        });
        let outcomes = [("users", users), ("certificates", certificates)];
        let outcomes = outcomes
            .into_iter()
            .filter_map(|(what, it)| Some((what, it?)));
        let told = outcomes.map(|(what, outcome)| match outcome {
            Ok(()) => {
                tracing::info!("{what} were reloaded");
                Ok(format!("{what} were reloaded"))
            }
            Err(error) => {
                tracing::error!(%error, "{what} stay as they were");
                Err(format!("{what} stay as they were: {error}"))
            }
        });
        told.collect()
    }

    /// Warns of a certificate that has expired or soon will.
    pub(crate) fn warn_of_expiry(security: &Security) {
        let now_ms = Clock::system().wall_ms();
        let tls = security.tls.as_ref();
        if let Some(warning) = tls.and_then(|tls| tls.expiry_warning(now_ms)) {
            tracing::warn!("{warning}");
        }
    }

    /// Warns of a users file by which no client can log in.
    pub(crate) fn warn_of_no_logins(&self, security: &Security) {
        if let (Some(users), Some(path)) = (&security.users, &self.users_file)
            && users.file().is_empty()
        {
            tracing::warn!(
                file = %path.display(),
                "the users file has no [[user]], [[token]] or [[oidc]], so no client can log in by it: make a hash with \
                 `fonnctl user hash`, or a token with `fonnctl token create`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use fonn_auth::testing::{Authority, FAR, row};

    use super::*;

    #[test]
    fn users_and_certificates_are_reloaded_each_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let users_file = dir.path().join("users.toml");
        let files = Authority::new().files(dir.path(), "n1", FAR);
        let config = SecurityConfig {
            users_file: Some(users_file.clone()),
            tls: Some(files.clone()),
        };
        std::fs::write(&users_file, row("ci", "read", "")).unwrap();
        let security = config.load(false).unwrap();
        let is_there = |name: &str| {
            let users = security.users.as_ref().unwrap().list();
            users.iter().any(|it| it.name == name)
        };

        // The certificate is broken, the users are not.
        let certificate = std::fs::read(&files.cert).unwrap();
        std::fs::write(&files.cert, "no certificate").unwrap();
        std::fs::write(&users_file, row("dev", "read", "")).unwrap();
        let told = config.reload(&security);
        assert!(is_there("dev") && !is_there("ci"));
        assert_eq!(told[0], Ok("users were reloaded".to_owned()));
        let kept = told[1].as_ref().unwrap_err();
        assert!(
            kept.starts_with("certificates stay as they were: --tls-cert"),
            "{kept}"
        );

        // Both are broken, and both are told.
        std::fs::write(&users_file, "colour = 1").unwrap();
        let told = config.reload(&security);
        assert!(told[0].as_ref().unwrap_err().contains("users.toml, line 1"));
        assert!(told[1].is_err() && is_there("dev"));

        // A file without entries is one by which no client can log in.
        std::fs::write(&files.cert, certificate).unwrap();
        std::fs::write(&users_file, "").unwrap();
        let told = config.reload(&security);
        assert_eq!(told[0], Ok("users were reloaded".to_owned()));
        assert_eq!(told[1], Ok("certificates were reloaded".to_owned()));
        assert!(security.users.as_ref().unwrap().directory().is_empty());
        assert!(config.proves_clients() && config.load(false).unwrap().users.is_some());
    }
}
