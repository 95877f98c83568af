//! How long a connection may live without doing anything: the deadlines that no client can hold off
//! by sending a byte now and then.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fonn_admin::Frames;
use fonn_auth::Source;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

/// Requests of a connection on probation at most. A client may have 32 under way before the answer
/// to its first.
const STRANGER_REQUESTS_MAX: u32 = 128;

/// What is read and thrown away from a connection that is being closed.
pub(crate) const LINGER_LEN_MAX: usize = 64 << 20;

/// Times of a connection. The defaults are what node and router run with; tests shorten them.
#[derive(Clone, Debug)]
pub struct Times {
    /// From the first byte of a request over HTTP/1 to the end of its head. Also from the start of
    /// a connection to its first request that was let in, if clients have to log in or speak TLS.
    pub head_max: Duration,
    /// How long a connection may wait for its next request.
    pub idle_max: Duration,
    /// A client that stops in the middle of a body, or of reading a response, for this long is cut
    /// off.
    pub stall_max: Duration,
    /// A connection that is closed with a body unread reads on for this long, so that the response
    /// is not lost.
    pub linger: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            head_max: Duration::from_secs(10),
            idle_max: Duration::from_secs(300),
            stall_max: Duration::from_secs(60),
            linger: Duration::from_secs(1),
        }
    }
}

#[derive(Debug)]
struct LifeState {
    /// Requests whose response is not complete.
    active: usize,
    /// Of these, those that wait for a client that was not let in yet.
    awaiting: usize,
    /// Requests that were begun before one was let in.
    strange: u32,
    /// When something happened last.
    progress: Instant,
    /// When the first byte of a request arrived, while its head is not complete.
    head_since: Option<Instant>,
    /// Since when the client has not taken what is to be sent.
    blocked_since: Option<Instant>,
    /// Whether the connection has to prove itself before it may be idle.
    is_on_probation: bool,
    is_body_unread: bool,
    is_cut: bool,
    /// Until when [`Life::over`] sleeps.
    asleep_until: Option<Instant>,
}

impl LifeState {
    /// When the connection ends if nothing happens until then; `None` if it ends now.
    fn deadline(&self, times: &Times, opened: Instant) -> Option<Instant> {
        let idle = match self.active {
            0 => self.progress + times.idle_max,
            _ => self.progress + times.stall_max,
        };
        let head = self.head_since.map(|since| since + times.head_max);
        let blocked = self.blocked_since.map(|since| since + times.stall_max);
        // What the server does for a stranger, such as to check a password, takes its time. What a
        // stranger does not send buys none.
        let probation = self.is_on_probation && self.active <= self.awaiting;
        let probation = probation.then(|| opened + times.head_max);
        let all = [Some(idle), head, blocked, probation];
        (!self.is_cut).then(|| all.into_iter().flatten().min().unwrap_or(idle))
    }
}

/// The life of one connection.
#[derive(Debug)]
pub(crate) struct Life {
    times: Times,
    source: Source,
    opened: Instant,
    /// Its last number among the connections on probation; 0 if it was none of them.
    number: AtomicU64,
    state: Mutex<LifeState>,
    changed: Notify,
}

impl Life {
    pub(crate) fn new(times: Times, source: Source, is_on_probation: bool) -> Arc<Self> {
        let opened = Instant::now();
        Arc::new(Self {
            times,
            source,
            opened,
            number: AtomicU64::new(0),
            state: Mutex::new(LifeState {
                active: 0,
                awaiting: 0,
                strange: 0,
                progress: opened,
                head_since: None,
                blocked_since: None,
                is_on_probation,
                is_body_unread: false,
                is_cut: false,
                asleep_until: None,
            }),
            changed: Notify::new(),
        })
    }

