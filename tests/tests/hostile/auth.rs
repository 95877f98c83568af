//! Attacks on passwords and certificates, and what they cost those that have the right ones.
//!
//! Each client of the tests has a source address of its own in 127.0.0.0/8: limits are by source.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_tests::client::{RespReply, resp_request};
use fonn_tests::ctl::with_input;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::{Signal, raise_open_files};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

const PASSWORD: &str = "hunter 2";

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(120);

const FLEET: u32 = 1000;

/// A node with the user `ci`.
fn guarded() -> Result<(FonnNode, tempfile::TempDir)> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("users.toml");
    let hash = with_input("127.0.0.1:1", &["user", "hash"], PASSWORD)?.stdout;
    let hash = String::from_utf8(hash)?;
    let hash = hash.trim();
    let row = format!("[[user]]\nname = 'ci'\nrole = 'read-write'\nhash = '{hash}'\n");
    std::fs::write(&file, row)?;
    let node = NodeOptions::new().flag("--users-file", &file).start()?;
    Ok((node, dir))
}

/// An address of this machine that nothing else uses.
fn source(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 5, 0, 1)) + number)
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    Ok(socket.connect(to).await?)
}

fn login(password: &str) -> Vec<u8> {
    resp_request(&[b"AUTH", b"ci", password.as_bytes()])
}

/// The next line that the server says; empty if it has closed.
async fn line(stream: &mut TcpStream) -> String {
    let mut line = String::new();
    while let Ok(byte) = stream.read_u8().await {
        line.push(char::from(byte));
        if line.ends_with("\r\n") {
            break;
        }
    }
    line
}

async fn attempt(stream: &mut TcpStream, password: &str) -> Result<String> {
    stream.write_all(&login(password)).await?;
    Ok(timeout(LIMIT, line(stream)).await?)
}

/// The memory of right passwords is no oracle: what waits behind a penalty is not compared before
/// its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_guess_among_others_is_not_answered_before_its_turn() -> Result<()> {
    let (node, _dir) = guarded()?;
    let mut user = connect(source(0), node.addr()).await?;
    ensure!(attempt(&mut user, PASSWORD).await? == "+OK\r\n");

    let mut guesser = connect(source(1), node.addr()).await?;
    for number in 0..8 {
        let told = attempt(&mut guesser, &format!("guess {number}")).await?;
        ensure!(told.starts_with("-WRONGPASS"), "{told}");
    }
    // From now on the source waits for 4 s, 8 s, and so on.
    let mut waiting = Vec::new();
    for number in 0..8 {
        let mut stream = connect(source(1), node.addr()).await?;
        stream.write_all(&login(&format!("other {number}"))).await?;
        waiting.push(stream);
    }
    let mut right = connect(source(1), node.addr()).await?;
    right.write_all(&login(PASSWORD)).await?;
    if let Ok(told) = timeout(Duration::from_secs(3), line(&mut right)).await {
        ensure!(told != "+OK\r\n", "a guess was compared out of turn");
    }
    // It is all the same to others.
    let mut other = connect(source(2), node.addr()).await?;
    ensure!(attempt(&mut other, PASSWORD).await? == "+OK\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_that_are_not_checked_are_counted_and_logged_once() -> Result<()> {
    const CONNECTIONS: u32 = 100;
    const GUESSES: u32 = 20;
    let (mut node, _dir) = guarded()?;
    let to = node.addr();
    let mut guessers = JoinSet::new();
    for connection in 0..CONNECTIONS {
        guessers.spawn(async move {
            let mut stream = connect(source(3), to).await?;
            let mut refused = 0;
            for number in 0..GUESSES {
                let guess = login(&format!("guess {connection} {number}"));
                stream.write_all(&guess).await?;
                // One that has its turn waits for longer than the others take.
                let Ok(told) = timeout(Duration::from_secs(5), line(&mut stream)).await else {
                    break;
                };
                ensure!(told.starts_with('-') || told.is_empty(), "{told}");
                refused += u32::from(told.starts_with('-'));
            }
            Ok(refused)
        });
    }
    let mut refused = 0;
    while let Some(guesser) = guessers.join_next().await {
        refused += guesser??;
    }
    ensure!(refused > CONNECTIONS, "{refused} answers");
    let counted = node.metric("fonn_authentication_failures_total")?;
    let counted = counted.context("no such metric")?;
    ensure!(counted >= f64::from(refused), "{counted} of {refused}");
    let log = node.log()?;
    let lines = || {
        let lines = log.lines().into_iter();
        lines.filter(|line| line.contains("attempts to log in are waiting"))
    };
    let is_told = || lines().count() > 0;
    node.daemon()?.wait_until("a line", LIMIT, is_told)?;
    // There are two at most, should all this have taken more than a minute.
    ensure!(lines().count() <= 2, "{} lines", lines().count());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_runner_with_an_old_password_locks_no_other_out_behind_its_address() -> Result<()> {
    let (node, _dir) = guarded()?;
    for _ in 0..20 {
        let mut old = connect(source(4), node.addr()).await?;
        let told = attempt(&mut old, "of last month").await?;
        ensure!(told.starts_with("-WRONGPASS"), "{told}");
    }
    let mut others = JoinSet::new();
    for _ in 0..50 {
        let to = node.addr();
        others.spawn(async move {
            let mut stream = connect(source(4), to).await?;
            attempt(&mut stream, PASSWORD).await
        });
    }
    while let Some(told) = others.join_next().await {
        let told = told??;
        ensure!(told == "+OK\r\n", "{told}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_let_in_right_after_a_start() -> Result<()> {
    raise_open_files(4 * u64::from(FLEET))?;
    let (node, _dir) = guarded()?;
    let mut fleet = Vec::new();
    for number in 0..FLEET {
        fleet.push(connect(source(1000 + number), node.addr()).await?);
    }
    for stream in &mut fleet {
        stream.write_all(&login(PASSWORD)).await?;
    }
    for (number, stream) in fleet.iter_mut().enumerate() {
        let told = timeout(LIMIT, line(stream)).await?;
        ensure!(told == "+OK\r\n", "runner {number}: {told}");
    }
    Ok(())
}

/// More guesses wait for their check than in all of the time that a client has, from addresses in
/// two networks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_from_many_addresses_of_two_networks_hold_up_no_login_from_another() -> Result<()> {
    const GUESSERS: u32 = 1500;
    raise_open_files(4 * u64::from(GUESSERS))?;
    let (node, _dir) = guarded()?;
    let mut guessers = Vec::new();
    for number in 0..GUESSERS {
        let from = u32::from(Ipv4Addr::new(127, 6, 0, 1)) + 64 * number;
        let mut stream = connect(from.into(), node.addr()).await?;
        stream.write_all(&login(&format!("guess {number}"))).await?;
        guessers.push(stream);
    }
    let begun = Instant::now();
    let mut client = connect(source(0), node.addr()).await?;
    let told = attempt(&mut client, PASSWORD).await?;
    println!(
        "beside {GUESSERS} guesses: {told:?} in {:?}",
        begun.elapsed()
    );
    ensure!(told == "+OK\r\n", "{told}");
    let answered = guessers.iter().filter(|it| it.try_read(&mut [0]).is_ok());
    let answered = answered.count();
    ensure!(
        answered < GUESSERS as usize / 2,
        "{answered} guesses were checked before"
    );
    Ok(())
}

const STOLEN: u64 = 7;

/// The authority of a node and of its clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self(issuer))
    }

    fn certificate(&self, serial: u64) -> Result<(rcgen::Certificate, KeyPair)> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        params.serial_number = Some(SerialNumber::from(serial));
        Ok((params.signed_by(&key, &self.0)?, key))
    }

    /// The flags of a node.
    fn flags(&self, dir: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
        let (certificate, key) = self.certificate(1)?;
        let mut flags = Vec::new();
        for (flag, text) in [
            ("--tls-cert", certificate.pem()),
            ("--tls-key", key.serialize_pem()),
            ("--tls-client-ca", self.0.pem()),
            ("--tls-client-crl", self.revoked(&[])?),
        ] {
            let path = dir.join(flag.trim_start_matches('-'));
            std::fs::write(&path, text)?;
            flags.push((flag, path));
        }
        Ok(flags)
    }

    fn revoked(&self, serials: &[u64]) -> Result<String> {
        let revoked = |&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(2200, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(list.signed_by(&self.0)?.pem()?)
    }

    /// A client that shows a certificate.
    fn client(&self, serial: u64, to: SocketAddr) -> Result<Certified> {
        let (certificate, key) = self.certificate(serial)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate.der().clone()], key)?;
        let session = ClientConnection::new(Arc::new(config), ServerName::try_from("127.0.0.1")?)?;
        let stream = std::net::TcpStream::connect(to)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(StreamOwned::new(session, stream))
    }
}

