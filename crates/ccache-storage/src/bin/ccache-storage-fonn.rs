//! The storage helper of ccache.

use std::process::ExitCode;

fn main() -> ExitCode {
    fonn_ccache_storage::main()
}
