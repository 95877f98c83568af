//! The clock of a node over a bucket jumps, forwards and back.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use fonn_tests::bucket::Bucket;
use fonn_tests::client::Cache;
use fonn_tests::component::clock_shifter;
use fonn_tests::node::FonnNode;
use fonn_tests::rng::Rng;

use fonn_tests::spilled::{connect, destroy, over, wait_until_ready, wait_until_spilled};

const KEYS: u64 = 120;
const HOUR: i64 = 3600;

/// Where the clock is, and whether the machine before was lost with its disk.
const JUMPS: [(i64, bool); 7] = [
    (0, false),
    (30 * HOUR, false),
    (0, false),
    (-5 * HOUR, true),
    (400 * HOUR, true),
    (-2 * HOUR, false),
    (0, true),
];

/// What was acknowledged last of each key.
#[derive(Default)]
struct Model {
    values: BTreeMap<String, Option<String>>,
    written: u64,
}

impl Model {
    /// Some keys are written, of those some again, and some are deleted.
    fn change(&mut self, cache: &mut dyn Cache, random: &mut Rng) -> Result<()> {
        for _ in 0..KEYS {
            let key = format!("clock/{}", random.below(KEYS));
            let value = match random.chance(0.3) {
                true => {
                    let was_there = cache.delete(&key)?;
                    let is_there = self.values.get(&key).is_some_and(Option::is_some);
                    ensure!(was_there == is_there, "{key} was there: {was_there}");
                    None
                }
                false => {
                    self.written += 1;
                    let value = format!("{key} {}", self.written);
                    cache.set(&key, value.as_bytes(), None)?;
                    Some(value)
                }
            };
            self.values.insert(key, value);
        }
        Ok(())
    }

    fn check(&self, cache: &mut dyn Cache) -> Result<()> {
        for (key, value) in &self.values {
            let got = cache.get(key)?;
            let got = got.map(|it| String::from_utf8_lossy(&it).into_owned());
            ensure!(got == *value, "{key}: {got:?} instead of {value:?}");
        }
        Ok(())
    }
}

#[test]
fn what_was_acknowledged_last_counts_whatever_the_clock_does() -> Result<()> {
    let Some(shifter) = clock_shifter()? else {
        return Ok(());
    };
    let bucket = Bucket::in_process()?;
    let (mut model, mut random) = (Model::default(), Rng::new(1));
    let mut running: Option<FonnNode> = None;
    for (round, (offset, is_lost)) in JUMPS.into_iter().enumerate() {
        let when = |what: &str| format!("round {round}, clock {offset:+} s, {what}");
        let node = match running.take() {
            Some(mut node) if !is_lost => {
                node.kill9()?;
                node.start_again_with(|options| options.clock_offset(&shifter, offset))?;
                node
            }
            before => {
                before.map_or(Ok(()), destroy)?;
                over(&bucket).clock_offset(&shifter, offset).start()?
            }
        };
        wait_until_ready(&node)?;
        let mut cache = connect(&node)?;
        model.check(&mut *cache).with_context(|| when("at first"))?;
        // It lives for an hour by the clock of now; the next ones are far from it.
        let expired = cache.get("brief")?;
        ensure!(expired.is_none() || offset <= 0, "{}", when("brief"));
        cache.set("brief", b"value", Some(3600))?;
        model.change(&mut *cache, &mut random)?;
        model.check(&mut *cache).with_context(|| when("written"))?;
        wait_until_spilled(&node)?;
        running = Some(node);
    }
    Ok(())
}
