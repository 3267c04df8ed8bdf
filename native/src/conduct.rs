//! How one client behaves: what its frames say, when it was last heard, and whether it takes what it is sent.

use crate::authority::AuthorityFilter;
use crate::clock::now_ns;
use crate::frames::{ACK, FrameWalker, PREFACE, kind};
use crate::limits::{Limit, Limits, PROGRESS, RATE_WINDOW};
use crate::rate::Rate;
use crate::transport::Transport;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;

/// What is known of the client of one connection.
pub struct Conduct {
    inbound: FrameWalker,
    outbound: FrameWalker,
    pings: Rate,
    resets: Rate,
    answered: bool,
    last_headers: u32,
    heard_ns: u64,
    blocked_ns: Option<u64>,
    taken: usize,
    written: u64,
    breach: Option<Limit>,
    refusals: Vec<Limit>,
    task: Option<Waker>,
}

impl Conduct {
    /// A client that has just connected.
    pub fn new(limits: &Limits) -> Self {
        Self {
            inbound: FrameWalker::new(PREFACE),
            outbound: FrameWalker::new(0),
            pings: Rate::new(limits.get(Limit::PingsPerConnection), RATE_WINDOW),
            resets: Rate::new(limits.get(Limit::ResetsPerConnection), RATE_WINDOW),
            answered: false,
            last_headers: 0,
            heard_ns: now_ns(),
            blocked_ns: None,
            taken: 0,
            written: 0,
            breach: None,
            refusals: Vec::new(),
            task: None,
        }
    }

    /// When something last came from the client.
    pub fn heard_ns(&self) -> u64 {
        self.heard_ns
    }

    /// Bytes written to the client so far.
    pub fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Since when the client has taken next to nothing although there is something for it.
    pub fn blocked_ns(&self) -> Option<u64> {
        self.blocked_ns
    }

    /// The limit for which the connection must be cut.
    pub fn breach(&self) -> Option<Limit> {
        self.breach
    }

    /// Takes the limits for which the protocol itself has refused calls since the last time.
    pub fn take_refusals(&mut self) -> Vec<Limit> {
        std::mem::take(&mut self.refusals)
    }

    /// The task of the connection, to be woken on a breach.
    pub fn register(&mut self, task: &Waker) {
        self.task = Some(task.clone());
    }

    /// A call was reset before it was answered.
    pub fn reset(&mut self, now_ns: u64) {
        if self.resets.exceeded(now_ns) {
            self.breach.get_or_insert(Limit::ResetsPerConnection);
            if let Some(task) = &self.task {
                task.wake_by_ref();
            }
        }
    }

    fn read(&mut self, bytes: &[u8], now_ns: u64) {
        self.heard_ns = now_ns;
        let (answered, pings, breach) = (&mut self.answered, &mut self.pings, &mut self.breach);
        self.inbound.walk(bytes, |frame| {
            if frame.kind == kind::PING && frame.flags & ACK == 0 && !std::mem::take(answered) {
                // The task of the connection is the one that reads: it looks for a breach next.
                if pings.exceeded(now_ns) {
                    breach.get_or_insert(Limit::PingsPerConnection);
                }
            }
        });
    }

    fn written(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        self.taken += bytes.len();
        if self.taken >= PROGRESS {
            self.blocked(false); // less is progress only when nothing is left, which flushing tells
        }
        let (answered, last_headers, refusals) =
            (&mut self.answered, &mut self.last_headers, &mut self.refusals);
        self.outbound.walk(bytes, |frame| match frame.kind {
            kind::DATA => *answered = true,
            kind::HEADERS => (*answered, *last_headers) = (true, frame.stream),
            kind::RST_STREAM => match frame.reset_code() {
                REFUSED_STREAM => refusals.push(Limit::StreamsPerConnection),
                // Headers and at once this: the protocol's own answer (431) to a header list beyond its bound.
                PROTOCOL_ERROR if frame.stream == *last_headers => refusals.push(Limit::MetadataBytes),
                _ => {}
            },
            kind::GOAWAY if frame.payload.ends_with(b"too_many_resets") => {
                refusals.push(Limit::ResetsPerConnection)
            }
            kind::GOAWAY if frame.payload.ends_with(b"header_list_way_too_large") => {
                refusals.push(Limit::MetadataBytes);
            }
            _ => {}
        });
    }

    fn blocked(&mut self, blocked: bool) {
        if !blocked {
            self.blocked_ns = None;
        } else if self.blocked_ns.is_none() {
            (self.blocked_ns, self.taken) = (Some(now_ns()), 0);
        }
    }
}

/// The conduct as the connection, its calls and its transport share it.
#[derive(Clone)]
pub struct SharedConduct(Arc<Mutex<Conduct>>);

impl SharedConduct {
    /// Shares it.
    pub fn new(conduct: Conduct) -> Self {
        Self(Arc::new(Mutex::new(conduct)))
    }

