//! One HTTP/2 connection of a client that sends the same message again and again and reads how calls end.
//!
//! It keeps the rules that a server may rely on: flow control in both directions, bounds on streams, SETTINGS and PING
//! acknowledged, RST_STREAM for what is given up. The server is asked to keep no header table, which makes its header
//! blocks stateless: a status that was seen before is found by its bytes.

use crate::frames::{self, Blocks, Frame, PREFACE, TABLE_USUAL, flag, header, kind, setting};
use crate::plan::Plan;
use crate::transport::Transport;
use std::collections::{HashMap, VecDeque};
use std::io::{Error, Result};
use std::rc::Rc;
use std::sync::Arc;

/// gRPC statuses for what is not a status of the server.
pub mod code {
    #![allow(missing_docs)]
    pub const OK: u32 = 0;
    pub const CANCELLED: u32 = 1;
    pub const UNKNOWN: u32 = 2;
    pub const DEADLINE_EXCEEDED: u32 = 4;
    pub const INTERNAL: u32 = 13;
    pub const UNAVAILABLE: u32 = 14;
}

const PREFIX: usize = 5;
const WINDOW_USUAL: i64 = 65535;
const WINDOW_MAX: u32 = 0x7fff_ffff;
/// What the server may have sent before it is told that there is room again.
const RECEIVED_MAX: u32 = 1 << 28;
const FRAME_USUAL: usize = 16384;
const FRAME_TAKEN: u32 = 1 << 20;
const STATUSES: usize = 4096;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const LEAVING: &str = "the server goes away";

/// How a call ended.
#[derive(Clone)]
pub struct Status {
    /// The gRPC status.
    pub code: u32,
    /// Its text.
    pub message: Rc<str>,
}

/// A call that has ended.
pub struct Finished {
    /// The number it was started with.
    pub call: usize,
    /// How.
    pub status: Status,
}

struct Unsent {
    offset: usize,
    window: i64,
}

struct Open {
    call: usize,
    received: usize,
    unsent: Option<Unsent>,
}

/// A header block that goes on in the next frame.
struct Split {
    flags: u8,
    stream: u32,
    block: Vec<u8>,
}

/// What the server lets a client do.
struct Peer {
    streams: usize,
    window: i64,
    frame: usize,
    table: u32,
}

/// A connection.
pub struct Connection {
    transport: Transport,
    length: usize,
    expected: usize,
    peer: Peer,
    window: i64,
    received: u32,
    blocks: Option<Blocks>,
    open: HashMap<u32, Open>,
    sending: VecDeque<u32>,
    waiting: VecDeque<(usize, u64)>,
    next: u32,
    split: Option<Split>,
    statuses: HashMap<Vec<u8>, Status>,
    block: Vec<u8>,
    leaving: bool,
    lost: Option<Rc<str>>,
}

fn status(code: u32, message: &str) -> Status {
    Status { code, message: message.into() }
}

fn wrong(text: &str) -> Error {
    Error::other(format!("the server breaks HTTP/2: {text}"))
}

impl Connection {
    /// Connects and queues what a client begins with. `message` is one framed request.
    pub fn open(plan: &Plan, message: &Arc<[u8]>) -> Result<Self> {
        let mut transport = Transport::connect(plan.target, plan.secure.as_ref(), message.clone())?;
        transport.send(PREFACE);
        let ours = [
            (setting::TABLE, 0),
            (setting::PUSH, 0),
            (setting::WINDOW, WINDOW_MAX),
            (setting::FRAME, FRAME_TAKEN),
        ];
        transport.send(&header(6 * ours.len(), kind::SETTINGS, 0, 0));
        for (key, value) in ours {
            transport.send(&key.to_be_bytes());
            transport.send(&value.to_be_bytes());
        }
        transport.send(&header(4, kind::WINDOW_UPDATE, 0, 0));
        transport.send(&(WINDOW_MAX - WINDOW_USUAL as u32).to_be_bytes());
        Ok(Self {
            transport,
            length: message.len(),
            expected: plan.expect_bytes,
            peer: Peer { streams: usize::MAX, window: WINDOW_USUAL, frame: FRAME_USUAL, table: TABLE_USUAL },
            window: WINDOW_USUAL,
            received: 0,
            blocks: None,
            open: HashMap::new(),
            sending: VecDeque::new(),
            waiting: VecDeque::new(),
            next: 1,
            split: None,
            statuses: HashMap::new(),
            block: Vec::new(),
            leaving: false,
            lost: None,
        })
    }

