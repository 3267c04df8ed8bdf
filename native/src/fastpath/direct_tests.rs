//! Tests of `fastpath/direct.rs`, on a real lane.

use super::*;
use crate::fastpath::admission::Admission;
use crate::fastpath::flight::{Flight, Landing};
use crate::lanes::memory::{Completion, SUBMISSIONS, status};
use crate::listen::quota::{Account, Who};
use crate::rig::{HEAD, Rig, SLOTS, message, rebuilt};
use bytes::{Bytes, BytesMut};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

fn poll(flight: &mut Flight) -> Poll<Result<Landing, u32>> {
    flight.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_request_flies_and_lands() {
    let mut rig = Rig::leased();
    let mut flight = rig.fly();
    assert!(poll(&mut flight).is_pending());
    assert_eq!(rig.direct.load(1).0, 1);
    let taken = rig.complete(status::OK);
    assert_eq!((taken.template, taken.rows, taken.out_offset - taken.offset), (1, 1, 64));
    assert_eq!(poll(&mut flight), Poll::Ready(Ok(Landing::Well)));
    let mut answer = BytesMut::new();
    rig.tensors.write(taken.out_offset as usize, b"good");
    flight.answer(&mut answer);
    assert_eq!(&answer[..], b"open\x1a\x0242describedgood");
    assert_eq!(answer.len(), flight.answer_length());
    flight.finish("");
    drop(flight);
    assert_eq!((rig.free(), rig.direct.load(1)), (SLOTS, (0, 0, 0)));
    let (told, broken) = rig.direct.news();
    let (subject, tally) = &told[0];
    assert_eq!((*subject, tally.requests, tally.rows, broken.len()), ((1, 1, 1), 1, 1, 0));
    assert_eq!((tally.batches[&1].count, tally.batches[&1].run_ns <= 10), (1, true));
}

/// A worker that is not woken sleeps until its time is over.
#[test]
fn a_sleeping_worker_is_woken_when_the_thread_turns_round_and_before_it_sleeps() {
    for wake in [Direct::collect, Direct::before_sleep] {
        let rig = Rig::leased();
        let flags = std::thread::scope(|scope| {
            let worker = scope.spawn(|| rig.worker.wait(Duration::from_secs(20)));
            while !rig.worker.is_asleep() {
                std::thread::yield_now();
            }
            let _flights = [rig.fly(), rig.fly()];
            let begin = Instant::now();
            wake(&rig.direct);
            let flags = worker.join().unwrap();
            assert!(begin.elapsed() < Duration::from_secs(15), "it was not woken");
            flags
        });
        assert_eq!((flags, rig.worker.waiting()), (SUBMISSIONS, 2));
    }
}

#[test]
fn what_has_no_template_or_no_lease_is_the_engines() {
    let rig = Rig::new();
    assert!(matches!(rig.admit(0), Admission::Engine(_)), "no lease");
    rig.direct.lease(1, 4);
    let (other, short) = (rebuilt(b"\x0a\x01n", b"", &[b"12345678"]), rebuilt(HEAD, b"", &[b"1234567"]));
    for strange in [other, short, Bytes::from_static(b"\xff")] {
        assert!(matches!(rig.direct.admit(&strange, 0, 0, true), Admission::Engine(_)));
    }
    assert!(rig.direct.may_serve(0) && !rig.direct.may_serve(1));
    rig.direct.drop_templates(Some(1));
    assert!(!rig.direct.may_serve(0));
}

#[test]
fn no_more_than_was_leased_is_in_flight() {
    let rig = Rig::leased();
    let flights: Vec<_> = (0..4).map(|_| rig.fly()).collect();
    assert!(matches!(rig.admit(0), Admission::Waiting(_)));
    drop(flights);
    assert_eq!(rig.direct.load(1).0, 4, "the worker still has them");
    assert_eq!(rig.free(), SLOTS - 4);
}

#[test]
fn after_the_end_of_a_lease_nothing_departs() {
    let rig = Rig::leased();
    let Admission::Flight(mut flight) = rig.admit(0) else { panic!() };
    rig.direct.lease(1, 0);
    assert!(!flight.depart(&message()));
    drop(flight);
    assert_eq!((rig.free(), rig.direct.load(1).0), (SLOTS, 0));
}

#[test]
fn what_was_dropped_does_not_depart() {
    let rig = Rig::leased();
    let Admission::Flight(mut flight) = rig.admit(0) else { panic!() };
    assert_eq!(rig.direct.in_flight_of(1), 1);
    rig.direct.drop_templates(None);
    assert!(!flight.depart(&message()));
}

#[test]
fn a_failure_is_handed_over() {
    let mut rig = Rig::leased();
    let mut flight = rig.fly();
    rig.complete(status::HAND_OVER);
    assert_eq!(poll(&mut flight), Poll::Ready(Err(0)));
    drop(flight);
    assert_eq!(rig.free(), SLOTS);
    assert!(rig.direct.news().0.iter().all(|(_, tally)| tally.requests == 0));
}

#[test]
fn a_dead_workers_requests_are_handed_over_as_tried() {
    let rig = Rig::leased();
    let (mut one, two) = (rig.fly(), rig.fly());
    drop(two); // its client has gone
    let closed = rig.direct.close_lane(1, false);
    assert_eq!((closed.model, closed.had), (Some(1), 2));
    assert_eq!(poll(&mut one), Poll::Ready(Err(1)));
    drop(one);
    assert_eq!(rig.free(), SLOTS);
    assert_eq!(rig.direct.close_lane(1, false), Closed::default());
    assert!(!rig.direct.lease(1, 4));
}

#[test]
fn a_client_that_goes_leaves_the_slot_to_the_worker() {
    let mut rig = Rig::leased();
    rig.fly().cancel();
    assert_eq!(rig.free(), SLOTS - 1);
    rig.complete(status::OK);
    assert_eq!(rig.free(), SLOTS);
    let (told, _) = rig.direct.news();
    assert_eq!((told[0].1.cancelled, told[0].1.requests), (1, 0));
}

#[test]
fn a_client_that_goes_withdraws_its_request() {
    let mut rig = Rig::leased();
    let (wanted, mut behind) = (rig.fly(), [rig.fly(), rig.fly()]);
    wanted.cancel();
    drop(wanted);
    assert_eq!([0, 1].map(|index| rig.worker.peek(index).withdrawn), [1, 0]);
    assert_eq!((rig.free(), rig.direct.load(1).0), (SLOTS - 3, 3), "until the worker has ended it");
    rig.complete(status::WITHDRAWN);
    assert_eq!((rig.free(), rig.direct.load(1).0), (SLOTS - 2, 2));
    rig.complete(status::OK);
    assert_eq!(poll(&mut behind[0]), Poll::Ready(Ok(Landing::Well)));
    rig.complete(status::WITHDRAWN);
    assert!(poll(&mut behind[1]).is_pending());
    let (told, broken) = rig.direct.news();
    assert_eq!((told[0].1.cancelled, told[0].1.expired), (1, 0));
    assert_eq!(broken, [1], "nobody withdrew the last one");
}

#[test]
fn an_old_ticket_or_nonsense_breaks_the_lane_and_nothing_else() {
    for (ticket, status) in [(0, status::OK), (7, status::OK), (1 << 32, 9), (2 << 32, status::OK)] {
        let mut rig = Rig::leased();
        let mut flight = rig.fly();
        rig.worker.advance(1);
        rig.worker.complete([Completion { ticket, status, ..Default::default() }]);
        rig.direct.collect();
        assert!(poll(&mut flight).is_pending(), "{ticket:x}");
        assert_eq!(rig.direct.news().1, [1]);
        assert!(matches!(rig.admit(0), Admission::Engine(_)), "nothing is given to it");
        rig.direct.close_lane(1, false);
        assert_eq!(poll(&mut flight), Poll::Ready(Err(1)));
        assert_eq!(rig.direct.in_flight.load(Relaxed), 0, "what never was has not ended");
    }
}

#[test]
fn times_beyond_belief_are_cut() {
    let mut rig = Rig::leased();
    let mut flight = rig.fly();
    let taken = rig.worker.peek(0);
    rig.worker.advance(1);
    let forever = u64::MAX;
    rig.worker.complete([Completion {
        ticket: taken.ticket,
        first: 1,
        batch_rows: 1,
        started_ns: forever,
        gather_ns: forever,
        run_ns: forever,
        scatter_ns: forever,
        ..Default::default()
    }]);
    rig.direct.collect();
    assert!(poll(&mut flight).is_ready());
    flight.finish("");
    drop(flight);
    let (told, _) = rig.direct.news();
    assert!(told[0].1.stages.iter().all(|stage| stage.sum_ns < 1_000_000_000));
}

#[test]
fn what_would_be_late_is_refused_when_it_is_last() {
    let rig = Rig::leased();
    let second = 1_000_000_000;
    rig.direct
        .price(1, Price { charge_per_row_ns: second, batch_ns: 2 * second, margin_ns: 0, batch_rows: 0 });
    let soon = now_ns() + second / 2;
    assert!(matches!(rig.admit(soon), Admission::Engine(_)), "on an idle lane the engine tries");
    let Admission::Flight(mut first) = rig.admit(now_ns() + 9 * second / 4) else { panic!() };
    assert!(first.depart(&message()));
    let Admission::Late(text, late_ns) = rig.admit(soon) else { panic!() };
    assert_eq!(text, "[request id: 42] too late");
    assert!((4 * second..5 * second).contains(&late_ns), "{late_ns}");
    let slack = second / 100; // the clock goes on meanwhile
    assert!(matches!(rig.admit(soon + late_ns - slack), Admission::Late(..)), "sooner than it was told");
    let Admission::Flight(back) = rig.admit(soon + late_ns + slack) else { panic!("as it was told") };
    drop(back);
    let Admission::Flight(mut later) = rig.admit(now_ns() + 9 * second) else { panic!() };
    assert!(later.depart(&message()));
    assert!(matches!(rig.admit(soon), Admission::Engine(_)), "it might overtake");
    let (told, _) = rig.direct.news();
    assert_eq!(told.iter().map(|(_, tally)| tally.refused).sum::<u64>(), 2);
}

#[test]
fn without_a_slot_it_is_the_engines() {
    let rig = Rig::leased();
    rig.direct.lease(1, 100);
    let _flights: Vec<_> = (0..SLOTS).map(|_| rig.fly()).collect();
    assert!(matches!(rig.admit(0), Admission::Engine(_)));
}

#[test]
fn what_the_engine_was_left_is_ahead_of_others() {
    let rig = Rig::new();
    let second = 1_000_000_000;
    rig.direct.price(1, Price { charge_per_row_ns: second, batch_ns: second, margin_ns: 0, batch_rows: 0 });
    let in_time = now_ns() + 3 * second;
    let asked: Vec<_> = (0..2).map(|_| rig.admit(in_time)).collect();
    assert!(asked.iter().all(|asked| matches!(asked, Admission::Engine(Some(_)))));
    assert!(matches!(rig.admit(in_time), Admission::Late(..)), "without a lease, too");
    drop(asked);
    assert!(matches!(rig.admit(in_time), Admission::Engine(Some(_))));
}

#[test]
fn what_could_no_longer_be_in_time_when_its_turn_came_has_expired() {
    let mut rig = Rig::leased();
    let mut flight = rig.fly();
    rig.complete(status::EXPIRED);
    assert_eq!(poll(&mut flight), Poll::Ready(Ok(Landing::Late)));
    assert_eq!(flight.expire(), "[request id: 42] Request timeout expired");
    drop(flight);
    assert_eq!((rig.free(), rig.direct.news().0[0].1.expired), (SLOTS, 1));
}

#[test]
fn the_worker_is_told_when_it_is_too_late_to_begin_and_what_may_run_together() {
    let rig = Rig::leased();
    let price = Price { charge_per_row_ns: 1_000, batch_ns: 5_000, margin_ns: 0, batch_rows: 5 };
    rig.direct.price(1, price);
    let deadline = now_ns() + 1_000_000_000;
    let Admission::Flight(mut flight) = rig.admit(deadline) else { panic!() };
    assert!(flight.depart(&message()));
    let told = rig.worker.peek(0);
    assert_eq!((told.start_by_ns, told.batch_rows), (deadline - 5_000, 5));
}

#[test]
fn a_price_is_known_until_it_is_forgotten() {
    let rig = Rig::leased();
    let known = || rig.direct.dispatch.lock().prices.len();
    for kind in [1, 2, 1] {
        rig.direct.price(kind, Price { charge_per_row_ns: 1, batch_ns: 2, margin_ns: 0, batch_rows: 5 });
    }
    assert_eq!(known(), 2);
    rig.direct.drop_templates(None);
    assert_eq!(known(), 2, "the same kind may come again");
    for kind in [1, 3] {
        rig.direct.forget_price(kind);
    }
    assert_eq!(known(), 1);
}

#[test]
fn swaps_leave_nothing_of_the_lanes_before() {
    let rig = Rig::leased();
    for swap in 2..100 {
        rig.open_lane(swap, swap);
        rig.direct.close_lane(swap, false);
    }
    let state = rig.direct.dispatch.lock();
    assert_eq!((state.groups.len(), state.lanes.len()), (1, 1));
}

#[test]
fn a_request_for_another_group_leaves_nothing_where_its_slot_was_used_before() {
    let mut rig = Rig::leased();
    assert!(rig.direct.lease(1, SLOTS as u32));
    let flights: Vec<_> = (0..SLOTS).map(|_| rig.fly()).collect();
    assert!(rig.stored().iter().all(|stored| &stored[..] == b"12345678"));
    rig.open_lane_apart(2, 2);
    assert!(rig.direct.lease(2, 1));
    let other = TemplateSpec { id: 2, group: 2, ..crate::rig::spec(2) };
    rig.direct.add_template(b"\x0a\x01n".to_vec(), other).unwrap();
    let request = rebuilt(b"\x0a\x01n", b"42", &[b"abcdefgh"]);
    let admit = |rig: &Rig| rig.direct.admit(&request, now_ns(), 0, true);
    assert!(matches!(admit(&rig), Admission::Engine(_)), "no slot is free");
    for _ in 0..SLOTS {
        rig.complete(status::OK);
    }
    drop(flights);
    let Admission::Flight(mut flight) = admit(&rig) else { panic!("not admitted") };
    assert!(flight.depart(&request));
    let stored = rig.stored();
    assert_eq!(stored.iter().filter(|stored| stored[..] == [0; 8]).count(), 1, "its own pages are gone");
    assert!(stored.iter().all(|stored| &stored[..] != b"abcdefgh"));
    let mut read = BytesMut::new();
    flight.read(0, 8, &mut read);
    assert_eq!(&read[..], b"abcdefgh");
}

#[test]
fn a_group_lasts_as_long_as_one_of_its_lanes_or_of_its_requests() {
    let rig = Rig::new();
    let groups = || rig.direct.dispatch.lock().groups.len();
    let asked = rig.admit(0);
    assert!(matches!(asked, Admission::Engine(Some(_))), "no lease");
    rig.open_lane(2, 1);
    rig.direct.close_lane(1, false);
    rig.direct.close_lane(2, false);
    let later = rig.admit(0);
    assert!(matches!(later, Admission::Engine(Some(_))), "its worker is started anew, and this waits for it");
    assert_eq!((groups(), rig.direct.dispatch.lock().groups[&1].asked), (1, 2));
    drop(asked);
    assert_eq!(groups(), 1);
    drop(later);
    assert_eq!(groups(), 0);
}

#[test]
fn only_what_may_have_run_counts_as_tried() {
    let rig = Rig::leased();
    let price = Price { charge_per_row_ns: 1, batch_ns: 2, margin_ns: 0, batch_rows: 2 };
    rig.direct.price(1, price);
    let mut flights: Vec<_> = (0..4).map(|_| rig.fly()).collect();
    let closed = rig.direct.close_lane(1, false);
    assert_eq!((closed.model, closed.had), (Some(1), 4));
    let tried: Vec<_> = flights.iter_mut().map(poll).collect();
    assert_eq!(tried, [1, 1, 0, 0].map(|attempts| Poll::Ready(Err(attempts))));
}

/// A request of a client's, at work.
fn fly_for(rig: &Rig, account: &Arc<Account>) -> Box<Flight> {
    let Admission::Flight(mut flight) = rig.admit(0) else { panic!("not admitted") };
    flight.note_client(account);
    assert!(flight.depart(&message()));
    flight
}

#[test]
fn what_ran_alone_is_tried_no_more_if_that_is_said_and_its_client_is_told() {
    for (last, attempts) in [(true, 2), (false, 1)] {
        let rig = Rig::leased();
        let account = Account::new(Who::parse("10.0.0.1"), Arc::default(), Arc::default());
        let mut flight = fly_for(&rig, &account);
        let closed = rig.direct.close_lane(1, last);
        assert_eq!(closed, Closed { model: Some(1), had: 1, clients: vec!["10.0.0.1".into()] });
        assert_eq!(poll(&mut flight), Poll::Ready(Err(attempts)));
    }
}

#[test]
fn the_client_of_what_ran_is_known_when_it_has_gone_itself() {
    let rig = Rig::leased();
    let account = Account::new(Who::parse("10.0.0.1"), Arc::default(), Arc::default());
    drop(fly_for(&rig, &account));
    assert_eq!(rig.direct.close_lane(1, true).clients, ["10.0.0.1"]);
}

#[test]
fn what_came_long_after_a_run_had_begun_had_no_part_in_it() {
    let rig = Rig::leased();
    let mut flights = [rig.fly(), rig.fly()];
    rig.direct.dispatch.lock().lanes.get_mut(&1).unwrap().came_later(1);
    assert_eq!(rig.direct.close_lane(1, true).clients.len(), 1);
    assert_eq!(flights.each_mut().map(|flight| poll(flight)), [2, 0].map(|tried| Poll::Ready(Err(tried))));
}

#[test]
fn what_a_client_asks_that_is_held_is_the_engines() {
    let rig = Rig::leased();
    let account = Account::new(Who::Local, Arc::default(), Arc::default());
    account.hold(1, u64::MAX, 0);
    let Admission::Flight(mut flight) = rig.admit(0) else { panic!("not admitted") };
    flight.note_client(&account);
    assert!(!flight.depart(&message()));
}

#[test]
fn what_has_not_come_yet_is_no_work() {
    let rig = Rig::leased();
    let second = 1_000_000_000;
    rig.direct
        .price(1, Price { charge_per_row_ns: second, batch_ns: 2 * second, batch_rows: 0, margin_ns: 0 });
    let about = |work_ns: u64| work_ns.div_ceil(second); // some of it has passed already
    let Admission::Flight(mut coming) = rig.admit(0) else { panic!("not admitted") };
    assert_eq!((rig.free(), rig.direct.load(1)), (SLOTS - 1, (0, 0, 0)), "its client may take its time");
    let there = rig.fly();
    assert_eq!((rig.direct.load(1).0, about(rig.direct.load(1).1)), (1, 3));
    assert!(coming.depart(&message()));
    assert_eq!((rig.direct.load(1).0, about(rig.direct.load(1).1)), (2, 4));
    drop((coming, there));
    rig.direct.close_lane(1, false);
    assert_eq!((rig.free(), rig.direct.load(1)), (SLOTS, (0, 0, 0)));
}

#[test]
fn no_deadline_is_the_last_of_all() {
    let rig = Rig::leased();
    let second = 1_000_000_000;
    rig.direct.price(1, Price { charge_per_row_ns: second, batch_ns: second, margin_ns: 0, batch_rows: 1 });
    let _endless = rig.fly();
    assert!(matches!(rig.admit(now_ns() + second / 2), Admission::Engine(_)), "it may overtake");
}

#[test]
fn a_batch_of_impossible_size_is_nonsense() {
    for (batch_rows, broken) in [(0, true), (1, false), (4, false), (5, true), (u32::MAX, true)] {
        let mut rig = Rig::leased();
        rig.direct.price(1, Price { batch_rows: 4, ..Price::default() });
        let mut flight = rig.fly();
        let ticket = rig.worker.peek(0).ticket;
        rig.worker.advance(1);
        rig.worker.complete([Completion { ticket, first: 1, batch_rows, ..Default::default() }]);
        rig.direct.collect();
        assert_eq!(rig.direct.news().1.is_empty(), !broken, "{batch_rows}");
        assert_eq!(poll(&mut flight).is_pending(), broken, "{batch_rows}");
    }
}

#[test]
fn what_is_still_coming_keeps_no_model_that_was_forgotten() {
    let rig = Rig::leased();
    let Admission::Flight(_coming) = rig.admit(0) else { panic!() };
    assert_eq!(rig.direct.in_flight_of(1), 1);
    rig.direct.drop_templates(None);
    assert_eq!(rig.direct.in_flight_of(1), 0);
}
