//! However the bytes of replies arrive, the replies are those that were sent; and how often the
//! socket is asked for them.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::lane::READS_MAX;
use super::*;
use crate::testing::Connection;

/// A reply of this length gets an allocation of its own.
const LARGE: usize = 70_000;

/// Sends bytes, and waits until the client has read them.
async fn send_and_see(client: &Client, connection: &mut Connection, bytes: &[u8]) {
    let received = &client.stats().received_bytes;
    let end = received.get() + bytes.len() as u64;
    connection.send(bytes).await;
    tokio::time::timeout(LONG, async {
        while received.get() < end {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the client reads what is sent");
    assert_eq!(received.get(), end);
}

/// A client, a connection of its, and the bytes of replies to requests of it with values of these
/// lengths.
async fn world(lens: &[usize]) -> (Client, Connection, Vec<Pending>, Vec<Vec<u8>>) {
    let node = Node::bind().await;
    let client = start(options(&node));
    let pending: Vec<_> = lens
        .iter()
        .map(|_| begin(&client, b"key", LONG).unwrap())
        .collect();
    let mut connection = node.accept().await;
    let mut replies = Vec::new();
    for (at, len) in lens.iter().enumerate() {
        let request = connection.request().await;
        replies.push(connection.bytes_of_reply(&request, &hit(&value_of(at, *len))));
    }
    (client, connection, pending, replies)
}

fn value_of(at: usize, len: usize) -> Vec<u8> {
    (0..len).map(|byte| (byte % 251 + at) as u8).collect()
}

/// How often the socket was asked while these bytes came, each of `pieces` by itself.
async fn reads_of(client: &Client, connection: &mut Connection, pieces: &[&[u8]]) -> u64 {
    let reads = &client.stats().reads;
    let before = reads.get();
    for piece in pieces {
        send_and_see(client, connection, piece).await;
    }
    // A caller that asks in vain does so before others have their turn.
    tokio::task::yield_now().await;
    reads.get() - before
}

#[tokio::test]
async fn a_socket_that_a_large_reply_has_emptied_is_not_asked_again() {
    let (client, mut connection, pending, replies) = world(&[LARGE, LARGE, 10, LARGE]).await;
    let small: Vec<&[u8]> = replies[0].chunks(10_000).collect();
    reads_of(&client, &mut connection, &small).await;
    // The head and what comes with it, then each piece.
    let large: Vec<&[u8]> = replies[1].chunks(10_000).collect();
    let reads = reads_of(&client, &mut connection, &large).await;
    assert_eq!(reads, 1 + large.len() as u64);
    // A small one does not let it be forgotten that replies are large.
    assert_eq!(
        reads_of(&client, &mut connection, &[&replies[2][..]]).await,
        1
    );
    let large: Vec<&[u8]> = replies[3].chunks(10_000).collect();
    let reads = reads_of(&client, &mut connection, &large).await;
    assert_eq!(reads, 1 + large.len() as u64);
    for (at, pending) in pending.into_iter().enumerate() {
        let len = [LARGE, LARGE, 10, LARGE][at];
        assert!(value(&pending.await.unwrap()) == value_of(at, len));
    }
    assert_eq!(client.usage(), (0, 0));
}

#[tokio::test]
async fn the_head_of_a_large_reply_comes_with_the_end_of_the_one_before_it() {
    let (client, mut connection, pending, replies) = world(&[LARGE, LARGE, LARGE]).await;
    let first: Vec<&[u8]> = replies[0].chunks(10_000).collect();
    reads_of(&client, &mut connection, &first).await;
    let (start, end) = replies[1].split_at(60_000);
    let (head, rest) = replies[2].split_at(1_000);
    let end = [end, head].concat();
    let mut pieces: Vec<&[u8]> = start.chunks(10_000).collect();
    pieces.push(&end);
    pieces.extend(rest.chunks(10_000));
    // Of two replies only the first is asked for by its head.
    let reads = reads_of(&client, &mut connection, &pieces).await;
    assert_eq!(reads, 1 + pieces.len() as u64);
    for (at, pending) in pending.into_iter().enumerate() {
        assert!(value(&pending.await.unwrap()) == value_of(at, LARGE));
    }
}

/// A caller; when it has its answer it notes what `of` says of the client then.
fn noting<T: Send + 'static>(
    client: &Client,
    pending: Pending,
    of: impl Fn(&Client) -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let client = client.clone();
    tokio::spawn(async move {
        pending.await.unwrap();
        of(&client)
    })
}

#[tokio::test]
async fn a_large_reply_is_with_its_caller_before_the_next_one_is_read() {
    let (client, mut connection, pending, replies) = world(&[LARGE; 4]).await;
    let callers: Vec<_> = pending
        .into_iter()
        .map(|it| noting(&client, it, |client| client.stats().replies.get()))
        .collect();
    send_and_see(&client, &mut connection, &replies.concat()).await;
    for (before, caller) in callers.into_iter().enumerate() {
        assert_eq!(caller.await.unwrap(), before as u64 + 1);
    }
}

#[tokio::test]
async fn requests_are_sent_while_large_replies_come() {
    let (client, mut connection, mut pending, replies) = world(&[LARGE; 3 * READS_MAX]).await;
    let writes = client.stats().writes.get();
    let last = noting(&client, pending.pop().unwrap(), |client| {
        client.stats().writes.get()
    });
    let first = noting(&client, pending.remove(0), |client| {
        begin(client, b"more", LONG)
    });
    send_and_see(&client, &mut connection, &replies.concat()).await;
    drop(first.await.unwrap().unwrap());
    assert_eq!(last.await.unwrap(), writes + 1);
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0_usize..400,
        2 => 400_usize..4_000,
        2 => 14_000_usize..40_000,
        3 => 63_000_usize..68_000,
        2 => 68_000_usize..200_000,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn replies_in_any_pieces_are_those_that_were_sent(
        lens in vec(lens(), 1..12),
        cuts in vec(any::<prop::sample::Index>(), 0..40),
        near_heads in vec((any::<prop::sample::Index>(), 0_usize..700), 0..10),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, mut connection, pending, replies) = world(&lens).await;
            let mut starts = vec![0];
            replies.iter().for_each(|it| starts.push(starts.last().unwrap() + it.len()));
            let all = replies.concat();
            let anywhere = cuts.iter().map(|cut| cut.index(all.len()));
            let near_heads = near_heads.iter().map(|(reply, behind)| reply.get(&starts) + behind);
            let mut cuts: Vec<usize> = anywhere.chain(near_heads).collect();
            cuts.push(all.len());
            cuts.sort_unstable();
            let mut sent = 0;
            for cut in cuts {
                let cut = cut.min(all.len());
                send_and_see(&client, &mut connection, &all[sent..cut]).await;
                sent = cut;
            }
            for (at, pending) in pending.into_iter().enumerate() {
                assert!(value(&pending.await.unwrap()) == value_of(at, lens[at]), "reply {at}");
            }
            assert_eq!(client.usage(), (0, 0));
        });
    }
}
