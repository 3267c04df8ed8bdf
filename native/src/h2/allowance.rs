//! How many frames that carry nothing a client may send: pure, time is an argument.
//!
//! Such frames cost the front end about as much as those that carry something, and HTTP/2 bounds neither them nor the
//! ways in which a client may leave them without use. So each connection has an allowance: some of them in any stretch
//! of time, and beyond these what its calls and their bytes justify. Every call and every frame of an answer justifies
//! a few, as window updates on two levels and a ping; long frames justify more. What was earned and not used is kept
//! up to a bound, for a client that takes its time over what it was sent.

use crate::h2::frames::{ACK, Frame, HEADER, kind};
use std::time::Duration;

/// What a call or a frame of an answer justifies.
const USE: u64 = 4;
/// So many bytes justify one more.
const BYTES: usize = 2048;
/// What at most is kept of what was earned, beside what time gives.
const KEPT: u64 = 1 << 16;
/// Each SETTINGS may have the library go through all calls of the connection.
const SETTINGS: u64 = 32;
/// What a call costs that the client's own error has ended.
const ERROR: u64 = 4;

/// See the head of this file.
pub(crate) struct Allowance {
    bound: u64,
    stretch_ns: u64,
    began_ns: u64,
    left: u64,
    last_call: u32,
}

impl Allowance {
    /// At most `bound` in each stretch without use.
    pub(crate) fn new(bound: u64, stretch: Duration) -> Self {
        Self { bound, stretch_ns: stretch.as_nanos() as u64, began_ns: 0, left: bound, last_call: 0 }
    }

    /// Notes a frame of the client's; false when it is one too many.
    pub(crate) fn received(&mut self, frame: &Frame<'_>, now_ns: u64) -> bool {
        match frame.kind {
            kind::HEADERS if frame.stream > self.last_call => {
                self.last_call = frame.stream;
                self.earn(USE);
            }
            kind::DATA if carries(frame) => self.earn((frame.length / BYTES) as u64),
            kind::SETTINGS if frame.flags & ACK == 0 => return self.spend(SETTINGS, now_ns),
            _ => return self.spend(1, now_ns),
        }
        true
    }

    /// Notes a frame of the front end's.
    pub(crate) fn sent(&mut self, frame: &Frame<'_>) {
        if frame.kind == kind::DATA && carries(frame) {
            self.earn(USE + (frame.length / BYTES) as u64);
        }
    }

    /// A call was ended because of the client's own error; false when it is one too many.
    pub(crate) fn erred(&mut self, now_ns: u64) -> bool {
        self.spend(ERROR, now_ns)
    }

    fn earn(&mut self, count: u64) {
        self.left = (self.left + count).min(self.bound + KEPT);
    }

    fn spend(&mut self, count: u64, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.began_ns) >= self.stretch_ns {
            self.began_ns = now_ns;
            self.left = self.left.max(self.bound);
        }
        let enough = self.left >= count;
        self.left = self.left.saturating_sub(count);
        enough
    }
}

/// Whether there is more to a DATA frame than its header. One that only ends a call is justified by that call.
fn carries(frame: &Frame<'_>) -> bool {
    frame.length >= HEADER
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRETCH: Duration = Duration::from_nanos(10);

    fn frame(kind: u8, flags: u8, length: usize) -> Frame<'static> {
        Frame { kind, flags, stream: 1, length, payload: &[] }
    }

    /// How many of these frames in a row are not too many.
    fn allowed(allowance: &mut Allowance, frame: &Frame<'_>) -> usize {
        (0..1 << 20).take_while(|_| allowance.received(frame, 100)).count()
    }

    #[test]
    fn frames_without_use_are_bounded_whatever_they_are() {
        let others = [(2, 5), (kind::RST_STREAM, 4), (kind::PING, 8), (8, 4), (9, 0), (77, 99)];
        for (kind, length) in [(kind::DATA, 0), (kind::DATA, 8)].into_iter().chain(others) {
            assert_eq!(allowed(&mut Allowance::new(100, STRETCH), &frame(kind, 0, length)), 100, "{kind}");
        }
        assert_eq!(allowed(&mut Allowance::new(100, STRETCH), &frame(kind::SETTINGS, ACK, 0)), 100);
        assert_eq!(allowed(&mut Allowance::new(100, STRETCH), &frame(kind::SETTINGS, 0, 0)), 3);
    }

    #[test]
    fn what_carries_something_is_free() {
        let mut allowance = Allowance::new(1, STRETCH);
        for stream in 1..1000 {
            assert!(allowance.received(&Frame { stream, ..frame(kind::HEADERS, 4, 1) }, 100));
            assert!(allowance.received(&frame(kind::DATA, 0, 9), 100));
            assert!(allowance.received(&frame(kind::DATA, 1, 0), 100), "the end of its call");
        }
    }

    #[test]
    fn only_its_first_headers_make_a_call() {
        assert_eq!(allowed(&mut Allowance::new(1, STRETCH), &frame(kind::HEADERS, 4, 1)), 1 + 5);
    }

    #[test]
    fn calls_answers_and_bytes_justify_more() {
        let update = frame(8, 0, 4);
        let mut allowance = Allowance::new(0, STRETCH);
        assert_eq!(allowed(&mut allowance, &update), 0);
        allowance.received(&frame(kind::HEADERS, 4, 1), 100);
        assert_eq!(allowed(&mut allowance, &update), 4);
        allowance.sent(&frame(kind::DATA, 0, 16 << 10));
        assert_eq!(allowed(&mut allowance, &update), 4 + 8);
        allowance.received(&frame(kind::DATA, 0, 16 << 10), 100);
        assert_eq!(allowed(&mut allowance, &update), 8);
        allowance.sent(&frame(kind::DATA, 0, 1));
        allowance.sent(&frame(kind::HEADERS, 4, 100));
        assert_eq!(allowed(&mut allowance, &update), 0, "a byte for two window updates justifies none");
    }

    #[test]
    fn what_is_kept_is_bounded_and_time_gives_no_more_than_its_share() {
        let ping = frame(kind::PING, 0, 8);
        let mut allowance = Allowance::new(10, STRETCH);
        (0..100).for_each(|_| allowance.sent(&frame(kind::DATA, 0, 16 << 20)));
        assert_eq!(allowed(&mut allowance, &ping) as u64, 10 + KEPT);
        assert!(!allowance.received(&ping, 109));
        assert!((0..10).all(|_| allowance.received(&ping, 110)) && !allowance.received(&ping, 111));
        assert!((0..10).all(|_| allowance.received(&ping, 1000)) && !allowance.received(&ping, 1001));
    }

    #[test]
    fn errors_of_the_clients_cost_more() {
        let mut allowance = Allowance::new(9, STRETCH);
        assert_eq!([1, 2, 3].map(|now| allowance.erred(now)), [true, true, false]);
    }
}
