//! TLS on the client port.

use fonn_auth::tls::{Tls, TlsFiles};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;

type Client = StreamOwned<ClientConnection, TcpStream>;

struct Encrypted {
    node: Node,
    config: Arc<ClientConfig>,
    _dir: tempfile::TempDir,
}

impl Encrypted {
    fn start() -> Self {
        Self::tuned(Tuning::default())
    }

    fn tuned(tuning: Tuning) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["fonn.test".to_owned()]).unwrap();
        let cert = params.self_signed(&key).unwrap();
        let (cert_file, key_file) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        std::fs::write(&cert_file, cert.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        let tls = Tls::load(TlsFiles {
            cert: cert_file,
            key: key_file,
            client_ca: None,
            client_crl: None,
        })
        .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let node = Node::start(Options {
            tuning,
            security: Security {
                tls: Some(Arc::new(tls)),
                ..Security::default()
            },
            ..Options::default()
        });
        Self {
            node,
            config: Arc::new(config),
            _dir: dir,
        }
    }

    fn connect(&self) -> Client {
        let name = ServerName::try_from("fonn.test").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.config), name).unwrap();
        StreamOwned::new(session, self.node.connect())
    }
}

fn ask(client: &mut Client, request: &[u8], reply: &[u8]) {
    client.write_all(request).unwrap();
    let mut got = vec![0; reply.len()];
    client.read_exact(&mut got).unwrap();
    assert!(
        got == reply,
        "{:?}",
        String::from_utf8_lossy(&got[..got.len().min(200)])
    );
}

/// The start of a handshake message of 64 KiB.
const ENDLESS: [u8; 9] = [0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];

#[test]
fn a_handshake_that_does_not_end_is_cut_off_and_an_idle_client_is_not() {
    let server = Encrypted::tuned(Tuning {
        startup_max: Duration::from_millis(500),
        ..Tuning::default()
    });
    let mut plain = server.node.connect();
    let mut begun = server.node.connect();
    begun.write_all(&ENDLESS).unwrap();
    let mut known = server.connect();
    ask(&mut known, b"mn\r\n", b"MN\r\n");
    expect_end(&mut begun);
    assert_eq!(server.node.count(Counter::ConnectionsStalled), 1);
    // Where there are no users, and on this machine no TLS is needed, a client may be silent.
    exchange(&mut plain, b"mn\r\n", b"MN\r\n");
    ask(&mut known, b"mn\r\n", b"MN\r\n");
}

#[test]
fn a_handshake_is_not_taken_in_beyond_what_one_needs() {
    let server = Encrypted::tuned(Tuning {
        startup_max: Duration::from_secs(3600),
        ..Tuning::default()
    });
    let mut client = server.node.connect();
    client.write_all(&ENDLESS).unwrap();
    // The rest of the first record, and a part of the second.
    let _ = client.write_all(&[b'x'; 16_380]);
    let _ = client.write_all(&[0x16, 3, 1, 0x40, 0]);
    // It may be reset for what was not read.
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "more came");
}

#[test]
fn tls_sessions_count_against_the_budget_for_as_long_as_they_last() {
    let server = Encrypted::start();
    let used = || server.node.shared.service.engine.ram().used();
    let before = used();
    let mut clients: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    for client in &mut clients {
        ask(client, b"mn\r\n", b"MN\r\n");
    }
    assert!(
        used() >= before + 10 * 16 * 1024,
        "{} more",
        used() - before
    );
    drop(clients);
    until("they count no longer", || used() == before);
}

#[test]
fn every_dialect_is_spoken_under_tls_and_beside_it() {
    let server = Encrypted::start();
    ask(
        &mut server.connect(),
        b"set k 0 0 1\r\nv\r\n",
        b"STORED\r\n",
    );
    ask(
        &mut server.connect(),
        &resp(&[b"GET", b"k"]),
        b"$1\r\nv\r\n",
    );
    // From the same machine the plain dialects, too.
    exchange(
        &mut server.node.connect(),
        b"get k\r\n",
        b"VALUE k 0 1\r\nv\r\nEND\r\n",
    );
}

#[test]
fn large_values_and_pipelines_arrive_whole() {
    let server = Encrypted::start();
    let mut client = server.connect();
    let value: Vec<u8> = (0..1_500_000u32)
        .map(|it| (it * 7 + it / 251) as u8)
        .collect();
    let set = [&b"set big 0 0 1500000\r\n"[..], &value, b"\r\n"].concat();
    ask(&mut client, &set, b"STORED\r\n");
    let item = [&b"VALUE big 0 1500000\r\n"[..], &value, b"\r\nEND\r\n"].concat();
    for _ in 0..3 {
        ask(&mut client, b"get big\r\n", &item);
    }
    ask(
        &mut client,
        &b"get none\r\n".repeat(2000),
        &b"END\r\n".repeat(2000),
    );
    // More than the kernel keeps for a client that does not read for a while.
    client.write_all(&b"get big\r\n".repeat(20)).unwrap();
    until("the socket is full", || {
        server.node.shared.unsent_bytes() > 0
    });
    for _ in 0..20 {
        ask(&mut client, b"", &item);
    }
}

#[test]
fn what_is_no_handshake_after_all_ends_the_connection() {
    let server = Encrypted::start();
    let mut client = server.node.connect();
    client.write_all(&[0x16; 600]).unwrap();
    let mut rest = Vec::new();
    // An alert at most.
    let _ = client.read_to_end(&mut rest);
    assert!(rest.len() < 16, "{rest:?}");
    ask(&mut server.connect(), b"mn\r\n", b"MN\r\n");
}

#[test]
fn a_connection_ends_with_a_goodbye() {
    let server = Encrypted::start();
    let mut client = server.connect();
    client.write_all(b"version\r\nquit\r\n").unwrap();
    let mut all = String::new();
    // rustls reports an end without a goodbye as an error.
    client.read_to_string(&mut all).unwrap();
    assert!(all.starts_with("VERSION "), "{all}");
}
