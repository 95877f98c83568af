//! The receiving side of a connection: the memory of the request that is arriving, and the waits
//! for more of it.
//!
//! A request that fits a pooled buffer costs nothing besides. A larger one has an allocation of its
//! full length, of which the kernel provides what bytes have been written to; it is charged for
//! these, in steps that double. So what a client announces reserves nothing.

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use fonn_proto::Failure;
use tokio::time::timeout;

use super::replies::Batch;
use super::{COMMAND_COST, Driver, UNCOUNTED_COMMANDS_MAX, revoked, stalled};
use crate::input::Input;
use crate::low_water::LOW_WATER;
use crate::memory::Reservation;
use crate::pool;
use crate::registry::StartupState;
use crate::service::{Event, Service};

/// If more than this is missing of a request, its client is not waiting for an acknowledgement.
const ACKNOWLEDGE_LEN_MAX: usize = 64 * 1024;

/// How often a client that memory is reserved for is looked at while it sends nothing.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is read and thrown away from a connection that is being closed; and if its client has not
/// logged in.
const LINGER_LEN_MAX: usize = 1024 * 1024;
const STRANGER_LINGER_LEN_MAX: usize = 64 * 1024;

/// The first step in which a large request is charged, and the longest one.
const STEP_MIN: usize = 64 * 1024;
const STEP_MAX: usize = 4 * 1024 * 1024;

/// The memory of a request that is arriving.
pub(super) struct Arrival<'c, S: Service> {
    reservation: Option<Reservation<'c, S>>,
    /// Bytes that are reserved.
    bytes: usize,
    /// The length up to which the request is received for these.
    pub limit: usize,
    pace: Option<Pace>,
}

/// What the rate of a client is measured by: only the time that the server waits for the client
/// counts, not the time that a busy server takes.
struct Pace {
    /// How long the client has been waited for.
    waited: Duration,
    /// Bytes of the request that were there when that began to count.
    len: usize,
}

impl<S: Service> Default for Arrival<'_, S> {
    fn default() -> Self {
        Self {
            reservation: None,
            bytes: 0,
            limit: 0,
            pace: None,
        }
    }
}

/// The length up to which a request is received next that has `len` bytes already.
fn next_limit(len: usize) -> usize {
    len.saturating_add(len.clamp(STEP_MIN, STEP_MAX))
}

impl<'c, S: Service> Driver<'c, S> {
    /// Waits for the first byte of a request, as long as it takes. False if the server is shutting
    /// down.
    pub(super) async fn wait_idle(&mut self) -> io::Result<bool> {
        let at_boundary = &self.connection.at_boundary;
        at_boundary.store(true, Ordering::Relaxed);
        // Either this sees that the server drains, or the drain sees that the connection is idle.
        fence(Ordering::SeqCst);
        if self.shared.is_draining() {
            return Ok(false);
        }
        let result = match self.guard.is_open() {
            true => self.connection.socket.readable().await,
            // Boxed, like what else is only for servers with users: others do not pay for it with
            // memory.
            false => {
                Box::pin(async {
                    tokio::select! {
                        result = self.connection.socket.readable() => result,
                        () = self.guard.revoked() => Err(revoked()),
                    }
                })
                .await
            }
        };
        at_boundary.store(false, Ordering::Relaxed);
        result.map(|()| true)
    }

    /// Has the kernel wake the connection for many bytes where `missing` are more.
    pub(super) fn expect(&mut self, missing: usize) {
        let is_much = missing >= LOW_WATER;
        if self.waits_for_much != is_much {
            self.waits_for_much = is_much;
            let bytes = if is_much { LOW_WATER } else { 1 };
            self.connection.socket.wake_from(bytes);
        }
    }

