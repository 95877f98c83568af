//! Listening sockets: `HOST:PORT` and `unix:PATH`.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fonn_base::listen::cannot_listen;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::socket::Accepted;

/// Connections that the kernel may hold for us until they are accepted.
const BACKLOG: i32 = 1024;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddr {
    /// `HOST:PORT`.
    Tcp(String),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: needs a path behind it, as in unix:/run/fonn.sock".to_owned());
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let is_host_port = text.rsplit_once(':').is_some_and(|(host, port)| {
            // A URL is no address, though its port may be the last of it.
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        });
        if is_host_port {
            return Ok(Self::Tcp(text.to_owned()));
        }
        Err(format!(
            "`{text}` is neither HOST:PORT, as in 127.0.0.1:11211, nor unix:PATH"
        ))
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => f.write_str(text),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl ListenAddr {
    /// Whether only this machine can reach it. A name counts as what it resolves to.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(text) => text.to_socket_addrs().is_ok_and(|mut addrs| {
                let mut any = false;
                addrs.all(|addr| {
                    any = true;
                    addr.ip().is_loopback()
                }) && any
            }),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix, with its path, which is removed when it is closed.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds and listens.
    ///
    /// # Errors
    /// What the kernel says, with the address in the message.
    pub fn bind(addr: &ListenAddr) -> io::Result<Self> {
        let named = |error: io::Error| cannot_listen(addr, &error);
        match addr {
            ListenAddr::Tcp(text) => {
                let resolved = text.to_socket_addrs().map_err(named)?.next();
                let Some(resolved) = resolved else {
                    return Err(named(io::Error::other("the name has no address")));
                };
                bind_tcp(resolved).map_err(named)
            }
            ListenAddr::Unix(path) => bind_unix(path).map_err(named),
        }
    }

    /// The address it is bound to, with the port that the kernel chose for port 0.
    #[must_use]
    pub fn local_name(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "tcp".to_owned(), |addr| addr.to_string()),
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// What the kernel says; any error once the listener was closed.
    pub fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener
                .accept()
                .map(|(stream, peer)| Accepted::Tcp(stream, peer)),
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Accepted::Unix(stream)),
        }
    }

    /// Another handle of the same socket.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Unix(listener, path) => Self::Unix(listener.try_clone()?, path.clone()),
        })
    }

    /// Stops listening: every `accept` returns with an error.
    pub fn close(&self) {
        let how = std::net::Shutdown::Both;
        // On Linux this wakes a thread that waits in accept(2).
        let _ = match self {
            Self::Tcp(listener) => SockRef::from(listener).shutdown(how),
            Self::Unix(listener, path) => {
                let _ = std::fs::remove_file(path);
                SockRef::from(listener).shutdown(how)
            }
        };
    }
}

fn bind_tcp(addr: SocketAddr) -> io::Result<Listener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(Listener::Tcp(socket.into()))
}

/// Binds a Unix socket. A socket file without a listener is left over from a crash,
/// and replaced; anything else at the path is not ours to remove.
fn bind_unix(path: &Path) -> io::Result<Listener> {
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the path exists and is no socket; remove it or choose another",
            ));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::from(io::ErrorKind::AddrInUse));
        }
        std::fs::remove_file(path)?;
    }
    Ok(Listener::Unix(UnixListener::bind(path)?, path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port_or_a_unix_path() {
        assert_eq!(
            "127.0.0.1:0".parse(),
            Ok(ListenAddr::Tcp("127.0.0.1:0".to_owned()))
        );
        assert_eq!("unix:/x".parse(), Ok(ListenAddr::Unix(PathBuf::from("/x"))));
        for text in ["", "11211", ":11211", "host:", "host:99999", "unix:"] {
            assert!(text.parse::<ListenAddr>().is_err(), "{text:?}");
        }
        for text in ["http://h:1", "https://127.0.0.1:1"] {
            let why = text.parse::<ListenAddr>().unwrap_err();
            assert!(why.contains("unix:"), "{text:?}: {why}");
        }
    }

    #[test]
    fn only_addresses_of_this_machine_count_as_loopback() {
        let loopback = |text: &str| text.parse::<ListenAddr>().unwrap().is_loopback();
        assert!(loopback("127.0.0.1:1") && loopback("[::1]:1") && loopback("unix:/x"));
        assert!(!loopback("0.0.0.0:1") && !loopback("192.0.2.1:1"));
    }

    #[test]
    fn a_socket_file_left_by_a_crash_is_replaced_and_a_living_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let addr = ListenAddr::Unix(path.clone());
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&addr).unwrap();
        assert_eq!(
            Listener::bind(&addr).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        listener.close();
        std::fs::write(&path, "precious").unwrap();
        assert!(Listener::bind(&addr).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
