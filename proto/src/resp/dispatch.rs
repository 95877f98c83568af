//! From the arguments of a request to what has to be done and how it is answered.

use super::batch;
use super::cluster::{HELP, Question};
use super::data::{self, Context};
use super::encode::Protocol;
use super::frame::Args;
use super::number;
use super::reply::{Answer, Form, Reply, greet};
use super::session::{Session, client_name, library_attribute};
use super::table::{
    COMMANDS, ClusterKind, CommandInfo, ConnectionKind, Kind, ServerKind, TransactionKind,
};
use super::wording::{self, ReplyError};
use crate::Redirects;
use crate::placement::{self, SLOT_COUNT};
use crate::request::{self, Body, Limits, Request, ServerCommand, StatsKind};

/// Most names in one `COMMAND INFO` or `COMMAND DOCS`: the answer is much longer than the names.
const DESCRIBED_COMMAND_COUNT_MAX: usize = 1024;

/// Longest glob pattern in bytes: to match a key takes time in proportion to the product of both
/// lengths.
const PATTERN_LEN_MAX: usize = 256;

/// Most sections of `INFO`, and most patterns of `CONFIG GET`: each is compared with many names.
const NAME_COUNT_MAX: usize = 64;

/// Makes the request, and changes the session where that is what it asks for.
///
/// # Errors
/// The error that answers the request; nothing was changed then.
#[inline]
pub(super) fn request<'a>(
    command: Option<&'static CommandInfo>,
    args: Args<'a>,
    session: &'a mut Session,
    limits: Limits,
) -> Result<Request<'a>, ReplyError> {
    let Some(info) = command else {
        return unknown(args, session);
    };
    let info = match info.subcommands.is_empty() {
        true => info,
        false => subcommand(info, args).inspect_err(|_| {
            session.spoil_transaction();
        })?,
    };
    if !info.takes(args.len()) {
        return Err(wrong_arity(info, session));
    }
    let (protocol, database) = (session.protocol, session.database);
    if session.is_queueing() && !info.kind.ends_queueing() {
        let (body, form) = batch::queue(info, args, session, limits)?;
        return Ok(wrap(protocol, database, body, form));
    }
    let context = Context {
        value_len_max: limits.value_len_max,
        no_touch: session.no_touch,
    };
    let redirects = session.take_redirects();
    let (body, form) = match info.kind {
        Kind::Data(kind) => {
            let (commands, form) = data::commands(kind, info, args, context)?;
            // Several keys may have several owners: the asked process finds them all.
            let redirects = match commands.as_slice() {
                [command] => redirects(command.is_write()),
                _ => Redirects::Never,
            };
            let reply = Reply::redirecting(protocol, form, redirects);
            return Ok(Request {
                database,
                body: Body::Data(commands),
                reply: request::Reply::Resp(reply),
            });
        }
        Kind::Transaction(kind) => batch::about_transaction(kind, args, session, limits)?,
        Kind::Server(kind) => about_server(kind, info, args)?,
        Kind::Connection(kind) => about_connection(kind, info, args, session)?,
        Kind::Cluster(kind) => about_cluster(kind, args, session)?,
        Kind::Copy | Kind::Rename { .. } => batch::transfer(info, args, database)?,
        Kind::ObjectHelp => (Body::Answer, Form::Answer(Answer::Lines(data::OBJECT_HELP))),
        Kind::Container => return Err(wording::wrong_arity(info.name)),
    };
    Ok(wrap(protocol, database, body, form))
}

fn wrap<'a>(protocol: Protocol, database: u8, body: Body<'a>, form: Form<'a>) -> Request<'a> {
    Request {
        database,
        body,
        reply: request::Reply::Resp(Reply::new(protocol, form)),
    }
}

/// A command with too few or too many arguments. It spoils a transaction; `EXEC` ends it.
#[cold]
fn wrong_arity(info: &CommandInfo, session: &mut Session) -> ReplyError {
    let error = wording::wrong_arity(info.name);
    if info.kind == Kind::Transaction(TransactionKind::Exec) {
        session.transaction = None;
        return wording::discarded_for(&error);
    }
    session.spoil_transaction();
    error
}