    /// A request begins, and lasts until what is returned is dropped. The connection ends if none
    /// of many was let in.
    pub(crate) fn begin(self: &Arc<Self>) -> Active {
        let mut state = self.state.lock();
        state.active += 1;
        state.head_since = None;
        state.progress = Instant::now();
        if state.is_on_probation {
            state.strange += 1;
            state.is_cut |= state.strange > STRANGER_REQUESTS_MAX;
        }
        // A body may stall for less time than a connection may be idle.
        self.hasten(&mut state);
        drop(state);
        Active(Arc::clone(self))
    }

    /// A request that is under way waits for its client, until what is returned is dropped.
    pub(crate) fn await_stranger(self: &Arc<Self>) -> Awaiting {
        let mut state = self.state.lock();
        state.awaiting += 1;
        self.hasten(&mut state);
        drop(state);
        Awaiting(Arc::clone(self))
    }

    /// The connection is on probation under this number. Returns the one before.
    pub(crate) fn set_number(&self, number: u64) -> u64 {
        self.number.swap(number, Ordering::Relaxed)
    }

    /// The last number of the connection among those on probation; 0 if it was none of them.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Whether its client was not let in yet.
    pub(crate) fn is_on_probation(&self) -> bool {
        self.state.lock().is_on_probation
    }

    /// The client is one that is let in.
    pub(crate) fn accept(&self) {
        self.state.lock().is_on_probation = false;
    }

    /// Where the client is.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// The client sent or read something.
    pub(crate) fn touch(&self) {
        self.state.lock().progress = Instant::now();
    }

    /// A request was answered although not all of its body was read.
    pub(crate) fn leave_unread(&self) {
        self.state.lock().is_body_unread = true;
    }

    /// Ends the connection.
    pub(crate) fn cut(&self) {
        self.state.lock().is_cut = true;
        self.changed.notify_one();
    }

    #[cfg(test)]
    pub(crate) fn is_cut(&self) -> bool {
        self.state.lock().is_cut
    }

    fn note_read(&self) {
        let mut state = self.state.lock();
        if state.active == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
            self.hasten(&mut state);
        }
    }

    fn note_write(&self, is_blocked: bool) {
        let mut state = self.state.lock();
        if is_blocked != state.blocked_since.is_some() {
            state.blocked_since = is_blocked.then(Instant::now);
            self.hasten(&mut state);
        }
    }

    /// Wakes [`Life::over`] if the deadline is earlier than the time it sleeps until. It finds a
    /// later one by itself, so most requests cost no wake.
    fn hasten(&self, state: &mut LifeState) {
        let deadline = state.deadline(&self.times, self.opened);
        let Some(until) = state.asleep_until else {
            return;
        };
        if deadline.is_none_or(|it| it < until) {
            // It sleeps no longer than this, although the request may be complete before it has
            // woken up.
            state.asleep_until = deadline;
            self.changed.notify_one();
        }
    }

    /// When the connection ends if nothing happens until then, and until when to sleep, which may
    /// be earlier. `None` if the connection ends now.
    fn sleep(&self) -> Option<(Instant, Instant)> {
        let mut state = self.state.lock();
        let deadline = state.deadline(&self.times, self.opened)?;
        let hastened = state.asleep_until.filter(|it| *it > Instant::now());
        let until = hastened.map_or(deadline, |it| it.min(deadline));
        state.asleep_until = Some(until);
        Some((deadline, until))
    }

    /// Waits until the connection has to end.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn over(&self) {
        while let Some((deadline, until)) = self.sleep() {
            if deadline <= Instant::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.changed.notified() => {}
            }
        }
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct Active(Arc<Life>);

impl Drop for Active {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.active -= 1;
        state.progress = Instant::now();
    }
}

/// A request that waits for a client which was not let in yet.
#[derive(Debug)]
pub(crate) struct Awaiting(Arc<Life>);

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.0.state.lock().awaiting -= 1;
    }
}