    /// Waits for more of a request that has `len` bytes and of which `missing` are still to come.
    pub(super) async fn wait_inside(
        &mut self,
        len: usize,
        missing: usize,
        arrival: &mut Arrival<'_, S>,
    ) -> io::Result<()> {
        // In the middle of a large body the peer's window is full of data and acknowledgements come
        // by themselves; near its end, and in a head, the peer may be waiting for one.
        if missing <= ACKNOWLEDGE_LEN_MAX {
            self.connection.socket.acknowledge_now();
        }
        let stall_max = self.shared.tuning.stall_max;
        let Some(pace) = &mut arrival.pace else {
            // What is left of a request that was refused on its way may be less than what wakes for
            // much.
            self.expect(1);
            return match timeout(stall_max, self.connection.socket.readable()).await {
                Ok(result) => result,
                Err(_) => Err(stalled("the client stopped in the middle of a request")),
            };
        };
        self.expect(missing);
        let start = Instant::now();
        loop {
            if !self.keeps_pace(pace, len) {
                return Err(stalled(
                    "a request arrives too slowly to hold memory for it",
                ));
            }
            let look_start = Instant::now();
            let left = stall_max.saturating_sub(look_start - start);
            if left.is_zero() {
                return Err(stalled("the client stopped in the middle of a request"));
            }
            let look = left.min(LOOK_INTERVAL);
            let result = timeout(look, self.connection.socket.readable()).await;
            pace.waited += look_start.elapsed().min(look);
            if let Ok(result) = result {
                return result;
            }
            // It sends slowly: what is there so far wakes at once.
            self.expect(1);
        }
    }

    /// Whether a request with `len` bytes by now has arrived fast enough since the last look.
    fn keeps_pace(&self, pace: &mut Pace, len: usize) -> bool {
        let tuning = &self.shared.tuning;
        let elapsed = pace.waited;
        let received = (len.saturating_sub(pace.len)) as u128 * 1000;
        let is_slow = |rate: u64| received < u128::from(rate) * elapsed.as_millis();
        if elapsed > tuning.contended_window
            && self.shared.memory.is_contended()
            && is_slow(tuning.contended_rate_min)
        {
            return false;
        }
        if elapsed > tuning.rate_window {
            if is_slow(tuning.rate_min) {
                return false;
            }
            *pace = Pace {
                waited: Duration::ZERO,
                len,
            };
        }
        true
    }

    /// Whether more memory has to be reserved before more of the large request in `input` is
    /// received.
    #[inline]
    pub(super) fn lacks_memory(&self, arrival: &Arrival<'_, S>, input: &Input) -> bool {
        input.len() >= arrival.limit
            || arrival.limit.saturating_add(self.argument_cost()) > arrival.bytes
    }

    /// What the commands take that the arguments received so far may turn into.
    fn argument_cost(&self) -> usize {
        let session = self.session.as_ref();
        match session.map_or(0, |session| session.argument_count()) {
            ..=UNCOUNTED_COMMANDS_MAX => 0,
            count => count.saturating_mul(COMMAND_COST),
        }
    }

    /// Reserves memory for the next bytes of the large request in `input`, which is to have `need`
    /// bytes. Waits a while for it. False if there is none.
    pub(super) async fn admit(
        &mut self,
        arrival: &mut Arrival<'c, S>,
        input: &mut Input,
        need: usize,
    ) -> bool {
        let limit = match input.len() >= arrival.limit {
            true => next_limit(input.len()).min(input.capacity_for(need)),
            false => arrival.limit,
        };
        let bytes = limit.saturating_add(self.argument_cost());
        if !self.reserve(arrival, input, bytes).await {
            return false;
        }
        arrival.limit = limit;
        input.make_room(need);
        true
    }

    /// Reserves memory for what a small request in `input` holds while it waits for the rest:
    /// nothing, for one that is very small. A head that comes in pieces does not queue behind large
    /// bodies, nor does it have to come at their rate.
    pub(super) async fn admit_waiting(
        &mut self,
        arrival: &mut Arrival<'c, S>,
        input: &mut Input,
        need: usize,
    ) -> bool {
        // Start-ups reserve nothing; what they hold is bounded by their number and this.
        if self.connection.startup() != StartupState::Over {
            input.fit(need);
            return true;
        }
        self.reserve(arrival, input, input.held()).await
    }

    async fn reserve(
        &mut self,
        arrival: &mut Arrival<'c, S>,
        input: &mut Input,
        bytes: usize,
    ) -> bool {
        let more = bytes.saturating_sub(arrival.bytes);
        if more == 0 {
            return true;
        }
        let has_waited = match &mut arrival.reservation {
            Some(reservation) => {
                let has_waited = !reservation.try_grow(more);
                if has_waited && !Box::pin(reservation.grow(more)).await {
                    return false;
                }
                has_waited
            }
            None => {
                let source = Some(self.connection.source);
                let mut made = Reservation::try_make(self.shared, source, more);
                let has_waited = made.is_none();
                if has_waited {
                    // It waits with as little as possible.
                    pool::reclaim(&mut self.out, &mut self.scratch);
                    input.shrink();
                    let making = Reservation::make(self.shared, source, more, input.len());
                    made = Box::pin(making).await;
                }
                let Some(made) = made else {
                    return false;
                };
                arrival.reservation = Some(made);
                has_waited
            }
        };
        arrival.bytes = bytes;
        // The time that it waited for the server is not its fault.
        if has_waited || arrival.pace.is_none() {
            arrival.pace = Some(Pace {
                waited: Duration::ZERO,
                len: input.len(),
            });
        }
        true
    }

