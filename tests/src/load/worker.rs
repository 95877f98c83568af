//! A client thread: its connections and the loop that serves them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mio::{Events, Poll, Token};

use super::connection::{Connection, Shared};
use super::options::LoadOptions;
use super::report::Tally;
use super::workload::{Phase, Workload};
use crate::values::ValuePool;

/// A server that sends nothing for so long is taken for hung.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Size of a read: large enough that values of megabytes cost few system calls.
const READ_LEN: usize = 256 << 10;

/// A client thread before its run.
#[derive(Debug)]
pub(super) struct Worker<'run> {
    poll: Poll,
    connections: Vec<Connection>,
    shared: Shared<'run>,
}

impl<'run> Worker<'run> {
    /// Opens the connections of thread `index`.
    pub(super) fn connect(
        options: &'run LoadOptions,
        pool: &'run ValuePool,
        workload: Workload,
        index: usize,
    ) -> Result<Self> {
        let poll = Poll::new()?;
        let (all, threads) = (options.connections.get(), options.client_threads.get());
        let count = all / threads + usize::from(index < all % threads);
        let connections = (0..count)
            .map(|at| Connection::connect(&options.target, poll.registry(), Token(at)))
            .collect::<Result<_>>()?;
        let buffer = vec![0; READ_LEN + 4096];
        let shared = Shared {
            options,
            pool,
            workload,
            tally: Tally::new(),
            buffer,
        };
        Ok(Self {
            poll,
            connections,
            shared,
        })
    }

    /// Runs the workload to its end.
    pub(super) fn run(mut self) -> Result<Tally> {
        let options = self.shared.options;
        let is_fill = self.shared.workload.phase() == Phase::Fill;
        let begin = Instant::now() + options.warm_up;
        let mut is_warming_up = !is_fill && !options.warm_up.is_zero();
        let is_timed = !is_fill && options.operations.is_none();
        let deadline = is_timed.then(|| begin + options.duration);
        let mut active = 0_usize;
        for connection in &mut self.connections {
            connection.start_batch(&mut self.shared)?;
            active += usize::from(connection.is_active());
        }
        let mut events = Events::with_capacity(1024);
        while active > 0 {
            match self.poll.poll(&mut events, Some(SILENCE_MAX)) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                outcome => outcome?,
            }
            ensure!(
                !events.is_empty(),
                "the server has sent nothing for {SILENCE_MAX:?}"
            );
            let now = Instant::now();
            if is_warming_up && now >= begin {
                is_warming_up = false;
                self.shared.tally.begin();
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                self.shared.workload.stop();
            }
            for event in &events {
                let connection = &mut self.connections[event.token().0];
                let was_active = connection.is_active();
                if event.is_writable() {
                    connection.on_writable(&mut self.shared)?;
                }
                if event.is_readable() && connection.is_active() {
                    connection.on_readable(&mut self.shared)?;
                }
                active -= usize::from(was_active && !connection.is_active());
            }
        }
        Ok(self.shared.tally)
    }
}
