//! A proxy that makes a server seem far away.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// What is under way in one direction of a connection at most: so many reads of up to 64 KiB.
const CHUNKS_MAX: usize = 256;
const CHUNK_LEN: usize = 64 << 10;

/// Passes connections on, each byte some time after it came. It ends with this handle.
#[derive(Debug)]
pub struct DelayProxy {
    address: SocketAddr,
    // The tasks run on it, and end with it.
    _runtime: Runtime,
}

impl DelayProxy {
    /// A proxy on a port of its own in front of `server`. A round trip over an open connection
    /// takes `round_trip` longer than without, and so does opening one.
    ///
    /// # Errors
    /// When there is no port to be had.
    pub fn start(server: SocketAddr, round_trip: Duration) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start a runtime for the proxy")?;
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .context("cannot listen for the proxy")?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, server, round_trip));
            }
        });
        Ok(Self {
            address,
            _runtime: runtime,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A connection, until either side closes it. The client's was open at once, without a handshake
/// over the distance, so that its first bytes wait for one.
async fn pass_on(client: TcpStream, server: SocketAddr, round_trip: Duration) {
    tokio::time::sleep(round_trip).await;
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    // A failure of either only means that small writes wait a little.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let half = round_trip / 2;
    tokio::join!(
        carry(from_client, to_server, half),
        carry(from_server, to_client, half),
    );
}

/// One direction. Bytes are read as they come and written when their time is over, so what is
/// delayed is the time and not the throughput.
async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    delay: Duration,
) {
    let (chunks, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let read = async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_LEN);
            match from.read_buf(&mut chunk).await {
                Ok(1..) => {
                    if chunks.send((Instant::now() + delay, chunk)).await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    };
    let write = async move {
        while let Some((at, chunk)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
        // The other side may still answer.
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_round_trip_takes_the_delay_longer_and_the_bytes_come_through() {
        const DELAY: Duration = Duration::from_millis(40);
        let echo = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = DelayProxy::start(echo.local_addr().unwrap(), DELAY).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = echo.accept().unwrap();
            let mut bytes = vec![0; 300_000];
            for _ in 0..2 {
                stream.read_exact(&mut bytes).unwrap();
                stream.write_all(&bytes).unwrap();
            }
        });
        let mut stream = net::TcpStream::connect(proxy.address()).unwrap();
        for round in 0..2u8 {
            let sent: Vec<u8> = (0..300_000u32).map(|at| at as u8 ^ round).collect();
            let begun = Instant::now();
            stream.write_all(&sent).unwrap();
            let mut got = vec![0; sent.len()];
            stream.read_exact(&mut got).unwrap();
            assert!(begun.elapsed() >= DELAY, "{:?}", begun.elapsed());
            assert_eq!(got, sent);
        }
        server.join().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "its end comes through");
    }
}