    /// The bytes of it.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Whether calls can be made: the server has said its settings and taken ours.
    pub fn is_ready(&self) -> bool {
        self.blocks.is_some()
    }

    /// Why there is no connection any more.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Whether calls can still be made.
    pub fn takes_calls(&self) -> bool {
        self.lost.is_none() && !self.leaving
    }

    /// From here on calls are made with these headers.
    fn ready(&mut self, plan: &Plan) {
        let authority = plan.target.to_string();
        self.blocks.get_or_insert_with(|| {
            Blocks::new(&plan.method, &authority, plan.secure.is_some(), self.peer.table)
        });
    }

    /// Queues a call; it ends in `finished` here or of `receive`.
    pub fn call(&mut self, call: usize, timeout_us: u64, finished: &mut Vec<Finished>) {
        if let Some(reason) = &self.lost {
            finished.push(Finished { call, status: status(code::UNAVAILABLE, reason) });
        } else if self.leaving {
            finished.push(Finished { call, status: status(code::UNAVAILABLE, LEAVING) });
        } else if self.open.len() >= self.peer.streams {
            self.waiting.push_back((call, timeout_us));
        } else {
            self.start(call, timeout_us);
        }
    }

    fn start(&mut self, call: usize, timeout_us: u64) {
        let Some(blocks) = &mut self.blocks else { return };
        let stream = self.next;
        self.next += 2;
        self.block.clear();
        blocks.write(timeout_us, &mut self.block);
        self.transport.send(&header(self.block.len(), kind::HEADERS, flag::END_HEADERS, stream));
        self.transport.send(&self.block);
        let mut unsent = Unsent { offset: 0, window: self.peer.window };
        let unsent = if self.push(stream, &mut unsent) { None } else { Some(unsent) };
        if unsent.is_some() {
            self.sending.push_back(stream);
        }
        self.open.insert(stream, Open { call, received: 0, unsent });
    }

    /// Queues as much of a message as the windows allow; true when that is all of it.
    fn push(&mut self, stream: u32, unsent: &mut Unsent) -> bool {
        while unsent.offset < self.length && self.window > 0 && unsent.window > 0 {
            let room = self.window.min(unsent.window) as usize;
            let size = room.min(self.peer.frame).min(self.length - unsent.offset);
            let part = unsent.offset..unsent.offset + size;
            unsent.offset = part.end;
            unsent.window -= size as i64;
            self.window -= size as i64;
            let flags = if part.end == self.length { flag::END_STREAM } else { 0 };
            self.transport.send(&header(size, kind::DATA, flags, stream));
            self.transport.send_message(part);
        }
        unsent.offset == self.length
    }

    /// Goes on with messages that waited for a window, oldest first.
    fn push_waiting(&mut self) {
        for _ in 0..self.sending.len() {
            let Some(stream) = self.sending.pop_front() else { return };
            let Some(mut unsent) = self.open.get_mut(&stream).and_then(|open| open.unsent.take()) else {
                continue;
            };
            if !self.push(stream, &mut unsent) {
                self.sending.push_back(stream);
                if let Some(open) = self.open.get_mut(&stream) {
                    open.unsent = Some(unsent);
                }
            }
        }
    }

