//! The bucket that clusters share. Each reader folds the uploaded segments in an order of its own,
//! so a version order that is not total shows.

use fonn_replication::{Record, Slot, Version};

use super::random::Random;
use super::store::{Entry, Key};

#[derive(Default)]
pub struct Bucket {
    slots: Vec<Vec<Record<Entry>>>,
}

impl Bucket {
    pub fn new(slots_len: u16) -> Self {
        Self {
            slots: vec![Vec::new(); usize::from(slots_len)],
        }
    }

    pub fn upload(&mut self, records: Vec<Record<Entry>>) {
        for record in records {
            let known = &mut self.slots[usize::from(record.slot.0)];
            if !known.contains(&record) {
                known.push(record);
            }
        }
    }

    /// The newest record of a key that is newer than a flush, if the bucket has one.
    pub fn find(
        &self,
        slot: Slot,
        key: Key,
        after: Option<Version>,
        random: &mut Random,
    ) -> Option<&Record<Entry>> {
        let mut records: Vec<&Record<Entry>> = self.slots[usize::from(slot.0)]
            .iter()
            .filter(|r| match r.entry {
                Entry::Value { key: k, .. } | Entry::Delete { key: k, .. } => k == key,
                Entry::Flush { .. } => true,
            })
            .collect();
        random.shuffle(&mut records);
        let mut newest: Option<&Record<Entry>> = None;
        for record in records {
            if newest.is_none_or(|newest| record.version > newest.version) {
                newest = Some(record);
            }
        }
        newest.filter(|newest| after.is_none_or(|flush| newest.version > flush))
    }
}
