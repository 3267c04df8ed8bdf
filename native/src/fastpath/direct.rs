//! Requests that the door serves by itself: what it was taught and granted, and the requests in flight under grants.
//!
//! Everything is behind one lock, held for a few steps at a time and never over a copy of tensors or a wait, so that
//! what Python revokes or forgets holds from the moment at which it returns. The counters that the thread looks at
//! whenever it turns round are atomic.

use crate::fastpath::booking::Asks;
use crate::fastpath::flight::Flight;
use crate::fastpath::parking::{Request, Seat};
use crate::fastpath::plan::{Lesson, Plan, Plans};
use crate::fastpath::scan::{Opening, Scanned};
use crate::h2::underway::StreamWindow;
use crate::lanes::lane::Lane;
use crate::lanes::memory::DoorEnd;
use crate::lanes::news::{News, Subject, Tally};
use crate::lanes::price::{Price, endless};
use crate::lanes::slots::{Arena, Slot, Slots};
use crate::lanes::trace::{Trace, Traces};
use crate::measure::clock::now_ns;
use crate::measure::ids::ById;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot};

pub use crate::fastpath::admission::{Admission, Asked};

/// What the door shares with workers.
pub struct Attached {
    /// Where tensors lie.
    pub arena: Arena,
    /// The method that can be served.
    pub method: u32,
}

/// What wakes the thread for one lane.
pub struct Doorbell {
    /// Written to by the worker when it has completed something and the thread sleeps.
    pub ring: OwnedFd,
    /// Ready when the lane is closed.
    pub closed: oneshot::Receiver<()>,
}

/// Lanes that serve the same models, and what the engine has been left of these.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) lanes: Vec<u32>,
    pub(crate) asked: u32,
    pub(crate) asked_ns: u64,
    pub(crate) latest_ns: u64,
    /// Those of the asked ones that wait at the door, in the order in which they came.
    pub(crate) parked: BTreeMap<u64, Seat>,
    /// How many the engine has of such as wait here. Others, which never do, keep nobody waiting.
    pub(crate) with_engine: usize,
}

impl Group {
    /// One more is ahead of others, until it has ended.
    pub(crate) fn asked(&mut self, charge_ns: u64, deadline_ns: u64) {
        self.asked += 1;
        self.asked_ns += charge_ns;
        self.latest_ns = self.latest_ns.max(endless(deadline_ns));
    }

    /// One that was asked is ahead of nobody any more.
    pub(crate) fn ended(&mut self, charge_ns: u64) {
        self.asked -= 1;
        self.asked_ns -= charge_ns;
        if self.asked == 0 {
            self.latest_ns = 0;
        }
    }
}

/// A group lasts as long as it has a lane or the engine has a request of it.
pub(crate) fn forget_empty(groups: &mut ById<u32, Group>, id: u32) {
    if groups.get(&id).is_some_and(|group| group.lanes.is_empty() && group.asked == 0) {
        groups.remove(&id);
    }
}

/// What is behind the lock.
pub(crate) struct State {
    pub(crate) plans: Plans,
    pub(crate) prices: ById<u32, Price>,
    pub(crate) lanes: ById<u32, Lane>,
    bells: ById<u32, oneshot::Sender<()>>,
    pub(crate) groups: ById<u32, Group>,
    pub(crate) slots: Slots,
    pub(crate) news: News,
    pub(crate) traces: Traces,
    /// How many requests wait, in all groups, and what the next one is called.
    pub(crate) parked: usize,
    pub(crate) next_seat: u64,
    announced: bool,
    scanned: Scanned,
}

impl State {
    pub(crate) fn lanes_of(&self, group: &Group) -> impl Iterator<Item = &Lane> {
        group.lanes.iter().filter_map(|lane| self.lanes.get(lane))
    }

    /// Whether requests of this group wait already, so that others must, too.
    pub(crate) fn is_waited_for(&self, group: u32) -> bool {
        self.parked > 0 && self.groups.get(&group).is_some_and(|group| !group.parked.is_empty())
    }

    /// The granted lane with the least work that has room.
    pub(crate) fn lane_for(&self, group: u32) -> Option<u32> {
        let open = self.lanes_of(self.groups.get(&group)?).filter(|lane| lane.has_room());
        open.min_by_key(|lane| (lane.work_ns(0), lane.in_flight())).map(|lane| lane.id)
    }

    /// A lane and a slot for a request of this plan.
    pub(crate) fn place_for(&mut self, plan: &Plan) -> Option<(u32, Slot)> {
        let lane = self.lane_for(plan.group)?;
        Some((lane, self.slots.take(plan.span)?))
    }

    /// Whether lanes are granted, and all have as much as that: there will be room soon, as workers are quick, but not
    /// where most of it is still coming, for which clients may take their time.
    pub(crate) fn is_full(&self, group: &Group) -> bool {
        self.lanes_of(group).any(Lane::is_busy) && !self.lanes_of(group).any(Lane::has_room)
    }
}

