//! The middle of some figures, and how far they spread.

/// Median and quartiles of some figures; NaN without any. Of three figures the quartiles are the
/// least and the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// The upper of the two in the middle, if there is an even number of figures.
    pub(super) median: f64,
    /// The figure below which a quarter of them lies.
    pub(super) lower: f64,
    /// The figure above which a quarter of them lies.
    pub(super) upper: f64,
}

impl Spread {
    pub(super) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: at(figures.len() / 2),
            lower: at(figures.len() / 4),
            upper: at(figures.len().saturating_sub(1 + figures.len() / 4)),
        }
    }
}

/// The median alone.
pub(super) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(figures).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_does_not_depend_on_the_order() {
        let expected = Spread {
            median: 2.0,
            lower: 1.0,
            upper: 3.0,
        };
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), expected);
        assert!(median([]).is_nan());
    }

    #[test]
    fn half_of_the_figures_lie_between_the_quartiles() {
        let spread = Spread::of((0..16).map(f64::from));
        assert_eq!((spread.lower, spread.upper), (4.0, 11.0));
    }
}
