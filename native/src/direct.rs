//! Requests that the door serves by itself: what it was taught and granted, and the requests in flight under grants.
//!
//! Everything is behind one lock, held for a few steps at a time and never over a copy of tensors or a wait, so that
//! what Python revokes or forgets holds from the moment at which it returns. The counters that the thread looks at
//! whenever it turns round are atomic.

use crate::clock::now_ns;
use crate::lane::{Lane, Outcome, Stages, Ticket};
use crate::lane_memory::DoorEnd;
use crate::news::{News, Subject, Tally};
use crate::plan::{Lesson, Plan, Plans};
use crate::scan::Scanned;
use crate::slots::{Arena, Slot, Slots};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// What a request of one kind costs, as the engine has learnt. The arithmetic is that of `scheduling/grants.py`.
#[derive(Clone, Copy, Default)]
pub struct Price {
    /// For each row, in a batch of the planned size.
    pub charge_per_row_ns: u64,
    /// The largest batch that it may run in.
    pub batch_ns: u64,
    /// Kept free before a deadline.
    pub margin_ns: u64,
}

/// What the door shares with workers.
pub struct Attached {
    /// Where tensors lie.
    pub arena: Arena,
    /// Written to by workers when they have completed something and the thread sleeps.
    pub doorbell: OwnedFd,
    /// The method that can be served.
    pub method: u32,
}

struct State {
    plans: Plans,
    prices: HashMap<u32, Price>,
    lanes: HashMap<u32, Lane>,
    groups: HashMap<u32, Vec<u32>>,
    slots: Slots,
    news: News,
    announced: bool,
    scanned: Scanned,
}

/// See the head of this file.
pub struct Direct {
    attached: OnceLock<Attached>,
    state: Mutex<State>,
    taught: AtomicBool,
    in_flight: AtomicUsize,
    /// Woken when there is something to tell.
    pub herald: Notify,
}

/// What the door can do about a request by itself.
pub enum Admission {
    /// Its tensors can be copied.
    Flight(Box<Flight>),
    /// It cannot be in time: what its client is told, and when it would be worth trying again.
    Late(String, u64),
    /// It is the engine's.
    Engine,
}

impl Default for Direct {
    fn default() -> Self {
        Self {
            attached: OnceLock::new(),
            state: Mutex::new(State {
                plans: Plans::default(),
                prices: HashMap::new(),
                lanes: HashMap::new(),
                groups: HashMap::new(),
                slots: Slots::default(),
                news: News::new(Vec::new(), 0),
                announced: false,
                scanned: Scanned::default(),
            }),
            taught: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            herald: Notify::new(),
        }
    }
}

impl Direct {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- by Python

    /// Names what is shared with workers; once.
    pub fn attach(
        &self,
        attached: Attached,
        slots: Vec<(usize, Vec<usize>)>,
        bounds_ns: Vec<u64>,
        slow_ns: u64,
    ) -> Result<(), String> {
        let slots = Slots::new(slots, attached.arena.length())?;
        self.attached.set(attached).map_err(|_| "the door is attached already".to_string())?;
        let mut state = self.state();
        state.slots = slots;
        state.news = News::new(bounds_ns, slow_ns);
        Ok(())
    }

    /// What is shared with workers, if anything is.
    pub fn attached(&self) -> Option<&Attached> {
        self.attached.get()
    }

    /// A worker's lane, without a grant.
    pub fn open_lane(&self, lane: u32, group: u32, end: DoorEnd) -> Result<(), String> {
        let mut state = self.state();
        if state.lanes.contains_key(&lane) {
            return Err(format!("lane {lane} is open already"));
        }
        state.lanes.insert(lane, Lane::new(lane, group, end));
        state.groups.entry(group).or_default().push(lane);
        Ok(())
    }

    /// The worker's process has ended.
    pub fn close_lane(&self, lane: u32) -> (Option<u32>, usize) {
        let mut state = self.state();
        let State { lanes, groups, slots, news, .. } = &mut *state;
        let Some(closing) = lanes.get_mut(&lane) else { return (None, 0) };
        self.count(closing.drain(slots, news, now_ns()) as usize);
        let (blamed, had) = closing.close(slots);
        self.count(had);
        if let Some(others) = groups.get_mut(&closing.group) {
            others.retain(|other| *other != lane);
            if others.is_empty() {
                groups.remove(&closing.group);
            }
        }
        lanes.retain(|_, lane| !lane.is_done());
        (blamed, had)
    }

