//! What is under way on one stream: the requests that the front end serves by itself, their answers until the client
//! has taken them, and the requests that are Python's.
//!
//! All of them together are bounded by the window, wherever they are served: so many requests, and no more while the
//! messages of those that are not served yet are so many bytes. Answers stand in the order in which their requests
//! ended, as Python's do: a stream promises no other.

use crate::fastpath::admission::Asked;
use crate::fastpath::direct::StreamWindow;
use crate::fastpath::flight::Landing;
use crate::fastpath::serving::{InFlight, Left};
use crate::h2::framing::{PREFIX, Prefix};
use crate::h2::infer::HandedOver;
use crate::handover::mailbox::Told;
use crate::listen::quota::Hold;
use crate::measure::budget::{Budget, Message, Reservation};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Answers up to this many bytes are sent in one piece.
const CHUNK: usize = 64 * 1024;
/// A client that has left more than this untaken is slow: what else it asks for is the engine's, which holds it back.
const SLOW: usize = 4 << 20;

/// A request that the worker has, the memory for its answer, and what is held of its client's quota. Dropped before it
/// landed, its client has gone.
struct Aloft(Option<(InFlight<Message>, Reservation, Option<Hold>)>);

impl Future for Aloft {
    type Output = (InFlight<Message>, Reservation, Option<Hold>, Result<Landing, u32>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((request, ..)) = &mut self.0 else { return Poll::Pending };
        let landed = ready!(request.flight().poll(cx));
        self.0
            .take()
            .map_or(Poll::Pending, |(request, room, hold)| Poll::Ready((request, room, hold, landed)))
    }
}

impl Drop for Aloft {
    fn drop(&mut self) {
        if let Some((request, ..)) = &mut self.0 {
            request.flight().cancel();
        }
    }
}

/// What is given back when Python has answered a request, and how long its message was.
struct Answerable {
    asked: Option<Asked>,
    hold: Option<Hold>,
    length: usize,
}

/// Some answers, one after another.
pub(crate) struct Chunk {
    bytes: BytesMut,
    room: Reservation,
    answers: usize,
}

impl Chunk {
    /// How many answers and bytes these are.
    pub(crate) fn weight(&self) -> (usize, usize) {
        (self.answers, self.bytes.len())
    }

    /// As they are sent.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.room.hold(self.bytes)
    }
}

/// See the head of this file.
pub(crate) struct Underway {
    window: StreamWindow,
    /// Of messages that workers and Python have.
    bytes: usize,
    aloft: FuturesUnordered<Aloft>,
    landed: VecDeque<Chunk>,
    /// Answers and bytes that have landed and were not sent.
    unsent: (usize, usize),
    handed: VecDeque<HandedOver>,
    /// What Python was told and has not answered; which of its answers is whose does not matter.
    told: VecDeque<Answerable>,
    changed: bool,
}

impl Underway {
    /// Nothing yet, and at most so much ever.
    pub(crate) fn new(window: StreamWindow) -> Self {
        Self {
            window,
            bytes: 0,
            aloft: FuturesUnordered::new(),
            landed: VecDeque::new(),
            unsent: (0, 0),
            handed: VecDeque::new(),
            told: VecDeque::new(),
            changed: false,
        }
    }

    /// Whether one more request may be read: not while one waits for Python, which takes no more than its own window.
    pub(crate) fn has_room(&self) -> bool {
        let requests = self.aloft.len() + self.unsent.0 + self.told.len();
        self.handed.is_empty() && requests < self.window.requests && self.bytes < self.window.bytes
    }

