//! Line charts as SVG, for the plots of docs/benchmarks.md.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 90.0;
/// Distinguishable without color vision by their brightness as well.
pub(super) const COLORS: [&str; 6] = [
    "#0b4f8a", "#d9730d", "#2a9d5c", "#b02a6f", "#7a7a7a", "#c9a400",
];

/// One line.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A chart with both axes starting at 0.
#[derive(Clone, Debug)]
pub struct Chart {
    title: String,
    x_label: String,
    y_label: String,
    /// The lines.
    pub series: Vec<Series>,
}

impl Chart {
    /// A chart without lines.
    #[must_use]
    pub fn new(title: &str, x_label: &str, y_label: &str) -> Self {
        let [title, x_label, y_label] = [title, x_label, y_label].map(escape);
        Self {
            title,
            x_label,
            y_label,
            series: Vec::new(),
        }
    }

    /// The chart as an SVG document.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x_step = tick_step(points().map(|point| point.0).fold(0.0, f64::max));
        let y_step = tick_step(points().map(|point| point.1).fold(0.0, f64::max));
        let x_max = ceil_to(points().map(|point| point.0).fold(0.0, f64::max), x_step);
        let y_max = ceil_to(points().map(|point| point.1).fold(0.0, f64::max), y_step);
        let x = |value: f64| LEFT + value / x_max * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - value / y_max * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut svg, (WIDTH / 2.0, 24.0), "middle", &self.title);
        text(
            &mut svg,
            (WIDTH / 2.0, HEIGHT - 48.0),
            "middle",
            &self.x_label,
        );
        text(&mut svg, (8.0, TOP - 12.0), "start", &self.y_label);
        for tick in ticks(x_max, x_step) {
            let end = y(y_max);
            line(&mut svg, (x(tick), y(0.0)), (x(tick), end));
            text(
                &mut svg,
                (x(tick), y(0.0) + 18.0),
                "middle",
                &label(tick, x_step),
            );
        }
        for tick in ticks(y_max, y_step) {
            line(&mut svg, (x(0.0), y(tick)), (x(x_max), y(tick)));
            text(
                &mut svg,
                (LEFT - 8.0, y(tick) + 4.0),
                "end",
                &label(tick, y_step),
            );
        }
        let slot = (WIDTH - LEFT - RIGHT) / self.series.len().max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            let path: Vec<String> = series
                .points
                .iter()
                .map(|&(at, value)| format!("{:.1},{:.1}", x(at), y(value)))
                .collect();
            put(
                &mut svg,
                format_args!(
                    "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>\n",
                    path.join(" ")
                ),
            );
            let (left, base) = (LEFT + slot * index as f64, HEIGHT - 18.0);
            put(
                &mut svg,
                format_args!(
                    "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"18\" height=\"4\" fill=\"{color}\"/>\n",
                    base - 6.0
                ),
            );
            text(
                &mut svg,
                (left + 24.0, base),
                "start",
                &escape(&series.name),
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

pub(super) fn put(svg: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing into a string cannot fail.
    let _ = svg.write_fmt(arguments);
}

pub(super) fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    put(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222\">{content}</text>\n"
        ),
    );
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    put(
        svg,
        format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>\n"
        ),
    );
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A step of 1, 2 or 5 times a power of ten that gives four to ten ticks up to `max`.
fn tick_step(max: f64) -> f64 {
    if max <= 0.0 {
        return 1.0;
    }
    let power = 10.0_f64.powf((max / 10.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps
        .into_iter()
        .find(|step| max / step <= 10.0)
        .unwrap_or(max)
}

fn ceil_to(value: f64, step: f64) -> f64 {
    (value / step).ceil().max(1.0) * step
}

fn ticks(max: f64, step: f64) -> impl Iterator<Item = f64> {
    let count = (max / step).round() as usize;
    (0..=count).map(move |tick| tick as f64 * step)
}

fn label(tick: f64, step: f64) -> String {
    let digits = if step < 1.0 {
        (-step.log10()).ceil() as usize
    } else {
        0
    };
    format!("{tick:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_give_four_to_ten_ticks() {
        for max in [0.003, 0.7, 1.0, 3.2, 9.9, 10.0, 47.0, 12_345.0] {
            let count = max / tick_step(max);
            assert!((4.0..=10.0).contains(&count), "{max}: {count}");
        }
        assert!((tick_step(0.0) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn every_series_is_a_line_with_a_legend_inside_the_frame() {
        let mut chart = Chart::new("a < b", "x", "y");
        for name in ["one", "two"] {
            let points = vec![(0.0, 1.0), (1.5, 8.0)];
            chart.series.push(Series {
                name: name.to_owned(),
                points,
            });
        }
        let svg = chart.to_svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains(">one<") && svg.contains(">two<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
