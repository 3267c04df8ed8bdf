//! Listening sockets: checked when they are taken over, then accepting until the front end drains. Until all of them
//! are taken in, the front end works with duplicates, so that the caller still has them when that fails.

use crate::listen::connections::Connections;
use crate::listen::stream::Stream;
use crate::measure::statistics::Open;
use std::future::poll_fn;
use std::io::{Error, Result};
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};

/// How long to wait when the kernel has no connection to give, for instance for want of descriptors.
const BREATHER: Duration = Duration::from_millis(50);

/// A socket that was checked and belongs to the front end.
pub(crate) struct ListeningSocket {
    descriptor: OwnedFd,
    family: libc::c_int,
    /// As it was given.
    number: RawFd,
}

fn option(descriptor: RawFd, name: libc::c_int) -> Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length are valid for what is asked.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(Error::last_os_error()) }
}

fn unfit(descriptor: RawFd, error: &Error) -> (i32, String) {
    let code = error.raw_os_error().unwrap_or(libc::EINVAL);
    (code, format!("descriptor {descriptor} cannot be a listener: {error}"))
}

fn check(descriptor: RawFd) -> std::result::Result<libc::c_int, (i32, String)> {
    let failed = |error: Error| unfit(descriptor, &error);
    let wrong = |what: &str| (libc::EINVAL, format!("descriptor {descriptor} {what}"));
    // SAFETY: only asks for flags.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags < 0 {
        return Err(failed(Error::last_os_error()));
    }
    if option(descriptor, libc::SO_ACCEPTCONN).map_err(failed)? == 0 {
        return Err(wrong("does not listen: call listen() before giving it to the front end"));
    }
    if flags & libc::O_NONBLOCK == 0 {
        return Err(wrong("blocks: call setblocking(False) before giving it to the front end"));
    }
    match option(descriptor, libc::SO_DOMAIN).map_err(failed)? {
        family @ (libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX) => Ok(family),
        _ => Err(wrong("is neither a TCP nor a Unix socket")),
    }
}

/// Duplicates of listening sockets: of all of them, or of none with an errno and a text that names the one that cannot
/// be used. They stay the caller's until they are `left`.
pub(crate) fn take_over(descriptors: &[RawFd]) -> std::result::Result<Vec<ListeningSocket>, (i32, String)> {
    let mut taken = Vec::with_capacity(descriptors.len());
    for (place, descriptor) in descriptors.iter().enumerate() {
        if descriptors[..place].contains(descriptor) {
            return Err((libc::EINVAL, format!("descriptor {descriptor} is given twice")));
        }
        let family = check(*descriptor)?;
        // SAFETY: it is open, and stays so while this looks at it.
        let duplicate = unsafe { BorrowedFd::borrow_raw(*descriptor) }.try_clone_to_owned();
        taken.push(ListeningSocket {
            descriptor: duplicate.map_err(|error| unfit(*descriptor, &error))?,
            family,
            number: *descriptor,
        });
    }
    Ok(taken)
}

/// Closes what was taken over and taken in: it is the front end's alone from here on.
pub(crate) fn leave(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        // SAFETY: it is open, was given once, and its owner has left it to us.
        drop(unsafe { OwnedFd::from_raw_fd(*descriptor) });
    }
}

/// A socket that the runtime listens on.
enum Listener {
    /// For TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Takes it in; to be called within the runtime.
    fn new(bound: ListeningSocket) -> Result<Self> {
        let ListeningSocket { descriptor, family, number } = bound;
        let taken = if family == libc::AF_UNIX {
            UnixListener::from_std(descriptor.into()).map(Self::Unix)
        } else {
            TcpListener::from_std(descriptor.into()).map(Self::Tcp)
        };
        taken.map_err(|error| Error::new(error.kind(), format!("listening on descriptor {number}: {error}")))
    }

    /// The next connection, and its peer's address over TCP.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<(Stream, Option<SocketAddr>)>> {
        match self {
            Self::Tcp(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, address)| (Stream::Tcp(stream), Some(address)))
            }
            Self::Unix(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| (Stream::Unix(stream), None))
            }
        }
    }
}

/// A protocol that receives connections.
pub(crate) trait Reception: Send + Sync + 'static {
    /// Those that must hear when it closes.
    fn connections(&self) -> &Connections;

    /// Whether it receives no more.
    fn is_closed(&self) -> bool;

    /// Receives a connection, with its peer's address over TCP; within the runtime.
    fn receive(self: &Arc<Self>, stream: Stream, address: Option<SocketAddr>);

    /// The kernel has none to give, for instance because the process has no descriptor left.
    fn accept_failed(&self);

    /// One more socket is listened on, until this is dropped, if that counts.
    fn listens(&self) -> Option<Open<'_>> {
        None
    }
}

/// Accepts connections until their reception closes. To be called within the runtime, which takes the descriptor in.
pub(crate) fn accept<R: Reception>(
    reception: Arc<R>,
    bound: ListeningSocket,
) -> Result<impl Future<Output = ()> + Send + 'static> {
    let listener = Listener::new(bound)?;
    Ok(async move {
        let reception = &reception;
        let _open = reception.listens();
        let listener = listener; // closed before it counts no longer
        let mut listening = None;
        loop {
            let accepted = poll_fn(|cx| {
                listening.get_or_insert_with(|| reception.connections().listen(cx.waker()));
                if reception.is_closed() { Poll::Ready(None) } else { listener.poll_accept(cx).map(Some) }
            })
            .await;
            match accepted {
                None => return,
                Some(Ok((stream, address))) => {
                    if let Stream::Tcp(stream) = &stream {
                        let _ = stream.set_nodelay(true); // fails only when the peer has left already
                    }
                    reception.receive(stream, address);
                }
                Some(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Some(Err(_)) => {
                    reception.accept_failed();
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn what_cannot_listen_is_named_and_not_taken() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let descriptor = listener.as_raw_fd();
        let error = take_over(&[descriptor]).err().unwrap();
        assert!(error.1.contains(&format!("descriptor {descriptor} blocks")), "{error:?}");
        listener.set_nonblocking(true).unwrap();
        assert!(take_over(&[descriptor, descriptor]).err().unwrap().1.contains("twice"));
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(take_over(&[descriptor, udp.as_raw_fd()]).is_err());
        assert!(listener.local_addr().is_ok(), "still the caller's");
        let given = listener.into_raw_fd();
        assert_eq!(take_over(&[given]).ok().unwrap().len(), 1);
        leave(&[given]);
    }
}