    /// How many requests may be in flight on a lane without asking; 0 revokes. False when there is no such lane.
    pub fn grant(&self, lane: u32, limit: u32) -> bool {
        let mut state = self.state();
        let Some(granted) = state.lanes.get_mut(&lane) else { return false };
        granted.limit = limit;
        true
    }

    /// Requests and work in flight on a lane, and since when the oldest has been.
    pub fn load(&self, lane: u32) -> (u32, u64, u64) {
        let state = self.state();
        let Some(lane) = state.lanes.get(&lane) else { return (0, 0, 0) };
        (lane.in_flight(), lane.work_ns(), if lane.in_flight() > 0 { lane.oldest_ns() } else { 0 })
    }

    /// Takes up a plan for requests with this head.
    pub fn teach(&self, head: Vec<u8>, lesson: Lesson) -> Result<(), String> {
        self.state().plans.teach(head, lesson)?;
        self.taught.store(true, Release);
        Ok(())
    }

    /// Drops the plans of a model, or all.
    pub fn forget(&self, model: Option<u32>) {
        let mut state = self.state();
        state.plans.forget(model);
        self.taught.store(!state.plans.is_empty(), Release);
    }

    /// What requests of a kind cost from now on.
    pub fn price(&self, kind: u32, price: Price) {
        self.state().prices.insert(kind, price);
    }

    /// Requests of a model that a worker may still touch.
    pub fn in_flight_of(&self, model: u32) -> usize {
        self.state().lanes.values().map(|lane| lane.in_flight_of(model)).sum()
    }

    /// What happened since the last time, and the lanes whose workers talk nonsense.
    pub fn news(&self) -> (Vec<(Subject, Tally)>, Vec<u32>) {
        let mut state = self.state();
        state.announced = false;
        state.news.take()
    }

    /// Slots of each size that are free.
    pub fn free_slots(&self) -> Vec<usize> {
        self.state().slots.free()
    }

    // --- on the thread

    fn count(&self, ended: usize) {
        self.in_flight.fetch_sub(ended, Relaxed);
    }

    fn announce(&self, state: &mut State) {
        if !state.announced && !state.news.is_empty() {
            state.announced = true;
            self.herald.notify_one();
        }
    }

    /// Whether requests for this method may be the door's own.
    pub fn may_serve(&self, method: u32) -> bool {
        self.taught.load(Acquire) && self.attached.get().is_some_and(|attached| attached.method == method)
    }

    /// Looks at a request. A flight is counted against its lane from here on.
    pub fn admit(self: &Arc<Self>, message: &Bytes, arrived_ns: u64, deadline_ns: u64) -> Admission {
        let mut state = self.state();
        let State { plans, prices, lanes, groups, slots, news, scanned, .. } = &mut *state;
        let Some(plan) = scanned.read(message).and_then(|()| plans.find(&scanned.head)) else {
            return Admission::Engine;
        };
        if !plan.fits(&scanned.raw) {
            return Admission::Engine;
        }
        let open = groups.get(&plan.group).map_or(&[][..], Vec::as_slice);
        let least = open.iter().filter_map(|lane| lanes.get(lane)).filter(|lane| lane.has_room());
        let Some(lane) = least.min_by_key(|lane| (lane.work_ns(), lane.in_flight())).map(|lane| lane.id)
        else {
            return Admission::Engine;
        };
        let Some(lane) = lanes.get_mut(&lane) else { return Admission::Engine };
        let deadline_ns = match (deadline_ns, plan.default_timeout_ns) {
            (0, 0) => 0,
            (0, default) => arrived_ns + default,
            (deadline, _) => deadline,
        };
        let price = prices.get(&plan.kind).copied().unwrap_or_default();
        let id = message.slice(scanned.id.clone());
        if deadline_ns > 0 {
            let own_ns = price.charge_per_row_ns * u64::from(plan.rows.saturating_sub(1)) + price.batch_ns;
            let end_ns = now_ns() + lane.work_ns() + own_ns + price.margin_ns;
            if end_ns > deadline_ns {
                // Last in the order of deadlines, the engine would refuse it, too. Whether the price is right only a
                // request can show, so on an idle lane the engine decides.
                if lane.in_flight() == 0 || !lane.is_latest(deadline_ns) {
                    return Admission::Engine;
                }
                news.refused((plan.model, plan.kind, lane.id));
                let text = format!("[request id: {}] {}", shown(&id), plan.late_text);
                self.announce(&mut state);
                return Admission::Late(text, end_ns - deadline_ns);
            }
        }
        let Some(slot) = slots.take(plan.span) else { return Admission::Engine };
        let ticket = lane.reserve(plan, slot, arrived_ns, price);
        self.in_flight.fetch_add(1, Relaxed);
        Admission::Flight(Box::new(Flight {
            direct: self.clone(),
            lane: lane.id,
            ticket,
            plan: plan.clone(),
            slot,
            id,
            deadline_ns,
            raw: scanned.raw.iter().map(|range| range.start).collect(),
            landed: None,
        }))
    }

