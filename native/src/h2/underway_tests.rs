//! Tests of `h2/underway.rs`, on a real lane.

use super::*;
use crate::fastpath::admission::Admission;
use crate::lanes::memory::status;
use crate::listen::quota::{Terms, Who};
use crate::listen::registry::Registry;
use crate::rig::{HEAD, Rig, SLOTS, message, rebuilt};
use std::task::Waker;

const ANSWER: &[u8] = b"\x12\x1copen\x1a\x0242describedgoodclosing";

/// A front end with a leased lane, and one stream.
struct Scene {
    rig: Rig,
    answers: Arc<Budget>,
    underway: Underway,
}

impl Scene {
    fn new(requests: usize) -> Self {
        Self::within(StreamWindow { requests, bytes: 1 << 20 })
    }

    fn within(window: StreamWindow) -> Self {
        Self { rig: Rig::leased(), answers: Budget::new(1 << 20), underway: Underway::new(window) }
    }

    fn request(&self) -> InFlight<Message> {
        let Admission::Flight(flight) = self.rig.admit(0) else { panic!("not admitted") };
        InFlight::Message(flight, whole(&self.answers, message()))
    }

    fn depart(&mut self) {
        let request = self.request();
        assert!(self.underway.depart(request, None, &self.answers).is_ok());
    }

    /// The worker is done with the request that it has had for longest.
    fn land(&mut self, status: u32) -> Poll<(InFlight<Message>, Option<Hold>, u32)> {
        let taken = self.rig.complete(status);
        self.rig.tensors.write(taken.out_offset as usize, b"good");
        self.poll()
    }

    fn poll(&mut self) -> Poll<(InFlight<Message>, Option<Hold>, u32)> {
        self.underway.poll_landed(&mut Context::from_waker(Waker::noop()), "")
    }

    fn hand_over(&mut self) {
        let message = whole(&self.answers, message());
        let left = Left { attempts: 1, deadline_ns: 7, asked: None };
        self.underway.hand_over(HandedOver::untouched(message, 5, left));
    }
}

fn whole(budget: &Arc<Budget>, bytes: Bytes) -> Message {
    Message { bytes, reservation: budget.reserve() }
}

fn framed(answer: &[u8]) -> Vec<u8> {
    [&Prefix::encode(answer.len()).unwrap()[..], answer].concat()
}

#[test]
fn answers_that_landed_together_are_sent_together() {
    let mut scene = Scene::new(8);
    (0..3).for_each(|_| scene.depart());
    assert!(scene.poll().is_pending() && scene.underway.take_landed().is_none());
    (0..3).for_each(|_| assert!(scene.land(status::OK).is_pending()));
    let chunk = scene.underway.take_landed().unwrap();
    assert_eq!(chunk.weight(), (3, 3 * framed(ANSWER).len()));
    let (weight, used) = (chunk.weight(), scene.answers.used());
    let bytes = chunk.into_bytes();
    assert_eq!(bytes, framed(ANSWER).repeat(3));
    assert_eq!(
        (used, scene.rig.free()),
        (bytes.len() as u64, SLOTS),
        "the slots are free, the memory is not"
    );
    drop(bytes);
    scene.underway.sent(weight);
    assert_eq!((scene.answers.used(), scene.underway.unsent), (0, (0, 0)));
    assert!(scene.underway.take_landed().is_none());
}

#[test]
fn the_window_counts_all_that_is_under_way() {
    let mut scene = Scene::new(3);
    assert!(scene.underway.has_room());
    scene.depart();
    scene.hand_over();
    assert!(!scene.underway.has_room(), "Python has not asked");
    let told = scene.underway.take_handed().unwrap();
    assert_eq!((told.arrived_ns, told.attempts, told.deadline_ns), (5, 1, 7));
    assert!(scene.underway.has_room());
    scene.depart();
    assert!(!scene.underway.has_room());
    assert!(scene.land(status::OK).is_pending());
    assert!(!scene.underway.has_room(), "an answer that is not sent is under way");
    let weight = scene.underway.take_landed().unwrap().weight();
    scene.underway.sent(weight);
    assert!(scene.underway.has_room());
    scene.depart();
    scene.underway.answered();
    assert!(!scene.underway.has_room());
    scene.underway.answer_sent();
    assert!(scene.underway.has_room());
}

#[test]
fn no_more_is_read_while_messages_under_way_are_too_many_bytes() {
    let length = message().len();
    let mut scene = Scene::within(StreamWindow { requests: 8, bytes: 2 * length });
    scene.depart();
    assert!(scene.underway.has_room(), "one byte less than the bound would do");
    scene.hand_over();
    scene.underway.take_handed();
    assert!(!scene.underway.has_room());
    assert!(scene.land(status::OK).is_pending());
    assert!(scene.underway.has_room(), "an answer holds no message");
    scene.depart();
    let Poll::Ready((_failed, _, 0)) = scene.land(status::HAND_OVER) else { panic!() };
    assert!(scene.underway.has_room(), "it is counted again when Python has it");
    scene.hand_over();
    scene.underway.take_handed();
    assert!(!scene.underway.has_room());
    (0..2).for_each(|_| scene.underway.answer_sent());
    assert_eq!(scene.underway.bytes, 0);
}

#[test]
fn nothing_is_settled_while_something_may_be_handed_over() {
    let mut scene = Scene::new(8);
    assert!(scene.underway.is_settled());
    scene.depart();
    assert!(!scene.underway.is_settled());
    let Poll::Ready((request, _, 0)) = scene.land(status::HAND_OVER) else { panic!() };
    drop(request);
    scene.hand_over();
    assert!(!scene.underway.is_settled());
    scene.underway.take_handed();
    assert!(scene.underway.is_settled(), "Python knows of all that it must answer");
}

