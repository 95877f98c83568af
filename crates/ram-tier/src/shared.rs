//! The values that are too long to be copied about: kept as `Bytes`, shared with readers and
//! writers.

use bytes::Bytes;
use fonn_base::prefetch::prefetch;

use super::cost;

/// The shared values of a shard, by the index that their entries' payloads hold.
#[derive(Debug, Default)]
pub(super) struct SharedValues {
    values: Vec<Option<Bytes>>,
    free: Vec<u32>,
}

impl SharedValues {
    /// Keeps a value. None when indexes have run out.
    pub fn put(&mut self, value: Bytes) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            self.values[index as usize] = Some(value);
            return Some(index);
        }
        let index = u32::try_from(self.values.len()).ok()?;
        self.values.push(Some(value));
        Some(index)
    }

    /// Lets go of a value and gives back what it cost.
    pub fn remove(&mut self, index: u32) -> usize {
        let Some(value) = self.values[index as usize].take() else {
            return 0;
        };
        self.free.push(index);
        cost::shared_value(value.len())
    }

    /// Has the processor fetch what [`SharedValues::at`] reads.
    pub fn prefetch(&self, index: u32) {
        if let Some(value) = self.values.get(index as usize) {
            prefetch(value);
        }
    }

    /// The value of an index that an entry holds.
    ///
    /// # Panics
    /// If there is no such value.
    pub fn at(&self, index: u32) -> &Bytes {
        match &self.values[index as usize] {
            Some(value) => value,
            None => unreachable!("no shared value {index}"),
        }
    }
}
