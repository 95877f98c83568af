//! Programs under test that say they are of another version.

use fonn_node::cli::Release;

/// The variable that has the version of the software, and behind a space that of the peer protocol.
pub const VARIABLE: &str = "RELEASE_UNDER_TEST";

/// The next minor version of this version, with the next version of the peer protocol.
#[must_use]
pub fn next() -> Release {
    let this = Release::this();
    let mut numbers = this.version.split('.').map(str::parse::<u32>);
    let major = numbers.next().and_then(Result::ok).unwrap_or_default();
    let minor = numbers.next().and_then(Result::ok).unwrap_or_default();
    Release {
        version: format!("{major}.{}.0", minor + 1),
        peer_version: this.peer_version + 1,
    }
}

/// The value of [`VARIABLE`] for a release.
#[must_use]
pub fn value(release: &Release) -> String {
    format!("{} {}", release.version, release.peer_version)
}

/// The release that a program under test is to say it is.
#[must_use]
pub fn under_test() -> Release {
    let value = std::env::var(VARIABLE).unwrap_or_default();
    let Some((version, peer_version)) = value.split_once(' ') else {
        return Release::this();
    };
    Release {
        version: version.to_owned(),
        peer_version: peer_version.parse().unwrap_or_default(),
    }
}