    /// Refuses the request at the front of `input` as busy; returns what to wait for and what to
    /// swallow.
    ///
    /// # Errors
    /// If the request is none that could be swallowed: the connection has to be closed.
    pub(super) async fn refuse(&mut self, input: &mut Input) -> io::Result<(usize, u64)> {
        self.count(Event::Busy, 1);
        if let Some(session) = &mut self.session {
            session.refuse(Failure::Busy);
            pool::lend(&mut self.out, &mut self.scratch);
            self.batch = Batch::new(Instant::now());
            let chunk = input.take();
            let parsed = Box::pin(self.process(&chunk, 0)).await?;
            input.restore(chunk, parsed.consumed);
            self.send(None).await?;
            if parsed.consumed > 0 && !parsed.close {
                return Ok((parsed.need, parsed.skip));
            }
        }
        Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            "there is no memory to receive a request",
        ))
    }

    /// Ends the start-up of the connection: its client may send requests.
    ///
    /// # Errors
    /// If there is no memory for its TLS session.
    pub(super) fn end_startup(&self) -> io::Result<()> {
        if self.connection.startup() == StartupState::Over {
            return Ok(());
        }
        self.connection.set_startup(StartupState::Over);
        self.shared.startups.end(self.connection.id);
        let memory = &self.shared.memory;
        if self.connection.socket.is_encrypted() && !memory.hold_tls(self.shared, self.connection) {
            self.count(Event::Rejected, 1);
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "the TLS sessions of other connections take all memory for requests",
            ));
        }
        Ok(())
    }

    /// Delays the answer to a request that leaves its client without a login. The connection counts
    /// against the bound of its source meanwhile. So the answers that a source gets in a second are
    /// bounded, however many connections it opens for them. False if the connection had to give way
    /// to a newer one meanwhile. It is counted no longer then, and would keep its task until the
    /// requests that it has sent are answered.
    ///
    /// The deadline of the start-up waits for the end of the delay, so the client gets its answer.
    /// The caller closes the connection then, if the deadline is past.
    pub(super) async fn delay_stranger(&mut self) -> bool {
        let state = self.connection.startup();
        if state == StartupState::UnderWay {
            self.connection.set_startup(StartupState::Held);
        }
        tokio::time::sleep(self.shared.tuning.stranger_delay).await;
        self.connection.set_startup(state);
        self.turn = 0;
        // The requests behind it are judged by a later time.
        self.batch.moment = None;
        !self.is_starting || self.shared.startups.counts(self.connection.id)
    }

    /// Ends a connection without losing its last reply: says that nothing more comes, and reads
    /// until the client has closed too, or for a moment.
    pub(super) async fn linger(&mut self) {
        let socket = &self.connection.socket;
        socket.end_writing();
        let mut buf = pool::take();
        let mut left = match self.guard.is_admitted() {
            true => LINGER_LEN_MAX,
            false => STRANGER_LINGER_LEN_MAX,
        };
        let _ = Box::pin(timeout(self.shared.tuning.linger, async {
            while left > 0 {
                buf.clear();
                match socket.try_read(&mut buf, usize::MAX) {
                    Ok(0) => return,
                    Ok(count) => left = left.saturating_sub(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if socket.readable().await.is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        }))
        .await;
        pool::give_back(buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_double_up_to_a_bound() {
        assert_eq!(next_limit(20), STEP_MIN + 20);
        let mut limits = vec![next_limit(100)];
        while limits.len() < 12 {
            limits.push(next_limit(limits[limits.len() - 1]));
        }
        for pair in limits.windows(2) {
            let step = pair[1] - pair[0];
            assert!(
                step <= STEP_MAX && step >= pair[0].min(STEP_MAX),
                "{pair:?}"
            );
        }
        assert_eq!(next_limit(usize::MAX), usize::MAX);
    }
}
