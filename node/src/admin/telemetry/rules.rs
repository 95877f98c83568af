//! What the figures tell an operator: events that are read off samples.
//!
//! Whatever is counted need not be reported a second time where it happens: a rule here turns the figure
//! into a sentence. A rule about growth that has spoken is silent for a while, and then tells everything
//! that came meanwhile at once, so that a storm of errors is one line a minute.

mod table;

use std::collections::HashMap;
use std::sync::Arc;

use fonn_runtime::events::{Level, Topic};
use fonn_runtime::metrics::history::Series;
use fonn_runtime::size::ByteCount;

use self::table::RULES;

/// How long a rule is silent after it has spoken, in milliseconds.
const SILENCE_MS: u64 = 60_000;

/// Which codec values get at a level, as 1 for one of its series.
const CODEC_ACTIVE: &str = "fonn_codec_active";

/// What a rule found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub level: Level,
    pub topic: Topic,
    pub message: String,
}

/// A sentence about a figure.
struct Rule {
    /// The metric.
    metric: &'static str,
    /// Of its series only those with this label; all of them, added up, if missing.
    label: Option<(&'static str, &'static str)>,
    when: When,
    level: Level,
    topic: Topic,
    /// `{}` is what grew, fell or passed; `{bytes}` the same as an amount of bytes.
    sentence: &'static str,
}

/// What must become of a figure for a rule to speak.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// It is more than it was when the rule spoke last; at first, than 0.
    Grows,
    /// It is less than in the sample before.
    Falls,
    /// It is above this for the first time since it was below the second number.
    Passes { above: f64, until_below: f64 },
    /// It is below the second number for the first time since it was above the first.
    Returns { above: f64, until_below: f64 },
}

/// What is remembered of a rule.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// Where its series are in a sample.
    places: Vec<usize>,
    /// The value when it spoke last, for what grows; the last value, for what falls.
    known: Option<f64>,
    /// When it spoke last.
    spoke_at_ms: Option<u64>,
    /// Whether the figure has passed its limit and has not returned yet.
    passed: bool,
}

/// The rules with what they remember.
#[derive(Debug)]
pub(super) struct Rules {
    memories: Vec<Memory>,
    series_seen: usize,
    /// Place, level and codec of each series of [`CODEC_ACTIVE`].
    codec_series: Vec<(usize, String, String)>,
    /// The codec of each level.
    codecs: HashMap<String, String>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            memories: vec![Memory::default(); RULES.len()],
            series_seen: 0,
            codec_series: Vec::new(),
            codecs: HashMap::new(),
        }
    }
}

impl Rules {
    /// What the figures at an instant tell that those before did not.
    pub(super) fn examine(
        &mut self,
        at_ms: u64,
        series: &[Arc<Series>],
        values: &[f64],
    ) -> Vec<Finding> {
        for (place, series) in series.iter().enumerate().skip(self.series_seen) {
            self.meet(place, series);
        }
        self.series_seen = series.len();
        let mut findings = Vec::new();
        for (rule, memory) in RULES.iter().zip(&mut self.memories) {
            let found = memory.places.iter().filter_map(|place| values.get(*place));
            let sum = found.copied().reduce(|sum, value| sum + value);
            if let Some(value) = sum.filter(|sum| !sum.is_nan()) {
                findings.extend(rule.judge(memory, value, at_ms));
            }
        }
        findings.extend(self.codec_changes(values));
        findings
    }

    fn meet(&mut self, place: usize, series: &Series) {
        for (rule, memory) in RULES.iter().zip(&mut self.memories) {
            if rule.is_about(series) {
                memory.places.push(place);
            }
        }
        if series.name == CODEC_ACTIVE
            && let (Some(level), Some(codec)) = (label(series, "level"), label(series, "codec"))
        {
            let row = (place, level.to_owned(), codec.to_owned());
            self.codec_series.push(row);
        }
    }

    fn codec_changes(&mut self, values: &[f64]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (place, level, codec) in &self.codec_series {
            if values.get(*place).is_none_or(|value| *value != 1.0) {
                continue;
            }
            let before = self.codecs.insert(level.clone(), codec.clone());
            if let Some(before) = before.filter(|before| before != codec) {
                findings.push(Finding {
                    level: Level::Info,
                    topic: Topic::Codec,
                    message: format!("{level}: values are now written as {codec}, not {before}"),
                });
            }
        }
        findings
    }
}

impl Rule {
    fn is_about(&self, series: &Series) -> bool {
        let has = |(name, value)| label(series, name) == Some(value);
        series.name == self.metric && self.label.is_none_or(has)
    }