    /// Looks at it; all who do are tasks of one thread, so this never waits.
    pub fn lock(&self) -> MutexGuard<'_, Conduct> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transport that is watched.
pub struct WatchedTransport<T = Transport> {
    inner: T,
    conduct: SharedConduct,
    authority: Option<AuthorityFilter>,
    /// Clients of a Unix socket share one host: who forwards for several may name any of them at any time.
    always: bool,
}

impl WatchedTransport {
    /// Watches from here on; HTTP/2 has not begun.
    pub fn new(inner: Transport, conduct: SharedConduct) -> Self {
        let always = matches!(inner, Transport::Unix(_));
        Self { inner, conduct, authority: Some(AuthorityFilter::default()), always }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WatchedTransport<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buffer);
        let read = &mut buffer.filled_mut()[before..];
        if !read.is_empty() {
            self.conduct.lock().read(read, now_ns());
            if let Some(authority) = &mut self.authority {
                authority.filter(read);
            }
            if !self.always {
                self.authority.take_if(|authority| authority.is_needless());
            }
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WatchedTransport<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, bytes);
        let mut conduct = self.conduct.lock();
        if result.is_pending() {
            conduct.blocked(true);
        }
        if let Poll::Ready(Ok(written)) = result {
            conduct.written(&bytes[..written]);
        }
        drop(conduct);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        let mut conduct = self.conduct.lock();
        if result.is_pending() {
            conduct.blocked(true);
        }
        if let Poll::Ready(Ok(mut written)) = result {
            for piece in pieces {
                let part = written.min(piece.len());
                conduct.written(&piece[..part]);
                written -= part;
            }
        }
        drop(conduct);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(cx);
        // Not only when pending: over TLS a write ends when its bytes lie in the session, and it is the flush that
        // waits for the client and then tells that it took them.
        self.conduct.lock().blocked(result.is_pending());
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NAMES;

    fn conduct() -> Conduct {
        let limits = Limits::new(NAMES.iter().map(|name| {
            (name.to_string(), if name.contains("pings") || name.contains("resets") { 2 } else { 1000 })
        }));
        let mut conduct = Conduct::new(&limits.unwrap());
        conduct.read(&[0; PREFACE], 1);
        conduct
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, payload.len() as u8, kind, flags];
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn pings_that_answer_nothing_are_a_breach() {
        let mut conduct = conduct();
        let ping = frame(kind::PING, 0, 0, &[0; 8]);
        conduct.read(&[&ping[..], &ping[..]].concat(), 1);
        assert_eq!(conduct.breach(), None);
        conduct.read(&ping, 2);
        assert_eq!(conduct.breach(), Some(Limit::PingsPerConnection));
    }

    #[test]
    fn pings_that_answer_data_and_answers_to_pings_are_not_counted() {
        let mut conduct = conduct();
        for _ in 0..10 {
            conduct.written(&frame(kind::DATA, 0, 1, &[0; 3]));
            conduct.read(&frame(kind::PING, 0, 0, &[0; 8]), 1);
            conduct.read(&frame(kind::PING, ACK, 0, &[0; 8]), 1);
        }
        assert_eq!(conduct.breach(), None);
    }

    #[test]
    fn resets_are_a_breach_when_they_are_many() {
        let mut conduct = conduct();
        (0..2).for_each(|now| conduct.reset(now));
        assert_eq!(conduct.breach(), None);
        conduct.reset(3);
        assert_eq!(conduct.breach(), Some(Limit::ResetsPerConnection));
    }

    /// Takes every write at once, as a TLS session does, and blocks on flushing as long as it is told to.
    struct Session(Arc<Mutex<bool>>);

    impl AsyncWrite for Session {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
            if *self.0.lock().unwrap() { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_client_that_took_what_was_flushed_blocks_no_longer() {
        let (shared, blocks) = (SharedConduct::new(conduct()), Arc::new(Mutex::new(true)));
        let mut transport = WatchedTransport {
            inner: Session(blocks.clone()),
            conduct: shared.clone(),
            authority: None,
            always: false,
        };
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut transport).poll_write(cx, &frame(kind::DATA, 0, 1, &[0; 3])).is_ready());
        assert!(Pin::new(&mut transport).poll_flush(cx).is_pending());
        assert!(shared.lock().blocked_ns().is_some());
        *blocks.lock().unwrap() = false;
        assert!(Pin::new(&mut transport).poll_flush(cx).is_ready());
        assert_eq!(shared.lock().blocked_ns(), None);
    }

    #[test]
    fn a_byte_now_and_then_is_no_progress() {
        let mut conduct = conduct();
        conduct.blocked(true);
        conduct.written(&frame(kind::DATA, 0, 1, &[0; 200]));
        assert!(conduct.blocked_ns().is_some());
        (0..PROGRESS / 200).for_each(|_| conduct.written(&frame(kind::DATA, 0, 1, &[0; 200])));
        assert_eq!(conduct.blocked_ns(), None);
    }

    #[test]
    fn refusals_of_the_protocol_itself_are_seen() {
        let mut conduct = conduct();
        conduct.written(&frame(kind::RST_STREAM, 0, 9, &REFUSED_STREAM.to_be_bytes()));
        conduct.written(&frame(kind::HEADERS, 5, 11, &[0; 4]));
        conduct.written(&frame(kind::RST_STREAM, 0, 11, &PROTOCOL_ERROR.to_be_bytes()));
        conduct.written(&frame(kind::RST_STREAM, 0, 13, &PROTOCOL_ERROR.to_be_bytes()));
        conduct.written(&frame(kind::GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\x0btoo_many_resets"));
        conduct.written(&frame(kind::GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\x0b"));
        assert_eq!(
            conduct.take_refusals(),
            [Limit::StreamsPerConnection, Limit::MetadataBytes, Limit::ResetsPerConnection]
        );
        assert!(conduct.take_refusals().is_empty());
    }
}
