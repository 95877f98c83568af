use super::cells::{HistogramSum, LocalHistogram};
use super::*;
use crate::clock::ManualClock;

crate::label! {
    /// A label of the tests.
    enum Tier: "tier" {
        Ram = "ram",
        Disk = "disk",
    }
}

#[test]
fn every_value_of_a_label_is_published_from_the_start() {
    let metrics = Metrics::new();
    metrics.on_scrape(|snapshot| {
        for (tier, hits) in Tier::ALL.iter().zip([0, 3]) {
            let labels = [(Tier::NAME, tier.as_str())];
            snapshot.counter("fonn_test_hits_total", "Hits.", &labels, hits);
        }
    });
    let text = metrics.render().unwrap();
    assert!(
        text.contains("# TYPE fonn_test_hits_total counter"),
        "{text}"
    );
    assert!(
        text.contains("fonn_test_hits_total{tier=\"ram\"} 0"),
        "{text}"
    );
    assert!(
        text.contains("fonn_test_hits_total{tier=\"disk\"} 3"),
        "{text}"
    );
    assert_eq!([Tier::Ram, Tier::Disk].map(Label::index), [0, 1]);
}

#[test]
fn sources_are_asked_at_each_scrape() {
    let metrics = Metrics::new();
    let calls = std::sync::atomic::AtomicU64::new(0);
    metrics.on_scrape(move |snapshot| {
        let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        snapshot.counter("fonn_test_scrapes_total", "Scrapes.", &[], call);
        snapshot.gauge("fonn_test_depth", "Depth.", &[("queue", "a\"b\n")], 1.5);
    });
    assert!(
        metrics
            .render()
            .unwrap()
            .contains("fonn_test_scrapes_total 0")
    );
    let text = metrics.render().unwrap();
    assert!(text.contains("fonn_test_scrapes_total 1"), "{text}");
    assert!(
        text.contains("fonn_test_depth{queue=\"a\\\"b\\n\"} 1.5"),
        "{text}"
    );
}

#[test]
fn samples_of_one_name_from_two_sources_are_one_family() {
    let metrics = Metrics::new();
    metrics.on_scrape(|snapshot| snapshot.counter("fonn_test_total", "T.", &[], 1));
    metrics.on_scrape(|snapshot| {
        snapshot.counter("fonn_test_total", "T.", &[("tier", "ram")], 9);
        snapshot.counter("fonn_a_total", "First.", &[], 1);
    });
    let text = metrics.render().unwrap();
    assert_eq!(text.matches("# TYPE fonn_test_total counter").count(), 1);
    assert!(text.starts_with("# HELP fonn_a_total First.\n"), "{text}");
    // Registries are apart: nothing is global.
    assert_eq!(Metrics::new().render().unwrap(), "");
}

#[test]
fn histograms_of_cells_are_cumulative() {
    let local = LocalHistogram::default();
    for ns in [500, 1024, 1025, 1 << 40] {
        local.record_ns(ns);
    }
    let metrics = Metrics::new();
    metrics.on_scrape(move |snapshot| {
        let mut sum = HistogramSum::default();
        sum.merge(&local);
        snapshot.histogram("fonn_test_seconds", "T.", &[("tier", "ram")], &sum);
    });
    let text = metrics.render().unwrap();
    for line in [
        "fonn_test_seconds_bucket{tier=\"ram\",le=\"0.000001024\"} 2",
        "fonn_test_seconds_bucket{tier=\"ram\",le=\"0.000001536\"} 3",
        "fonn_test_seconds_bucket{tier=\"ram\",le=\"68.719476736\"} 3",
        "fonn_test_seconds_bucket{tier=\"ram\",le=\"+Inf\"} 4",
        "fonn_test_seconds_count{tier=\"ram\"} 4",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} not in\n{text}"
        );
    }
}

#[test]
fn a_source_may_register_another_one() {
    let metrics = Metrics::new();
    let inner = metrics.clone();
    metrics.on_scrape(move |_| inner.on_scrape(|_| {}));
    assert_eq!(metrics.render().unwrap(), "");
    assert!(format!("{metrics:?}").contains("sources: 2"));
}

#[test]
fn process_metrics_have_plausible_values() {
    let metrics = Metrics::new();
    process::register(&metrics, &ManualClock::new(1_700_000_000_500).clock());
    let text = metrics.render().unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("process_resident_memory_bytes ") > 100_000.0);
    assert!(value("process_open_fds ") >= 3.0);
    assert!(value("process_cpu_seconds_total ") > 0.0);
    assert!((value("process_start_time_seconds ") - 1_700_000_000.5).abs() < 0.001);
}