/// A command that does not exist. `POST` and `Host:` mean that a browser was led to send a web
/// request here: the connection is closed before the rest of it is taken for commands, as Redis
/// does.
#[cold]
fn unknown<'a>(args: Args<'a>, session: &mut Session) -> Result<Request<'a>, ReplyError> {
    session.spoil_transaction();
    let name = args.get(0);
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") {
        let form = Form::Answer(Answer::Nothing);
        return Ok(wrap(session.protocol, session.database, Body::Broken, form));
    }
    Err(wording::unknown_command(args))
}

fn subcommand(
    container: &'static CommandInfo,
    args: Args<'_>,
) -> Result<&'static CommandInfo, ReplyError> {
    match (args.len(), container.kind) {
        (1, Kind::Container) => Err(wording::wrong_arity(container.name)),
        (1, _) => Ok(container),
        _ => container
            .subcommand(args.get(1))
            .ok_or_else(|| wording::unknown_subcommand(container.name, args.get(1))),
    }
}

/// What the parser answers itself, and `AUTH`.
fn about_connection<'a>(
    kind: ConnectionKind,
    info: &CommandInfo,
    args: Args<'a>,
    session: &'a mut Session,
) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    let answer = match kind {
        ConnectionKind::Ping | ConnectionKind::Echo => data::echo(info, args)?,
        ConnectionKind::Select => {
            session.database = data::database(args.get(1))?;
            Answer::Status("OK")
        }
        ConnectionKind::Hello => return hello(args, session),
        ConnectionKind::Auth => return auth(args),
        ConnectionKind::Reset => {
            session.reset();
            return Ok((Body::LogOut, Form::Answer(Answer::Status("RESET"))));
        }
        ConnectionKind::Quit => return Ok((Body::Close, Form::Answer(Answer::Status("OK")))),
        ConnectionKind::CommandList => Answer::AllCommands,
        ConnectionKind::CommandCount => Answer::Integer(COMMANDS.len() as i64),
        ConnectionKind::CommandInfo | ConnectionKind::CommandDocs
            if args.len() > 2 + DESCRIBED_COMMAND_COUNT_MAX =>
        {
            return Err(wording::TOO_MANY_NAMES);
        }
        ConnectionKind::CommandInfo if args.len() == 2 => Answer::AllCommands,
        ConnectionKind::CommandInfo => Answer::Commands(args),
        ConnectionKind::CommandDocs if args.len() == 2 => Answer::AllDocs,
        ConnectionKind::CommandDocs => Answer::Docs(args),
        ConnectionKind::ClientSetInfo => {
            set_library(session, args.get(2), args.get(3))?;
            Answer::Status("OK")
        }
        ConnectionKind::ClientSetName => {
            client_name(args.get(2))?.clone_into(&mut session.name);
            Answer::Status("OK")
        }
        ConnectionKind::ClientGetName if session.name.is_empty() => Answer::Null,
        ConnectionKind::ClientGetName => Answer::Bulk(session.name.as_bytes()),
        ConnectionKind::ClientId => Answer::Integer(i64::try_from(session.id).unwrap_or(i64::MAX)),
        ConnectionKind::ClientInfo => {
            return Ok((
                Body::Server(ServerCommand::ClientInfo),
                Form::ClientInfo(session),
            ));
        }
        ConnectionKind::ClientNoEvict => {
            on_or_off(args.get(2))?;
            Answer::Status("OK")
        }
        ConnectionKind::ClientNoTouch => {
            session.no_touch = on_or_off(args.get(2))?;
            Answer::Status("OK")
        }
    };
    Ok((Body::Answer, Form::Answer(answer)))
}

fn on_or_off(word: &[u8]) -> Result<bool, ReplyError> {
    match word {
        _ if word.eq_ignore_ascii_case(b"ON") => Ok(true),
        _ if word.eq_ignore_ascii_case(b"OFF") => Ok(false),
        _ => Err(wording::SYNTAX),
    }
}

