//! How one client behaves: what its frames say, when it was last heard, and whether it takes what it is sent.

use crate::h2::allowance::Allowance;
use crate::h2::frames::{ACK, FrameWalker, HEADER, PREFACE, kind};
use crate::h2::refusal::{Refusal, ends_for_error};
use crate::measure::clock::now_ns;
use crate::measure::limits::{Limit, Limits, PROGRESS, RATE_WINDOW};
use crate::measure::lock::Lock;
use crate::measure::rate::Rate;
use bytes::{Buf, Bytes};
use std::io::{ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::AsyncWrite;

const ENHANCE_YOUR_CALM: u32 = 11;
/// No stream of a client's has a larger number, so a GOAWAY that names it may be followed by one that says more.
const EVERY_STREAM: u32 = (1 << 31) - 1;

/// What is known of the client of one connection.
pub(crate) struct Monitor {
    inbound: FrameWalker,
    outbound: FrameWalker,
    pings: Rate,
    resets: Rate,
    allowance: Allowance,
    answered: bool,
    last_headers: u32,
    heard_ns: u64,
    blocked_ns: Option<u64>,
    taken: usize,
    written: u64,
    breach: Option<Limit>,
    refusals: Vec<Refusal>,
    goaway: Option<GoAway>,
    task: Option<Waker>,
}

impl Monitor {
    /// A client that has just connected.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            inbound: FrameWalker::new(PREFACE),
            outbound: FrameWalker::new(0),
            pings: Rate::new(limits.get(Limit::PingsPerConnection), RATE_WINDOW),
            resets: Rate::new(limits.get(Limit::ResetsPerConnection), RATE_WINDOW),
            allowance: Allowance::new(limits.get(Limit::ControlFramesPerConnection), RATE_WINDOW),
            answered: false,
            last_headers: 0,
            heard_ns: now_ns(),
            blocked_ns: None,
            taken: 0,
            written: 0,
            breach: None,
            refusals: Vec::new(),
            goaway: None,
            task: None,
        }
    }

    /// When something last came from the client.
    pub(crate) fn heard_ns(&self) -> u64 {
        self.heard_ns
    }

    /// Bytes written to the client so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Since when the client has taken next to nothing although there is something for it.
    pub(crate) fn blocked_ns(&self) -> Option<u64> {
        self.blocked_ns
    }

    /// The limit for which the connection must be cut.
    pub(crate) fn breach(&self) -> Option<Limit> {
        self.breach
    }

    /// Takes what the protocol itself has refused since the last time.
    pub(crate) fn take_refusals(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Has the client told why its connection is cut, before the GOAWAY that says where.
    pub(crate) fn say_goaway(&mut self, limit: Limit) {
        self.goaway = Some(GoAway::new(limit));
    }

    /// The task of the connection, to be woken on a breach.
    pub(crate) fn register(&mut self, task: &Waker) {
        self.task = Some(task.clone());
    }

    /// A call was reset before it was answered.
    pub(crate) fn reset(&mut self, now_ns: u64) {
        if self.resets.exceeded(now_ns) {
            self.breach.get_or_insert(Limit::ResetsPerConnection);
            if let Some(task) = &self.task {
                task.wake_by_ref();
            }
        }
    }

    /// What came from the client. False: it is to be cut.
    pub(crate) fn read(&mut self, bytes: &[u8], now_ns: u64) -> bool {
        self.heard_ns = now_ns;
        let Self { inbound, answered, pings, allowance, breach, .. } = self;
        // The task of the connection is the one that reads: it looks for a breach next.
        inbound.walk(bytes, |frame| {
            let is_ping = frame.kind == kind::PING && frame.flags & ACK == 0;
            if is_ping && !std::mem::take(answered) && pings.exceeded(now_ns) {
                breach.get_or_insert(Limit::PingsPerConnection);
            }
            if !allowance.received(&frame, now_ns) {
                breach.get_or_insert(Limit::ControlFramesPerConnection);
            }
        });
        breach.is_none()
    }

    pub(crate) fn written(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        self.taken += bytes.len();
        if self.taken >= PROGRESS {
            self.blocked(false); // less is progress only when nothing is left, which flushing tells
        }
        let Self { outbound, answered, last_headers, allowance, refusals, breach, heard_ns, .. } = self;
        outbound.walk(bytes, |frame| {
            match frame.kind {
                kind::DATA => *answered = true,
                kind::HEADERS => (*answered, *last_headers) = (true, frame.stream),
                _ => {}
            }
            allowance.sent(&frame);
            refusals.extend(Refusal::of(&frame, *last_headers));
            if ends_for_error(&frame) && !allowance.erred(*heard_ns) {
                breach.get_or_insert(Limit::ControlFramesPerConnection);
            }
        });
    }

    /// Sends the goaway, if there is one, as soon as no other frame is half sent.
    pub(crate) fn poll_goaway(
        &mut self,
        transport: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        let may_begin = self.outbound.is_between_frames();
        while let Some(goaway) = self.goaway.as_mut().filter(|goaway| may_begin || goaway.begun) {
            match ready!(Pin::new(&mut *transport).poll_write(cx, &goaway.rest))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                sent => goaway.rest.advance(sent),
            }
            goaway.begun = true;
            if goaway.rest.is_empty() {
                self.goaway = None;
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn blocked(&mut self, blocked: bool) {
        if !blocked {
            self.blocked_ns = None;
        } else if self.blocked_ns.is_none() {
            (self.blocked_ns, self.taken) = (Some(now_ns()), 0);
        }
    }
}

/// A GOAWAY with a reason in words, which the HTTP/2 library has no means to send.
struct GoAway {
    rest: Bytes,
    begun: bool,
}

impl GoAway {
    fn new(limit: Limit) -> Self {
        let text: &[u8] = match limit {
            Limit::PingsPerConnection => b"too_many_pings", // this one makes clients of gRPC ping less often
            Limit::ResetsPerConnection => b"too_many_resets",
            Limit::ControlFramesPerConnection => b"too_many_control_frames",
            _ => b"limit_reached",
        };
        let mut rest = Vec::with_capacity(HEADER + 8 + text.len());
        rest.extend([0, 0, 8 + text.len() as u8, kind::GOAWAY, 0, 0, 0, 0, 0]);
        rest.extend(EVERY_STREAM.to_be_bytes());
        rest.extend(ENHANCE_YOUR_CALM.to_be_bytes());
        rest.extend(text);
        Self { rest: rest.into(), begun: false }
    }
}

/// The monitor as the connection, its calls and its transport share it; all that look at it are tasks of one thread.
pub(crate) type SharedMonitor = Arc<Lock<Monitor>>;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::measure::limits::LIMITS;

    pub(crate) fn monitor() -> Monitor {
        let few = ["pings_per_connection", "resets_per_connection"];
        let value = |name: &str| if few.contains(&name) { 2 } else { 1000 };
        let limits = Limits::new(LIMITS.iter().map(|(name, ..)| (name.to_string(), value(name))));
        let mut monitor = Monitor::new(&limits.unwrap());
        monitor.read(&[0; PREFACE], 1);
        monitor
    }

    pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, payload.len() as u8, kind, flags];
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn pings_that_answer_nothing_are_a_breach() {
        let mut monitor = monitor();
        let ping = frame(kind::PING, 0, 0, &[0; 8]);
        monitor.read(&[&ping[..], &ping[..]].concat(), 1);
        assert_eq!(monitor.breach(), None);
        monitor.read(&ping, 2);
        assert_eq!(monitor.breach(), Some(Limit::PingsPerConnection));
    }

    #[test]
    fn pings_that_answer_data_and_answers_to_pings_are_not_counted() {
        let mut monitor = monitor();
        for _ in 0..10 {
            monitor.written(&frame(kind::DATA, 0, 1, &[0; 3]));
            monitor.read(&frame(kind::PING, 0, 0, &[0; 8]), 1);
            monitor.read(&frame(kind::PING, ACK, 0, &[0; 8]), 1);
        }
        assert_eq!(monitor.breach(), None);
    }

    #[test]
    fn resets_are_a_breach_when_they_are_many() {
        let mut monitor = monitor();
        (0..2).for_each(|now| monitor.reset(now));
        assert_eq!(monitor.breach(), None);
        monitor.reset(3);
        assert_eq!(monitor.breach(), Some(Limit::ResetsPerConnection));
    }

    #[test]
    fn a_byte_now_and_then_is_no_progress() {
        let mut monitor = monitor();
        monitor.blocked(true);
        monitor.written(&frame(kind::DATA, 0, 1, &[0; 200]));
        assert!(monitor.blocked_ns().is_some());
        (0..PROGRESS / 200).for_each(|_| monitor.written(&frame(kind::DATA, 0, 1, &[0; 200])));
        assert_eq!(monitor.blocked_ns(), None);
    }

    #[test]
    fn refusals_of_the_protocol_itself_are_seen() {
        let mut monitor = monitor();
        monitor.written(&frame(kind::RST_STREAM, 0, 9, &[0, 0, 0, 7]));
        monitor.written(&frame(kind::HEADERS, 5, 11, &[0; 4]));
        monitor.written(&frame(kind::RST_STREAM, 0, 11, &[0, 0, 0, 1]));
        monitor.written(&frame(kind::RST_STREAM, 0, 13, &[0, 0, 0, 1]));
        monitor.written(&frame(kind::GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\x0btoo_many_resets"));
        let limits = [Limit::StreamsPerConnection, Limit::MetadataBytes].map(Refusal::Limit);
        let resets = Refusal::Limit(Limit::ResetsPerConnection);
        assert_eq!(monitor.take_refusals(), [limits[0], limits[1], Refusal::Protocol, resets]);
        assert!(monitor.take_refusals().is_empty());
        assert_eq!(monitor.breach(), None);
    }

    #[test]
    fn frames_without_use_are_a_breach() {
        let mut monitor = monitor();
        let updates = frame(8, 0, 0, &[0, 0, 0, 1]).repeat(1000);
        assert!(monitor.read(&updates, 1));
        monitor.written(&frame(kind::DATA, 0, 1, &[0; 100]));
        assert!(monitor.read(&updates[..4 * (HEADER + 4)], 1), "the answer justifies them");
        assert!(!monitor.read(&updates, 2));
        assert_eq!(monitor.breach(), Some(Limit::ControlFramesPerConnection));
    }

    #[test]
    fn calls_that_end_for_the_clients_errors_are_a_breach_when_they_are_many() {
        let mut monitor = monitor();
        let errors = |code: u8| frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, code]).repeat(251);
        monitor.written(&errors(8));
        assert_eq!(monitor.breach(), None, "cancelled by the front end");
        monitor.written(&errors(5));
        assert_eq!(monitor.breach(), Some(Limit::ControlFramesPerConnection));
    }
}
