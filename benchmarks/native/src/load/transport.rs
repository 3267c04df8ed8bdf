//! The bytes of one connection: what waits to be sent, what has come, TLS between.

use crate::plan::Secure;
use rustls::ClientConnection;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;

/// What is read at once, at least.
const ROOM: usize = 256 << 10;
/// Pieces of the message from here on are sent from where they lie.
const LARGE: usize = 16 << 10;
const PIECES: usize = 64;

enum Piece {
    /// Of `Outgoing::own`.
    Own(Range<usize>),
    /// Of the message.
    Message(Range<usize>),
}

/// What waits to be sent, in order. The message is shared by all calls and is not copied when it is large.
struct Outgoing {
    message: Arc<[u8]>,
    own: Vec<u8>,
    pieces: VecDeque<Piece>,
}

impl Outgoing {
    fn add(&mut self, bytes: &[u8]) {
        let begin = self.own.len();
        self.own.extend_from_slice(bytes);
        match self.pieces.back_mut() {
            Some(Piece::Own(last)) => last.end = self.own.len(),
            _ => self.pieces.push_back(Piece::Own(begin..self.own.len())),
        }
    }

    fn add_message(&mut self, part: Range<usize>) {
        if part.len() < LARGE {
            let message = self.message.clone();
            self.add(&message[part]);
        } else {
            self.pieces.push_back(Piece::Message(part));
        }
    }

    fn slice(&self, piece: &Piece) -> &[u8] {
        match piece {
            Piece::Own(range) => &self.own[range.clone()],
            Piece::Message(range) => &self.message[range.clone()],
        }
    }

    fn sent(&mut self, mut count: usize) {
        while count > 0 {
            let (Piece::Own(range) | Piece::Message(range)) = &mut self.pieces[0];
            let step = count.min(range.len());
            range.start += step;
            count -= step;
            if range.start == range.end {
                self.pieces.pop_front();
            }
        }
        if self.pieces.is_empty() {
            self.own.clear();
        }
    }
}

/// One connected socket. Nothing blocks.
pub struct Transport {
    socket: TcpStream,
    tls: Option<ClientConnection>,
    outgoing: Outgoing,
    incoming: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Transport {
    /// Connects; `message` is what `send_message` refers to.
    pub fn connect(target: SocketAddr, secure: Option<&Secure>, message: Arc<[u8]>) -> Result<Self> {
        let socket = TcpStream::connect(target)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let tls = |secure: &Secure| ClientConnection::new(secure.config.clone(), secure.name.clone());
        let mut tls = secure.map(tls).transpose().map_err(Error::other)?;
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(None); // flow control bounds it
        }
        let outgoing = Outgoing { message, own: Vec::new(), pieces: VecDeque::new() };
        Ok(Self { socket, tls, outgoing, incoming: vec![0; 2 * ROOM], begin: 0, end: 0 })
    }

    /// For epoll.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Queues bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.outgoing.add(bytes);
    }

    /// Queues a part of the message.
    pub fn send_message(&mut self, part: Range<usize>) {
        self.outgoing.add_message(part);
    }

    /// Writes what waits, as far as the socket takes it; true when something still waits.
    pub fn flush(&mut self) -> Result<bool> {
        match self.flush_all() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
            other => other.map(|()| false),
        }
    }

    fn flush_all(&mut self) -> Result<()> {
        let out = &mut self.outgoing;
        if let Some(tls) = &mut self.tls {
            while let Some(piece) = out.pieces.front() {
                let written = tls.writer().write(out.slice(piece))?;
                out.sent(written);
            }
            while tls.wants_write() {
                tls.write_tls(&mut self.socket)?;
            }
            return Ok(());
        }
        while !out.pieces.is_empty() {
            let slices: Vec<_> =
                out.pieces.iter().take(PIECES).map(|piece| IoSlice::new(out.slice(piece))).collect();
            let written = self.socket.write_vectored(&slices)?;
            out.sent(written);
        }
        Ok(())
    }

    /// Reads what has come; true when the room was filled, so that there may be more.
    pub fn receive(&mut self) -> Result<bool> {
        if self.begin > 0 {
            self.incoming.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.incoming.len() - self.end < ROOM {
            self.incoming.resize(self.end + 2 * ROOM, 0);
        }
        match self.read() {
            Ok(0) => Err(Error::from(ErrorKind::UnexpectedEof)),
            Ok(count) => {
                self.end += count;
                Ok(self.end == self.incoming.len() || self.tls.is_some())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self) -> Result<usize> {
        let room = &mut self.incoming[self.end..];
        let Some(tls) = &mut self.tls else { return self.socket.read(room) };
        if tls.wants_read() && tls.read_tls(&mut self.socket)? == 0 {
            return Ok(0);
        }
        tls.process_new_packets().map_err(Error::other)?;
        tls.reader().read(room)
    }

    /// What has come and was not consumed.
    pub fn received(&self) -> &[u8] {
        &self.incoming[self.begin..self.end]
    }

    /// The first `count` bytes of it are done with.
    pub fn consume(&mut self, count: usize) {
        self.begin += count;
    }
}
