//! Whether the door can serve a request, and on which lane: by what is granted, by its deadline, and by what is ahead of it.

use crate::fastpath::admission::{Admission, Asked};
use crate::fastpath::direct::{Direct, State};
use crate::fastpath::flight::{Flight, shown};
use crate::fastpath::parking::Request;
use crate::fastpath::plan::Plan;
use crate::lanes::price::Price;
use crate::lanes::slots::Slot;
use crate::measure::clock::now_ns;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// How a request came, and so what can be said to its client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// As a call of its own: it can be refused, and can wait.
    Alone,
    /// Over a connection that serves one at a time: it can be refused.
    InTurn,
    /// Among others on a stream: what is to be said of it is the engine's to say.
    Within,
}

/// What is to be done about a request and its deadline.
enum Timeliness {
    /// It can be taken.
    InTime,
    /// By so much it cannot be in time, and being about the last in the order of deadlines the engine would refuse it, too.
    Late(u64),
    /// The engine decides: it may let it overtake others, and where nothing is ahead of it, try whether the price is right.
    Engine,
}

impl State {
    /// Whether a request would be in time, and if not, whose business that is.
    fn timeliness(&self, plan: &Plan, price: Price, deadline_ns: u64) -> Timeliness {
        let Some(group) = self.groups.get(&plan.group).filter(|group| !group.lanes.is_empty()) else {
            return Timeliness::InTime; // as far as can be known
        };
        if deadline_ns == 0 {
            return Timeliness::InTime;
        }
        let now_ns = now_ns();
        let ahead = self.lanes_of(group).map(|lane| lane.ahead_ns(plan.kind, price, now_ns));
        let ahead_ns = ahead.min().unwrap_or(0);
        let work_ns = ahead_ns + group.asked_ns / group.lanes.len() as u64;
        let end_ns = now_ns + work_ns + price.own_ns(plan.rows) + price.margin_ns;
        if end_ns <= deadline_ns {
            return Timeliness::InTime;
        }
        let last_ns = deadline_ns + price.batch_ns + price.margin_ns;
        let last = group.latest_ns <= last_ns && self.lanes_of(group).all(|lane| lane.is_latest(last_ns));
        let busy = group.asked > 0 || self.lanes_of(group).any(|lane| lane.given() > 0);
        if last && busy { Timeliness::Late(end_ns - deadline_ns) } else { Timeliness::Engine }
    }
}

impl Direct {
    /// Takes up a request of which not all has come. Whoever would be late, or finds no room, is looked at again when it
    /// has, and counted then.
    pub(crate) fn book_ahead(
        self: &Arc<Self>,
        state: &mut State,
        plan: Arc<Plan>,
        id: Bytes,
        (arrived_ns, deadline_ns): (u64, u64),
    ) -> Option<Box<Flight>> {
        let price = state.prices.get(&plan.kind).copied().unwrap_or_default();
        let request = Request::new(plan, id, Vec::new(), (arrived_ns, deadline_ns));
        let in_time = state.timeliness(&request.plan, price, request.deadline_ns);
        if !matches!(in_time, Timeliness::InTime) || state.is_waited_for(request.plan.group) {
            return None;
        }
        let (lane, slot) = state.place_for(&request.plan)?;
        let flight = self.take_up(state, request, lane, slot).flight();
        if let (Some(given), Some(flight)) = (state.lanes.get_mut(&lane), &flight) {
            given.await_rest(flight.ticket);
        }
        flight
    }

    /// Gives a request to the lane with the least work, refuses it, has it wait, or leaves it to the engine.
    pub(crate) fn book(self: &Arc<Self>, state: &mut State, request: Request, asks: Asks) -> Admission {
        let Request { plan, deadline_ns, .. } = &request;
        let (group, deadline_ns) = (plan.group, *deadline_ns);
        let price = state.prices.get(&plan.kind).copied().unwrap_or_default();
        match state.timeliness(plan, price, deadline_ns) {
            Timeliness::InTime => {}
            Timeliness::Late(late_ns) if asks != Asks::Within => {
                return self.refuse(state, &request, late_ns);
            }
            Timeliness::Late(_) | Timeliness::Engine => return self.ask(state, &request, price, false),
        }
        let place = if state.is_waited_for(group) { None } else { state.place_for(plan) };
        if let Some((lane, slot)) = place {
            return self.take_up(state, request, lane, slot);
        }
        let waits = asks == Asks::Alone;
        if !waits || !Self::shall_wait(state, group) {
            return self.ask(state, &request, price, waits);
        }
        if let Some(late_ns) = Self::waits_in_vain(state, group, deadline_ns) {
            return self.refuse(state, &request, late_ns);
        }
        let charge_ns = price.charge(plan.rows);
        self.park(state, request, charge_ns)
    }

    /// Refuses a request that would be late by so much.
    fn refuse(&self, state: &mut State, request: &Request, late_ns: u64) -> Admission {
        let Request { plan, id, arrived_ns, deadline_ns, .. } = request;
        state.news.refused((plan.model, plan.kind, 0));
        state.news.budget((plan.model, plan.kind, 0), deadline_ns.saturating_sub(*arrived_ns));
        self.announce(state);
        Admission::Late(format!("[request id: {}] {}", shown(id), plan.late_text), late_ns)
    }

    /// Gives a request to a lane that has room.
    pub(crate) fn take_up(
        self: &Arc<Self>,
        state: &mut State,
        request: Request,
        lane: u32,
        slot: Slot,
    ) -> Admission {
        let Request { plan, id, raw, arrived_ns, deadline_ns } = request;
        let price = state.prices.get(&plan.kind).copied().unwrap_or_default();
        let Some(given) = state.lanes.get_mut(&lane) else { return Admission::Engine(None) };
        let ticket = given.reserve(&plan, slot, arrived_ns, price);
        self.in_flight.fetch_add(1, Relaxed);
        if deadline_ns > 0 {
            state.news.budget((plan.model, plan.kind, lane), deadline_ns.saturating_sub(arrived_ns));
        }
        let mut trace = state.traces.pick();
        if let Some(trace) = &mut trace {
            (trace.arrived_ns, trace.admitted_ns) = (arrived_ns, now_ns());
        }
        let direct = self.clone();
        let landed = None;
        let flight =
            Flight { direct, lane, ticket, plan, slot, id, arrived_ns, deadline_ns, raw, landed, trace };
        Admission::Flight(Box::new(flight))
    }

    /// Leaves a request to the engine; what is ahead of others grows by it until it has ended. `waits`: it would have
    /// waited, had the engine many such.
    fn ask(self: &Arc<Self>, state: &mut State, request: &Request, price: Price, waits: bool) -> Admission {
        let (id, charge_ns) = (request.plan.group, price.charge(request.plan.rows));
        let group = state.groups.entry(id).or_default();
        group.asked(charge_ns, request.deadline_ns);
        group.with_engine += usize::from(waits);
        Admission::Engine(Some(Asked { direct: self.clone(), group: id, charge_ns, waits }))
    }
}