type Certified = StreamOwned<ClientConnection, std::net::TcpStream>;

fn ping(client: &mut Certified) -> Result<()> {
    client.write_all(b"PING\r\n")?;
    let mut reply = [0; 7];
    client.read_exact(&mut reply)?;
    ensure!(&reply == b"+PONG\r\n", "{reply:?}");
    Ok(())
}

#[test]
fn a_certificate_that_is_revoked_ends_its_connections_and_opens_no_other() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let authority = Authority::new()?;
    let mut options = NodeOptions::new();
    let flags = authority.flags(dir.path())?;
    for (flag, path) in &flags {
        options = options.flag(flag, path);
    }
    let mut node = options.start()?;
    let mut stolen = authority.client(STOLEN, node.addr())?;
    let mut other = authority.client(STOLEN + 1, node.addr())?;
    ping(&mut stolen)?;
    ping(&mut other)?;
    let (_, list) = flags.last().context("no flags")?;
    std::fs::write(list, authority.revoked(&[STOLEN])?)?;
    node.daemon()?.signal(Signal::HUP)?;
    // It is idle meanwhile.
    let ended = stolen.read(&mut [0]);
    ensure!(!matches!(ended, Ok(1..)), "{ended:?}");
    let is_timeout = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    ensure!(!ended.as_ref().is_err_and(is_timeout), "it goes on");
    ensure!(ping(&mut authority.client(STOLEN, node.addr())?).is_err());
    ping(&mut other)?;
    ping(&mut authority.client(STOLEN + 1, node.addr())?)?;
    Ok(())
}

/// A login that fails is refused in the words of the protocol, however long it is.
#[test]
fn what_is_too_long_for_a_password_is_refused_as_a_wrong_one() -> Result<()> {
    let (node, _dir) = guarded()?;
    let long = vec![b'x'; 8 * 1024];
    let mut client = node.resp()?;
    for user in [&b"ci"[..], b"nobody"] {
        let refused = client.call(&[b"AUTH", user, &long])?;
        let RespReply::Error(told) = refused else {
            anyhow::bail!("{refused:?}");
        };
        ensure!(told.starts_with("WRONGPASS"), "{told}");
    }
    Ok(())
}
