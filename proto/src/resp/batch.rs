//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`, commands that are queued, and commands that are
//! a batch of their own (ADR 0003).
//!
//! The state of the connection changes when the answer is worded, so a request that the server
//! refuses leaves nothing behind. The one exception: a command that is being queued spoils the
//! transaction until it is admitted, so `EXEC` does not carry out the others without it.

use smallvec::smallvec;

use super::data::{self, Context};
use super::frame::Args;
use super::reply::{Answer, BatchForms, Change, Form, Queue, Watch};
use super::session::Session;
use super::table::{CommandInfo, ConnectionKind, Kind, TransactionKind};
use super::wording::{self, ReplyError};
use crate::batch::{ABSENT_STEPS_MAX, BATCH_VALUES_LEN_MAX, Batch, BatchStep};
use crate::command::{Command, Delete, ExpirySpec, Get, Store};
use crate::request::{Body, Commands, Limits, ServerCommand};

/// The commands about transactions.
///
/// # Errors
/// The error that answers the request.
pub(super) fn about_transaction<'a>(
    kind: TransactionKind,
    args: Args<'a>,
    session: &'a mut Session,
    limits: Limits,
) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    let is_queueing = session.is_queueing();
    let change = match kind {
        TransactionKind::Multi if is_queueing => return Err(wording::NESTED_MULTI),
        TransactionKind::Multi => Change::Begin,
        TransactionKind::Discard if !is_queueing => return Err(wording::DISCARD_WITHOUT_MULTI),
        TransactionKind::Discard | TransactionKind::Unwatch => Change::Forget,
        TransactionKind::Watch if is_queueing => return Err(wording::WATCH_INSIDE_MULTI),
        TransactionKind::Watch => {
            let mut commands = Commands::with_capacity(args.len() - 1);
            for key in args.from(1) {
                commands.push(Command::Get(Get::facts(data::bounded_key(key)?)));
            }
            let watch = Watch {
                session,
                failure: None,
            };
            return Ok((Body::Data(commands), Form::Watch(watch)));
        }
        TransactionKind::Exec if !is_queueing => return Err(wording::EXEC_WITHOUT_MULTI),
        TransactionKind::Exec => return exec(session, limits),
    };
    // The server keeps nothing for a client that has not logged in.
    let body = Body::Queued(Commands::new());
    Ok((body, Form::Transaction { change, session }))
}

/// Queues a command behind `MULTI`.
///
/// # Errors
/// If it may not stand in a transaction.
pub(super) fn queue<'a>(
    info: &'static CommandInfo,
    args: Args<'a>,
    session: &'a mut Session,
    limits: Limits,
) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    // What is wrong with the arguments is told by `EXEC`, as by Redis.
    let commands = match info.kind {
        Kind::Connection(ConnectionKind::Ping | ConnectionKind::Echo)
        | Kind::Transaction(TransactionKind::Unwatch) => Commands::new(),
        // Whether the client may write is all that is asked here.
        Kind::Copy | Kind::Rename { .. } => smallvec![Command::Delete(Delete::new(args.get(1)))],
        Kind::Data(kind) => {
            let commands = data::commands(kind, info, args, context(session, limits));
            commands.map_or_else(|_| Commands::new(), |(commands, _)| commands)
        }
        _ => {
            session.spoil_transaction();
            return Err(wording::NOT_IN_TRANSACTION);
        }
    };
    let was_spoiled = session.spoil_transaction();
    let queue = Queue {
        session,
        info,
        args,
        steps: commands.len(),
        len_max: BATCH_VALUES_LEN_MAX.min(limits.value_len_max),
        was_spoiled,
    };
    Ok((Body::Queued(commands), Form::Queue(Box::new(queue))))
}

/// A batch of one step that is carried out at once.
pub(super) fn transfer<'a>(
    info: &CommandInfo,
    args: Args<'a>,
    database: u8,
) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    let (transfer, form) = data::transfer(info, args, database)?;
    let batch = Batch {
        steps: vec![BatchStep::Transfer(transfer)],
        ..Batch::default()
    };
    let forms = BatchForms::new(vec![(1, form)], false);
    let body = Body::Server(ServerCommand::Atomic(batch));
    Ok((body, Form::Batch(Box::new(forms))))
}

/// A batch that stores all pairs if none of their keys exists.
pub(super) fn set_all_or_none<'a>(
    info: &CommandInfo,
    args: Args<'a>,
) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    let pairs = data::pairs(info, args)?;
    if pairs.len() > ABSENT_STEPS_MAX {
        return Err(wording::too_many_pairs(info));
    }
    let set = |(key, value)| Command::Store(Store::set(key, value, 0, ExpirySpec::Never));
    let batch = Batch {
        all_absent: true,
        steps: pairs.map(set).map(BatchStep::Command).collect(),
        ..Batch::default()
    };
    let body = Body::Server(ServerCommand::Atomic(batch));
    Ok((body, Form::OneIfAllStored))
}

fn context(session: &Session, limits: Limits) -> Context {
    Context {
        value_len_max: limits.value_len_max,
        no_touch: session.no_touch,
    }
}

/// `EXEC` behind `MULTI`. Whatever comes of it, the transaction is over.
fn exec<'a>(session: &'a mut Session, limits: Limits) -> Result<(Body<'a>, Form<'a>), ReplyError> {
    if let Some(transaction) = &mut session.transaction {
        transaction.end();
    }
    let session: &'a Session = session;
    let context = context(session, limits);
    let Some(transaction) = &session.transaction else {
        return Err(wording::EXEC_WITHOUT_MULTI);
    };
    if transaction.is_spoiled {
        return Err(wording::TRANSACTION_DISCARDED);
    }
    let mut batch = Batch {
        watched: transaction.watched().collect(),
        ..Batch::default()
    };
    let mut forms = Vec::with_capacity(transaction.commands().len());
    for (info, args) in transaction.commands() {
        let before = batch.steps.len();
        let form = add_steps(info, args, context, session.database, &mut batch.steps);
        let form = form.unwrap_or_else(|error| Form::Answer(Answer::Error(error)));
        forms.push((batch.steps.len() - before, form));
    }
    let is_known = batch.steps.is_empty() && batch.watched.is_empty();
    let body = match is_known {
        true => Body::Queued(Commands::new()),
        false => Body::Server(ServerCommand::Atomic(batch)),
    };
    let forms = BatchForms::new(forms, true);
    Ok((body, Form::Batch(Box::new(forms))))
}

/// Adds what a queued command comes to, and says how its outcome is worded.
fn add_steps<'a>(
    info: &'static CommandInfo,
    args: Args<'a>,
    context: Context,
    database: u8,
    steps: &mut Vec<BatchStep<'a>>,
) -> Result<Form<'a>, ReplyError> {
    Ok(match info.kind {
        Kind::Connection(_) => Form::Answer(data::echo(info, args)?),
        Kind::Transaction(_) => Form::Answer(Answer::Status("OK")),
        Kind::Copy | Kind::Rename { .. } => {
            let (transfer, form) = data::transfer(info, args, database)?;
            steps.push(BatchStep::Transfer(transfer));
            form
        }
        Kind::Data(kind) => {
            let (commands, form) = data::commands(kind, info, args, context)?;
            steps.extend(commands.into_iter().map(BatchStep::Command));
            form
        }
        // No other command was queued.
        _ => return Err(wording::NOT_IN_TRANSACTION),
    })
}
