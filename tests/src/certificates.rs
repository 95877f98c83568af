//! Certificates for processes on this machine.

use std::path::PathBuf;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// A certificate for 127.0.0.1 and its key, and the authority that signed it, in files.
#[derive(Debug)]
pub struct Certified(TempDir);

impl Certified {
    /// Of an authority of its own.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut params = CertificateParams::new(Vec::new())?;
        // A name of its own: to some clients a certificate with the name of its issuer is signed by
        // itself.
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "fonn test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        let cert = cert.signed_by(&key, &authority)?;
        for (name, text) in [
            ("ca", authority.pem()),
            ("cert", cert.pem()),
            ("key", key.serialize_pem()),
        ] {
            std::fs::write(dir.path().join(name), text)?;
        }
        Ok(Self(dir))
    }

    /// The path of `ca`, `cert` or `key`.
    #[must_use]
    pub fn file(&self, name: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        path.display().to_string()
    }

    /// The flags of a node or router, and their values.
    #[must_use]
    pub fn flags(&self) -> [(&'static str, String); 3] {
        [
            ("--tls-cert", self.file("cert")),
            ("--tls-key", self.file("key")),
            ("--tls-client-ca", self.file("ca")),
        ]
    }
}