#[test]
fn what_fails_or_is_late_is_the_engines() {
    let mut scene = Scene::new(8);
    (0..4).for_each(|_| scene.depart());
    for (status, attempts) in [(status::HAND_OVER, 0), (status::EXPIRED, 0)] {
        let Poll::Ready((request, _, tried)) = scene.land(status) else { panic!("{status}") };
        let InFlight::Message(_, whole) = request else { panic!() };
        assert_eq!((tried, whole.bytes), (attempts, message()));
    }
    scene.rig.direct.close_lane(1, false);
    for _ in 0..2 {
        assert!(matches!(scene.poll(), Poll::Ready((_, _, 1))), "a worker died with it");
    }
    assert!(scene.poll().is_pending());
    assert_eq!((scene.rig.free(), scene.answers.used()), (SLOTS, 0));
    let told = scene.rig.direct.news().0;
    assert!(told.iter().all(|(_, tally)| tally.requests + tally.expired + tally.cancelled == 0));
}

#[test]
fn what_the_client_leaves_is_cancelled() {
    let mut scene = Scene::new(8);
    (0..3).for_each(|_| scene.depart());
    assert!(scene.land(status::OK).is_pending());
    scene.underway = Underway::new(StreamWindow { requests: 8, bytes: 1 << 20 });
    let (told, _) = scene.rig.direct.news();
    let (answered, cancelled) =
        told.iter().fold((0, 0), |sum, (_, tally)| (sum.0 + tally.requests, sum.1 + tally.cancelled));
    assert_eq!((answered, cancelled), (1, 2));
    assert_eq!((scene.answers.used(), scene.rig.free()), (0, SLOTS - 2), "the worker still has two");
}

#[test]
fn without_memory_for_its_answer_a_request_is_the_engines() {
    let mut scene = Scene::new(8);
    scene.answers = Budget::new(framed(ANSWER).len() as u64);
    scene.depart();
    let request = scene.request();
    assert!(scene.underway.depart(request, None, &scene.answers).is_err());
    assert_eq!(scene.rig.direct.load(1).0, 1, "it was not given to the worker");
}

#[test]
fn who_takes_no_answers_is_held_back_by_the_engine() {
    let mut scene = Scene::new(8);
    scene.underway.unsent = (1, SLOW + 1);
    let request = scene.request();
    assert!(scene.underway.depart(request, None, &scene.answers).is_err());
    scene.underway.unsent = (1, SLOW);
    scene.depart();
}

#[test]
fn what_may_no_longer_depart_comes_back() {
    let mut scene = Scene::new(8);
    let request = scene.request();
    scene.rig.direct.lease(1, 0);
    assert!(scene.underway.depart(request, None, &scene.answers).is_err());
    assert_eq!((scene.rig.free(), scene.answers.used()), (SLOTS, 0));
}

#[test]
fn what_python_was_left_is_ahead_of_others_until_it_has_answered() {
    let mut scene = Scene::new(8);
    let second = 1_000_000_000;
    let price = crate::lanes::load::Price {
        charge_per_row_ns: second,
        batch_ns: second,
        margin_ns: 0,
        batch_rows: 0,
    };
    scene.rig.direct.price(1, price);
    scene.rig.direct.lease(1, 0);
    let in_time = crate::measure::clock::now_ns() + 3 * second;
    for _ in 0..2 {
        let Admission::Engine(asked) = scene.rig.admit(in_time) else { panic!() };
        let message = whole(&scene.answers, message());
        scene.underway.hand_over(HandedOver::untouched(message, 0, Left { asked, ..Left::default() }));
        scene.underway.take_handed();
    }
    assert!(matches!(scene.rig.admit(in_time), Admission::Late(..)));
    let told = rebuilt(HEAD, b"42", &[b"12345678"]);
    let unsaid = scene.rig.direct.admit(&told, crate::measure::clock::now_ns(), in_time, false);
    assert!(matches!(unsaid, Admission::Engine(Some(_))), "who cannot say so leaves it to the engine");
    drop(unsaid);
    scene.underway.answered();
    scene.underway.answer_sent();
    assert!(matches!(scene.rig.admit(in_time), Admission::Engine(Some(_))));
}

#[test]
fn a_quota_is_held_until_the_request_has_ended_whoever_serves_it() {
    let registry = Registry::default();
    registry.set(Terms { in_flight: 3, ..Terms::default() }, Vec::new(), 16, 0);
    let account = registry.account(Who::parse("10.0.0.1"), 0);
    let free = || {
        let held: Vec<_> = (0..3).map_while(|_| account.take(0).ok()).collect();
        held.len()
    };
    let mut scene = Scene::new(8);
    for _ in 0..2 {
        let request = scene.request();
        assert!(scene.underway.depart(request, account.take(0).unwrap(), &scene.answers).is_ok());
    }
    assert_eq!(free(), 1);
    assert!(scene.land(status::OK).is_pending());
    assert_eq!(free(), 2, "it has its answer");
    let Poll::Ready((request, hold, _)) = scene.land(status::HAND_OVER) else { panic!() };
    let InFlight::Message(_, message) = request else { panic!() };
    scene.underway.hand_over(HandedOver { hold, ..HandedOver::untouched(message, 0, Left::default()) });
    assert!(scene.underway.take_handed().is_some());
    assert_eq!(free(), 2, "Python has it");
    scene.underway.answered();
    assert_eq!(free(), 3);
}
