//! The bucket that clusters share. Each reader folds the uploaded segments in an order of its own,
//! so a version order that is not total shows. Two regions can assign the same version, so readers
//! also compare the regions of the segments.

use fonn_replication::{Record, Slot, Version};

use super::random::Random;
use super::store::{Entry, Key};

/// The number of a region.
pub type Region = usize;

#[derive(Default)]
pub struct Bucket {
    slots: Vec<Vec<(Region, Record<Entry>)>>,
}

impl Bucket {
    pub fn new(slots_len: u16) -> Self {
        Self {
            slots: vec![Vec::new(); usize::from(slots_len)],
        }
    }

    pub fn upload(&mut self, region: Region, records: Vec<Record<Entry>>) {
        for record in records {
            let known = &mut self.slots[usize::from(record.slot.0)];
            let uploaded = (region, record);
            if !known.contains(&uploaded) {
                known.push(uploaded);
            }
        }
    }

    /// The newest record of a key, if the bucket has one.
    pub fn find(&self, slot: Slot, key: Key, random: &mut Random) -> Option<&Record<Entry>> {
        let mut records: Vec<&(Region, Record<Entry>)> = self.slots[usize::from(slot.0)]
            .iter()
            .filter(|(_, record)| record.entry.key() == key)
            .collect();
        random.shuffle(&mut records);
        let mut newest: Option<(Version, Region, &Record<Entry>)> = None;
        for (region, record) in records {
            let order = (record.version, *region);
            if newest.is_none_or(|(version, region, _)| order > (version, region)) {
                newest = Some((record.version, *region, record));
            }
        }
        newest.map(|(_, _, record)| record)
    }
}
