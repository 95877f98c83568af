//! The storage helper of ccache as the tests run it: Cargo builds this package's programs before
//! its tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    fonn_ccache_storage::main()
}
