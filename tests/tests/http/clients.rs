//! Build tools as users run them, in every situation of their cache.
//!
//! Each tool is a row and each situation a column: a node, the node after `kill -9`, a router
//! before three members, the same with one member lost, the same while the budgets evict, and
//! tokens that may write, may only read, are wrong or have expired. Every build begins without the
//! local state of earlier ones. A hit is what the tool itself calls one.

mod actions;
mod compilers;
mod go;
mod javas;
mod rush;
mod scripts;
mod situations;

use anyhow::{Result, ensure};

pub(crate) use super::documented::Endpoint;
pub(crate) use actions::ActionsCache;
pub(crate) use compilers::HelpedCcache;
pub(crate) use scripts::{Moon, Nx};

/// What one build found in the cache, by the words of its tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All steps came from the cache.
    All,
    /// All steps ran.
    Nothing,
    /// Some steps came from the cache.
    Some,
}

impl Found {
    /// The verdict on a tool that says, or does not say, that its one step came from the cache.
    pub(crate) const fn all_if(is_hit: bool) -> Self {
        match is_hit {
            true => Self::All,
            false => Self::Nothing,
        }
    }
}

/// A build that ended well.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    pub(crate) found: Found,
    /// What the tool printed.
    pub(crate) said: String,
    /// The output. It differs each time that the step runs, so what equals an earlier output came
    /// from a cache.
    pub(crate) output: Vec<u8>,
}

impl Build {
    pub(crate) fn expect(&self, found: Found, what: &str) -> Result<()> {
        ensure!(
            self.found == found,
            "{what}: found {:?} instead of {found:?}:\n{}",
            self.found,
            self.said
        );
        Ok(())
    }

    /// Checks that the cache gave everything, and that it is what `first` made.
    pub(crate) fn expect_output_of(&self, first: &Self, what: &str) -> Result<()> {
        self.expect(Found::All, what)?;
        ensure!(
            self.output == first.output,
            "{what}: another output:\n{}",
            self.said
        );
        Ok(())
    }
}

/// What a tool does whose token is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused {
    /// It builds without a cache.
    BuildsOn,
    /// It ends, and this is part of what it says.
    Ends(&'static str),
}

/// A build tool with a small project of its own.
pub(crate) trait Tool: Send + Sync {
    /// The name of its row.
    fn name(&self) -> String;

    /// Removes all local state of earlier builds, and builds with the documented lines for `at`.
    ///
    /// # Errors
    /// With what the tool says, when the build fails.
    fn build(&self, at: &Endpoint) -> Result<Build>;

    /// What the tool does whose token is refused.
    fn when_refused(&self) -> Refused {
        Refused::BuildsOn
    }
}

/// All tools that are installed.
///
/// # Errors
/// In CI, when one is missing.
pub(crate) fn all() -> Result<Vec<Box<dyn Tool>>> {
    let groups = [
        // Those that take longest begin.
        javas::all()?,
        super::bazel::all()?,
        rush::all()?,
        compilers::all()?,
        go::all()?,
        scripts::all()?,
        actions::all()?,
    ];
    Ok(groups.into_iter().flatten().collect())
}
