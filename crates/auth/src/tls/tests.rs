use std::io::{Read, Write};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use super::*;
use crate::testing::{Authority, FAR};

/// The error of either side of a handshake to `name`, after which a byte went both ways.
pub(super) fn shake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: &str,
) -> Result<(), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client, name)?;
    let mut server = ServerConnection::new(server)?;
    client.writer().write_all(b"?").unwrap();
    server.writer().write_all(b"!").unwrap();
    for _ in 0..8 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets()?;
    }
    let mut byte = [0];
    client.reader().read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"!");
    server.reader().read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"?");
    Ok(())
}

/// What asks peers for a certificate.
fn members_server(tls: &Tls) -> Arc<ServerConfig> {
    tls.members_server().unwrap()
}

/// What asks peers for none, and what asks them for one.
pub(super) fn both(tls: &Tls) -> [Arc<ServerConfig>; 2] {
    [tls.server(), members_server(tls)]
}

#[test]
fn members_of_one_authority_know_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let a = Tls::load(authority.files(dir.path(), "a.test", FAR)).unwrap();
    let b = Tls::load(authority.files(dir.path(), "b.test", FAR)).unwrap();
    let client = a.client().unwrap();
    for server in both(&b) {
        shake(Arc::clone(&client), server, "b.test").unwrap();
    }
    assert!(
        shake(client, members_server(&b), "c.test").is_err(),
        "another's name"
    );
}

#[test]
fn strangers_the_expired_and_the_bare_are_refused_where_a_certificate_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ours = Tls::load(authority.files(dir.path(), "ours.test", FAR)).unwrap();
    let expired = Tls::load(authority.files(dir.path(), "late.test", 2021)).unwrap();
    let error = shake(
        expired.client().unwrap(),
        members_server(&ours),
        "ours.test",
    );
    assert!(
        matches!(error, Err(rustls::Error::InvalidCertificate(_))),
        "{error:?}"
    );
    let error = shake(ours.client().unwrap(), expired.server(), "late.test");
    assert!(error.is_err(), "an expired server");

    // A stranger that trusts us, so that only our side can object.
    let elsewhere = Authority::new();
    let mut files = elsewhere.files(dir.path(), "stranger.test", FAR);
    files.client_ca = Some(dir.path().join(format!("ours.test-{FAR}-ca.pem")));
    let stranger = Tls::load(files).unwrap().client().unwrap();
    assert!(shake(Arc::clone(&stranger), members_server(&ours), "ours.test").is_err());
    assert!(shake(stranger, ours.server(), "ours.test").is_err());

    let mut roots = RootCertStore::empty();
    roots.add(authority.0.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bare = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let bare = Arc::new(bare);
    shake(Arc::clone(&bare), ours.server(), "ours.test").unwrap();
    assert!(shake(bare, members_server(&ours), "ours.test").is_err());
}

#[test]
fn without_an_authority_no_client_counts_as_certified() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let member = Tls::load(authority.files(dir.path(), "m.test", FAR)).unwrap();
    let mut files = authority.files(dir.path(), "alone.test", FAR);
    files.client_ca = None;
    let alone = Tls::load(files).unwrap();
    assert!(alone.client().is_none());
    let client = member.client().unwrap();
    shake(client, alone.server(), "alone.test").unwrap();
    assert!(alone.members_server().is_none());
}

#[test]
fn a_reload_takes_the_new_files_and_a_bad_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let client = Tls::load(authority.files(dir.path(), "c.test", FAR)).unwrap();
    let client = client.client().unwrap();
    let files = authority.files(dir.path(), "old.test", FAR);
    let tls = Tls::load(files.clone()).unwrap();
    std::fs::write(&files.cert, "rubbish").unwrap();
    assert!(tls.reload().is_err());
    shake(Arc::clone(&client), members_server(&tls), "old.test").unwrap();
    let renewed = authority.files(dir.path(), "new.test", FAR);
    std::fs::copy(&renewed.cert, &files.cert).unwrap();
    std::fs::copy(&renewed.key, &files.key).unwrap();
    tls.reload().unwrap();
    shake(client, members_server(&tls), "new.test").unwrap();
}

#[test]
fn what_is_wrong_with_the_files_is_said_with_flag_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let good = authority.files(dir.path(), "a.test", FAR);
    let other = authority.files(dir.path(), "b.test", FAR);
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let says = |files: TlsFiles, part: &str| {
        let error = Tls::load(files).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let with = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = good.clone();
        change(&mut files);
        files
    };
    says(
        with(&|f| f.cert = "/nonexistent".into()),
        "--tls-cert /nonexistent: cannot read",
    );
    says(with(&|f| f.cert = empty.clone()), "no certificate in it");
    says(with(&|f| f.key = empty.clone()), "--tls-key");
    says(
        with(&|f| f.key = other.key.clone()),
        "b.test-2200-key.pem: the key does not belong to the certificate",
    );
    says(
        with(&|f| f.client_ca = Some(empty.clone())),
        "--tls-client-ca",
    );
    says(
        with(&|f| f.client_crl = Some(empty.clone())),
        "--tls-client-crl",
    );
    says(
        with(&|f| f.client_crl = f.client_ca.clone()),
        "no list of revoked certificates in it",
    );
}
