//! Tests of `fastpath/backlog.rs`, on a real lane.

use super::*;
use crate::fastpath::admission::{Admission, Asked, Waiting};
use crate::fastpath::flight::Flight;
use crate::lanes::memory::status;
use crate::rig::{HEAD, Rig, SLOTS, message, spec};
use crate::templates::scan::Opening;
use std::task::{Context, Poll, Waker};

fn poll(waiting: &mut Waiting) -> Poll<Admission> {
    waiting.poll(&mut Context::from_waker(Waker::noop()))
}

fn wait(rig: &Rig) -> Waiting {
    let Admission::Waiting(waiting) = rig.admit(0) else { panic!("does not wait") };
    *waiting
}

/// All that the engine is given before others wait.
fn fill_engine(rig: &Rig) -> Vec<Asked> {
    (0..ENGINE_MOST).map(|_| asked(rig.admit(0))).collect()
}

fn asked(admission: Admission) -> Asked {
    let Admission::Engine(Some(asked)) = admission else { panic!("not the engine's") };
    asked
}

fn flight(admission: Poll<Admission>) -> Box<Flight> {
    let Poll::Ready(Admission::Flight(flight)) = admission else { panic!("not given to a lane") };
    flight
}

/// A request of which only the opening has come.
fn upload(rig: &Rig) -> Box<Flight> {
    let message = message();
    rig.direct.admit_upload(&message, &Opening::read(&message).unwrap(), (0, 0)).unwrap()
}

/// Which of these were told that they are the engine's; they hold on to that.
fn engines(waiting: &mut [Waiting]) -> (Vec<usize>, Vec<Asked>) {
    let told = waiting.iter_mut().enumerate().filter_map(|(place, waiting)| match poll(waiting) {
        Poll::Ready(admission) => Some((place, asked(admission))),
        Poll::Pending => None,
    });
    told.unzip()
}

#[test]
fn the_engine_is_given_no_more_than_it_can_serve_soon() {
    let rig = Rig::new();
    let with_engine = fill_engine(&rig);
    let mut waiting: Vec<_> = (0..3).map(|_| wait(&rig)).collect();
    assert!(waiting.iter_mut().all(|waiting| poll(waiting).is_pending()));
    assert_eq!(rig.direct.backlog_of(1), 3);
    drop((waiting, with_engine));
    assert_eq!((rig.direct.backlog_of(1), rig.direct.dispatch.lock().waiting), (0, 0));
    assert_eq!(rig.direct.dispatch.lock().groups[&1].asked, 0);
    asked(rig.admit(0));
}

#[test]
fn who_waits_keeps_nothing_of_what_its_message_was_read_with() {
    let rig = Rig::new();
    let _with_engine = fill_engine(&rig);
    let read = message();
    let Admission::Waiting(_waiting) = rig.direct.admit(&read, now_ns(), 0, true) else {
        panic!("does not wait")
    };
    assert!(read.is_unique());
}

#[test]
fn what_cannot_wait_is_the_engines() {
    let rig = Rig::new();
    let _with_engine = fill_engine(&rig);
    asked(rig.direct.admit(&message(), 0, 0, false)); // on a stream
}

#[test]
fn of_too_many_the_oldest_is_the_engines() {
    let rig = Rig::new();
    let mut with_engine = fill_engine(&rig);
    let mut waiting: Vec<_> = (0..WAITING_MOST).map(|_| wait(&rig)).collect();
    for newer in 0..3 {
        waiting.push(wait(&rig));
        assert_eq!(engines(&mut waiting[newer..]).0, [0]);
        assert_eq!(rig.direct.backlog_of(1), WAITING_MOST);
    }
    with_engine.truncate(ENGINE_LEFT);
    assert_eq!(engines(&mut waiting[3..]).0.len(), ENGINE_MOST - ENGINE_LEFT, "the three have ended");
}

#[test]
fn what_never_waits_keeps_nobody_waiting() {
    let rig = Rig::new();
    let one = || asked(rig.direct.admit(&message(), 0, 0, false)); // on a stream
    let mut stream: Vec<_> = (0..2 * ENGINE_MOST).map(|_| one()).collect();
    let with_engine = fill_engine(&rig);
    let mut waiting = [wait(&rig)];
    for busy in &mut stream[ENGINE_MOST..] {
        *busy = one();
    }
    assert!(engines(&mut waiting).0.is_empty(), "the engine has enough that waited");
    drop(with_engine);
    for busy in &mut stream[..ENGINE_MOST] {
        *busy = one();
    }
    assert_eq!(engines(&mut waiting).0, [0]);
}

