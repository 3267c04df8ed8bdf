//! The byte streams of connections: a client's, over TCP, TLS or a Unix socket, and the application's.

use bytes::BytesMut;
use futures_util::FutureExt;
use std::future::Future;
use std::io::{BufRead, Error, ErrorKind, IoSlice, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// What is read of a client over TLS before it is known that there is something to take memory for.
const FIRST: usize = 1024;

/// A stream of any kind. An enum, so that the protocols are compiled once.
pub(crate) enum Stream {
    /// TCP in the clear.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

macro_rules! each {
    ($self:expr, $stream:ident => $action:expr) => {
        match $self {
            Stream::Tcp($stream) => $action,
            Stream::Unix($stream) => $action,
            Stream::Tls($stream) => $action,
        }
    };
}

/// Of the socket below.
macro_rules! each_socket {
    ($self:expr, $socket:ident => $action:expr) => {
        match $self {
            Stream::Tcp($socket) => $action,
            Stream::Unix($socket) => $action,
            Stream::Tls(stream) => {
                let $socket = stream.get_ref().0;
                $action
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}

impl Stream {
    /// Appends what has come, `room` bytes at most beyond what fits anyway; 0 at the end. Memory is only taken when
    /// something is there. Over TLS the end must be said in its words: one that is not is an error.
    pub(crate) fn poll_append(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut BytesMut,
        room: usize,
    ) -> Poll<Result<usize>> {
        match self {
            Self::Tcp(stream) => ready!(stream.poll_read_ready(cx))?,
            Self::Unix(stream) => ready!(stream.poll_read_ready(cx))?,
            Self::Tls(stream) => {
                if !has_text(stream) {
                    let mut first = [0; FIRST];
                    let mut first = ReadBuf::new(&mut first);
                    ready!(Pin::new(stream).poll_read(cx, &mut first))?;
                    into.extend_from_slice(first.filled());
                    return Poll::Ready(Ok(first.filled().len()));
                }
            }
        }
        into.reserve(room);
        each!(self, stream => pin!(stream.read_buf(into)).poll(cx))
    }

    /// The user of the client, where the kernel knows it: over a Unix socket, as it connected.
    pub(crate) fn user(&self) -> Option<u32> {
        match self {
            Self::Unix(stream) => stream.peer_cred().ok().map(|found| found.uid()),
            Self::Tcp(_) | Self::Tls(_) => None,
        }
    }

    /// Whether the other side has closed altogether, and not only its own direction. A Unix socket tells at once; TCP
    /// tells only by a reset.
    pub(crate) fn is_hung_up(&self) -> bool {
        let ready = each_socket!(self, socket => socket.ready(Interest::WRITABLE).now_or_never());
        matches!(ready, Some(Ok(ready)) if ready.is_write_closed())
    }

    /// What is ready for writing when the other side has closed altogether or reset, and never else: a registration of
    /// its own, for hang-ups and errors, because that of the stream is ready for good once one direction has ended.
    pub(crate) fn watch(&self) -> Result<AsyncFd<OwnedFd>> {
        let descriptor = each_socket!(self, socket => socket.as_fd().try_clone_to_owned())?;
        // SAFETY: the registration owns the descriptor, which stays open until it is dropped.
        unsafe { AsyncFd::register_with_interest(descriptor, Interest::PRIORITY) }.map_err(Error::from)
    }
}

/// Whether something that has come was deciphered already, or cannot be, or there will be no more: the socket need not
/// be asked.
fn has_text(stream: &mut TlsStream<TcpStream>) -> bool {
    !matches!(stream.get_mut().1.reader().fill_buf(), Err(error) if error.kind() == ErrorKind::WouldBlock)
}