    /// Gives a call up whose time is over; false when it has ended already.
    pub fn cancel(&mut self, call: usize) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != call);
        let found = self.open.iter().find(|(_, open)| open.call == call).map(|(stream, _)| *stream);
        if let Some(stream) = found {
            self.open.remove(&stream);
            self.reset(stream);
            self.start_waiting();
        }
        found.is_some() || self.waiting.len() < before
    }

    fn reset(&mut self, stream: u32) {
        self.transport.send(&header(4, kind::RST_STREAM, 0, stream));
        self.transport.send(&CANCEL.to_be_bytes());
    }

    fn start_waiting(&mut self) {
        while self.open.len() < self.peer.streams {
            let Some((call, timeout_us)) = self.waiting.pop_front() else { return };
            self.start(call, timeout_us);
        }
    }

    /// Writes what waits; true when the socket does not take all of it now.
    pub fn flush(&mut self, finished: &mut Vec<Finished>) -> bool {
        if self.lost.is_some() {
            return false;
        }
        self.transport.flush().unwrap_or_else(|error| {
            self.lose(&error, finished);
            false
        })
    }

    /// Takes in what has come.
    pub fn receive(&mut self, plan: &Plan, finished: &mut Vec<Finished>) {
        while self.lost.is_none() {
            let more =
                self.transport.receive().and_then(|more| self.take_frames(plan, finished).map(|()| more));
            match more {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => self.lose(&error, finished),
            }
        }
    }

    fn lose(&mut self, error: &Error, finished: &mut Vec<Finished>) {
        let reason: Rc<str> = format!("the connection is lost: {error}").into();
        let calls = self.open.drain().map(|(_, open)| open.call);
        for call in calls.chain(self.waiting.drain(..).map(|(call, _)| call)) {
            finished.push(Finished { call, status: status(code::UNAVAILABLE, &reason) });
        }
        self.lost = Some(reason);
    }

    fn take_frames(&mut self, plan: &Plan, finished: &mut Vec<Finished>) -> Result<()> {
        // The bytes are borrowed while the rest of the connection changes, so each frame's body is looked at first.
        while let Some((frame, length)) = frames::next(self.transport.received()) {
            match (frame.kind, frame.flags & flag::ACK != 0) {
                (kind::DATA, ends) => {
                    let size = frames::unpadded(&frame).ok_or_else(|| wrong("padding"))?.len();
                    let (stream, whole) = (frame.stream, frame.body.len() as u32);
                    self.take_data(stream, size, whole, ends, finished);
                }
                (kind::HEADERS | kind::CONTINUATION, _) => {
                    if let Some((stream, status)) = take_headers(&frame, &mut self.split, &mut self.statuses)?
                    {
                        self.end(stream, status, finished);
                    }
                }
                (kind::SETTINGS, true) => self.ready(plan),
                (kind::SETTINGS, false) => {
                    let body = frame.body.to_vec();
                    self.take_settings(&body);
                }
                (kind::PING, false) => {
                    let body = frame.body.to_vec();
                    self.transport.send(&header(body.len(), kind::PING, flag::ACK, 0));
                    self.transport.send(&body);
                }
                (kind::WINDOW_UPDATE, _) => {
                    let more = frames::number(frame.body).ok_or_else(|| wrong("a short WINDOW_UPDATE"))?;
                    let stream = frame.stream;
                    self.take_window(stream, i64::from(more));
                }
                (kind::RST_STREAM, _) => {
                    let why = frames::number(frame.body).ok_or_else(|| wrong("a short RST_STREAM"))?;
                    let stream = frame.stream;
                    self.end(stream, reset_status(why), finished);
                }
                (kind::GOAWAY, _) => {
                    self.leaving = true; // what is under way may still be answered; nothing new is sent
                    let waiting = self.waiting.drain(..).map(|(call, _)| call);
                    let status = status(code::UNAVAILABLE, LEAVING);
                    finished.extend(waiting.map(|call| Finished { call, status: status.clone() }));
                }
                _ => {}
            }
            self.transport.consume(length);
        }
        Ok(())
    }

    fn take_data(&mut self, stream: u32, size: usize, whole: u32, ends: bool, finished: &mut Vec<Finished>) {
        self.received += whole;
        if self.received > RECEIVED_MAX {
            self.transport.send(&header(4, kind::WINDOW_UPDATE, 0, 0));
            self.transport.send(&self.received.to_be_bytes());
            self.received = 0;
        }
        if let Some(open) = self.open.get_mut(&stream) {
            open.received += size;
            if ends {
                self.end(stream, status(code::UNKNOWN, "ended without a status"), finished);
            }
        }
    }

    fn take_settings(&mut self, body: &[u8]) {
        for entry in body.chunks_exact(6) {
            let key = u16::from_be_bytes([entry[0], entry[1]]);
            let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
            match key {
                setting::STREAMS => self.peer.streams = value as usize,
                setting::FRAME => self.peer.frame = value as usize,
                setting::TABLE => self.peer.table = value,
                setting::WINDOW => {
                    let more = i64::from(value) - self.peer.window;
                    let unsent = self.open.values_mut().filter_map(|open| open.unsent.as_mut());
                    unsent.for_each(|unsent| unsent.window += more);
                    self.peer.window += more;
                }
                _ => {}
            }
        }
        self.transport.send(&header(0, kind::SETTINGS, flag::ACK, 0));
        self.start_waiting();
        self.push_waiting();
    }

    fn take_window(&mut self, stream: u32, more: i64) {
        if stream == 0 {
            self.window += more;
        } else if let Some(unsent) = self.open.get_mut(&stream).and_then(|open| open.unsent.as_mut()) {
            unsent.window += more;
        }
        if !self.sending.is_empty() {
            self.push_waiting();
        }
    }

    fn end(&mut self, stream: u32, status: Status, finished: &mut Vec<Finished>) {
        let Some(open) = self.open.remove(&stream) else { return }; // given up before
        if open.unsent.is_some() {
            self.reset(stream); // nobody reads the rest
        }
        let status = if status.code == code::OK { self.checked(&open, status) } else { status };
        finished.push(Finished { call: open.call, status });
        self.start_waiting();
    }

    fn checked(&self, open: &Open, good: Status) -> Status {
        let wrong = match (open.received, self.expected) {
            (..PREFIX, _) => "OK without an answer".to_string(),
            (received, expected) if expected > 0 && received != expected + PREFIX => {
                format!("an answer of {} bytes instead of {expected}", received - PREFIX)
            }
            _ => return good,
        };
        status(code::INTERNAL, &wrong)
    }
}