    /// Takes what workers have completed and wakes whose it was.
    pub fn drain(&self) {
        if self.in_flight.load(Relaxed) == 0 {
            return;
        }
        let mut state = self.state();
        let State { lanes, slots, news, .. } = &mut *state;
        let now = now_ns();
        let mut ended = 0;
        for lane in lanes.values_mut().filter(|lane| lane.pending()) {
            ended += lane.drain(slots, news, now);
        }
        self.count(ended as usize);
        self.announce(&mut state);
    }

    /// Before the thread sleeps: whatever is completed from here on rings; what was completed before is taken.
    pub fn before_sleep(&self) {
        if self.in_flight.load(Relaxed) == 0 {
            return;
        }
        let mut pending = false;
        for lane in self.state().lanes.values().filter(|lane| lane.in_flight() > 0) {
            lane.arm();
            pending |= lane.pending();
        }
        if pending {
            self.drain();
        }
    }

    /// When the thread woke.
    pub fn after_sleep(&self) {
        if self.in_flight.load(Relaxed) > 0 {
            self.state().lanes.values().filter(|lane| lane.in_flight() > 0).for_each(Lane::disarm);
            self.drain();
        }
    }
}

/// A request that the door serves. Dropped before it landed, its client has gone.
pub struct Flight {
    direct: Arc<Direct>,
    lane: u32,
    ticket: Ticket,
    plan: Arc<Plan>,
    slot: Slot,
    id: Bytes,
    deadline_ns: u64,
    raw: Vec<usize>,
    landed: Option<Stages>,
}

impl Flight {
    /// Copies the tensors of the message into the slot and gives them to the worker, of which the engine is told. False:
    /// it is the engine's.
    pub fn depart(&mut self, message: &[u8]) -> bool {
        let Some(attached) = self.direct.attached.get() else { return false };
        for (start, place) in self.raw.iter().zip(&self.plan.inputs) {
            attached.arena.write(self.slot.offset + place.offset, &message[*start..*start + place.size]);
        }
        let mut state = self.direct.state();
        let now = now_ns();
        let lane = state.lanes.get_mut(&self.lane);
        let departed = lane.is_some_and(|lane| lane.submit(self.ticket, self.deadline_ns, now));
        if departed && !std::mem::replace(&mut state.announced, true) {
            self.direct.herald.notify_one();
        }
        departed
    }

