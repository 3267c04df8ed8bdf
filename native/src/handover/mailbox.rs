//! Events on their way to Python: a queue, and a descriptor that is readable while it is not empty.

use crate::listen::quota::{Entry, Refusal};
use crate::measure::budget::Message;
use crate::measure::lock::Lock;
use http::{HeaderName, HeaderValue};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// What Python is told.
pub(crate) enum Event {
    /// An RPC arrived.
    Call(Box<Arrival>),
    /// What was asked for; None at the end of the client's side.
    Message(u64, Option<Told>),
    /// There is room for the next message.
    Sent(u64),
    /// The call ended without Python.
    Gone(u64),
    /// There is something to tell of requests that the front end served by itself.
    News,
    /// A client was turned away for its name: its address, and who it is by its certificate.
    TurnedAway(Arc<str>, String, &'static str),
    /// A TLS handshake came to nothing: its client's address, why, and that in words.
    Handshake(Arc<str>, &'static str, String),
    /// The application's end of an HTTP connection, whose that is, how often a worker died with its first request, and
    /// what its client may ask.
    Http(OwnedFd, Sender, u32, Entry),
    /// A client was refused for its quota: who it is, and why.
    OverQuota(String, String),
}

impl Event {
    /// The call that it tells of; 0: of none.
    pub(crate) fn call(&self) -> u64 {
        match self {
            Self::News | Self::TurnedAway(..) | Self::Handshake(..) => 0,
            Self::Http(..) | Self::OverQuota(..) => 0,
            Self::Call(arrival) => arrival.call,
            Self::Message(call, _) | Self::Sent(call) | Self::Gone(call) => *call,
        }
    }
}

/// Whose an HTTP connection is.
#[derive(Clone)]
pub(crate) struct Sender {
    /// The client's address; empty: it has none.
    pub(crate) peer: Arc<str>,
    /// Who it is by its certificate; empty: that is not known.
    pub(crate) name: Arc<str>,
    /// Its user on this machine, where that is known.
    pub(crate) user: Option<u32>,
}

/// A message of a stream.
pub(crate) struct Told {
    /// As it came.
    pub(crate) message: Message,
    /// When it began to come.
    pub(crate) arrived_ns: u64,
    /// How often workers died with it.
    pub(crate) attempts: u32,
    /// Its own deadline, on CLOCK_MONOTONIC; 0: it has none but the stream's.
    pub(crate) deadline_ns: u64,
    /// Why it is not to be served, if its client's quota forbids it.
    pub(crate) refusal: Option<Refusal>,
}

/// What Python learns about a call.
pub(crate) struct Arrival {
    /// Id of the call.
    pub(crate) call: u64,
    /// Index of the method.
    pub(crate) method: u32,
    /// The request of a unary call.
    pub(crate) message: Option<Message>,
    /// On CLOCK_MONOTONIC; 0: none.
    pub(crate) deadline_ns: u64,
    /// Custom metadata.
    pub(crate) metadata: Vec<(HeaderName, HeaderValue)>,
    /// Who the client is to quotas.
    pub(crate) who: Arc<str>,
    /// Who the client is by its certificate; empty: that is not known.
    pub(crate) client: Arc<str>,
    /// The client's user on this machine, where that is known.
    pub(crate) user: Option<u32>,
    /// When its headers came.
    pub(crate) arrived_ns: u64,
    /// How often workers died with it.
    pub(crate) attempts: u32,
}

#[derive(Default)]
struct Queue {
    events: Vec<Event>,
    failure: Option<String>,
}

/// The queue and its descriptor.
pub(crate) struct Mailbox {
    queue: Lock<Queue>,
    signal: OwnedFd,
}

impl Mailbox {
    /// An empty mailbox.
    pub(crate) fn new() -> std::io::Result<Self> {
        // SAFETY: no pointers are passed.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let signal = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { queue: Lock::default(), signal })
    }

    /// The descriptor to poll.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.signal.as_raw_fd()
    }

    /// Queues an event. Only the first one costs a system call.
    pub(crate) fn push(&self, event: Event) {
        let mut queue = self.queue.lock();
        queue.events.push(event);
        if queue.events.len() == 1 && queue.failure.is_none() {
            self.signal();
        }
    }

    /// The front end cannot go on: every `take` from now on says so.
    pub(crate) fn fail(&self, reason: String) {
        let mut queue = self.queue.lock();
        queue.failure = Some(reason);
        self.signal();
    }

    /// All events, oldest first. An error when the front end has failed; the descriptor then stays readable.
    pub(crate) fn take(&self) -> Result<Vec<Event>, String> {
        let mut queue = self.queue.lock();
        if !queue.events.is_empty() {
            if queue.failure.is_none() {
                self.clear();
            }
            return Ok(std::mem::take(&mut queue.events));
        }
        queue.failure.clone().map_or(Ok(Vec::new()), Err)
    }

    fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight valid bytes. It cannot fail: the counter is far from its end.
        unsafe { libc::write(self.descriptor(), (&raw const one).cast(), 8) };
    }

    fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight writable bytes; the descriptor does not block.
        unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(mailbox: &Mailbox) -> bool {
        let mut poll = libc::pollfd { fd: mailbox.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    fn ids(events: Vec<Event>) -> Vec<u64> {
        events.iter().map(|event| if let Event::Sent(id) = event { *id } else { 0 }).collect()
    }

    #[test]
    fn the_descriptor_is_readable_while_events_wait() {
        let mailbox = Mailbox::new().unwrap();
        assert!(!readable(&mailbox));
        (1..=3).for_each(|id| mailbox.push(Event::Sent(id)));
        assert!(readable(&mailbox));
        assert_eq!(ids(mailbox.take().unwrap()), [1, 2, 3]);
        assert!(!readable(&mailbox));
        assert!(mailbox.take().unwrap().is_empty());
        mailbox.push(Event::Sent(4));
        assert!(readable(&mailbox));
    }

    #[test]
    fn a_failure_is_told_after_the_events_and_stays() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.push(Event::Sent(1));
        mailbox.fail("broken".into());
        mailbox.push(Event::Sent(2));
        assert_eq!(ids(mailbox.take().unwrap()), [1, 2]);
        assert_eq!(mailbox.take().err().unwrap(), "broken");
        assert!(readable(&mailbox));
    }
}