#[test]
fn what_may_overtake_keeps_nobody_waiting() {
    let rig = Rig::new();
    let second = 1_000_000_000;
    let price = crate::lanes::load::Price { batch_ns: second, ..Default::default() };
    let with_engine = fill_engine(&rig);
    let mut waiting = [wait(&rig)];
    rig.direct.price(1, price);
    let _urgent: Vec<_> = (0..ENGINE_MOST).map(|_| asked(rig.admit(now_ns() + second / 2))).collect();
    drop(with_engine);
    assert_eq!(engines(&mut waiting).0, [0]);
}

#[test]
fn the_engine_gets_the_oldest_when_most_of_what_it_had_is_answered() {
    let rig = Rig::new();
    let mut with_engine = fill_engine(&rig);
    let mut waiting: Vec<_> = (0..ENGINE_MOST).map(|_| wait(&rig)).collect();
    with_engine.truncate(ENGINE_LEFT + 1);
    assert!(engines(&mut waiting).0.is_empty());
    with_engine.truncate(ENGINE_LEFT);
    let (told, with_engine) = engines(&mut waiting);
    assert_eq!(told, (0..ENGINE_MOST - ENGINE_LEFT).collect::<Vec<_>>());
    assert_eq!(rig.direct.backlog_of(1), ENGINE_LEFT);
    drop(with_engine);
    assert_eq!(rig.direct.backlog_of(1), 0, "and so on to the last");
}

#[test]
fn a_lease_takes_up_the_oldest_before_newer_ones() {
    let mut rig = Rig::new();
    let _with_engine = fill_engine(&rig);
    let mut waiting: Vec<_> = (0..5).map(|_| wait(&rig)).collect();
    rig.direct.lease(1, 4);
    let mut first = flight(poll(&mut waiting[0]));
    assert!(first.depart(&message()));
    let _others: Vec<_> = waiting[1..4].iter_mut().map(|waiting| flight(poll(waiting))).collect();
    let mut newer = wait(&rig); // behind the fifth
    rig.complete(status::OK);
    assert!(poll(&mut newer).is_pending());
    flight(poll(&mut waiting[4]));
    flight(poll(&mut newer)); // in the room that the fifth has left
    assert_eq!(rig.direct.backlog_of(1), 0);
}

#[test]
fn while_a_lease_lasts_nobody_who_waits_is_the_engines() {
    let rig = Rig::leased();
    let flights: Vec<_> = (0..4).map(|_| rig.fly()).collect();
    let mut waiting = wait(&rig);
    assert!(poll(&mut waiting).is_pending(), "though the engine has nothing to do");
    rig.direct.lease(1, 0);
    let Poll::Ready(admission) = poll(&mut waiting) else { panic!("it still waits") };
    asked(admission);
    drop(flights);
}

#[test]
fn nobody_waits_for_what_is_still_coming() {
    let mut rig = Rig::leased();
    let mut coming: Vec<_> = (0..4).map(|_| upload(&rig)).collect();
    asked(rig.admit(0));
    coming.truncate(1);
    let flights: Vec<_> = (0..3).map(|_| rig.fly()).collect();
    let mut waiting = [wait(&rig), wait(&rig)];
    assert!(engines(&mut waiting).0.is_empty(), "there will be room soon, as most of it is there");
    coming.remove(0).depart(&message());
    assert!(engines(&mut waiting).0.is_empty());
    rig.complete(status::OK);
    let mut first = flight(poll(&mut waiting[0]));
    assert!(first.depart(&message()));
    drop((flights, first, coming));
    (0..4).for_each(|_| _ = rig.complete(status::OK));
    flight(poll(&mut waiting[1]));
    assert_eq!((rig.free(), rig.direct.dispatch.lock().groups[&1].asked), (SLOTS, 0));
}

#[test]
fn who_waits_goes_on_when_most_of_what_a_lane_has_is_still_coming() {
    let mut rig = Rig::leased();
    let _coming = [upload(&rig), upload(&rig)];
    let flights: Vec<_> = (0..2).map(|_| rig.fly()).collect();
    let _asked = asked(rig.admit(0));
    rig.direct.lease(1, 5);
    let _last = rig.fly();
    let mut waiting = [wait(&rig)];
    rig.direct.lease(1, 2);
    assert!(engines(&mut waiting).0.is_empty());
    drop(flights); // the worker still has them
    (0..2).for_each(|_| _ = rig.complete(status::OK));
    assert_eq!(engines(&mut waiting).0, [0], "half of it is no more than that");
}

