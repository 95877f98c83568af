//! An error as one text, with what led to it.

use std::error::Error;

/// What an error and its causes say, with the outermost first. A cause that the text before it ends
/// with is not repeated.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        if !text.ends_with(&why) {
            text.push_str(": ");
            text.push_str(&why);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("outer, as {0}")]
    struct Telling(#[source] io::Error);

    #[test]
    fn an_error_is_told_with_what_led_to_it() {
        let inner = || io::Error::other("inner");
        assert_eq!(with_causes(&Outer(inner())), "outer: inner");
        assert_eq!(with_causes(&Telling(inner())), "outer, as inner");
        assert_eq!(with_causes(&inner()), "inner");
    }
}