/// See the head of this file.
pub struct Direct {
    attached: OnceLock<Attached>,
    /// Index of the streaming method, and what may be under way on one stream.
    stream: OnceLock<(u32, StreamWindow)>,
    state: Mutex<State>,
    taught: AtomicBool,
    pub(crate) in_flight: AtomicUsize,
    hang: mpsc::UnboundedSender<Doorbell>,
    hung: Mutex<Option<mpsc::UnboundedReceiver<Doorbell>>>,
    /// Woken when there is something to tell.
    pub herald: Notify,
}

impl Default for Direct {
    fn default() -> Self {
        let (hang, hung) = mpsc::unbounded_channel();
        Self {
            hang,
            hung: Mutex::new(Some(hung)),
            attached: OnceLock::new(),
            stream: OnceLock::new(),
            state: Mutex::new(State {
                plans: Plans::default(),
                prices: ById::default(),
                lanes: ById::default(),
                bells: ById::default(),
                groups: ById::default(),
                slots: Slots::default(),
                news: News::new(Vec::new(), 0),
                traces: Traces::default(),
                parked: 0,
                next_seat: 0,
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
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
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

    /// Names the method whose streams carry such requests, and what may be under way on one; once.
    pub fn serve_stream(&self, method: u32, window: StreamWindow) -> Result<(), String> {
        self.stream.set((method, window)).map_err(|_| "the streaming method is named already".to_string())
    }

    /// A worker's lane, without a grant.
    pub fn open_lane(&self, lane: u32, group: u32, end: DoorEnd, ring: OwnedFd) -> Result<(), String> {
        let mut state = self.state();
        if state.lanes.contains_key(&lane) {
            return Err(format!("lane {lane} is open already"));
        }
        let (bell, closed) = oneshot::channel();
        self.hang.send(Doorbell { ring, closed }).map_err(|_| "the door is closed".to_string())?;
        state.bells.insert(lane, bell);
        state.lanes.insert(lane, Lane::new(lane, group, end));
        state.groups.entry(group).or_default().lanes.push(lane);
        Ok(())
    }

    /// The doorbells of lanes, as they open. Once.
    pub fn doorbells(&self) -> Option<mpsc::UnboundedReceiver<Doorbell>> {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The worker's process has ended.
    pub fn close_lane(self: &Arc<Self>, lane: u32) -> (Option<u32>, usize) {
        let mut state = self.state();
        state.bells.remove(&lane);
        let State { lanes, groups, slots, news, .. } = &mut *state;
        let Some(closing) = lanes.get_mut(&lane) else { return (None, 0) };
        self.count(closing.drain(slots, news, now_ns()) as usize);
        let (blamed, had) = closing.close(slots);
        self.count(had);
        let group = closing.group;
        if let Some(others) = groups.get_mut(&group) {
            others.lanes.retain(|other| *other != lane);
        }
        forget_empty(groups, group);
        lanes.retain(|_, lane| !lane.is_done());
        self.unpark_all(&mut state);
        (blamed, had)
    }

    /// How many requests may be in flight on a lane without asking; 0 revokes. False when there is no such lane.
    pub fn grant(self: &Arc<Self>, lane: u32, limit: u32) -> bool {
        let mut state = self.state();
        let Some(granted) = state.lanes.get_mut(&lane) else { return false };
        granted.limit = limit;
        self.unpark_all(&mut state);
        true
    }

    /// Requests and work that the worker of a lane has, and since when it owes something.
    pub fn load(&self, lane: u32) -> (u32, u64, u64) {
        let state = self.state();
        let Some(lane) = state.lanes.get(&lane) else { return (0, 0, 0) };
        (lane.given(), lane.work_ns(now_ns()), lane.owing_ns())
    }

    /// Takes up a plan for requests with this head.
    pub fn teach(&self, head: Vec<u8>, lesson: Lesson) -> Result<(), String> {
        self.state().plans.teach(head, lesson)?;
        self.taught.store(true, Release);
        Ok(())
    }

    /// Drops the plans of a model, or all.
    pub fn forget(self: &Arc<Self>, model: Option<u32>) {
        let mut state = self.state();
        state.plans.forget(model);
        self.taught.store(!state.plans.is_empty(), Release);
        self.unpark_all(&mut state);
    }

    /// What requests of a kind cost from now on.
    pub fn price(&self, kind: u32, price: Price) {
        self.state().prices.insert(kind, price);
    }

    /// There will be no requests of a kind any more.
    pub fn forget_price(&self, kind: u32) {
        self.state().prices.remove(&kind);
    }

    /// Requests of a model that a worker may still touch, or that are not answered yet.
    pub fn in_flight_of(&self, model: u32) -> usize {
        self.state().lanes.values().map(|lane| lane.in_flight_of(model)).sum()
    }

    /// Requests of a model that wait.
    pub fn parked_of(&self, model: u32) -> usize {
        let state = self.state();
        state
            .groups
            .values()
            .flat_map(|group| group.parked.values())
            .filter(|seat| seat.model() == model)
            .count()
    }

    /// What happened since the last time, and the lanes whose workers talk nonsense.
    pub fn news(&self) -> (Vec<(Subject, Tally)>, Vec<u32>) {
        let mut state = self.state();
        state.announced = false;
        state.news.take()
    }

    /// Traces one request in so many from here on; 0: none.
    pub fn sample(&self, one_in: u64) {
        self.state().traces.sample(one_in);
    }

    /// The traced requests that were answered since the last time.
    pub fn traces(&self) -> Vec<Trace> {
        self.state().traces.take()
    }

    /// Slots of each size that are free.
    pub fn free_slots(&self) -> Vec<usize> {
        self.state().slots.free()
    }

    // --- on the thread

    /// So many requests in flight have ended.
    pub(crate) fn count(&self, ended: usize) {
        self.in_flight.fetch_sub(ended, Relaxed);
    }

    /// Has the engine told, if there is something to tell and that was not said.
    pub(crate) fn announce(&self, state: &mut State) {
        if !state.announced && !state.news.is_empty() {
            state.announced = true;
            self.herald.notify_one();
        }
    }

    /// Has the engine told that there is something in flight.
    pub(crate) fn announce_departure(&self, state: &mut State) {
        if !std::mem::replace(&mut state.announced, true) {
            self.herald.notify_one();
        }
    }

    /// Whether requests for this method may be the door's own.
    pub fn may_serve(&self, method: u32) -> bool {
        self.taught.load(Acquire) && self.attached.get().is_some_and(|attached| attached.method == method)
    }

    /// What may be under way on a stream of this method, if it may be the door's own.
    pub fn window_of(&self, method: u32) -> Option<StreamWindow> {
        self.stream.get().filter(|(streaming, _)| *streaming == method).map(|(_, window)| *window)
    }

    /// Looks at a request. A flight is counted against its lane from here on. What would be late is refused here only
    /// where the caller can say so (`refuse`), and the engine's otherwise.
    pub fn admit(
        self: &Arc<Self>,
        message: &Bytes,
        arrived_ns: u64,
        deadline_ns: u64,
        refuse: bool,
    ) -> Admission {
        let mut state = self.state();
        let state = &mut *state;
        if state.scanned.read(message).is_none() {
            return Admission::Engine(None);
        }
        let Some(plan) = state.plans.find(&state.scanned.head).cloned() else {
            return Admission::Engine(None);
        };
        if !plan.fits(&state.scanned.raw) {
            return Admission::Engine(None);
        }
        let id = message.slice(state.scanned.id.clone());
        let raw = state.scanned.raw.iter().map(|range| range.start).zip(plan.raw_inputs()).collect();
        let request = Request::new(plan, id, raw, (arrived_ns, deadline_ns));
        self.book(state, request, if refuse { Asks::Alone } else { Asks::Within })
    }

    /// Whether anything was taught.
    pub fn has_lessons(&self) -> bool {
        self.taught.load(Acquire)
    }

    /// Looks at a request whose tensors are yet to come. None also when it would be late: that is said when it has come.
    pub fn admit_upload(
        self: &Arc<Self>,
        piece: &Bytes,
        opening: &Opening,
        arrived_ns: u64,
        deadline_ns: u64,
    ) -> Option<Box<Flight>> {
        let mut state = self.state();
        let plan = state.plans.find(&opening.head)?.clone();
        self.book_ahead(&mut state, plan, piece.slice(opening.id.clone()), (arrived_ns, deadline_ns))
    }

    /// Takes what workers have completed and wakes whose it was; and wakes workers for what they were given since the last
    /// time. A worker that is woken for the first of many requests runs it alone, and may take the processor of this thread
    /// for it.
    pub fn drain(self: &Arc<Self>) {
        if self.in_flight.load(Relaxed) > 0 {
            self.take_completed(&mut self.state());
        }
    }

    /// Wakes the workers that were given something, and takes what they have completed.
    fn take_completed(self: &Arc<Self>, state: &mut State) {
        let State { lanes, slots, news, .. } = &mut *state;
        let mut now = 0;
        let mut ended = 0;
        for lane in lanes.values_mut() {
            lane.rouse();
            if lane.pending() {
                now = if now == 0 { now_ns() } else { now };
                ended += lane.drain(slots, news, now);
            }
        }
        if now > 0 {
            self.count(ended as usize);
            self.announce(state);
            self.unpark_all(state);
        }
    }

    /// Before the thread sleeps: whatever is completed from here on rings; what was completed before is taken.
    pub fn before_sleep(self: &Arc<Self>) {
        if self.in_flight.load(Relaxed) == 0 {
            return;
        }
        let mut state = self.state();
        state.lanes.values().filter(|lane| lane.in_flight() > 0).for_each(Lane::arm);
        self.take_completed(&mut state);
    }

    /// When the thread woke.
    pub fn after_sleep(self: &Arc<Self>) {
        if self.in_flight.load(Relaxed) == 0 {
            return;
        }
        let mut state = self.state();
        state.lanes.values().filter(|lane| lane.in_flight() > 0).for_each(Lane::disarm);
        self.take_completed(&mut state);
    }
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