    /// Ready when the worker is done with it. An error: the engine's, after so many attempts.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), u32>> {
        let mut state = self.direct.state();
        let Some(lane) = state.lanes.get_mut(&self.lane) else { return Poll::Ready(Err(0)) };
        match lane.poll(self.ticket, cx.waker()) {
            None => Poll::Pending,
            Some(Outcome::Ran(stages)) => {
                self.landed = Some(stages);
                Poll::Ready(Ok(()))
            }
            Some(Outcome::HandOver { attempts }) => Poll::Ready(Err(attempts)),
        }
    }

    /// How long its answer is.
    pub fn answer_length(&self) -> usize {
        self.plan.answer_length(&self.id)
    }

    /// Appends the answer; only once it has landed.
    pub fn answer(&self, into: &mut BytesMut) {
        let Some(attached) = self.direct.attached.get() else { return };
        self.plan.write_answer(&self.id, into, |place, into| {
            attached.arena.append_to(self.slot.offset + place.offset, place.size, into);
        });
    }

    /// Counts it as answered.
    pub fn finish(self) {
        let mut state = self.direct.state();
        let State { lanes, news, .. } = &mut *state;
        if let (Some(lane), Some(stages)) = (lanes.get(&self.lane), self.landed) {
            lane.answered(self.ticket, stages, &self.id, now_ns(), news);
        }
        self.direct.announce(&mut state);
    }

    /// Counts it as given up by its client.
    pub fn cancel(self) {
        let mut state = self.direct.state();
        state.news.cancelled((self.plan.model, self.plan.kind, self.lane));
        self.direct.announce(&mut state);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.direct.state();
        let State { lanes, slots, .. } = &mut *state;
        let Some(lane) = lanes.get_mut(&self.lane) else { return };
        let before = lane.in_flight();
        lane.release(self.ticket, slots);
        self.direct.count((before - lane.in_flight()) as usize);
        if lane.is_done() {
            lanes.remove(&self.lane);
        }
    }
}

