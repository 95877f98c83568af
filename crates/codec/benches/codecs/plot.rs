//! Grouped bars as SVG: a group for each corpus, a bar for each codec.

use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 84.0;
const LEGEND_PER_LINE: usize = 8;
/// From fast to slow, distinguishable by brightness as well.
const COLORS: [&str; 12] = [
    "#b8b8b8", "#e8c268", "#d9730d", "#b02a6f", "#6b4a2b", "#a8dcc0", "#73c69a", "#2a9d5c",
    "#1f7d8c", "#3a7fc1", "#0b4f8a", "#0a2a4a",
];

#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From 0.
    Linear,
    /// From 1.
    Log,
}

pub struct BarChart {
    title: &'static str,
    scale: Scale,
    groups: Vec<String>,
    bars: Vec<String>,
    values: Vec<(usize, usize, f64)>,
}

impl BarChart {
    pub fn new(title: &'static str, scale: Scale) -> Self {
        Self {
            title,
            scale,
            groups: Vec::new(),
            bars: Vec::new(),
            values: Vec::new(),
        }
    }

    pub fn push(&mut self, group: &str, bar: &str, value: f64) {
        let group = place(&mut self.groups, group);
        let bar = place(&mut self.bars, bar);
        self.values.push((group, bar, value));
    }

    pub fn to_svg(&self) -> String {
        let highest = self.values.iter().map(|value| value.2).fold(1.0, f64::max);
        let (top, ticks) = match self.scale {
            Scale::Linear => {
                let step = if highest > 10.0 { 2.0 } else { 1.0 };
                let count = (highest / step).ceil();
                let ticks = (0..=count as usize)
                    .map(|tick| tick as f64 * step)
                    .collect();
                (count * step, ticks)
            }
            Scale::Log => {
                let powers = highest.log10().ceil();
                let ticks: Vec<f64> = (0..=powers as i32).map(|power| 10f64.powi(power)).collect();
                (powers, ticks)
            }
        };
        let y = |value: f64| {
            let value = match self.scale {
                Scale::Linear => value,
                Scale::Log => value.max(1.0).log10(),
            };
            HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)
        };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut svg, (WIDTH / 2.0, 24.0), "middle", self.title);
        for tick in ticks {
            put(
                &mut svg,
                format_args!(
                    "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\n",
                    WIDTH - RIGHT,
                    y(tick),
                    y(tick)
                ),
            );
            text(
                &mut svg,
                (LEFT - 8.0, y(tick) + 4.0),
                "end",
                &tick.to_string(),
            );
        }
        let group_width = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let bar_width = 0.9 * group_width / self.bars.len().max(1) as f64;
        for &(group, bar, value) in &self.values {
            let x = LEFT + group_width * (group as f64 + 0.05) + bar_width * bar as f64;
            put(
                &mut svg,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\">\
                     <title>{} {}: {value:.2}</title></rect>\n",
                    y(value),
                    bar_width * 0.92,
                    HEIGHT - BOTTOM - y(value),
                    COLORS[bar % COLORS.len()],
                    self.groups[group],
                    self.bars[bar],
                ),
            );
        }
        for (index, group) in self.groups.iter().enumerate() {
            let x = LEFT + group_width * (index as f64 + 0.5);
            text(&mut svg, (x, HEIGHT - BOTTOM + 18.0), "middle", group);
        }
        let slot = (WIDTH - LEFT - RIGHT) / LEGEND_PER_LINE as f64;
        for (index, bar) in self.bars.iter().enumerate() {
            let x = LEFT + slot * (index % LEGEND_PER_LINE) as f64;
            let base = HEIGHT - 38.0 + 20.0 * (index / LEGEND_PER_LINE) as f64;
            put(
                &mut svg,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                    base - 10.0,
                    COLORS[index % COLORS.len()]
                ),
            );
            text(&mut svg, (x + 18.0, base), "start", bar);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// The place of `name` in `names`, at their end if it is new.
fn place(names: &mut Vec<String>, name: &str) -> usize {
    names
        .iter()
        .position(|known| known == name)
        .unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
}

fn put(svg: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing into a string cannot fail.
    let _ = svg.write_fmt(arguments);
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    put(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222\">{content}</text>\n"
        ),
    );
}
