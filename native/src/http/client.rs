//! The client's side of an HTTP connection: what has come of it and was not yet used, and the time that it may take.

use crate::listen::stream::Stream;
use crate::measure::budget::Reservation;
use bytes::{Buf, BytesMut};
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep};

/// Room for what is read at a time.
pub(crate) const ROOM: usize = 16 * 1024;
/// How much of a client that has nothing more to say is read and thrown away, so that it gets to read its last answer.
const LINGER_BYTES: usize = 64 << 20;
const LINGER: Duration = Duration::from_secs(1);

/// The time that a client has taken nothing although there was something.
struct Stall {
    patience: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn bound(&mut self, taken: Poll<Result<()>>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if taken.is_ready() {
            self.timer = None;
            return taken;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

/// The client; what it has sent and was not used lies in `inbound`.
pub(crate) struct Client {
    stream: Stream,
    /// What has come.
    pub(crate) inbound: BytesMut,
    /// Nothing more will come; it may still wait for answers.
    pub(crate) ended: bool,
    /// For what has come, where that is much.
    pub(crate) reservation: Option<Reservation>,
    stall: Stall,
    /// From the first time that nothing is read of it and it may yet go.
    watch: Option<AsyncFd<OwnedFd>>,
}

impl Client {
    /// A client that has just connected and may leave an answer untouched for `patience`.
    pub(crate) fn new(stream: Stream, patience: Duration) -> Self {
        let stall = Stall { patience, timer: None };
        Self { stream, inbound: BytesMut::new(), ended: false, reservation: None, stall, watch: None }
    }

    /// Gives back the memory of what has come, all of which was used: a client that waits, or is slow, holds none.
    pub(crate) fn release(&mut self) {
        self.inbound = BytesMut::new();
        self.reservation = None;
    }

    /// Gives back the memory of what has come and was used, where little is left.
    pub(crate) fn renew(&mut self) {
        self.inbound = BytesMut::from(&self.inbound[..]); // what was used is memory as well, until the buffer goes
        self.reservation = None;
    }

    /// Ready when more has come or the client has said all. An error: it is gone.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<()>> {
        if self.ended {
            return Poll::Pending;
        }
        let read = ready!(self.stream.poll_append(cx, &mut self.inbound, room))?;
        self.ended = read == 0;
        if self.ended && self.stream.is_hung_up() {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the client is not there any more; meanwhile up to `bound` bytes are kept of what it sends ahead. A
    /// client that only sends no more is there, and waits for its answer, until it resets or closes altogether.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, bound: usize) -> Poll<()> {
        while !self.ended && self.inbound.len() < bound {
            if ready!(self.poll_read(cx, ROOM)).is_err() {
                self.ended = true;
                return Poll::Ready(());
            }
        }
        self.poll_hung_up(cx)
    }

    /// Ready when the client has reset, or closed altogether as far as that can be told; for when nothing is read of
    /// it. Without a descriptor to watch it by it counts as there, and its answer finds out.
    pub(crate) fn poll_hung_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.watch.is_none() {
            self.watch = self.stream.watch().ok();
        }
        self.watch.as_ref().map_or(Poll::Pending, |watch| watch.poll_write_ready(cx).map(|_| ()))
    }

    /// Sends from the front of `bytes`. An error when the client is gone, or took nothing for too long.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &mut impl Buf) -> Poll<Result<()>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes.chunk());
        let written = written.map_ok(|written| bytes.advance(written));
        self.stall.bound(written, cx)
    }

    /// Sends what was written and is still here. An error as `poll_write`.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.stall.bound(flushed, cx)
    }

    /// Sends all of it. An error as `poll_write`.
    pub(crate) async fn write(&mut self, mut bytes: BytesMut) -> Result<()> {
        while !bytes.is_empty() {
            poll_fn(|cx| self.poll_write(cx, &mut bytes)).await?;
        }
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Reads some more. False when nothing comes until then, or the client ends.
    pub(crate) async fn more(&mut self, room: usize, until: Instant) -> bool {
        let mut timer = None;
        let read = poll_fn(|cx| {
            if let Poll::Ready(read) = self.poll_read(cx, room) {
                return Poll::Ready(read.is_ok());
            }
            let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
            timer.as_mut().poll(cx).map(|()| false)
        });
        read.await && !self.ended
    }

    /// Reads until `length` bytes are there. False when they do not come until then, or the client ends before.
    pub(crate) async fn fill(&mut self, length: usize, until: Instant) -> bool {
        if self.inbound.len() >= length {
            return true;
        }
        let mut timer = None;
        poll_fn(|cx| {
            while self.inbound.len() < length && !self.ended {
                let room = length - self.inbound.len();
                match self.poll_read(cx, room) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => self.ended = true,
                    Poll::Pending => {
                        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
                        return timer.as_mut().poll(cx).map(|()| false);
                    }
                }
            }
            Poll::Ready(self.inbound.len() >= length)
        })
        .await
    }

    /// Ends the connection so that the client gets to read what it was sent.
    pub(crate) async fn leave(mut self) {
        self.release();
        let over = Box::pin(sleep(LINGER));
        let leaving = async {
            if self.stream.shutdown().await.is_err() {
                return;
            }
            let mut read = 0;
            while !self.ended && read < LINGER_BYTES {
                self.inbound.clear();
                if poll_fn(|cx| self.poll_read(cx, ROOM)).await.is_err() {
                    return;
                }
                read += self.inbound.len();
            }
        };
        tokio::select! {
            () = leaving => {}
            () = over => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::net::{TcpListener, TcpStream, UnixStream};
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_secs(20);

    /// A peer and its client, of either family.
    async fn pairs() -> [(Stream, Client); 2] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let (unix, other) = UnixStream::pair().unwrap();
        [
            (Stream::Tcp(tcp), Client::new(Stream::Tcp(accepted), LONG)),
            (Stream::Unix(unix), Client::new(Stream::Unix(other), LONG)),
        ]
    }

    async fn gone(client: &mut Client) -> bool {
        timeout(LONG, poll_fn(|cx| client.poll_gone(cx, 4))).await.is_ok()
    }

    fn is_there(client: &mut Client) -> bool {
        client.poll_gone(&mut Context::from_waker(Waker::noop()), 4).is_pending()
    }

    #[tokio::test]
    async fn a_peer_that_ends_its_half_is_there_until_it_is_gone_altogether() {
        for (mut peer, mut client) in pairs().await {
            client.write(BytesMut::from("unread")).await.unwrap(); // so that the close of a TCP socket is a reset
            peer.shutdown().await.unwrap();
            assert!(!client.more(ROOM, Instant::now() + LONG).await && client.ended);
            assert!(is_there(&mut client));
            drop(peer);
            assert!(gone(&mut client).await);
        }
    }

    #[tokio::test]
    async fn a_peer_that_has_sent_more_than_is_read_is_there_until_it_is_gone_altogether() {
        for (mut peer, mut client) in pairs().await {
            client.write(BytesMut::from("unread")).await.unwrap();
            peer.write_all(b"ahead").await.unwrap();
            assert!(client.fill(5, Instant::now() + LONG).await);
            assert!(is_there(&mut client));
            drop(peer);
            assert!(gone(&mut client).await);
        }
    }
}
