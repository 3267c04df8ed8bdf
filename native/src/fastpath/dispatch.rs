//! What is known for the dispatch of requests: templates and prices, lanes and their slots, and what the engine has.
//!
//! A request goes to the lane with the least work. This is the state and its bookkeeping; `booking.rs` decides by it,
//! and `backlog.rs` keeps those that must wait.

use crate::fastpath::request::{Booking, EngineWork, Request, Verdict};
use crate::lanes::lane::Lane;
use crate::lanes::load::{Price, endless};
use crate::lanes::news::News;
use crate::lanes::slots::{Leftover, Slot, Slots};
use crate::lanes::trace::Traces;
use crate::measure::clock::now_ns;
use crate::measure::ids::ById;
use crate::templates::template::{Template, Templates};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::{Notify, oneshot};

/// A request that waits, and how to tell it what becomes of it.
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) charge_ns: u64,
    pub(crate) release: oneshot::Sender<Verdict>,
}

/// Where a request goes: a lane, a slot, and what is to be discarded of that.
pub(crate) type Place = (u32, (Slot, Option<Leftover>));

/// Lanes that serve the same models, and what the engine has been left of these.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) lanes: Vec<u32>,
    pub(crate) asked: u32,
    pub(crate) asked_ns: u64,
    pub(crate) latest_ns: u64,
    /// Those of the asked ones that wait here, in the order in which they came.
    pub(crate) backlog: BTreeMap<u64, Entry>,
    /// How many the engine has of such as wait here. Others, which never do, keep none waiting.
    pub(crate) with_engine: usize,
}

impl Group {
    /// One more is ahead of others, until it has ended.
    pub(crate) fn asked(&mut self, charge_ns: u64, deadline_ns: u64) {
        self.asked += 1;
        self.asked_ns += charge_ns;
        self.latest_ns = self.latest_ns.max(endless(deadline_ns));
    }

    /// One that was asked is ahead of none any more.
    pub(crate) fn ended(&mut self, charge_ns: u64) {
        self.asked -= 1;
        self.asked_ns -= charge_ns;
        if self.asked == 0 {
            self.latest_ns = 0;
        }
    }
}

/// See the head of this file.
pub(crate) struct Dispatch {
    pub(crate) templates: Templates,
    pub(crate) prices: ById<u32, Price>,
    pub(crate) lanes: ById<u32, Lane>,
    pub(crate) groups: ById<u32, Group>,
    pub(crate) slots: Slots,
    pub(crate) news: News,
    pub(crate) traces: Traces,
    /// How many requests wait, in all groups, and what the next one is called.
    pub(crate) waiting: usize,
    pub(crate) next_entry: u64,
    announced: bool,
    /// Requests on lanes, for readers without the lock.
    in_flight: Arc<AtomicUsize>,
    /// Woken when there is something to tell the engine.
    notifier: Arc<Notify>,
}

impl Dispatch {
    /// Nothing is known yet.
    pub(crate) fn new(in_flight: Arc<AtomicUsize>, notifier: Arc<Notify>) -> Self {
        Self {
            templates: Templates::default(),
            prices: ById::default(),
            lanes: ById::default(),
            groups: ById::default(),
            slots: Slots::default(),
            news: News::new(Vec::new(), 0),
            traces: Traces::default(),
            waiting: 0,
            next_entry: 0,
            announced: false,
            in_flight,
            notifier,
        }
    }

    /// What requests of a kind cost.
    pub(crate) fn price_of(&self, kind: u32) -> Price {
        self.prices.get(&kind).copied().unwrap_or_default()
    }

    pub(crate) fn lanes_of(&self, group: &Group) -> impl Iterator<Item = &Lane> {
        group.lanes.iter().filter_map(|lane| self.lanes.get(lane))
    }

    /// Whether requests of this group wait already, so that others must, too.
    pub(crate) fn is_waited_for(&self, group: u32) -> bool {
        self.waiting > 0 && self.groups.get(&group).is_some_and(|group| !group.backlog.is_empty())
    }

    /// The leased lane with the least work that has room.
    fn lane_for(&self, group: u32) -> Option<u32> {
        let open = self.lanes_of(self.groups.get(&group)?).filter(|lane| lane.has_room());
        open.min_by_key(|lane| (lane.load().work_ns(0), lane.in_flight())).map(|lane| lane.id)
    }

    /// A lane and a slot for a request of this template.
    pub(crate) fn place_for(&mut self, template: &Template) -> Option<Place> {
        let lane = self.lane_for(template.group)?;
        let object = self.lanes.get(&lane)?.object.number;
        Some((lane, self.slots.take(template.span, object)?))
    }

    /// Whether lanes are leased, and all have as much as that: there will be room soon, as workers are quick, but not
    /// where most of it is still coming, for which clients may take their time.
    pub(crate) fn is_full(&self, group: &Group) -> bool {
        self.lanes_of(group).any(Lane::is_busy) && !self.lanes_of(group).any(Lane::has_room)
    }

    /// Gives a request to a lane that has room.
    pub(crate) fn take_up(&mut self, request: Request, (lane, (slot, leftover)): Place) -> Verdict {
        let Request { template, arrived_ns, deadline_ns, .. } = &request;
        let (arrived_ns, deadline_ns) = (*arrived_ns, *deadline_ns);
        let price = self.price_of(template.kind);
        let Some(given) = self.lanes.get_mut(&lane) else { return Verdict::Engine(None) };
        let ticket = given.reserve(template, slot, arrived_ns, price);
        let object = given.object.clone();
        self.in_flight.fetch_add(1, Relaxed);
        if deadline_ns > 0 {
            let budget_ns = deadline_ns.saturating_sub(arrived_ns);
            self.news.budget(template.subject(lane), budget_ns);
        }
        let mut trace = self.traces.pick();
        if let Some(trace) = &mut trace {
            (trace.arrived_ns, trace.admitted_ns) = (arrived_ns, now_ns());
        }
        Verdict::Lane(Booking { request, lane, ticket, slot, object, leftover, trace })
    }

    /// So many requests in flight have ended.
    pub(crate) fn count(&self, ended: usize) {
        self.in_flight.fetch_sub(ended, Relaxed);
    }

    /// The engine is done with a request that it was left.
    pub(crate) fn engine_done(&mut self, work: &EngineWork) {
        if let Some(group) = self.groups.get_mut(&work.group) {
            group.ended(work.charge_ns);
            group.with_engine -= usize::from(work.waits);
            self.forget_empty(work.group);
        }
    }

    /// A group lasts as long as it has a lane or the engine has a request of it.
    pub(crate) fn forget_empty(&mut self, id: u32) {
        if self.groups.get(&id).is_some_and(|group| group.lanes.is_empty() && group.asked == 0) {
            self.groups.remove(&id);
        }
    }

    /// Has the engine told, if there is something to tell and that was not said.
    pub(crate) fn announce(&mut self) {
        if !self.news.is_empty() {
            self.announce_departure();
        }
    }

    /// Has the engine told that there is something in flight.
    pub(crate) fn announce_departure(&mut self) {
        if !std::mem::replace(&mut self.announced, true) {
            self.notifier.notify_one();
        }
    }

    /// The engine is being told: what happens from here on is to be announced again.
    pub(crate) fn begin_telling(&mut self) {
        self.announced = false;
    }
}