fn reset_status(why: u32) -> Status {
    let text = format!("the server reset the stream with code {why}");
    match why {
        REFUSED_STREAM => status(code::UNAVAILABLE, &text),
        CANCEL => status(code::CANCELLED, &text),
        _ => status(code::INTERNAL, &text),
    }
}

/// The stream and the status when these headers are the last of a call.
fn take_headers(
    frame: &Frame<'_>,
    split: &mut Option<Split>,
    statuses: &mut HashMap<Vec<u8>, Status>,
) -> Result<Option<(u32, Status)>> {
    if frame.kind == kind::HEADERS && frame.flags & (flag::PADDED | flag::PRIORITY) != 0 {
        return Err(Error::other("padded or prioritised headers are not understood here"));
    }
    let whole = frame.flags & flag::END_HEADERS != 0;
    let begun = match (frame.kind, split.take()) {
        (kind::HEADERS, None) if whole => {
            let ends = frame.flags & flag::END_STREAM != 0;
            return ends.then(|| decode(frame.body, statuses).map(|s| (frame.stream, s))).transpose();
        }
        (kind::HEADERS, None) => {
            Split { flags: frame.flags, stream: frame.stream, block: frame.body.to_vec() }
        }
        (kind::CONTINUATION, Some(mut begun)) if begun.stream == frame.stream => {
            begun.block.extend_from_slice(frame.body);
            begun
        }
        _ => return Err(wrong("a header block in the midst of another")),
    };
    if !whole {
        *split = Some(begun);
        return Ok(None);
    }
    let ends = begun.flags & flag::END_STREAM != 0;
    ends.then(|| decode(&begun.block, statuses).map(|s| (begun.stream, s))).transpose()
}

fn decode(block: &[u8], statuses: &mut HashMap<Vec<u8>, Status>) -> Result<Status> {
    if let Some(status) = statuses.get(block) {
        return Ok(status.clone());
    }
    let mut decoder = fluke_hpack::Decoder::new();
    let fields = decoder.decode(block).map_err(|error| wrong(&format!("a header block: {error:?}")))?;
    let find = |wanted: &[u8]| fields.iter().find(|(name, _)| name == wanted);
    let text = |wanted: &[u8]| find(wanted).map(|(_, value)| String::from_utf8_lossy(value));
    let code = text(b"grpc-status").and_then(|code| code.parse().ok()).unwrap_or(code::UNKNOWN);
    let status = status(code, &text(b"grpc-message").unwrap_or_default());
    if statuses.len() < STATUSES {
        statuses.insert(block.to_vec(), status.clone());
    }
    Ok(status)
}
