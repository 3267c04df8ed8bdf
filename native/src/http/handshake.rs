//! TLS on the HTTP addresses: who speaks it and who may come, in bounded time, before anything of HTTP is read.

use crate::http::client::Client;
use crate::http::front::Front;
use crate::http::service::Service;
use crate::http::stream::Stream;
use crate::listen::identity::Identity;
use crate::listen::listener::Socket;
use crate::listen::tls::{Failure, Tls, speaks_tls};
use bytes::BytesMut;
use futures_util::future::{Either, select};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

/// What HTTP goes over, and who the client is by its certificate, if that is known. None: nothing of HTTP will come of
/// it.
pub(crate) async fn establish(
    front: &Front,
    socket: Socket,
    peer: &Arc<str>,
) -> Option<(Stream, Option<Identity>)> {
    let (stream, tls) = match (socket, &front.tls) {
        (Socket::Tcp(stream), Some(tls)) => (stream, tls),
        (socket, _) => return Some((socket.into(), None)),
    };
    let shaking = timeout(front.handshake, shake(front, tls, stream, peer));
    match select(pin!(shaking), pin!(ending(&front.service))).await {
        Either::Left((Ok(shaken), _)) => shaken.map(|(stream, client)| (stream.into(), client)),
        Either::Left((Err(_), _)) => {
            front.service.figures.handshakes_late.fetch_add(1, Relaxed);
            None
        }
        Either::Right(_) => None,
    }
}

async fn shake(
    front: &Front,
    tls: &Tls,
    stream: TcpStream,
    peer: &Arc<str>,
) -> Option<(TlsStream<TcpStream>, Option<Identity>)> {
    if !speaks_tls(&stream).await {
        front.service.figures.handshakes_plain.fetch_add(1, Relaxed);
        let mut client = Client::new(Socket::Tcp(stream), front.write_stall);
        if client.write(BytesMut::from(&front.plain[..])).await.is_ok() {
            client.leave().await;
        }
        return None;
    }
    match tls.accept(stream).await {
        Ok((stream, client)) => Some((stream, client)),
        Err(failure) => {
            match failure {
                Failure::Name(client) => front.service.turned_away(peer, client),
                Failure::Other(_) => drop(front.service.figures.handshakes_failed.fetch_add(1, Relaxed)),
            }
            None
        }
    }
}

/// Ready when connections that wait are to close.
fn ending(service: &Service) -> impl Future<Output = ()> + '_ {
    let mut listening = None;
    poll_fn(move |cx| {
        listening.get_or_insert_with(|| service.resources.connections.listen(cx.waker()));
        if service.is_ending() { Poll::Ready(()) } else { Poll::Pending }
    })
}
