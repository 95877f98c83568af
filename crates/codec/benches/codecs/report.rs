//! The lines as a table, as CSV and as plots.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::measure::{Figures, Line};
use crate::plot::{BarChart, Scale};

/// A plot: file, title, scale, and what it shows.
type Plot = (&'static str, &'static str, Scale, fn(&Figures) -> f64);

pub const HEADER: &str = "\
| corpus | codec | ratio | compress MB/s | library | % | decompress MB/s | library | % | library's ratio | whole |
|---|---|---|---|---|---|---|---|---|---|---|";

pub fn row(line: &Line) -> String {
    let Line {
        corpus,
        codec,
        library,
        path,
        whole_ratio,
    } = line;
    let library_ratio = library.ratio;
    let Some(path) = path else {
        return format!(
            "| {corpus} | {codec} | | | {:.0} | | | {:.0} | | {library_ratio:.2} | {whole_ratio:.2} |",
            library.compress, library.decompress
        );
    };
    format!(
        "| {corpus} | {codec} | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {library_ratio:.2} | {whole_ratio:.2} |",
        path.ratio,
        path.compress,
        library.compress,
        100.0 * path.compress / library.compress,
        path.decompress,
        library.decompress,
        100.0 * path.decompress / library.decompress,
    )
}

/// Writes `codec-table.csv` and three plots.
pub fn write(directory: &Path, lines: &[Line]) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("codec-table.csv"), csv(lines))?;
    let plots: [Plot; 3] = [
        (
            "codec-ratio.svg",
            "Raw bytes to stored bytes",
            Scale::Linear,
            |f| f.ratio,
        ),
        (
            "codec-compress.svg",
            "Compression, MB/s, one thread",
            Scale::Log,
            |f| f.compress,
        ),
        (
            "codec-decompress.svg",
            "Decompression, MB/s, one thread",
            Scale::Log,
            |f| f.decompress,
        ),
    ];
    for (file, title, scale, of) in plots {
        let mut chart = BarChart::new(title, scale);
        for line in lines {
            let figures = line.path.as_ref().unwrap_or(&line.library);
            chart.push(line.corpus, &line.codec, of(figures));
        }
        std::fs::write(directory.join(file), chart.to_svg())?;
    }
    Ok(())
}

fn csv(lines: &[Line]) -> String {
    let mut text = String::from(
        "corpus,codec,ratio,compress_mb_per_s,decompress_mb_per_s,library_ratio,\
         library_compress_mb_per_s,library_decompress_mb_per_s,library_whole_ratio\n",
    );
    for line in lines {
        let path = line.path.map_or(",,".to_owned(), |path| {
            format!(
                "{:.3},{:.1},{:.1}",
                path.ratio, path.compress, path.decompress
            )
        });
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{},{},{path},{:.3},{:.1},{:.1},{:.3}",
            line.corpus,
            line.codec,
            line.library.ratio,
            line.library.compress,
            line.library.decompress,
            line.whole_ratio
        );
    }
    text
}
