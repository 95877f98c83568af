//! A bar chart as SVG: groups of bars, one colour a series.

use std::fmt::Write as _;

const COLORS: [&str; 6] = [
    "#9aa5b1", "#4c78a8", "#72b7b2", "#f58518", "#e45756", "#54a24b",
];
const BAR: f64 = 26.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 20.0;
const TOP: f64 = 60.0;

pub struct Bars<'a> {
    title: &'a str,
    series: &'a [&'a str],
    groups: Vec<(String, Vec<f64>)>,
}

impl<'a> Bars<'a> {
    pub fn new(title: &'a str, series: &'a [&'a str]) -> Self {
        Self {
            title,
            series,
            groups: Vec::new(),
        }
    }

    pub fn group(&mut self, name: &str, values: Vec<f64>) {
        self.groups.push((name.to_owned(), values));
    }

    pub fn svg(&self) -> String {
        let values = self.groups.iter().flat_map(|group| &group.1);
        let most = values.copied().fold(f64::MIN_POSITIVE, f64::max);
        let group_width = BAR * (self.series.len() as f64 + 1.0);
        let width = LEFT * 2.0 + group_width * self.groups.len() as f64;
        let height = TOP + HEIGHT + 30.0;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{}</text>\n",
            self.title
        );
        for (at, name) in self.series.iter().enumerate() {
            let x = LEFT + at as f64 * 75.0;
            let color = COLORS[at % COLORS.len()];
            let _ = writeln!(
                out,
                "<rect x=\"{x:.0}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
                 <text x=\"{:.0}\" y=\"37\">{name}</text>",
                x + 14.0
            );
        }
        for (at, (name, values)) in self.groups.iter().enumerate() {
            let left = LEFT + at as f64 * group_width;
            for (bar, value) in values.iter().enumerate() {
                let tall = value / most * HEIGHT;
                let (x, y) = (left + bar as f64 * BAR, TOP + HEIGHT - tall);
                let color = COLORS[bar % COLORS.len()];
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.0}\" y=\"{y:.1}\" width=\"22\" height=\"{tall:.1}\" fill=\"{color}\"/>\
                     <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" font-size=\"9\">{value:.2}</text>",
                    x + 11.0,
                    y - 3.0
                );
            }
            let _ = writeln!(
                out,
                "<text x=\"{left:.0}\" y=\"{:.0}\">{name}</text>",
                TOP + HEIGHT + 16.0
            );
        }
        out.push_str("</svg>\n");
        out
    }
}
