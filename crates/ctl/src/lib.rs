//! `fonnctl`: asks the admin port of a node and shows what it answers.
//!
//! Each command is a file: it calls one or two methods, and a pure function turns the answer into
//! text. With `--json` the answer itself goes out, one object a line.
//!
//! Exit codes: 0 fine; 1 what was checked is bad, or the call failed; 2 wrong usage, or a file or
//! password that cannot be used; 3 the node wants a login, or the user may not do that; 130 a
//! signal ended it.

mod args;
mod cluster;
mod codec;
mod cold;
mod config;
mod connection;
mod doctor;
mod error;
mod events;
mod flush;
mod gocache;
mod key;
mod login;
mod namespaces;
mod output;
mod password;
mod progress;
mod purge;
mod status;
mod table;
mod token;
mod tools;
mod top;
mod user;
mod warm;
mod words;

#[cfg(test)]
mod tests;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use fonn_base::shutdown::StopSignals;

use self::args::{Cli, Command};
use self::connection::Connection;
use self::error::CtlError;
use self::output::Output;

/// What a command found, where it could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Bad,
}

/// Runs the command; the whole of `main`.
#[must_use]
pub fn main() -> ExitCode {
    // A command line that cannot be parsed ends here, with 2.
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(until_stopped(cli));
            // A read from a terminal may never end.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(CtlError::Output(error)),
    };
    match result {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::from(1),
        // The reader of the output has seen enough, as `| head` does.
        Err(CtlError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // There is no other place to report it when standard error is closed.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs the command until a signal comes. What the command changed of the terminal is undone, as it
/// is dropped then.
async fn until_stopped(cli: Cli) -> Result<Verdict, CtlError> {
    let mut signals = StopSignals::install()
        .map_err(|error| CtlError::NotNow(format!("cannot catch signals: {error}")))?;
    tokio::select! {
        // A command may have its own end for a signal.
        biased;
        result = run(cli) => result,
        name = signals.recv() => Err(CtlError::Stopped(name)),
    }
}

async fn run(cli: Cli) -> Result<Verdict, CtlError> {
    let output = Output::new(cli.json);
    // Before any connection: a node waits ten seconds for a request, people take longer.
    let login = match &cli.command {
        Command::User(args::User::Hash)
        | Command::Token(_)
        | Command::Gocache(_)
        | Command::Completions { .. } => None,
        _ => login::read(&cli.login).await?,
    };
    let new_password = match &cli.command {
        Command::User(args::User::Put(put)) => user::new_password(put, &cli.login).await?,
        _ => None,
    };
    let member = cli.member.as_deref();
    let connect = || Connection::open(&cli.admin, &cli.tls, login.as_ref(), member);
    match cli.command {
        Command::Status => status::run(&connect().await?, &output).await,
        Command::Key(args) => key::run(&connect().await?, args, &output).await,
        Command::Top(args) => top::run(&connect().await?, args, &output).await,
        Command::Tools => tools::run(&connect().await?, &output).await,
        Command::Namespaces => namespaces::run(&connect().await?, &output).await,
        Command::Config => config::run(&connect().await?, &output).await,
        Command::Events(args) => events::run(&connect().await?, args, &output).await,
        Command::Codec { setting } => codec::run(&connect().await?, setting, &output).await,
        Command::Flush(args) => flush::run(&connect().await?, args, &output).await,
        Command::Purge(args) => purge::run(&connect().await?, args, &output).await,
        Command::Warm(args) => warm::run(&connect().await?, args, &output).await,
        Command::Doctor => doctor::run(&connect().await?, &output).await,
        Command::Map => cluster::map(&connect().await?, &output).await,
        Command::Drain(args) => cluster::drain(&connect().await?, args, &output).await,
        Command::Remove(args) => cluster::remove(&connect().await?, args, &output).await,
        Command::Weight(args) => cluster::weight(&connect().await?, args, &output).await,
        Command::Replicas { count } => cluster::replicas(&connect().await?, count, &output).await,
        Command::Cold(command) => cold::run(&connect().await?, command, &output).await,
        Command::User(args::User::Hash) => user::hash(&output).await,
        Command::User(args::User::List) => user::list(&connect().await?, &output).await,
        Command::User(args::User::Put(args)) => {
            user::put(&connect().await?, args, new_password, &output).await
        }
        Command::User(args::User::Remove(args)) => {
            user::remove(&connect().await?, args, &output).await
        }
        Command::Token(args::Token::Create(args)) => token::create(&args, &output),
        Command::Token(args::Token::List(args)) => token::list(&args, &output),
        Command::Token(args::Token::Revoke(args)) => token::revoke(&args, &output),
        Command::Gocache(args) => gocache::run(args, &cli.tls).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "fonnctl", &mut output.lock());
            Ok(Verdict::Good)
        }
    }
}
