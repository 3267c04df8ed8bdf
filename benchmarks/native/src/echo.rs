//! A bare gRPC server on the stack of the native front end: what that stack costs when nothing is decided and nothing runs.
//!
//! `echo --port PORT`. One thread, one `current_thread` runtime, a task per connection and one per call, the front end's
//! HTTP/2 settings. Readiness calls get a true answer; every other call gets the answer of the small MLP, with the id of
//! the request in it. Requests are read to their end, and nothing of them is checked.

use bytes::{BufMut, Bytes, BytesMut};
use h2::server::{Builder, SendResponse};
use h2::{Error, RecvStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use std::io;
use tokio::net::{TcpListener, TcpStream};

/// As in `native/src/connection.rs` and, for the windows, what a connection there may grow to.
const FRAME: u32 = 64 << 10;
const SEND_BUFFER: usize = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
const STREAM_WINDOW: u32 = CONNECTION_WINDOW / 4;
const STREAMS: u32 = 4096;

const PREFIX: usize = 5;
/// Field 1, true: what ServerReady and ModelReady answer.
const READY: &[u8] = &[0x08, 0x01];
/// The id's field, of ModelInferRequest and ModelInferResponse alike.
const ID: u64 = 3;
/// Length-delimited.
const BYTES: u64 = 2;
/// ModelInferResponse: model_name "mlp", model_version "1".
const HEAD: &[u8] = b"\x0a\x03mlp\x12\x011";
/// outputs: name "y", datatype "FP32", shape [1, 10]; then raw_output_contents: 40 bytes.
const OUTPUT: &[u8] = b"\x2a\x0d\x0a\x01y\x12\x04FP32\x1a\x02\x01\x0a\x32\x28";
const VALUES: [u8; 40] = [0; 40];

/// A varint and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (place, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[place + 1..]));
        }
    }
    None
}

/// The id in a ModelInferRequest; empty when there is none before the first field that has no length.
fn id_of(message: &[u8]) -> &[u8] {
    let mut rest = message;
    while let Some((tag, after)) = varint(rest) {
        let Some((length, after)) = varint(after) else { break };
        if tag & 7 != BYTES || length as usize > after.len() {
            break;
        }
        let (value, after) = after.split_at(length as usize);
        if tag >> 3 == ID {
            return value;
        }
        rest = after;
    }
    &[]
}

fn framed(message: &[&[u8]]) -> Bytes {
    let length: usize = message.iter().map(|part| part.len()).sum();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(length as u32);
    message.iter().for_each(|part| frame.put_slice(part));
    frame.freeze()
}

fn answer(request: &[u8]) -> Bytes {
    let id = id_of(request.get(PREFIX..).unwrap_or_default());
    // An id of 128 bytes and more would need a longer length than this.
    match id.len() {
        0 | 128.. => framed(&[HEAD, OUTPUT, &VALUES]),
        length => framed(&[HEAD, &[(ID << 3 | BYTES) as u8, length as u8], id, OUTPUT, &VALUES]),
    }
}

async fn read(body: &mut RecvStream) -> Result<Bytes, Error> {
    let mut whole = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        let _ = body.flow_control().release_capacity(piece.len()); // it has just been received
        if whole.is_empty() && body.is_end_stream() {
            return Ok(piece); // in one frame: not copied
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

async fn serve_call(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), Error> {
    let (head, mut body) = request.into_parts();
    let request = read(&mut body).await?;
    let message = if head.uri.path().ends_with("Ready") { framed(&[READY]) } else { answer(&request) };
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(message, false)?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}

async fn serve_connection(socket: TcpStream) -> Result<(), Error> {
    let mut connection = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(STREAMS)
        .max_send_buffer_size(SEND_BUFFER)
        .handshake(socket)
        .await?;
    while let Some(call) = connection.accept().await {
        let (request, respond) = call?;
        tokio::spawn(serve_call(request, respond));
    }
    Ok(())
}

async fn serve(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(serve_connection(socket));
    }
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let port = match &words[..] {
        [option, port] if option == "--port" => port.parse().ok(),
        _ => None,
    };
    let Some(port) = port else {
        eprintln!("usage: echo --port PORT");
        std::process::exit(2);
    };
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(serve(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_found_and_copied() {
        let request = b"\x0a\x03mlp\x1a\x04id-7\x2a\x00";
        assert_eq!(id_of(request), b"id-7");
        let message = answer(&framed(&[request]));
        assert_eq!(message[4] as usize, message.len() - PREFIX);
        assert_eq!(id_of(&message[PREFIX..]), b"id-7");
    }

    #[test]
    fn without_an_id_there_is_none() {
        assert_eq!(id_of(b"\x0a\x03mlp\x2a\x00"), b"");
        assert_eq!(id_of(b"\x0a\xffx"), b"");
        assert_eq!(answer(b"").len(), PREFIX + HEAD.len() + OUTPUT.len() + VALUES.len());
    }
}
