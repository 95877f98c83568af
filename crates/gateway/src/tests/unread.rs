//! Responses that clients read slowly while others wait for room.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use fonn_reapi::Deflater;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use ring::digest::{SHA256, digest};
use tokio::time::sleep;

use super::fake::{Site, VALUE_LEN_MAX, ask};
use crate::actions::hex;
use crate::handler::Peer;
use crate::life::{Life, Times};

/// Less than a body may stand still.
const STEP: Duration = Duration::from_millis(600);

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).body(Full::default()).unwrap()
}

impl Site {
    /// Reads a value a frame at a time. Returns its length, and whether its connection was cut.
    async fn read_slowly(&self, path: &str) -> (usize, bool) {
        let life = Life::new(Times::default(), false);
        let peer = Peer {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            is_encrypted: false,
        };
        let response = self.front.answer(get(path), peer, &life).await;
        assert_eq!(response.status(), 200, "{path}");
        let (mut body, mut len) = (response.into_body(), 0);
        while let Some(frame) = body.frame().await {
            len += frame.unwrap().into_data().unwrap().len();
            sleep(STEP).await;
        }
        (len, life.is_cut())
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_made_while_it_is_read_gives_way_to_no_other_one() {
    let site = Site::new();
    // Equal bytes have no border where a chunk would end early.
    let (long, text) = (vec![b'b'; 2 * VALUE_LEN_MAX + 5], vec![b'a'; VALUE_LEN_MAX]);
    let (mut deflater, mut stream) = (Deflater::new().unwrap(), Vec::new());
    deflater.step(&text, &mut stream).unwrap();
    deflater.finish(&mut stream).unwrap();
    let packed = format!("/cas/{}", hex(digest(&SHA256, &text).as_ref()));
    let puts = [
        Request::put("/long").body(Full::<Bytes>::from(long.clone())),
        Request::put(&packed)
            .header("content-encoding", "zstd")
            .body(Full::<Bytes>::from(stream)),
    ];
    for put in puts {
        assert_eq!(ask(&site.front, put.unwrap()).await.status, 200);
    }
    // There is room for one body, so the other one waits.
    site.store.0.unread_max.store(0, Ordering::SeqCst);
    for (path, len) in [("/long", long.len()), (&packed, text.len())] {
        let other = async {
            sleep(STEP).await;
            ask(&site.front, get(path)).await
        };
        let (read, _) = tokio::join!(site.read_slowly(path), other);
        assert_eq!(read, (len, false), "{path}");
    }
    assert_eq!(site.store.0.held.load(Ordering::SeqCst), 0);
}
