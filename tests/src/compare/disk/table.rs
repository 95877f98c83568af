//! The figures of one kind of values as a table, with the ratios to extstore below it.

use std::fmt::Write as _;

use super::Kind;
use crate::compare::spread::median;

/// The codec that chooses among the others.
const AUTO: &str = "auto";

/// What one contender did in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) sets_per_second: f64,
    pub(super) gets_per_second: f64,
    pub(super) hits_per_second: f64,
    pub(super) hit_ratio: f64,
    /// Times in milliseconds that 99.9 % of the sets and of the gets took at most.
    pub(super) tails_ms: [f64; 2],
    pub(super) disk_mib: f64,
    /// Bytes on disk for each byte of values that is found.
    pub(super) disk_bytes_per_byte: f64,
}

/// Chooses one of the figures.
type Figure = fn(&Figures) -> f64;

impl Figures {
    /// A set whose value is lost before the gets has no use.
    fn kept_sets_per_second(&self) -> f64 {
        self.sets_per_second * self.hit_ratio
    }
}

/// Fonn with one codec, or memcached with extstore.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    /// The codec of Fonn; `None` for extstore.
    pub(super) codec: Option<String>,
    pub(super) rounds: Vec<Figures>,
}

impl Contender {
    pub(super) fn name(&self) -> String {
        match &self.codec {
            Some(codec) => format!("fonn {codec}"),
            None => "memcached, extstore".to_owned(),
        }
    }

    fn median(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }
}

/// All contenders with values of one kind; extstore is the last.
#[derive(Clone, Debug)]
pub(super) struct Results {
    pub(super) contenders: Vec<Contender>,
}

impl Results {
    pub(super) fn new(codecs: &[String]) -> Self {
        let codecs = codecs.iter().cloned().map(Some).chain([None]);
        let contender = |codec| Contender {
            codec,
            rounds: Vec::new(),
        };
        Self {
            contenders: codecs.map(contender).collect(),
        }
    }

    /// Of each codec, a figure as a multiple of that of extstore: the median of the rounds.
    fn ratios(&self, of: Figure) -> Vec<(&str, f64)> {
        let Some((extstore, codecs)) = self.contenders.split_last() else {
            return Vec::new();
        };
        let ratio = |it: &Contender| {
            let rounds = it.rounds.iter().zip(&extstore.rounds);
            median(rounds.map(|(fonn, extstore)| of(fonn) / of(extstore)))
        };
        codecs
            .iter()
            .filter_map(|it| Some((it.codec.as_deref()?, ratio(it))))
            .collect()
    }
}

/// The table of one kind of values.
pub(super) fn markdown(kind: Kind, results: &Results) -> String {
    let mut text = format!(
        "**{} KiB, {}**, per second of the server's processor time:\n\n\
         | | sets | sets that are found later | gets | gets that found | found \
         | MiB on disk | bytes on disk per byte found | p99.9 of sets / gets, ms |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        kind.value_len >> 10,
        format!("{:?}", kind.content).to_lowercase(),
    );
    for it in &results.contenders {
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.1}k | {:.1}k | {:.1}k | {:.1}k | {:.0} % | {:.0} | {:.3} | {:.1} / {:.1} |",
            it.name(),
            it.median(|it| it.sets_per_second) / 1e3,
            it.median(Figures::kept_sets_per_second) / 1e3,
            it.median(|it| it.gets_per_second) / 1e3,
            it.median(|it| it.hits_per_second) / 1e3,
            it.median(|it| it.hit_ratio) * 100.0,
            it.median(|it| it.disk_mib),
            it.median(|it| it.disk_bytes_per_byte),
            it.median(|it| it.tails_ms[0]),
            it.median(|it| it.tails_ms[1]),
        );
    }
    text.push_str("\nFonn / extstore:");
    let figures: [(&str, Figure); 3] = [
        ("gets that found", |it| it.hits_per_second),
        ("sets", |it| it.sets_per_second),
        ("sets that are found later", Figures::kept_sets_per_second),
    ];
    for (at, (name, of)) in figures.into_iter().enumerate() {
        let ratios = results.ratios(of);
        let best = ratios.iter().max_by(|one, two| one.1.total_cmp(&two.1));
        let mut parts: Vec<String> = best
            .map(|(codec, ratio)| format!("{ratio:.2} with the best codec, {codec}"))
            .into_iter()
            .collect();
        let auto = ratios.iter().find(|(codec, _)| *codec == AUTO);
        parts.extend(auto.map(|(_, ratio)| format!("{ratio:.2} with auto")));
        let separator = if at == 0 { "" } else { ";" };
        let _ = write!(text, "{separator} {name} {}", parts.join(" and "));
    }
    text.push_str(".\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Content;

    fn figures(sets: f64, hits: f64, hit_ratio: f64) -> Figures {
        Figures {
            sets_per_second: sets,
            gets_per_second: hits / hit_ratio,
            hits_per_second: hits,
            hit_ratio,
            tails_ms: [1.0, 2.0],
            disk_mib: 512.0,
            disk_bytes_per_byte: 1.0,
        }
    }

    fn results() -> Results {
        let mut results = Results::new(&["none".to_owned(), AUTO.to_owned()]);
        for scale in [1.0, 0.5] {
            let rounds = [
                figures(70.0 * scale, 120.0 * scale, 1.0),
                figures(40.0 * scale, 90.0 * scale, 1.0),
                figures(100.0 * scale, 100.0 * scale, 0.5),
            ];
            for (it, round) in results.contenders.iter_mut().zip(rounds) {
                it.rounds.push(round);
            }
        }
        results
    }

    #[test]
    fn ratios_have_the_best_codec_and_auto_beside_extstore() {
        let kind = Kind {
            value_len: 16 << 10,
            content: Content::Text,
        };
        let text = markdown(kind, &results());
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "Fonn / extstore: gets that found 1.20 with the best codec, none and 0.90 with auto; \
             sets 0.70 with the best codec, none and 0.40 with auto; \
             sets that are found later 1.40 with the best codec, none and 0.80 with auto."
        );
        assert!(text.starts_with("**16 KiB, text**"), "{text}");
    }

    #[test]
    fn each_row_has_the_columns_of_its_head() {
        let kind = Kind {
            value_len: 256 << 10,
            content: Content::Random,
        };
        let text = markdown(kind, &results());
        let rows = text.lines().filter(|line| line.starts_with('|'));
        let mut columns = rows.map(|line| line.matches('|').count());
        let head = columns.next().unwrap();
        assert!(columns.all(|it| it == head), "{text}");
    }
}
