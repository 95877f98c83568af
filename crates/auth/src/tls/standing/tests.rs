use std::future::poll_fn;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rcgen::SerialNumber;
use rustls::pki_types::pem::PemObject;

use super::*;
use crate::testing::Authority;
use crate::tls::TlsFiles;
use crate::tls::tests::{both, shake};

const STOLEN: u64 = 7;
const OTHER: u64 = 8;
/// For what happens at once: less than the time to the next look at a certificate.
const SOON: Duration = Duration::from_secs(30);

/// A server with a list of revoked certificates, and two members of its authority.
struct Rig {
    dir: tempfile::TempDir,
    authority: Authority,
    tls: Arc<Tls>,
    files: TlsFiles,
    crl: PathBuf,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let crl = dir.path().join("crl.pem");
        std::fs::write(&crl, authority.revoked(&[])).unwrap();
        let files = TlsFiles {
            client_crl: Some(crl.clone()),
            ..authority.issue(&dir.path().join("server"), "server.test", |_| {})
        };
        let tls = Arc::new(Tls::load(files.clone()).unwrap());
        Self {
            dir,
            authority,
            tls,
            files,
            crl,
        }
    }

    fn member(&self, serial: u64) -> TlsFiles {
        let path = self.dir.path().join(format!("member-{serial}"));
        self.authority.issue(&path, "member.test", |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        })
    }

    fn standing(&self, member: &TlsFiles, side: Side) -> io::Result<Option<Standing>> {
        Standing::of(&self.tls, side, Some(&chain(&member.cert)))
    }
}

fn chain(path: &Path) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_file(path).unwrap()]
}

fn called() -> Side {
    Side::Server(ServerName::try_from("member.test").unwrap())
}

/// Waits for the end of a standing.
async fn lost(mut standing: Standing) -> io::Error {
    let lost = poll_fn(|cx| standing.poll_lost(cx));
    tokio::time::timeout(SOON, lost).await.expect("it goes on")
}

#[tokio::test]
async fn a_certificate_that_is_revoked_ends_what_it_opened_and_opens_nothing_more() {
    let rig = Rig::new();
    let (stolen, other) = (rig.member(STOLEN), rig.member(OTHER));
    let sides = [Side::Client, called()];
    let mut waiting = Vec::new();
    let mut others = Vec::new();
    for side in sides {
        let standing = rig.standing(&stolen, side.clone()).unwrap().unwrap();
        waiting.push(tokio::spawn(lost(standing)));
        others.push(rig.standing(&other, side).unwrap().unwrap());
    }
    let call = |files: &TlsFiles| Tls::load(files.clone()).unwrap().client().unwrap();
    let (stolen_call, other_call) = (call(&stolen), call(&other));
    for server in both(&rig.tls) {
        shake(Arc::clone(&stolen_call), server, "server.test").unwrap();
    }
    rig.tls.reload().unwrap();
    tokio::task::yield_now().await;
    assert!(!waiting.iter().any(tokio::task::JoinHandle::is_finished));

    std::fs::write(&rig.crl, rig.authority.revoked(&[STOLEN])).unwrap();
    rig.tls.reload().unwrap();
    for ended in waiting {
        assert_eq!(ended.await.unwrap().kind(), ErrorKind::PermissionDenied);
    }
    for standing in &mut others {
        standing.check().unwrap();
    }
    for config in both(&rig.tls) {
        let server = Arc::clone(&config);
        assert!(shake(Arc::clone(&stolen_call), server, "server.test").is_err());
        shake(Arc::clone(&other_call), config, "server.test").unwrap();
    }
    // As one that a resumed session has.
    assert!(rig.standing(&stolen, Side::Client).is_err());
    // Neither is a member called that has it.
    let server = Tls::load(stolen).unwrap();
    let call = rig.tls.client().unwrap();
    assert!(shake(call, server.server(), "member.test").is_err());
}

#[tokio::test]
async fn an_authority_that_is_replaced_ends_what_it_had_vouched_for() {
    let rig = Rig::new();
    let mut standing = rig
        .standing(&rig.member(OTHER), Side::Client)
        .unwrap()
        .unwrap();
    standing.check().unwrap();
    let ca = rig.files.client_ca.as_ref().unwrap();
    std::fs::write(ca, Authority::new().0.pem()).unwrap();
    rig.tls.reload().unwrap();
    let error = standing.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(lost(standing).await.kind(), ErrorKind::PermissionDenied);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_judged_once_a_minute_and_is_good_until_it_expires() {
    let rig = Rig::new();
    let member = rig.member(OTHER);
    let mut standing = rig.standing(&member, Side::Client).unwrap().unwrap();
    let begun = Instant::now();
    // It wakes up by itself, although nothing is read or changed.
    let lost = poll_fn(|cx| standing.poll_lost(cx));
    let waited = tokio::time::timeout(PERIOD * 5 / 2, lost).await;
    assert!(waited.is_err(), "{waited:?}");
    let judged = standing.due.deadline() - PERIOD;
    assert_eq!((judged - begun).as_secs(), 2 * PERIOD.as_secs());
    // The first second of the year `FAR`.
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(7_258_118_400);
    standing.judge_at(end).unwrap();
    let error = standing.judge_at(end + Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn a_client_without_certificate_has_nothing_to_lose() {
    let rig = Rig::new();
    assert!(
        Standing::of(&rig.tls, Side::Client, None)
            .unwrap()
            .is_none()
    );
    // A server without an authority of clients takes none.
    let files = TlsFiles {
        client_ca: None,
        client_crl: None,
        ..rig.files.clone()
    };
    let tls = Arc::new(Tls::load(files).unwrap());
    let shown = chain(&rig.member(OTHER).cert);
    let standing = Standing::of(&tls, Side::Client, Some(&shown)).unwrap();
    assert!(standing.is_none());
}
