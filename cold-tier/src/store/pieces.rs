//! The bytes of a read while they are still coming.

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{ObjectKey, Operation, StoreError, StoreErrorKind};

/// Longest piece that a store cuts from bytes which it has together: so much is worked on at a
/// time.
pub const PIECE_LEN: usize = 128 << 10;

/// Pieces that wait for the reader: what waits is held in memory.
const WAITING_MAX: usize = 2;

/// What a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A try begins: what came before does not count.
    Begin,
    /// The next bytes.
    Bytes(Bytes),
}

/// Where a store puts the bytes of a read, in order. It waits for the reader.
#[derive(Clone, Debug)]
pub struct Pieces(mpsc::Sender<Piece>);

impl Pieces {
    /// A way from a store to a reader; the reader's end is over when the store's was dropped.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Piece>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// A try begins, of a read of `key`.
    ///
    /// # Errors
    /// [`StoreErrorKind::Invalid`]: no reader is left.
    pub async fn begin(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.put(key, Piece::Begin).await
    }

    /// The next bytes; none are passed over. Cuts what is longer than [`PIECE_LEN`].
    ///
    /// # Errors
    /// As of [`Pieces::begin`].
    pub async fn bytes(&self, key: &ObjectKey, mut bytes: Bytes) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_LEN));
            self.put(key, Piece::Bytes(piece)).await?;
        }
        Ok(())
    }

    /// A whole try with all of its bytes. Gives their number.
    ///
    /// # Errors
    /// As of [`Pieces::begin`].
    pub async fn all(&self, key: &ObjectKey, bytes: Bytes) -> Result<u64, StoreError> {
        let len = bytes.len() as u64;
        self.begin(key).await?;
        self.bytes(key, bytes).await?;
        Ok(len)
    }

    async fn put(&self, key: &ObjectKey, piece: Piece) -> Result<(), StoreError> {
        self.0.send(piece).await.map_err(|_| {
            StoreError::new(Operation::GetRange, key.as_str(), StoreErrorKind::Invalid)
                .with_source("no reader is left")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_are_cut_into_pieces_and_wait_for_their_reader() {
        let key = ObjectKey::new("a").unwrap();
        let (pieces, mut reader) = Pieces::channel();
        let whole = Bytes::from(vec![7; PIECE_LEN * 3 + 1]);
        let sent = whole.clone();
        let sending = async move { pieces.all(&key, sent).await.unwrap() };
        let reading = async {
            let mut read = Vec::new();
            assert_eq!(reader.recv().await, Some(Piece::Begin));
            while let Some(Piece::Bytes(bytes)) = reader.recv().await {
                assert!(bytes.len() <= PIECE_LEN && !bytes.is_empty());
                read.extend_from_slice(&bytes);
            }
            read
        };
        let (streamed, read) = tokio::join!(sending, reading);
        assert_eq!((streamed, read), (whole.len() as u64, whole.to_vec()));
    }

    #[tokio::test]
    async fn a_reader_that_stops_ends_the_stream() {
        let key = ObjectKey::new("a").unwrap();
        let (pieces, reader) = Pieces::channel();
        drop(reader);
        let error = pieces.begin(&key).await.unwrap_err();
        assert!(!error.is_retryable());
    }
}