/// An id as clients are told it.
fn shown(id: &[u8]) -> String {
    const CHARACTERS: usize = 64;
    match std::str::from_utf8(id) {
        Ok("") | Err(_) => "<id_unknown>".into(),
        Ok(id) => id.chars().take(CHARACTERS).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane_memory::{Completion, LaneMemory, Submission, WorkerEnd, status};
    use crate::plan::rebuilt;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::task::Waker;

    const HEAD: &[u8] = b"\x0a\x01m";
    const SLOT: usize = 128;
    const SLOTS: usize = 8;

    /// A door with one lane, and the worker at its other end.
    struct Rig {
        direct: Arc<Direct>,
        worker: WorkerEnd,
    }

    fn descriptor(made: i32) -> OwnedFd {
        assert!(made >= 0);
        // SAFETY: just made, and nobody else's.
        unsafe { OwnedFd::from_raw_fd(made) }
    }

    impl Rig {
        fn new() -> Self {
            // SAFETY: a valid name and no other pointers.
            let memory = descriptor(unsafe { libc::memfd_create(c"arena".as_ptr(), 0) });
            // SAFETY: no pointers.
            assert_eq!(unsafe { libc::ftruncate(memory.as_raw_fd(), (SLOT * SLOTS) as i64) }, 0);
            // SAFETY: no pointers.
            let doorbell = descriptor(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) });
            let direct = Arc::new(Direct::default());
            let arena = Arena::map(memory.as_raw_fd(), SLOT * SLOTS).unwrap();
            let ring = doorbell.try_clone().unwrap();
            let slots = vec![(SLOT, (0..SLOTS).map(|number| number * SLOT).collect())];
            direct.attach(Attached { arena, doorbell, method: 0 }, slots, vec![1_000_000], 0).unwrap();
            let lane = LaneMemory::create().unwrap();
            let worker = WorkerEnd::new(LaneMemory::open(lane.fd()).unwrap(), ring);
            direct.open_lane(1, 1, DoorEnd::new(Arc::new(lane))).unwrap();
            direct.teach(HEAD.to_vec(), lesson(1)).unwrap();
            Self { direct, worker }
        }

        fn granted() -> Self {
            let rig = Self::new();
            assert!(rig.direct.grant(1, 4));
            rig
        }

        fn admit(&self, deadline_ns: u64) -> Admission {
            self.direct.admit(&message(), now_ns(), deadline_ns)
        }

        fn fly(&self) -> Flight {
            let Admission::Flight(mut flight) = self.admit(0) else { panic!("not admitted") };
            assert!(flight.depart(&message()));
            *flight
        }

        fn complete(&mut self, status: u32) -> Submission {
            let taken = self.worker.peek(0);
            self.worker.advance(1);
            let now = now_ns();
            let (ticket, first) = (taken.ticket, 1);
            let run_ns = 10;
            let told = Completion {
                ticket,
                status,
                first,
                batch_rows: 1,
                started_ns: now,
                run_ns,
                ..Default::default()
            };
            self.worker.complete([told]);
            self.direct.drain();
            taken
        }

        fn free(&self) -> usize {
            self.direct.free_slots()[0]
        }
    }

    fn lesson(model: u32) -> Lesson {
        Lesson {
            plan: 1,
            kind: 1,
            model,
            group: 1,
            rows: 1,
            inputs: vec![(8, 0)],
            out_offset: 64,
            span: 128,
            opening: b"open".to_vec(),
            described: b"described".to_vec(),
            outputs: vec![(b"".to_vec(), 64, 4)],
            late_text: "too late".into(),
            default_timeout_ns: 0,
        }
    }

    fn message() -> Bytes {
        rebuilt(HEAD, b"42", &[b"12345678"])
    }

    fn poll(flight: &mut Flight) -> Poll<Result<(), u32>> {
        flight.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_request_flies_and_lands() {
        let mut rig = Rig::granted();
        let mut flight = rig.fly();
        assert!(poll(&mut flight).is_pending());
        assert_eq!(rig.direct.load(1).0, 1);
        let taken = rig.complete(status::OK);
        assert_eq!((taken.plan, taken.rows, taken.out_offset - taken.offset), (1, 1, 64));
        assert_eq!(poll(&mut flight), Poll::Ready(Ok(())));
        let mut answer = BytesMut::new();
        rig.direct.attached().unwrap().arena.write(taken.out_offset as usize, b"good");
        flight.answer(&mut answer);
        assert_eq!(&answer[..], b"open\x1a\x0242describedgood");
        assert_eq!(answer.len(), flight.answer_length());
        flight.finish();
        assert_eq!((rig.free(), rig.direct.load(1)), (SLOTS, (0, 0, 0)));
        let (told, broken) = rig.direct.news();
        let (subject, tally) = &told[0];
        assert_eq!((*subject, tally.requests, tally.rows, broken.len()), ((1, 1, 1), 1, 1, 0));
        assert_eq!((tally.batches[&1].count, tally.batches[&1].run_ns <= 10), (1, true));
    }

    #[test]
    fn what_was_not_taught_or_granted_is_the_engines() {
        let rig = Rig::new();
        assert!(matches!(rig.admit(0), Admission::Engine), "no grant");
        rig.direct.grant(1, 4);
        let (other, short) = (rebuilt(b"\x0a\x01n", b"", &[b"12345678"]), rebuilt(HEAD, b"", &[b"1234567"]));
        for strange in [other, short, Bytes::from_static(b"\xff")] {
            assert!(matches!(rig.direct.admit(&strange, 0, 0), Admission::Engine));
        }
        assert!(rig.direct.may_serve(0) && !rig.direct.may_serve(1));
        rig.direct.forget(Some(1));
        assert!(!rig.direct.may_serve(0));
    }

    #[test]
    fn no_more_than_was_granted_is_in_flight() {
        let rig = Rig::granted();
        let flights: Vec<_> = (0..4).map(|_| rig.fly()).collect();
        assert!(matches!(rig.admit(0), Admission::Engine));
        drop(flights);
        assert_eq!(rig.direct.load(1).0, 4, "the worker still has them");
        assert_eq!(rig.free(), SLOTS - 4);
    }

    #[test]
    fn after_a_revocation_nothing_departs() {
        let rig = Rig::granted();
        let Admission::Flight(mut flight) = rig.admit(0) else { panic!() };
        rig.direct.grant(1, 0);
        assert!(!flight.depart(&message()));
        drop(flight);
        assert_eq!((rig.free(), rig.direct.load(1).0), (SLOTS, 0));
    }

    #[test]
    fn what_was_forgotten_does_not_depart() {
        let rig = Rig::granted();
        let Admission::Flight(mut flight) = rig.admit(0) else { panic!() };
        assert_eq!(rig.direct.in_flight_of(1), 1);
        rig.direct.forget(None);
        assert!(!flight.depart(&message()));
    }

    #[test]
    fn a_failure_is_handed_over() {
        let mut rig = Rig::granted();
        for status in [status::HAND_OVER, status::EXPIRED] {
            let mut flight = rig.fly();
            rig.complete(status);
            assert_eq!(poll(&mut flight), Poll::Ready(Err(0)));
        }
        assert_eq!(rig.free(), SLOTS);
        assert!(rig.direct.news().0.iter().all(|(_, tally)| tally.requests == 0));
    }

    #[test]
    fn a_dead_workers_requests_are_handed_over_as_tried() {
        let rig = Rig::granted();
        let (mut one, two) = (rig.fly(), rig.fly());
        drop(two); // its client has gone
        assert_eq!(rig.direct.close_lane(1), (Some(1), 2));
        assert_eq!(poll(&mut one), Poll::Ready(Err(1)));
        drop(one);
        assert_eq!(rig.free(), SLOTS);
        assert_eq!(rig.direct.close_lane(1), (None, 0));
        assert!(!rig.direct.grant(1, 4));
    }

    #[test]
    fn a_client_that_goes_leaves_the_slot_to_the_worker() {
        let mut rig = Rig::granted();
        rig.fly().cancel();
        assert_eq!(rig.free(), SLOTS - 1);
        rig.complete(status::OK);
        assert_eq!(rig.free(), SLOTS);
        let (told, _) = rig.direct.news();
        assert_eq!((told[0].1.cancelled, told[0].1.requests), (1, 0));
    }

    #[test]
    fn an_old_ticket_or_nonsense_breaks_the_lane_and_nothing_else() {
        for (ticket, status) in [(0, status::OK), (7, status::OK), (1 << 32, 9), (2 << 32, status::OK)] {
            let mut rig = Rig::granted();
            let mut flight = rig.fly();
            rig.worker.advance(1);
            rig.worker.complete([Completion { ticket, status, ..Default::default() }]);
            rig.direct.drain();
            assert!(poll(&mut flight).is_pending(), "{ticket:x}");
            assert_eq!(rig.direct.news().1, [1]);
            assert!(matches!(rig.admit(0), Admission::Engine), "nothing is given to it");
            rig.direct.close_lane(1);
            assert_eq!(poll(&mut flight), Poll::Ready(Err(1)));
        }
    }

    #[test]
    fn times_beyond_belief_are_cut() {
        let mut rig = Rig::granted();
        let mut flight = rig.fly();
        let taken = rig.worker.peek(0);
        rig.worker.advance(1);
        let forever = u64::MAX;
        rig.worker.complete([Completion {
            ticket: taken.ticket,
            first: 1,
            started_ns: forever,
            gather_ns: forever,
            run_ns: forever,
            scatter_ns: forever,
            ..Default::default()
        }]);
        rig.direct.drain();
        assert!(poll(&mut flight).is_ready());
        flight.finish();
        let (told, _) = rig.direct.news();
        assert!(told[0].1.stages.iter().all(|stage| stage.sum_ns < 1_000_000_000));
    }

    #[test]
    fn what_would_be_late_is_refused_when_it_is_last() {
        let rig = Rig::granted();
        let second = 1_000_000_000;
        rig.direct.price(1, Price { charge_per_row_ns: second, batch_ns: 2 * second, margin_ns: 0 });
        let soon = now_ns() + second / 2;
        assert!(matches!(rig.admit(soon), Admission::Engine), "on an idle lane the engine tries");
        let _first = rig.fly();
        let Admission::Late(text, late_ns) = rig.admit(soon) else { panic!() };
        assert_eq!(text, "[request id: 42] too late");
        assert!((4 * second..5 * second).contains(&late_ns), "{late_ns}");
        let Admission::Flight(mut later) = rig.admit(now_ns() + 9 * second) else { panic!() };
        assert!(later.depart(&message()));
        assert!(matches!(rig.admit(soon), Admission::Engine), "it might overtake");
        let (told, _) = rig.direct.news();
        assert_eq!(told[0].1.refused, 1);
    }

    #[test]
    fn without_a_slot_it_is_the_engines() {
        let rig = Rig::granted();
        rig.direct.grant(1, 100);
        let _flights: Vec<_> = (0..SLOTS).map(|_| rig.fly()).collect();
        assert!(matches!(rig.admit(0), Admission::Engine));
    }
}
