//! The node as the suites start it: the same program as that of the package `fonn-node`, built here
//! because Cargo builds the programs of a package only for the tests of that package.

use std::process::ExitCode;

fn main() -> ExitCode {
    fonn_node::cli::main_as(&fonn_tests::release::under_test())
}
