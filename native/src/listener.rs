//! Listening sockets: checked when they are taken over, then accepting until the door drains.

use crate::connection;
use crate::door::Core;
use crate::limits::Limit;
use std::future::poll_fn;
use std::io::{Error, Result};
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// How long to wait when the kernel has no connection to give, for instance for want of descriptors.
pub const BREATHER: Duration = Duration::from_millis(50);

/// A socket that was checked and belongs to the door.
pub struct ListeningSocket {
    descriptor: OwnedFd,
    family: libc::c_int,
}

impl AsRawFd for ListeningSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// An accepted connection.
pub enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
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

fn check(descriptor: RawFd) -> std::result::Result<libc::c_int, (i32, String)> {
    let failed = |error: Error| {
        let code = error.raw_os_error().unwrap_or(libc::EINVAL);
        (code, format!("descriptor {descriptor} cannot be a listener: {error}"))
    };
    let wrong = |what: &str| (libc::EINVAL, format!("descriptor {descriptor} {what}"));
    // SAFETY: only asks for flags.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags < 0 {
        return Err(failed(Error::last_os_error()));
    }
    if option(descriptor, libc::SO_ACCEPTCONN).map_err(failed)? == 0 {
        return Err(wrong("does not listen: call listen() before giving it to the door"));
    }
    if flags & libc::O_NONBLOCK == 0 {
        return Err(wrong("blocks: call setblocking(False) before giving it to the door"));
    }
    match option(descriptor, libc::SO_DOMAIN).map_err(failed)? {
        family @ (libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX) => Ok(family),
        _ => Err(wrong("is neither a TCP nor a Unix socket")),
    }
}

/// Takes over listening sockets: all of them, or none with an errno and a text that names the one that cannot be used.
pub fn take_over(descriptors: &[RawFd]) -> std::result::Result<Vec<ListeningSocket>, (i32, String)> {
    let mut families = Vec::with_capacity(descriptors.len());
    for (place, descriptor) in descriptors.iter().enumerate() {
        if descriptors[..place].contains(descriptor) {
            return Err((libc::EINVAL, format!("descriptor {descriptor} is given twice")));
        }
        families.push(check(*descriptor)?);
    }
    let bound = |(descriptor, family): (&RawFd, libc::c_int)| ListeningSocket {
        // SAFETY: it is open, given once, and the caller has left it to us.
        descriptor: unsafe { OwnedFd::from_raw_fd(*descriptor) },
        family,
    };
    Ok(descriptors.iter().zip(families).map(bound).collect())
}

/// A socket that the runtime listens on.
pub enum Listener {
    /// For TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Takes it in; to be called within the runtime.
    pub fn new(bound: ListeningSocket) -> Result<Self> {
        Ok(if bound.family == libc::AF_UNIX {
            Self::Unix(UnixListener::from_std(bound.descriptor.into())?)
        } else {
            Self::Tcp(TcpListener::from_std(bound.descriptor.into())?)
        })
    }

    /// The next connection, and its peer's address over TCP.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<(Socket, Option<SocketAddr>)>> {
        match self {
            Self::Tcp(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, address)| (Socket::Tcp(stream), Some(address)))
            }
            Self::Unix(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| (Socket::Unix(stream), None))
            }
        }
    }
}

/// Accepts connections until the door drains. To be called within the runtime, which takes the descriptor in.
pub fn accept(core: Arc<Core>, bound: ListeningSocket) -> Result<impl Future<Output = ()> + Send + 'static> {
    let descriptor = bound.descriptor.as_raw_fd();
    let listener = Listener::new(bound).map_err(|error| {
        Error::new(error.kind(), format!("listening on descriptor {descriptor}: {error}"))
    })?;
    Ok(async move {
        let mut listening = None;
        loop {
            let accepted = poll_fn(|cx| {
                listening.get_or_insert_with(|| core.connections.listen(cx.waker()));
                if core.is_draining() { Poll::Ready(None) } else { listener.poll_accept(cx).map(Some) }
            })
            .await;
            match accepted {
                None => return,
                Some(Ok((socket, address))) => welcome(&core, socket, address),
                Some(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Some(Err(_)) => {
                    core.statistics.accept_failed();
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    })
}

fn welcome(core: &Arc<Core>, socket: Socket, address: Option<SocketAddr>) {
    let bounds = [Limit::Connections, Limit::ConnectionsPerPeer].map(|limit| core.limits.get(limit));
    let peer = address.map(|address| address.ip().to_canonical());
    match core.connections.admit(bounds[0], bounds[1], peer) {
        Ok(admission) => {
            if let Socket::Tcp(stream) = &socket {
                let _ = stream.set_nodelay(true); // fails only when the peer has left already
            }
            tokio::spawn(connection::serve(core.clone(), socket, peer_text(address).into(), admission));
        }
        Err(limit) => {
            core.statistics.connection_refused();
            core.statistics.strike(limit);
        }
    }
}

/// The address as gRPC writes it.
fn peer_text(address: Option<SocketAddr>) -> String {
    let Some(address) = address else { return "unix:".to_string() };
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => format!("ipv4:{ip}:{}", address.port()),
        IpAddr::V6(ip) => format!("ipv6:[{ip}]:{}", address.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    #[test]
    fn addresses_are_written_as_grpc_does() {
        let text = |address: &str| peer_text(address.parse().ok());
        assert_eq!(text("10.0.0.1:5"), "ipv4:10.0.0.1:5");
        assert_eq!(text("[::1]:5"), "ipv6:[::1]:5");
        assert_eq!(text("[::ffff:10.0.0.1]:5"), "ipv4:10.0.0.1:5");
        assert_eq!(peer_text(None), "unix:");
    }

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
        assert_eq!(take_over(&[listener.into_raw_fd()]).ok().unwrap().len(), 1);
    }
}
