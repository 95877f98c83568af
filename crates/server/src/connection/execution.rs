//! The middle of a connection: has the commands of a request executed and worded, at once or when
//! their answers come.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use fonn_proto::request::Reply;
use fonn_proto::{Body, Command, Failure, Out, Outcome, Redirects, ServerCommand, Space};
use tokio::time::timeout;

use super::later::{Answer, Begun, Queue, held_len};
use super::replies::CROWDED_SEND_LEN;
use super::{COMMAND_COST, Driver, SEND_DELAY, TURN_BYTES, TURN_MAX, UNCOUNTED_COMMANDS_MAX};
use crate::budget::Budget as _;
use crate::input::Chunk;
use crate::overlay;
use crate::service::{Acks as _, Answered as _, Client, Event, Execution, Job, Service};

/// The command of a request that has one.
fn only_command<'b, 'd>(body: &'b Body<'d>) -> Option<&'b Command<'d>> {
    match body {
        Body::Data(commands) => match commands.as_slice() {
            [command] => Some(command),
            _ => None,
        },
        _ => None,
    }
}

impl<S: Service> Driver<'_, S> {
    /// Answers a request for one entry that is at hand. False if it is none: nothing was done then.
    #[inline]
    pub(super) fn answer_read(
        &mut self,
        body: &Body<'_>,
        reply: &mut Reply<'_>,
        space: Space,
        queue: &mut Queue<'_, S::Later>,
    ) -> bool {
        let Some(command) = only_command(body) else {
            return false;
        };
        let is_aside = !queue.is_empty();
        let aside = is_aside.then(|| queue.aside());
        let is_answered = self.answer_hit(command, reply, space, aside);
        if is_answered {
            reply.finish(if is_aside {
                queue.aside()
            } else {
                &mut self.out
            });
        }
        is_answered
    }

    /// Answers one command, if it reads an entry that is at hand; in `aside` if that is given. What
    /// is computed from a value takes too long for it: the value would be locked meanwhile.
    #[inline]
    fn answer_hit(
        &mut self,
        command: &Command<'_>,
        reply: &mut Reply<'_>,
        space: Space,
        aside: Option<&mut Out>,
    ) -> bool {
        let Command::Get(get) = command else {
            return false;
        };
        if reply.is_computed() {
            return false;
        }
        let service = &self.shared.service;
        let moment = *self.batch.moment.get_or_insert_with(|| service.moment());
        let out = match aside {
            Some(aside) => aside,
            None => &mut self.out,
        };
        let word = |outcome: &Outcome<'_>| reply.each(command, outcome, out);
        let scratch = &mut self.scratch;
        let is_hit = match self.guard.overlay() {
            None => service.answer_hit(space, get, moment, scratch, word),
            Some(it) => overlay::answer_hit(&**service, it, (space, get), moment, scratch, word),
        };
        self.batch.hits += u64::from(is_hit);
        is_hit
    }

    /// Carries out a request for one store that can be done on the spot. False if it is none:
    /// nothing was done then.
    #[inline]
    pub(super) fn answer_store(
        &mut self,
        body: &Body<'_>,
        reply: &mut Reply<'_>,
        space: Space,
        (chunk, queue): (&Chunk, &Queue<'_, S::Later>),
    ) -> bool {
        let Some(command @ Command::Store(store)) = only_command(body) else {
            return false;
        };
        if !queue.is_empty() || self.guard.overlay().is_some() {
            return false;
        }
        let job = Job {
            writer: self.guard.writer(),
            source: chunk.source(store.value.len()),
            redirects: reply.redirects(),
            ..Job::own(space, command)
        };
        let service = &self.shared.service;
        let moment = *self.batch.moment.get_or_insert_with(|| service.moment());
        let out = &mut self.out;
        let word = |outcome: &Outcome<'_>| reply.each(command, outcome, out);
        let is_stored = service.answer_store(&job, moment, &mut self.acks, word);
        if is_stored {
            reply.finish(&mut self.out);
        }
        is_stored
    }

    /// Where the current request is worded.
    #[inline]
    pub(super) fn words<'q>(&'q mut self, queue: &'q mut Queue<'_, S::Later>) -> &'q mut Out {
        if self.current.is_aside {
            queue.aside()
        } else {
            &mut self.out
        }
    }

    pub(super) async fn execute<'d>(
        &mut self,
        body: Body<'_>,
        reply: &mut Reply<'_>,
        space: Space,
        chunk: &'d Chunk,
        queue: &mut Queue<'d, S::Later>,
    ) -> io::Result<()> {
        match body {
            Body::Data(commands) => {
                let mut _parsed = None;
                if commands.len() > UNCOUNTED_COMMANDS_MAX && !self.current.is_counted {
                    let cost = commands.len() * COMMAND_COST;
                    if cost > self.shared.service.budget().bytes_max() {
                        self.count(Event::Busy, 1);
                        reply.late().failure(Failure::Busy, self.words(queue));
                        return Ok(());
                    }
                    _parsed = Some(self.hold_unsent(cost));
                }
                let is_for_many = commands.len() > 1;
                for (at, command) in commands.iter().enumerate() {
                    if !queue.is_empty() {
                        self.make_way(space, command, queue).await?;
                    }
                    if !(is_for_many && self.answer_hit_of_many(command, reply, space, queue)) {
                        let rest = commands.get(at..).unwrap_or_default();
                        self.execute_command(rest, reply, space, chunk, queue)
                            .await?;
                    }
                    if is_for_many {
                        self.turn += 1;
                        // The replies to one request for many keys are no reason to gather them
                        // all.
                        if self.is_time_to_send() {
                            self.relieve(queue).await?;
                        }
                        self.breathe().await;
                    }
                }
                if !self.current.is_late {
                    reply.finish(self.words(queue));
                }
            }
            Body::Server(command) => {
                self.count_hits();
                self.settle(queue).await?;
                let client = Client {
                    id: self.connection.id,
                    peer: &self.connection.peer,
                    local: self.connection.local_for(&command),
                    space,
                    routed_by: None,
                    is_confined: self.guard.is_confined(),
                    base: self.guard.base_of(space),
                    writer: self.guard.writer(),
                };
                if let ServerCommand::Atomic(batch) = &command {
                    // Its steps were parsed in one go.
                    self.turn += batch.steps.len();
                    self.breathe().await;
                }
                let (shared, socket) = (self.shared, &self.connection.socket);
                let acks = &mut self.acks;
                let overlay = self.guard.overlay();
                // Boxed: connections do not pay for it with memory.
                let outcome = Box::pin(async {
                    let executed = async {
                        let service = &shared.service;
                        match overlay {
                            None => {
                                let executed =
                                    service.execute_server(shared, client, &command, acks);
                                executed.await
                            }
                            Some(it) => {
                                overlay::execute_server(it, shared, client, &command, acks).await
                            }
                        }
                    };
                    if !command.ends_with_client() {
                        return Ok(executed.await);
                    }
                    tokio::select! {
                        biased;
                        outcome = executed => Ok(outcome),
                        () = socket.broken() => {
                            Err(io::Error::from(io::ErrorKind::ConnectionReset))
                        }
                    }
                })
                .await?;
                // It may have waited long.
                self.batch.moment = None;
                if let ServerCommand::Atomic(batch) = &command {
                    self.turn += batch.steps.len();
                }
                while reply.server_part(&command, &outcome, &mut self.out) {
                    self.turn = TURN_MAX;
                    self.breathe().await;
                }
            }
            Body::Answer | Body::Queued(_) | Body::LogOut | Body::Close | Body::Broken => {
                reply.finish(self.words(queue));
            }
        }
        Ok(())
    }

    /// As [`Driver::answer_hit`], for one of several commands of the current request.
    #[inline]
    fn answer_hit_of_many(
        &mut self,
        command: &Command<'_>,
        reply: &mut Reply<'_>,
        space: Space,
        queue: &mut Queue<'_, S::Later>,
    ) -> bool {
        if self.current.is_late {
            return false;
        }
        let is_aside = self.current.is_aside;
        self.answer_hit(command, reply, space, is_aside.then(|| queue.aside()))
    }

    /// A command of the client. `source` is the allocation of its value.
    fn job<'j>(
        &self,
        space: Space,
        command: &'j Command<'j>,
        source: Option<&'j Bytes>,
        redirects: Redirects,
    ) -> Job<'j> {
        Job {
            source,
            redirects,
            base: self.guard.base_of(space),
            writer: self.guard.writer(),
            ..Job::own(space, command)
        }
    }

    /// Has the first of the current request's `commands` that are left executed.
    async fn execute_command<'d>(
        &mut self,
        commands: &[Command<'_>],
        reply: &mut Reply<'_>,
        space: Space,
        chunk: &'d Chunk,
        queue: &mut Queue<'d, S::Later>,
    ) -> io::Result<()> {
        let Some(command) = commands.first() else {
            return Ok(());
        };
        let value_len = match command {
            Command::Store(store) => store.value.len(),
            _ => 0,
        };
        let redirects = reply.redirects();
        let job = self.job(space, command, chunk.source(value_len), redirects);
        let service = &self.shared.service;
        let (acks, scratch) = (&mut self.acks, &mut self.scratch);
        let execution = match self.guard.overlay() {
            None => service.execute(&job, acks, scratch).await,
            // Boxed: other connections do not pay for it with memory.
            Some(it) => Box::pin(overlay::execute(&**service, it, &job, acks, scratch)).await,
        };
        // It may have waited long.
        self.batch.moment = None;
        if let Execution::Done(Outcome::Stored(stored)) = &execution {
            // A small request may have made a long value out of another.
            self.turn += stored.value_len.saturating_sub(value_len) / TURN_BYTES;
        }
        let begin = |queue: &mut Queue<'d, S::Later>, answer| {
            if let Some(command) = command.within(chunk.as_slice()) {
                queue.push_command(Begun {
                    space,
                    command,
                    answer,
                    source: chunk.source(value_len),
                    redirects,
                });
            }
        };
        match execution {
            // A client's command is forwarded instead.
            Execution::WrongOwner => {
                let outcome = Outcome::Failed(Failure::Unavailable);
                reply.each(command, &outcome, &mut self.out);
            }
            Execution::Done(outcome) if self.current.is_late => {
                begin(queue, Answer::Ready(outcome.into_owned()));
            }
            Execution::Done(outcome) => {
                let out = match self.current.is_aside {
                    true => queue.aside(),
                    false => &mut self.out,
                };
                reply.each(command, &outcome, out);
            }
            Execution::Later(answer) => {
                // Nothing is to be begun while it waits, so nothing of it has to be kept.
                let is_alone = self.current.is_last && commands.len() == 1 && queue.is_empty();
                if !is_alone && (self.current.is_late || self.defer(commands, reply, chunk, queue))
                {
                    begin(queue, Answer::Coming(answer));
                } else {
                    // It does not outlive the parser's next call, or is alone.
                    self.settle(queue).await?;
                    let answer = self.await_answer(answer, &job, queue).await?;
                    let outcome = answer.outcome();
                    self.window.note(&outcome);
                    reply.each(command, &outcome, &mut self.out);
                }
            }
        }
        Ok(())
    }

    /// Puts the current request into the queue, if what is left of it can be kept.
    fn defer<'d>(
        &mut self,
        commands: &[Command<'_>],
        reply: &Reply<'_>,
        chunk: &'d Chunk,
        queue: &mut Queue<'d, S::Later>,
    ) -> bool {
        let data = chunk.as_slice();
        let Some(reply) = reply.within(data) else {
            return false;
        };
        if !commands.iter().all(|it| it.within(data).is_some()) {
            return false;
        }
        let worded = self.words(queue).position() - self.current.reply_start;
        queue.push(reply, worded);
        self.current.is_late = true;
        true
    }

    /// Waits until a command may be begun beside those in flight.
    async fn make_way(
        &mut self,
        space: Space,
        command: &Command<'_>,
        queue: &mut Queue<'_, S::Later>,
    ) -> io::Result<()> {
        if queue.conflicts(space, command) || queue.aside_len() >= CROWDED_SEND_LEN {
            return self.settle(queue).await;
        }
        while queue.in_flight() >= self.window.commands_max() {
            self.settle_one(queue).await?;
        }
        Ok(())
    }

    /// Waits for all answers and words them.
    pub(super) async fn settle(&mut self, queue: &mut Queue<'_, S::Later>) -> io::Result<()> {
        while queue.in_flight() > 0 {
            self.settle_one(queue).await?;
            if self.is_time_to_send() && self.acks.count() == 0 {
                self.write_out_beside(queue).await?;
            }
        }
        Ok(())
    }

    /// Waits for the answer that is worded next, and words it.
    async fn settle_one(&mut self, queue: &mut Queue<'_, S::Later>) -> io::Result<()> {
        let Some(begun) = queue.pop_command() else {
            return Ok(());
        };
        let job = self.job(begun.space, &begun.command, begun.source, begun.redirects);
        let answer = match begun.answer {
            Answer::Ready(outcome) => {
                queue.word(&begun.command, &outcome, &mut self.out, &mut self.late);
                None
            }
            Answer::Came(Ok(answer)) => Some(answer),
            Answer::Came(Err(again)) => {
                Some(Box::pin(self.await_long(Err(again), &job, queue)).await?)
            }
            Answer::Coming(later) => Some(self.await_answer(later, &job, queue).await?),
        };
        if let Some(answer) = answer {
            let outcome = answer.outcome();
            self.window.note(&outcome);
            queue.word(&begun.command, &outcome, &mut self.out, &mut self.late);
        }
        if queue.is_empty() && self.current.is_aside {
            // The words of the current request have just gone to the output.
            self.current.is_aside = false;
            let shift = self.out.position().wrapping_sub(queue.aside().position());
            self.current.reply_start = self.current.reply_start.wrapping_add(shift);
        }
        Ok(())
    }

    /// Waits for an answer, and sends what is composed if that takes a while.
    ///
    /// # Errors
    /// If the client has gone: no client needs the answer.
    async fn await_answer(
        &mut self,
        mut later: S::Later,
        job: &Job<'_>,
        queue: &mut Queue<'_, S::Later>,
    ) -> io::Result<S::Answer> {
        let socket = &self.connection.socket;
        let may_send = !self.out.is_empty() && self.acks.count() == 0;
        let has_others = queue.in_flight() > 0;
        let turn = &mut self.turn;
        let first = poll_fn(|cx| {
            if let Poll::Ready(result) = Pin::new(&mut later).poll(cx) {
                return Poll::Ready(Some(result));
            }
            *turn = 0;
            // Nearly all clients are silent until they have their answer. Whatever they send before
            // may be the end of the connection, which takes a closer look.
            match may_send || has_others || socket.poll_readable(cx).is_ready() {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        })
        .await;
        let later = match first {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(again)) => Err(again),
            None => Ok(later),
        };
        Box::pin(self.await_long(later, job, queue)).await
    }

    /// As [`Driver::await_answer`], for one that is not there yet or has to be asked for again. The
    /// answers behind it that come meanwhile are counted.
    async fn await_long(
        &mut self,
        later: Result<S::Later, S::Again>,
        job: &Job<'_>,
        queue: &mut Queue<'_, S::Later>,
    ) -> io::Result<S::Answer> {
        let (shared, overlay) = (self.shared, self.guard.overlay());
        let mut answer = pin!(async {
            let again = match later {
                Ok(later) => match later.await {
                    Ok(answer) => return answer,
                    Err(again) => again,
                },
                Err(again) => again,
            };
            match overlay {
                None => shared.service.again(job, again).await,
                Some(it) => overlay::again(&*shared.service, it, job, again).await,
            }
        });
        let may_send = !self.out.is_empty() && self.acks.count() == 0;
        if (may_send || queue.in_flight() > 0)
            && let Ok(answer) = timeout(SEND_DELAY, &mut answer).await
        {
            return Ok(answer);
        }
        if may_send {
            let (mut came, held) = (None, queue.held_len());
            let mut take_answers = |cx: &mut Context<'_>| {
                let mut taken = queue.take_answers(cx);
                if came.is_none()
                    && let Poll::Ready(answer) = answer.as_mut().poll(cx)
                {
                    taken += held_len(&answer.outcome());
                    came = Some(answer);
                }
                taken
            };
            self.write_out(held, &mut take_answers).await?;
            if let Some(answer) = came {
                return Ok(answer);
            }
        }
        let (memory, connection) = (&shared.memory, self.connection);
        let mut broken = pin!(connection.socket.broken());
        let mut held = None;
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(Ok(answer));
            }
            let taken = queue.take_answers(cx);
            let held_len = queue.held_len();
            if held_len > 0 {
                let before = || memory.hold_unsent(shared, connection, held_len - taken);
                let held = held.get_or_insert_with(before);
                if taken > 0 {
                    held.grow(taken);
                }
                if held.poll_cut_off(cx).is_ready() {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::ConnectionAborted)));
                }
            }
            let reset = || Err(io::Error::from(io::ErrorKind::ConnectionReset));
            broken.as_mut().poll(cx).map(|()| reset())
        })
        .await
    }
}
