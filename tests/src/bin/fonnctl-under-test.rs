//! `fonnctl` as the tests run it: Cargo builds this package's programs before its tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    fonn_ctl::main()
}