#[test]
fn a_worker_that_dies_leaves_them_to_the_engine() {
    let rig = Rig::leased();
    let _flights: Vec<_> = (0..4).map(|_| rig.fly()).collect();
    let mut waiting = [wait(&rig), wait(&rig)];
    rig.direct.close_lane(1, false);
    assert_eq!(engines(&mut waiting).0, [0, 1]);
}

#[test]
fn what_was_dropped_goes_to_the_engine_though_lanes_are_leased() {
    let rig = Rig::leased();
    let _flights: Vec<_> = (0..4).map(|_| rig.fly()).collect();
    let mut waiting = [wait(&rig), wait(&rig)];
    rig.direct.drop_templates(Some(2));
    assert!(engines(&mut waiting).0.is_empty());
    rig.direct.drop_templates(Some(1));
    assert_eq!(engines(&mut waiting).0, [0, 1]);
}

#[test]
fn what_was_retired_goes_to_the_engine_and_is_none_any_more() {
    let rig = Rig::leased();
    let _flights: Vec<_> = (0..4).map(|_| rig.fly()).collect();
    let mut waiting = [wait(&rig), wait(&rig)];
    assert!(!rig.direct.retire_template(crate::rig::HEAD, true), "requests came for it");
    assert!(engines(&mut waiting).0.is_empty());
    assert!(rig.direct.retire_template(crate::rig::HEAD, true), "none has come since");
    assert_eq!(engines(&mut waiting).0, [0, 1]);
    assert_eq!((rig.direct.templates(), rig.direct.has_templates()), ((0, 1), false));
}

#[test]
fn who_goes_or_expires_leaves_its_seat_and_is_counted() {
    let rig = Rig::new();
    let with_engine = fill_engine(&rig);
    let mut waiting: Vec<_> = (0..3).map(|_| wait(&rig)).collect();
    waiting.remove(0).cancel();
    assert_eq!(waiting.remove(0).expire(), "[request id: 42] Request timeout expired");
    assert_eq!(rig.direct.backlog_of(1), 1);
    let tally = rig.direct.news().0.remove(0).1;
    assert_eq!((tally.cancelled, tally.expired), (1, 1));
    rig.direct.lease(1, 1);
    let mut last = flight(poll(&mut waiting[0]));
    assert!(last.depart(&message()));
    drop((last, with_engine));
    assert_eq!(rig.direct.dispatch.lock().groups[&1].asked, 0);
}

#[test]
fn who_goes_when_its_turn_has_come_leaves_nothing_behind() {
    let rig = Rig::new();
    let with_engine = fill_engine(&rig);
    let waiting = [wait(&rig), wait(&rig)];
    rig.direct.lease(1, 1);
    assert_eq!(rig.free(), SLOTS - 1);
    let [first, mut second] = waiting;
    first.cancel();
    drop(first);
    flight(poll(&mut second));
    assert_eq!((rig.free(), rig.direct.in_flight_of(1)), (SLOTS, 0));
    drop(with_engine);
    assert_eq!(rig.direct.dispatch.lock().groups[&1].asked, 0);
}

#[test]
fn who_would_wait_in_vain_is_refused() {
    let rig = Rig::new();
    let _with_engine = fill_engine(&rig);
    let soon = |ns: u64| rig.admit(now_ns() + ns);
    let Admission::Late(text, late_ns) = soon(1_000_000) else { panic!("not refused") };
    assert_eq!(text, "[request id: 42] too late");
    assert!(late_ns > 0);
    assert!(matches!(soon(60_000_000_000), Admission::Waiting(_)));
    assert_eq!(rig.direct.news().0[0].1.refused, 1);
}

#[test]
fn without_a_slot_the_engine_serves_them() {
    let rig = Rig::leased();
    rig.open_lane(2, 2);
    rig.direct.lease(2, SLOTS as u32);
    let other = crate::templates::template::TemplateSpec { group: 2, ..spec(2) };
    rig.direct.add_template(b"\x0a\x01n".to_vec(), other).unwrap();
    let told = crate::rig::rebuilt(b"\x0a\x01n", b"", &[b"12345678"]);
    let _taken: Vec<_> = (0..SLOTS).map(|_| rig.direct.admit(&told, 0, 0, true)).collect();
    assert_eq!((rig.free(), HEAD.len()), (0, 3));
    asked(rig.admit(0));
}
