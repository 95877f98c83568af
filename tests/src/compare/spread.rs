//! The middle and the ends of a few figures.

/// Median, least and greatest of some figures; NaN without any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// The upper of the two in the middle, if there is an even number of figures.
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: at(figures.len() / 2),
            min: at(0),
            max: at(figures.len().saturating_sub(1)),
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
            min: 1.0,
            max: 3.0,
        };
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), expected);
        assert!(median([]).is_nan());
    }
}
