//! Finding writers that are not followed yet, with few requests.
//!
//! Ids of writers sort by the time of their first segment. So what is new in a region is behind the
//! newest that is known, but for clocks that differ and uploads that took long: the list begins
//! [`QUIET`] earlier, and passes over the segments of a writer where they are many. A writer that
//! was later than that is found by the full comparison.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::ColdError;
use crate::names::{Region, SEGMENTS, SegmentName, WriterId, WriterKey};
use crate::shared::Shared;
use crate::store::PAGE_MAX;

/// How long after its id was made a writer's first segment may appear and still be found soon.
const QUIET: Duration = Duration::from_secs(3600);

/// Names of segments of writers that may not be known yet: of each at least one.
pub(super) async fn writers<'a>(
    shared: &Shared,
    known: impl Iterator<Item = &'a WriterKey>,
) -> Result<Vec<SegmentName>, ColdError> {
    let mut newest: BTreeMap<Region, WriterId> = BTreeMap::new();
    let settled_ms = shared.wall_ms().saturating_sub(QUIET.as_millis() as u64);
    for key in known.filter(|key| key.writer.started_ms() <= settled_ms) {
        let writer = newest.entry(key.region.clone()).or_insert(key.writer);
        *writer = key.writer.max(*writer);
    }
    let mut found = Vec::new();
    // Regions in the order of the list; each tells where the next one is to be looked for.
    let mut after = None;
    while let Some(region) = next_region(shared, after).await? {
        after = Some(format!("{SEGMENTS}{region}/_"));
        let from = newest.get(&region);
        found.extend(newer(shared, &region, from).await?);
    }
    Ok(found)
}

/// The first region that has segments behind a key.
async fn next_region(
    shared: &Shared,
    mut after: Option<String>,
) -> Result<Option<Region>, ColdError> {
    loop {
        let page = shared.bucket().list(SEGMENTS, after.as_deref(), 1).await?;
        let Some(object) = page.objects.first() else {
            return Ok(None);
        };
        if let Some(name) = SegmentName::parse(object.key.as_str()) {
            return Ok(Some(name.region));
        }
        // Something that is not ours: looked for behind it.
        after = Some(object.key.to_string());
    }
}

async fn newer(
    shared: &Shared,
    region: &Region,
    from: Option<&WriterId>,
) -> Result<Vec<SegmentName>, ColdError> {
    let prefix = region.segments_prefix();
    // The characters of a number sort before this character.
    let behind = |writer: &WriterId| format!("{prefix}{writer}/g");
    let mut after = from.map(behind);
    let mut found: Vec<SegmentName> = Vec::new();
    loop {
        let list = shared.bucket().list(&prefix, after.as_deref(), PAGE_MAX);
        let page = list.await?;
        let mut last = None;
        for object in &page.objects {
            if let Some(name) = SegmentName::parse(object.key.as_str()) {
                last = Some(name.writer);
                match found.last_mut() {
                    Some(last) if last.writer == name.writer => *last = name,
                    _ => found.push(name),
                }
            }
        }
        match (page.next, last) {
            // The rest of this writer's segments says nothing about others.
            (Some(_), Some(writer)) => after = Some(behind(&writer)),
            (Some(next), None) => after = Some(next),
            (None, _) => return Ok(found),
        }
    }
}
