//! The node is killed at a step of a spill, or while it reads the bucket's index.

use std::time::Duration;

use anyhow::{Result, ensure};

use fonn_tests::bucket::Bucket;
use fonn_tests::client::Cache;
use fonn_tests::node::FonnNode;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{
    Entries, connect, destroy, metric, over, wait_until, wait_until_ready, wait_until_spilled,
};

/// Where the node is when it is killed.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The upload is on its way, and never arrives.
    BeforeTheUpload,
    /// The upload has taken place, and the node does not know.
    BeforeTheAnswer,
    /// The bucket refuses, and the node tries again.
    BetweenTries,
    /// Some time after the upload was acknowledged: in the index, or behind it.
    AfterTheAnswer(Duration),
}

const STEPS: [Step; 6] = [
    Step::BeforeTheUpload,
    Step::BeforeTheAnswer,
    Step::BetweenTries,
    Step::AfterTheAnswer(Duration::ZERO),
    Step::AfterTheAnswer(Duration::from_millis(2)),
    Step::AfterTheAnswer(Duration::from_millis(10)),
];

const LENS: [usize; 3] = [3_000, 30_000, 200];

/// Entries of which some are replaced and some deleted later.
struct Model<'a> {
    first: Entries<'a>,
    second: Entries<'a>,
}

impl Model<'_> {
    /// What is in the bucket before anything goes wrong.
    fn begin(&self, cache: &mut dyn Cache) -> Result<()> {
        self.first.write(cache, 0..120)
    }

    /// What is acknowledged afterwards.
    fn change(&self, cache: &mut dyn Cache) -> Result<()> {
        self.second.write(cache, 0..40)?;
        for number in 40..80 {
            ensure!(cache.delete(&self.first.key(number))?, "{number} is gone");
        }
        self.second.write(cache, 120..200)
    }

    /// Everything is as it was acknowledged last.
    fn check(&self, cache: &mut dyn Cache) -> Result<()> {
        self.second.check(cache, 0..40)?;
        for number in 40..80 {
            let got = cache.get(&self.first.key(number))?;
            ensure!(got.is_none(), "{number} is back");
        }
        self.first.check(cache, 80..120)?;
        self.second.check(cache, 120..200)
    }
}

fn spilled_segments(node: &FonnNode) -> Result<f64> {
    metric(node, "fonn_cold_spilled_segments_total")
}

#[test]
fn a_kill_at_a_step_of_a_spill_loses_nothing_and_brings_nothing_back() -> Result<()> {
    let (random, text) = (
        ValuePool::new(Content::Random, 64 << 10),
        ValuePool::new(Content::Text, 64 << 10),
    );
    let entries = |pool| Entries {
        pool,
        lens: &LENS,
        prefix: "kill/",
    };
    let model = Model {
        first: entries(&random),
        second: entries(&text),
    };
    for step in STEPS {
        let bucket = Bucket::in_process()?;
        let mut node = over(&bucket).start()?;
        let mut cache = connect(&node)?;
        model.begin(&mut *cache)?;
        wait_until_spilled(&node)?;
        let (held, spilled) = (bucket.held(), spilled_segments(&node)?);
        let retries = metric(&node, "fonn_cold_upload_retries_total")?;
        match step {
            Step::BeforeTheUpload => bucket.hold_uploads(false),
            Step::BeforeTheAnswer => bucket.hold_uploads(true),
            Step::BetweenTries => bucket.go_down(),
            Step::AfterTheAnswer(_) => {}
        }
        model.change(&mut *cache)?;
        wait_until("it is at the step", Duration::from_secs(60), || {
            Ok(match step {
                Step::BeforeTheUpload | Step::BeforeTheAnswer => bucket.held() > held,
                Step::BetweenTries => metric(&node, "fonn_cold_upload_retries_total")? > retries,
                Step::AfterTheAnswer(_) => spilled_segments(&node)? > spilled,
            })
        })?;
        if let Step::AfterTheAnswer(later) = step {
            std::thread::sleep(later);
        }
        node.kill9()?;
        bucket.come_up();

        node.start_again()?;
        model.check(&mut *connect(&node)?)?;
        wait_until_spilled(&node)?;
        model.check(&mut *connect(&node)?)?;
        destroy(node)?;
        let next = over(&bucket).start()?;
        wait_until_ready(&next)?;
        model.check(&mut *connect(&next)?)?;
        // No unknown segment.
        wait_until("all segments are known", Duration::from_secs(90), || {
            Ok(metric(&next, "fonn_cold_segments")? == bucket.segments()?.len() as f64)
        })?;
    }
    Ok(())
}

#[test]
fn a_kill_while_the_index_is_read_from_the_bucket_is_no_harm() -> Result<()> {
    let bucket = Bucket::in_process()?;
    let pool = ValuePool::new(Content::Random, 64 << 10);
    let entries = Entries {
        pool: &pool,
        lens: &LENS,
        prefix: "restore/",
    };
    let first = over(&bucket).start()?;
    entries.write(&mut *connect(&first)?, 0..200)?;
    wait_until_spilled(&first)?;
    destroy(first)?;

    bucket.hold_reads();
    let held = bucket.held();
    let mut next = over(&bucket).before_its_index().start()?;
    wait_until("it asks the bucket", Duration::from_secs(60), || {
        Ok(bucket.held() > held)
    })?;
    // It serves meanwhile, and a miss does not wait.
    let mut cache = connect(&next)?;
    ensure!(cache.get(&entries.key(0))?.is_none());
    next.kill9()?;
    bucket.come_up();
    next.start_again()?;
    wait_until_ready(&next)?;
    entries.check(&mut *connect(&next)?, 0..200)
}