    /// Whether nothing can be handed over any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.aloft.is_empty() && self.handed.is_empty()
    }

    /// Whether any of this has changed since the last time.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Gives a request to the worker, where its answer will find memory in `answers`; else it comes back.
    pub(crate) fn depart(
        &mut self,
        mut request: InFlight<Message>,
        hold: Option<Hold>,
        answers: &Arc<Budget>,
    ) -> Result<(), (InFlight<Message>, Option<Hold>)> {
        let length = request.flight().streamed_length();
        let mut room = answers.reserve();
        let fits =
            self.unsent.1 <= SLOW && Prefix::encode(length).is_some() && room.resize(PREFIX + length).is_ok();
        if !fits || !request.depart() {
            return Err((request, hold));
        }
        self.bytes += request.length();
        self.aloft.push(Aloft(Some((request, room, hold))));
        Ok(())
    }

    /// Takes the answers that are there, on behalf of `client`. Ready with a request that is the engine's, after so
    /// many attempts: also one that is late, for which the engine has the words.
    pub(crate) fn poll_landed(
        &mut self,
        cx: &mut Context<'_>,
        client: &str,
    ) -> Poll<(InFlight<Message>, Option<Hold>, u32)> {
        while let Poll::Ready(Some((request, room, hold, landed))) = self.aloft.poll_next_unpin(cx) {
            self.changed = true;
            self.bytes -= request.length();
            match landed {
                Ok(Landing::Well) => self.answer(request, room, client),
                Ok(Landing::Late) => return Poll::Ready((request, hold, 0)),
                Err(attempts) => return Poll::Ready((request, hold, attempts)),
            }
        }
        Poll::Pending
    }

    fn answer(&mut self, mut request: InFlight<Message>, room: Reservation, client: &str) {
        let flight = request.flight();
        let length = flight.streamed_length();
        let Some(prefix) = Prefix::encode(length) else { return }; // looked at when it departed
        let size = PREFIX + length;
        match self.landed.back_mut() {
            Some(last) if last.bytes.len() + size <= CHUNK => last.room.join(room),
            _ => {
                let bytes = BytesMut::with_capacity(size);
                self.landed.push_back(Chunk { bytes, room, answers: 0 });
            }
        }
        if let Some(chunk) = self.landed.back_mut() {
            chunk.answers += 1;
            chunk.bytes.put_slice(&prefix);
            flight.streamed(&mut chunk.bytes);
        }
        self.unsent = (self.unsent.0 + 1, self.unsent.1 + size);
        flight.finish(client);
    }

    /// The next answers to send.
    pub(crate) fn take_landed(&mut self) -> Option<Chunk> {
        self.landed.pop_front()
    }

    /// Answers of this weight were taken by the client.
    pub(crate) fn sent(&mut self, (answers, bytes): (usize, usize)) {
        self.unsent = (self.unsent.0 - answers, self.unsent.1 - bytes);
        self.changed = true;
    }

    /// A request is Python's.
    pub(crate) fn hand_over(&mut self, handed: HandedOver) {
        self.handed.push_back(handed);
        self.changed = true;
    }

    /// Whether a request waits for Python.
    pub(crate) fn has_handed(&self) -> bool {
        !self.handed.is_empty()
    }

    /// The next request that Python is told.
    pub(crate) fn take_handed(&mut self) -> Option<Told> {
        let HandedOver { message, arrived_ns, left, hold, refusal } = self.handed.pop_front()?;
        let Left { attempts, deadline_ns, asked } = left;
        let length = message.bytes.len();
        self.told.push_back(Answerable { asked, hold, length });
        self.bytes += length;
        self.changed = true;
        Some(Told { message, arrived_ns, attempts, deadline_ns, refusal })
    }

    /// Python is told a request that it asked for itself.
    pub(crate) fn told_as_asked(&mut self, hold: Option<Hold>) {
        self.told.push_back(Answerable { asked: None, hold, length: 0 });
    }

    /// Python has answered one of those that it was told; how long the client takes over that is no work of the
    /// engine's.
    pub(crate) fn answered(&mut self) {
        if let Some(answered) = self.told.front_mut() {
            drop((answered.asked.take(), answered.hold.take()));
        }
    }

    /// The client has taken Python's answer.
    pub(crate) fn answer_sent(&mut self) {
        self.bytes -= self.told.pop_front().map_or(0, |answered| answered.length);
        self.changed = true;
    }
}

#[cfg(test)]
#[path = "underway_tests.rs"]
mod tests;