/// The stream of a connection, which tells its life what happens.
#[derive(Debug)]
pub(crate) struct Watch<S> {
    /// What was read of the stream before.
    first: Vec<u8>,
    stream: S,
    life: Arc<Life>,
    /// In HTTP/2, where frames come at any time. Otherwise a first byte begins the head of a
    /// request.
    frames: Option<Frames>,
    linger: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Watch<S> {
    /// A stream of which `first` was read.
    pub(crate) fn new(first: Vec<u8>, stream: S, life: Arc<Life>, is_http2: bool) -> Self {
        if !is_http2 {
            life.note_read();
        }
        Self {
            first,
            stream,
            life,
            frames: is_http2.then(|| Frames::new(Instant::now())),
            linger: None,
        }
    }

    /// Notes what the client sent. False if the connection has to end for that.
    fn note_read(&mut self, bytes: &[u8]) -> bool {
        match &mut self.frames {
            None if bytes.is_empty() => true,
            None => {
                self.life.note_read();
                true
            }
            Some(frames) => {
                let is_stranger = self.life.is_on_probation();
                frames.note_read(bytes, is_stranger, Instant::now())
            }
        }
    }

    /// Notes how a write went.
    fn note_write(&mut self, polled: &Poll<io::Result<usize>>) {
        self.life.note_write(polled.is_pending());
        if let (Some(frames), Poll::Ready(Ok(len))) = (&mut self.frames, polled) {
            frames.note_written(*len, self.life.is_on_probation());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watch<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let it = self.get_mut();
        let before = buf.filled().len();
        if it.first.is_empty() {
            ready!(Pin::new(&mut it.stream).poll_read(cx, buf))?;
        } else {
            let len = it.first.len().min(buf.remaining());
            buf.put_slice(it.first.get(..len).unwrap_or_default());
            it.first.drain(..len);
            // The rest of the head comes along: hyper doubles its buffer for the read after one
            // that was short, and keeps it while the connection is idle.
            if buf.remaining() > 0
                && let Poll::Ready(read) = Pin::new(&mut it.stream).poll_read(cx, buf)
            {
                read?;
            }
        }
        let is_within = it.note_read(buf.filled().get(before..).unwrap_or_default());
        if is_within {
            return Poll::Ready(Ok(()));
        }
        // Its life ends it.
        buf.set_filled(before);
        it.life.cut();
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watch<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let it = self.get_mut();
        let polled = Pin::new(&mut it.stream).poll_write(cx, buf);
        it.note_write(&polled);
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let it = self.get_mut();
        let polled = Pin::new(&mut it.stream).poll_write_vectored(cx, bufs);
        it.note_write(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    /// Says that nothing more comes. Where a body was left unread it reads on for a moment: closing
    /// a socket with unread input resets the connection, and the client would lose the response.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let it = self.get_mut();
        if it.linger.is_none() {
            ready!(Pin::new(&mut it.stream).poll_shutdown(cx))?;
            if !it.life.state.lock().is_body_unread {
                return Poll::Ready(Ok(()));
            }
        }
        let begin = || {
            let sleep = sleep_until(Instant::now() + it.life.times.linger);
            (Box::pin(sleep), LINGER_LEN_MAX)
        };
        let (timer, left) = it.linger.get_or_insert_with(begin);
        let mut bytes = [0; 8192];
        loop {
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buf = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut it.stream).poll_read(cx, &mut buf));
            let count = buf.filled().len();
            *left = left.saturating_sub(count);
            if read.is_err() || count == 0 || *left == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    fn life(is_on_probation: bool) -> Arc<Life> {
        Life::new(Times::default(), Source::of(None), is_on_probation)
    }

    async fn lived(life: &Life) -> u64 {
        let begun = Instant::now();
        life.over().await;
        begun.elapsed().as_secs()
    }

    #[tokio::test]
    async fn bytes_that_were_read_before_come_with_those_that_have_arrived_since() {
        let (mut client, server) = duplex(64);
        let mut watch = Watch::new(b"GET".to_vec(), server, life(false), false);
        let mut bytes = [0; 64];
        client.write_all(b" /a HTTP/1.1").await.unwrap();
        let len = watch.read(&mut bytes).await.unwrap();
        assert_eq!(&bytes[..len], b"GET /a HTTP/1.1");
        // They do not wait for any.
        let (_client, server) = duplex(64);
        let mut watch = Watch::new(b"GET".to_vec(), server, life(false), false);
        let len = watch.read(&mut bytes).await.unwrap();
        assert_eq!(&bytes[..len], b"GET");
        // A buffer may be shorter than they are.
        let mut watch = Watch::new(b"GET".to_vec(), tokio::io::empty(), life(false), false);
        let mut short = [0; 2];
        assert_eq!(watch.read(&mut short).await.unwrap(), 2);
        assert_eq!(&short, b"GE");
        assert_eq!(watch.read(&mut short).await.unwrap(), 1);
        assert_eq!(watch.read(&mut short).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_lives_longer_than_one_that_stopped_in_a_head() {
        assert_eq!(lived(&life(false)).await, 300);
        assert_eq!(lived(&life(true)).await, 10);
        let stopped = life(false);
        stopped.note_read();
        stopped.note_read();
        assert_eq!(lived(&stopped).await, 10);
        let accepted = life(true);
        accepted.accept();
        assert_eq!(lived(&accepted).await, 300);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_deadline_wakes_a_life_and_a_later_one_does_not() {
        let life = life(false);
        let begun = Instant::now();
        let over = life.over();
        tokio::pin!(over);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), &mut over)
                .await
                .is_err()
        );
        assert_eq!(
            life.state.lock().asleep_until,
            Some(begun + Duration::from_secs(300))
        );
        for _ in 0..3 {
            life.note_read();
            drop(life.begin());
            assert!(
                tokio::time::timeout(Duration::from_secs(1), &mut over)
                    .await
                    .is_err()
            );
            // The head of the first request had time until then, and those of later ones have more.
            let until = begun + Duration::from_secs(11);
            assert_eq!(life.state.lock().asleep_until, Some(until));
        }
        life.note_read();
        over.await;
        assert_eq!(begun.elapsed(), Duration::from_secs(14));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_a_stranger_does_not_complete_buy_no_time() {
        let life = life(true);
        let (first, awaiting) = (life.begin(), life.await_stranger());
        let over = life.over();
        tokio::pin!(over);
        let begun = Instant::now();
        for _ in 0..9 {
            let another = (life.begin(), life.await_stranger());
            let wait = tokio::time::timeout(Duration::from_secs(1), &mut over);
            assert!(wait.await.is_err());
            drop(another);
        }
        over.await;
        assert_eq!(begun.elapsed().as_secs(), 10);
        // The server has the whole request, and works on it.
        drop(awaiting);
        assert_eq!(lived(&life).await, 59);
        drop(first);
        assert_eq!(lived(&life).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_makes_so_many_requests_and_no_more() {
        let known = life(true);
        known.accept();
        for _ in 0..=STRANGER_REQUESTS_MAX {
            drop(known.begin());
        }
        assert!(!known.is_cut());
        let strange = life(true);
        let over = strange.over();
        tokio::pin!(over);
        for _ in 0..STRANGER_REQUESTS_MAX {
            let wait = tokio::time::timeout(Duration::from_millis(1), &mut over);
            assert!(wait.await.is_err());
            drop(strange.begin());
        }
        let _last = strange.begin();
        assert!(strange.is_cut());
        let begun = Instant::now();
        over.await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_progress_is_cut_and_one_with_progress_is_not() {
        let life = life(true);
        let active = life.begin();
        assert_eq!(lived(&life).await, 60);
        life.touch();
        assert_eq!(lived(&life).await, 60);
        drop(active);
        life.accept();
        assert_eq!(lived(&life).await, 300);
        life.note_write(true);
        assert_eq!(
            lived(&life).await,
            0,
            "the connection is past its idle time"
        );
        life.touch();
        assert_eq!(lived(&life).await, 60);
        life.cut();
        assert_eq!(lived(&life).await, 0);
    }
}
