//! The ratios of all cells as a strip chart in SVG: a line a cell, a mark a protocol.

use super::super::plot::{COLORS, escape, put, text};
use super::table::Cell;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 64.0;
const ROW: f64 = 18.0;
/// The right end of the axis.
const RATIO_MAX: f64 = 2.0;

/// Draws median and spread of each protocol beside the bar of the cell, and the best peer at 1.
pub(super) fn svg(cells: &[Cell]) -> String {
    let height = TOP + ROW * cells.len() as f64 + 40.0;
    let x = |ratio: f64| LEFT + ratio.clamp(0.0, RATIO_MAX) / RATIO_MAX * (WIDTH - LEFT - RIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title = "Work per server processor second, as a multiple of the best peer";
    text(&mut svg, (WIDTH / 2.0, 20.0), "middle", title);
    for tick in 0..=8 {
        let ratio = f64::from(tick) / 4.0;
        let stroke = if tick == 4 { "#666" } else { "#ddd" };
        vertical(&mut svg, x(ratio), (TOP - 8.0, height - 30.0), stroke, 1.0);
        text(
            &mut svg,
            (x(ratio), height - 12.0),
            "middle",
            &format!("{ratio:.2}"),
        );
    }
    for (row, cell) in cells.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let name = format!("{}, {} connections", cell.work.name, cell.connections);
        text(&mut svg, (LEFT - 10.0, y + 4.0), "end", &escape(&name));
        vertical(&mut svg, x(cell.work.bar), (y - 7.0, y + 7.0), "#000", 2.0);
        for (at, (protocol, ratio)) in cell.ratios().into_iter().enumerate() {
            let color = COLORS[at % COLORS.len()];
            // Marks of one cell do not hide each other.
            let y = y + (at as f64 - 1.0) * 4.0;
            put(
                &mut svg,
                format_args!(
                    "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{color}\"/>\n\
                     <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{color}\"/>\n",
                    x(ratio.lower),
                    x(ratio.upper),
                    x(ratio.median)
                ),
            );
            if row == 0 {
                let left = LEFT + 120.0 * at as f64;
                put(
                    &mut svg,
                    format_args!("<circle cx=\"{left:.1}\" cy=\"38\" r=\"4\" fill=\"{color}\"/>\n"),
                );
                text(
                    &mut svg,
                    (left + 10.0, 42.0),
                    "start",
                    &format!("{protocol:?}"),
                );
            }
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn vertical(svg: &mut String, x: f64, (from, to): (f64, f64), stroke: &str, width: f64) {
    put(
        svg,
        format_args!(
            "<line x1=\"{x:.1}\" y1=\"{from:.1}\" x2=\"{x:.1}\" y2=\"{to:.1}\" \
             stroke=\"{stroke}\" stroke-width=\"{width}\"/>\n"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::cell;
    use super::*;

    #[test]
    fn each_protocol_of_each_cell_has_a_mark_inside_the_frame() {
        let svg = svg(&[cell(), cell()]);
        assert_eq!(svg.matches("r=\"2.5\"").count(), 6);
        assert!(svg.contains("GET 100 B, 16 connections"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
