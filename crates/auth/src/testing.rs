//! Users and authorities, for tests of this and of other crates.

#![allow(
    clippy::unwrap_used,
    clippy::new_without_default,
    reason = "only tests use it"
)]

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};

use crate::Directory;
use crate::tls::TlsFiles;

/// A year in which nothing of a test has expired.
pub const FAR: i32 = 2200;

/// The password of all users.
pub const PASSWORD: &[u8] = b"hunter 2";

/// [`PASSWORD`], with parameters that cost next to nothing.
pub const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$HEzykw8NCIJXN7CpA3KYzQ$SeqwoQks7+u6mql/wEyc+tg9EZTi7hi7uKM+8XIL1Bw";

/// One `[[user]]` with further lines.
pub fn row(name: &str, role: &str, more: &str) -> String {
    format!("[[user]]\nname = '{name}'\nrole = '{role}'\nhash = '{HASH}'\n{more}\n")
}

/// Users with these names and roles.
pub fn directory(rows: &[(&str, &str)]) -> Directory {
    let rows = rows.iter().map(|(name, role)| row(name, role, ""));
    parsed(&rows.collect::<String>())
}

/// What a users file with that text says.
pub fn parsed(text: &str) -> Directory {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Directory::load(file.path()).unwrap()
}

/// An authority whose certificates go into files.
pub struct Authority(pub CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// An authority with a key of its own.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Files of a member `name`, valid until `year`, which trusts this authority.
    pub fn files(&self, dir: &Path, name: &str, year: i32) -> TlsFiles {
        self.issue(&dir.join(format!("{name}-{year}")), name, |params| {
            params.not_after = date_time_ymd(year, 1, 1);
        })
    }

    /// Files that begin with `path`, of a member `name`, which trusts this authority.
    pub fn issue(
        &self,
        path: &Path,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(FAR, 1, 1);
        change(&mut params);
        let cert = params.signed_by(&key, &self.0).unwrap();
        let path = |what: &str| format!("{}-{what}.pem", path.display());
        std::fs::write(path("cert"), cert.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        std::fs::write(path("ca"), self.0.pem()).unwrap();
        TlsFiles {
            cert: path("cert").into(),
            key: path("key").into(),
            client_ca: Some(path("ca").into()),
            client_crl: None,
        }
    }

    /// The list of revoked certificates, by their serial numbers.
    pub fn revoked(&self, serials: &[u64]) -> String {
        let revoked = |&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(FAR, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }
}