/// `CLIENT SETINFO attribute value`.
fn set_library(session: &mut Session, attribute: &[u8], value: &[u8]) -> Result<(), ReplyError> {
    if attribute.eq_ignore_ascii_case(b"lib-name") {
        library_attribute("lib-name", value)?.clone_into(&mut session.library_name);
    } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
        library_attribute("lib-ver", value)?.clone_into(&mut session.library_version);
    } else {
        return Err(wording::about("ERR Unrecognized option '", attribute, "'"));
    }
    Ok(())
}

/// `AUTH [user] password`.
fn auth(args: Args<'_>) -> Result<(Body<'_>, Form<'_>), ReplyError> {
    let (user, password): (&[u8], &[u8]) = match args.len() {
        2 => (b"", args.get(1)),
        3 => (args.get(1), args.get(2)),
        _ => return Err(wording::SYNTAX),
    };
    Ok((
        Body::Server(ServerCommand::Auth { user, password }),
        Form::Server,
    ))
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`.
fn hello<'a>(args: Args<'a>, session: &'a mut Session) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    let mut protocol = session.protocol;
    if args.len() > 1 {
        protocol = match number::integer(args.get(1)) {
            None => return Err(wording::NOT_A_PROTOCOL_VERSION),
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(wording::UNSUPPORTED_PROTOCOL),
        };
    }
    let (mut credentials, mut name) = (None, None);
    let mut position = 2;
    while position < args.len() {
        let option = args.get(position);
        let behind = args.len() - position - 1;
        if option.eq_ignore_ascii_case(b"AUTH") && behind >= 2 {
            credentials = Some((args.get(position + 1), args.get(position + 2)));
            position += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") && behind >= 1 {
            name = Some(client_name(args.get(position + 1))?);
            position += 2;
        } else {
            return Err(wording::about(
                "ERR Syntax error in HELLO option '",
                option,
                "'",
            ));
        }
    }
    match credentials {
        Some((user, password)) => {
            let command = ServerCommand::Auth { user, password };
            Ok((
                Body::Server(command),
                Form::Hello {
                    session,
                    protocol,
                    name,
                },
            ))
        }
        None => {
            greet(session, protocol, name);
            Ok((Body::Answer, Form::Answer(Answer::Hello(session))))
        }
    }
}

/// The owners of slots, and what the connection wants to know of it.
fn about_cluster<'a>(
    kind: ClusterKind,
    args: Args<'a>,
    session: &mut Session,
) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    let view = |it| (Body::Server(ServerCommand::ClusterView), Form::Cluster(it));
    let known = |answer| (Body::Answer, Form::Answer(answer));
    let (body, form) = match kind {
        ClusterKind::Slots => view(Question::Slots),
        ClusterKind::Shards => view(Question::Shards),
        ClusterKind::Nodes => view(Question::Nodes),
        ClusterKind::MyId => view(Question::MyId),
        ClusterKind::MyShardId => view(Question::MyShardId),
        ClusterKind::Info => view(Question::Info),
        ClusterKind::FailureReports => view(Question::FailureReports(args.get(2))),
        ClusterKind::Replicas => view(Question::Replicas(args.get(2))),
        ClusterKind::CountInSlot => {
            let number = number::integer(args.get(2)).ok_or(wording::NOT_AN_INTEGER)?;
            let slot = u16::try_from(number)
                .ok()
                .filter(|slot| *slot < SLOT_COUNT)
                .ok_or(wording::INVALID_SLOT)?;
            let body = Body::Server(ServerCommand::CountInSlot(slot));
            (body, Form::Server)
        }
        ClusterKind::KeySlot => known(Answer::Integer(placement::slot(args.get(2)).into())),
        ClusterKind::Links => known(Answer::Lines(&[])),
        ClusterKind::Help => known(Answer::Lines(HELP)),
        ClusterKind::ReadOnly => {
            session.reads_replicas = true;
            known(Answer::Status("OK"))
        }
        ClusterKind::ReadWrite => {
            session.reads_replicas = false;
            known(Answer::Status("OK"))
        }
        ClusterKind::Asking => {
            session.is_asking = true;
            known(Answer::Status("OK"))
        }
    };
    session.knows_owners = true;
    Ok((body, form))
}

/// What only the executor can answer.
fn about_server<'a>(
    kind: ServerKind,
    info: &CommandInfo,
    args: Args<'a>,
) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    let command = match kind {
        ServerKind::Count => ServerCommand::Count,
        ServerKind::RandomKey => ServerCommand::RandomKey,
        ServerKind::Scan => return scan(args),
        ServerKind::Info if args.len() > 1 + NAME_COUNT_MAX => {
            return Err(wording::too_many_arguments(info, NAME_COUNT_MAX));
        }
        ServerKind::Info => {
            let lower = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
            ServerCommand::Info(args.from(1).map(lower).collect())
        }
        ServerKind::ConfigGet if args.len() > 2 + NAME_COUNT_MAX => {
            return Err(wording::too_many_arguments(info, NAME_COUNT_MAX));
        }
        ServerKind::ConfigGet => {
            let patterns: Result<_, _> = args.from(2).map(pattern).collect();
            ServerCommand::ConfigGet(patterns?)
        }
        ServerKind::ConfigSet if args.len().is_multiple_of(2) => ServerCommand::ConfigSet(
            args.from(2)
                .step_by(2)
                .zip(args.from(3).step_by(2))
                .collect(),
        ),
        ServerKind::ConfigSet => return Err(wording::wrong_arity(info.name)),
        ServerKind::Time => return Ok((Body::Server(ServerCommand::Time), Form::Time)),
        ServerKind::Keys => {
            let command = ServerCommand::Keys(pattern(args.get(1))?);
            return Ok((Body::Server(command), Form::Keys));
        }
        ServerKind::ConfigResetStatistics => ServerCommand::Stats(StatsKind::Reset),
        ServerKind::Flush { all_databases } => {
            let mode = args.get(1);
            let known = mode.eq_ignore_ascii_case(b"ASYNC") || mode.eq_ignore_ascii_case(b"SYNC");
            if args.len() > 2 || (args.len() == 2 && !known) {
                return Err(wording::SYNTAX);
            }
            ServerCommand::Flush {
                all_databases,
                delay_s: 0,
            }
        }
        ServerKind::SetManyIfNone => return batch::set_all_or_none(info, args),
    };
    Ok((Body::Server(command), Form::Server))
}

fn pattern(argument: &[u8]) -> Result<&[u8], ReplyError> {
    match argument.len() {
        ..=PATTERN_LEN_MAX => Ok(argument),
        _ => Err(wording::pattern_too_long(PATTERN_LEN_MAX)),
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`.
fn scan(args: Args<'_>) -> Result<(Body<'_>, Form<'_>), ReplyError> {
    /// Redis's.
    const COUNT_DEFAULT: usize = 10;
    let cursor = number::cursor(args.get(1)).ok_or(wording::INVALID_CURSOR)?;
    let (mut matched, mut count, mut of_strings) = (None, COUNT_DEFAULT, true);
    for position in (2..args.len()).step_by(2) {
        let (option, value) = (args.get(position), args.get(position + 1));
        if position + 1 == args.len() {
            return Err(wording::SYNTAX);
        }
        if option.eq_ignore_ascii_case(b"MATCH") {
            matched = Some(pattern(value)?);
        } else if option.eq_ignore_ascii_case(b"COUNT") {
            let number = number::integer(value).ok_or(wording::NOT_AN_INTEGER)?;
            count = usize::try_from(number).map_err(|_| wording::SYNTAX)?;
            if count == 0 {
                return Err(wording::SYNTAX);
            }
        } else if option.eq_ignore_ascii_case(b"TYPE") {
            of_strings = value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(wording::SYNTAX);
        }
    }
    // There are strings only: an iteration over another type is complete at once.
    Ok(if of_strings {
        (
            Body::Server(ServerCommand::Scan {
                cursor,
                pattern: matched,
                count,
            }),
            Form::Server,
        )
    } else {
        (Body::Answer, Form::Answer(Answer::EmptyScan))
    })
}
