//! A transport that is watched: what comes and goes over it is told to the monitor of its client.

use crate::h2::authority::AuthorityFilter;
use crate::h2::monitor::SharedMonitor;
use crate::listen::stream::Stream;
use crate::measure::clock::now_ns;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A transport that is watched.
pub(crate) struct WatchedTransport<T = Stream> {
    inner: T,
    monitor: SharedMonitor,
    authority: Option<AuthorityFilter>,
    /// Clients of a Unix socket share one host: a proxy for several may name any of them at any time.
    always: bool,
    /// Nothing more is read.
    deaf: bool,
}

impl WatchedTransport {
    /// Watches from here on; HTTP/2 has not begun.
    pub(crate) fn new(inner: Stream, monitor: SharedMonitor) -> Self {
        let always = matches!(inner, Stream::Unix(_));
        Self { inner, monitor, authority: Some(AuthorityFilter::default()), always, deaf: false }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WatchedTransport<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        if self.deaf {
            return Poll::Pending; // its task is about to cut it
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buffer);
        let read = &mut buffer.filled_mut()[before..];
        if !read.is_empty() {
            let goes_on = self.monitor.lock().read(read, now_ns());
            self.deaf = !goes_on;
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
        let Self { inner, monitor, .. } = &mut *self;
        let mut monitor = monitor.lock();
        ready!(monitor.poll_goaway(inner, cx))?;
        let result = Pin::new(inner).poll_write(cx, bytes);
        if result.is_pending() {
            monitor.blocked(true);
        }
        if let Poll::Ready(Ok(written)) = result {
            monitor.written(&bytes[..written]);
        }
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let Self { inner, monitor, .. } = &mut *self;
        let mut monitor = monitor.lock();
        ready!(monitor.poll_goaway(inner, cx))?;
        let result = Pin::new(inner).poll_write_vectored(cx, pieces);
        if result.is_pending() {
            monitor.blocked(true);
        }
        if let Poll::Ready(Ok(mut written)) = result {
            for piece in pieces {
                let part = written.min(piece.len());
                monitor.written(&piece[..part]);
                written -= part;
            }
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(cx);
        // Not only when pending: over TLS a write ends when its bytes lie in the session, and it is the flush that
        // waits for the client and then tells that it took them.
        self.monitor.lock().blocked(result.is_pending());
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::frames::kind;
    use crate::h2::monitor::tests::{frame, monitor};
    use crate::measure::limits::Limit;
    use crate::measure::lock::Lock;
    use std::sync::{Arc, Mutex};
    use std::task::Waker;

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
        let (shared, blocks) = (Arc::new(Lock::new(monitor())), Arc::new(Mutex::new(true)));
        let mut transport = WatchedTransport {
            inner: Session(blocks.clone()),
            monitor: shared.clone(),
            authority: None,
            always: false,
            deaf: false,
        };
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut transport).poll_write(cx, &frame(kind::DATA, 0, 1, &[0; 3])).is_ready());
        assert!(Pin::new(&mut transport).poll_flush(cx).is_pending());
        assert!(shared.lock().blocked_ns().is_some());
        *blocks.lock().unwrap() = false;
        assert!(Pin::new(&mut transport).poll_flush(cx).is_ready());
        assert_eq!(shared.lock().blocked_ns(), None);
    }

    /// Takes so many bytes of each write.
    struct Narrow(usize, Arc<Mutex<Vec<u8>>>);

    impl AsyncWrite for Narrow {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
            let taken = self.0.min(bytes.len());
            self.1.lock().unwrap().extend(&bytes[..taken]);
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_goaway_goes_between_frames() {
        let (shared, sent) = (Arc::new(Lock::new(monitor())), Arc::new(Mutex::new(Vec::new())));
        let mut transport = WatchedTransport {
            inner: Narrow(5, sent.clone()),
            monitor: shared.clone(),
            authority: None,
            always: false,
            deaf: false,
        };
        let cx = &mut Context::from_waker(Waker::noop());
        let (data, last) = (frame(kind::DATA, 0, 1, b"data"), frame(kind::GOAWAY, 0, 0, &[0; 8]));
        for mut left in [&data[..], &last] {
            while !left.is_empty() {
                let Poll::Ready(Ok(taken)) = Pin::new(&mut transport).poll_write(cx, left) else { panic!() };
                left = &left[taken..];
                if sent.lock().unwrap().len() == 5 {
                    shared.lock().say_goaway(Limit::PingsPerConnection);
                }
            }
        }
        let words = [&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11], &b"too_many_pings"[..]].concat();
        let goaway = frame(kind::GOAWAY, 0, 0, &words);
        assert_eq!(*sent.lock().unwrap(), [data, goaway, last].concat());
    }
}
