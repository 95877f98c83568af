//! The bytes of an object to be written.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// Bytes in pieces that need not lie side by side, so that what is collected over time is not
/// copied together in order to be written. Cheap to clone: a retry sends the same bytes.
#[derive(Clone, Default)]
pub struct Body {
    chunks: Arc<[Bytes]>,
    len: u64,
}

impl Body {
    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, in order; none is empty.
    #[must_use]
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// All bytes in one piece; copies when there is more than one.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match self.chunks() {
            [] => Bytes::new(),
            [only] => only.clone(),
            chunks => {
                let mut joined = BytesMut::with_capacity(usize::try_from(self.len).unwrap_or(0));
                for chunk in chunks {
                    joined.extend_from_slice(chunk);
                }
                joined.freeze()
            }
        }
    }
}

impl From<Vec<Bytes>> for Body {
    fn from(mut chunks: Vec<Bytes>) -> Self {
        chunks.retain(|chunk| !chunk.is_empty());
        Self {
            len: chunks.iter().map(|chunk| chunk.len() as u64).sum(),
            chunks: chunks.into(),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        vec![bytes].into()
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

/// Without the bytes: they are other people's values.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Body({} bytes in {} chunks)",
            self.len,
            self.chunks.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_chunk_is_not_copied_and_none_is_no_bytes() {
        let bytes = Bytes::from(vec![1, 2, 3]);
        let body = Body::from(vec![Bytes::new(), bytes.clone(), Bytes::new()]);
        assert_eq!(body.to_bytes().as_ptr(), bytes.as_ptr());
        assert_eq!(body.chunks().len(), 1);
        for empty in [
            Body::default(),
            Bytes::new().into(),
            Vec::<Bytes>::new().into(),
        ] {
            assert!(empty.is_empty() && empty.chunks().is_empty());
            assert_eq!(empty.to_bytes(), "");
        }
        assert_eq!(format!("{body:?}"), "Body(3 bytes in 1 chunks)");
    }

    proptest! {
        #[test]
        fn chunks_are_joined_in_their_order(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..5), 0..6),
        ) {
            let joined: Vec<u8> = chunks.concat();
            let body = Body::from(chunks.into_iter().map(Bytes::from).collect::<Vec<_>>());
            prop_assert_eq!(body.len(), joined.len() as u64);
            prop_assert_eq!(body.to_bytes(), &joined);
        }
    }
}
