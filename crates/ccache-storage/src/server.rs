//! The socket of the helper: connections, idleness, and the end.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net as std_net;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;
use crate::service::Service;
use crate::session::{self, Ended};

/// Connections at a time. Further ones wait in the queue of the socket.
const CONNECTIONS_MAX: usize = 512;

/// For how long the helper does not accept after an accept failed, as without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Held while the mask of new files, which is the whole process's, is another.
static MASK: Mutex<()> = Mutex::new(());

/// The socket cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {}: {source}", path.display())]
pub(crate) struct BindError {
    path: PathBuf,
    source: io::Error,
}

/// The socket, which is removed at the end.
pub(crate) struct Listening {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listening {
    /// Makes the socket, for this user alone. One that a helper left without listening is replaced.
    ///
    /// # Errors
    /// If another helper listens there, or the directory cannot be written.
    pub(crate) fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |source| BindError {
            path: path.to_owned(),
            source,
        };
        let one_at_a_time = MASK.lock();
        let before = umask(Mode::RWXG | Mode::RWXO);
        let bound = match std_net::UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_abandoned(path) => {
                fs::remove_file(path).and_then(|()| std_net::UnixListener::bind(path))
            }
            bound => bound,
        };
        umask(before);
        drop(one_at_a_time);
        let listen = |listener: std_net::UnixListener| {
            listener.set_nonblocking(true)?;
            Ok(Self {
                listener: UnixListener::from_std(listener)?,
                path: path.to_owned(),
                inode: fs::symlink_metadata(path)?.ino(),
            })
        };
        bound.and_then(listen).map_err(failed)
    }

    /// Serves ccache until it stops the helper, or has no request for `idle_timeout`.
    pub(crate) async fn serve(&self, service: Service, idle_timeout: Option<Duration>) {
        let service = Rc::new(service);
        // What the helper holds in memory is on one thread, as its runtime is.
        LocalSet::new()
            .run_until(self.accept(service, idle_timeout))
            .await;
    }

    async fn accept(&self, service: Rc<Service>, idle_timeout: Option<Duration>) {
        let clock = Rc::new(Clock::default());
        let mut connections = JoinSet::new();
        let mut accept_after = Instant::now();
        loop {
            let has_room = connections.len() < CONNECTIONS_MAX;
            let idle_since = clock.idle_since();
            let idle_until =
                idle_timeout.map(|limit| idle_since.unwrap_or_else(Instant::now) + limit);
            // Cancel safe: accepting and joining lose nothing, and time goes on.
            tokio::select! {
                accepted = accept_from(&self.listener, accept_after), if has_room => match accepted {
                    Ok(stream) => {
                        let (service, clock) = (Rc::clone(&service), Rc::clone(&clock));
                        clock.touch();
                        connections.spawn_local(async move {
                            session::serve(stream, &service, &clock).await
                        });
                    }
                    Err(_) => accept_after = Instant::now() + ACCEPT_PAUSE,
                },
                Some(ended) = connections.join_next() => {
                    if matches!(ended, Ok(Ok(Ended::Stop))) {
                        return;
                    }
                }
                () = until(idle_until) => {
                    if clock.idle_since() == idle_since && idle_since.is_some() {
                        return;
                    }
                }
            }
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Another helper may have replaced the socket meanwhile.
        if fs::symlink_metadata(&self.path).is_ok_and(|it| it.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

async fn accept_from(listener: &UnixListener, after: Instant) -> io::Result<UnixStream> {
    sleep_until(after).await;
    Ok(listener.accept().await?.0)
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Whether a socket is there at which no process listens.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    // A file that is no socket refuses too.
    let refused = std_net::UnixStream::connect(path).map_err(|error| error.kind());
    is_socket && matches!(refused, Err(ErrorKind::ConnectionRefused))
}

#[cfg(test)]
mod tests;