    fn judge(&self, memory: &mut Memory, value: f64, at_ms: u64) -> Option<Finding> {
        let spoke_at_ms = memory.spoke_at_ms;
        let silent = spoke_at_ms.is_some_and(|spoke| at_ms.saturating_sub(spoke) < SILENCE_MS);
        let number = match self.when {
            When::Grows => {
                let known = memory.known.get_or_insert(0.0);
                if value < *known {
                    // Counters may be reset by a client (`stats reset`).
                    *known = value;
                }
                if value == *known || silent {
                    return None;
                }
                value - std::mem::replace(known, value)
            }
            When::Falls => {
                let before = memory.known.replace(value)?;
                (value < before).then_some(before - value)?
            }
            When::Passes { above, until_below } => {
                let before = memory.passed;
                memory.passed = value > above || (before && value >= until_below);
                (memory.passed && !before).then_some(value)?
            }
            When::Returns { above, until_below } => {
                let before = memory.passed;
                memory.passed = value > above || (before && value >= until_below);
                (before && !memory.passed).then_some(value)?
            }
        };
        memory.spoke_at_ms = Some(at_ms);
        Some(Finding {
            level: self.level,
            topic: self.topic,
            message: self
                .sentence
                .replace("{}", &format!("{number:.0}"))
                .replace(
                    "{bytes}",
                    &ByteCount::new(number as u64).human().to_string(),
                ),
        })
    }
}

fn label<'a>(series: &'a Series, name: &str) -> Option<&'a str> {
    let mut labels = series.labels.iter();
    labels
        .find(|label| label.0 == name)
        .map(|label| label.1.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, labels: &[(&str, &str)]) -> Arc<Series> {
        let labels = labels.iter().map(|&(k, v)| (k.to_owned(), v.to_owned()));
        Arc::new(Series {
            name: name.to_owned(),
            labels: labels.collect(),
        })
    }

    fn messages(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|it| it.message.as_str()).collect()
    }

    #[test]
    fn a_storm_is_one_sentence_a_minute_and_loses_nothing() {
        let busy = [series("fonn_refusals_total", &[("reason", "busy")])];
        let mut rules = Rules::default();
        let mut told = Vec::new();
        for second in 0..=130u64 {
            // Ten a second until second 100.
            let value = (second.min(100) * 10) as f64;
            told.extend(rules.examine(second * 1000, &busy, &[value]));
        }
        let told = messages(&told);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].starts_with("10 commands"), "{told:?}");
        assert!(told[1].starts_with("600 commands"), "{told:?}");
        assert!(told[2].starts_with("390 commands"), "{told:?}");
    }

    #[test]
    fn other_reasons_and_quiet_counters_say_nothing() {
        let series = [
            series("fonn_refusals_total", &[("reason", "too_large")]),
            series("fonn_hits_total", &[("tier", "ram")]),
            series("fonn_connections_rejected_total", &[]),
        ];
        let mut rules = Rules::default();
        assert!(rules.examine(0, &series, &[5.0, 100.0, 0.0]).is_empty());
        assert!(
            rules
                .examine(1000, &series, &[9.0, 300.0, f64::NAN])
                .is_empty()
        );
    }

    #[test]
    fn a_limit_is_told_when_it_is_passed_and_when_all_is_well_again() {
        let lag = [series("fonn_cold_unspilled_seconds", &[])];
        let mut rules = Rules::default();
        let mut told = Vec::new();
        for (second, value) in [
            (0, 5.0),
            (1, 61.0),
            (2, 90.0),
            (3, 40.0),
            (4, 70.0),
            (5, 2.0),
        ] {
            told.extend(rules.examine(second * 1000, &lag, &[value]));
        }
        let told = messages(&told);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("61 s"), "{told:?}");
    }

    #[test]
    fn bytes_are_told_as_people_say_them() {
        let withheld = [series("fonn_ram_withheld_bytes", &[])];
        let mut rules = Rules::default();
        assert!(rules.examine(0, &withheld, &[0.0]).is_empty());
        let told = rules.examine(1000, &withheld, &[6_067_012.0]);
        assert!(
            messages(&told)[0].ends_with("RAM entries yield 5.8 MiB"),
            "{told:?}"
        );
    }

    #[test]
    fn another_codec_is_told_and_the_first_one_is_not() {
        let codec = |codec| series(CODEC_ACTIVE, &[("level", "fresh"), ("codec", codec)]);
        let mut rules = Rules::default();
        let first = [codec("lz4")];
        assert!(rules.examine(0, &first, &[1.0]).is_empty());
        let both = [codec("lz4"), codec("zstd:3")];
        let told = rules.examine(1000, &both, &[0.0, 1.0]);
        assert_eq!(
            messages(&told),
            ["fresh: values are now written as zstd:3, not lz4"]
        );
        assert!(rules.examine(2000, &both, &[0.0, 1.0]).is_empty());
    }
}
