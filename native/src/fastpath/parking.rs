//! Requests that wait at the door for a grant to come, or for the engine to have time: where a lane has no grant, or no
//! more room, the engine is given only as many requests of a group as it can serve soon, and the others stay here, first
//! in, first out. Else its queue would never be empty while more comes than Python can serve, and only an empty queue
//! ends in a grant. Only requests that can wait count for that: whatever else the engine has, streams and HTTP
//! connections that are kept busy, must not keep those here for ever.
//!
//! Whoever waits goes down a lane as soon as one has room, before newer requests. As long as none is granted, the engine
//! gets the next ones whenever it is done with most of what it had: so they go on at its pace, if a grant never comes.

use crate::fastpath::admission::{Admission, Asked};
use crate::fastpath::direct::{Direct, State, forget_empty};
use crate::fastpath::flight::shown;
use crate::fastpath::plan::{Place, Plan};
use crate::lanes::slots::Slot;
use crate::measure::clock::now_ns;
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// Requests of a group that the engine has at most, before others of it wait: a few batches, which Python serves within
/// some 30 ms.
pub const ENGINE_MOST: usize = 256;
/// With so few left it gets more. Most were answered by then, so that it had a moment with nothing queued, and what is
/// left keeps it busy meanwhile.
pub const ENGINE_LEFT: usize = 64;
/// Requests of a group that wait at most, as the engine queues them for one model; beyond that the oldest is the engine's.
pub const WAITING_MOST: usize = 4_000;
/// What the engine takes for a request, or less: who would be late even so is refused.
const ENGINE_PACE_NS: u64 = 100_000;

/// A request that can be given to a lane.
pub(crate) struct Request {
    pub(crate) plan: Arc<Plan>,
    pub(crate) id: Bytes,
    pub(crate) raw: Vec<(usize, Place)>,
    pub(crate) arrived_ns: u64,
    pub(crate) deadline_ns: u64,
}

impl Request {
    /// With what of its deadline its plan knows.
    pub(crate) fn new(
        plan: Arc<Plan>,
        id: Bytes,
        raw: Vec<(usize, Place)>,
        (arrived_ns, deadline_ns): (u64, u64),
    ) -> Self {
        let deadline_ns = plan.deadline_of(arrived_ns, deadline_ns);
        Self { plan, id, raw, arrived_ns, deadline_ns }
    }
}

/// What waits, and how to tell it.
pub(crate) struct Seat {
    request: Request,
    charge_ns: u64,
    tell: oneshot::Sender<Admission>,
}

impl Seat {
    /// The model that is asked.
    pub(crate) fn model(&self) -> u32 {
        self.request.plan.model
    }
}

/// A request that waits. Dropped before it was told what becomes of it, its client has gone.
pub struct Parked {
    direct: Arc<Direct>,
    plan: Arc<Plan>,
    id: Bytes,
    number: u64,
    deadline_ns: u64,
    told: oneshot::Receiver<Admission>,
}

impl Parked {
    /// Its deadline, that of its plan if it brought none; 0: none.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Ready with what becomes of it, which is never to wait again.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Admission> {
        Pin::new(&mut self.told).poll(cx).map(|told| told.unwrap_or(Admission::Engine(None)))
    }

    /// Counts it as expired; what its client is told.
    pub fn expire(self) -> String {
        let mut state = self.direct.state();
        state.news.expired((self.plan.model, self.plan.kind, 0));
        self.direct.announce(&mut state);
        drop(state);
        format!("[request id: {}] Request timeout expired", shown(&self.id))
    }

    /// Counts it as given up by its client.
    pub fn cancel(self) {
        let mut state = self.direct.state();
        state.news.cancelled((self.plan.model, self.plan.kind, 0));
        self.direct.announce(&mut state);
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        let mut state = self.direct.state();
        let Some(group) = state.groups.get_mut(&self.plan.group) else { return };
        if let Some(seat) = group.parked.remove(&self.number) {
            group.ended(seat.charge_ns);
            forget_empty(&mut state.groups, self.plan.group);
            state.parked -= 1;
        }
    }
}

impl Direct {
    /// Whether a request of this group that has no lane waits, which the caller can (`waits`) and others may not.
    pub(crate) fn shall_wait(state: &State, id: u32) -> bool {
        let Some(group) = state.groups.get(&id) else { return false };
        state.is_full(group) || !group.parked.is_empty() || group.with_engine >= ENGINE_MOST
    }

    /// Whether the engine cannot be done in time with a request that would wait for it.
    pub(crate) fn waits_in_vain(state: &State, id: u32, deadline_ns: u64) -> Option<u64> {
        let group = state.groups.get(&id).filter(|group| deadline_ns > 0 && !state.is_full(group))?;
        let done_ns = now_ns() + u64::from(group.asked) * ENGINE_PACE_NS;
        done_ns.checked_sub(deadline_ns).filter(|late_ns| *late_ns > 0)
    }

    /// Has a request wait that the engine would be asked for, and which counts as work ahead of others as if it were.
    pub(crate) fn park(
        self: &Arc<Self>,
        state: &mut State,
        mut request: Request,
        charge_ns: u64,
    ) -> Admission {
        request.id = Bytes::copy_from_slice(&request.id); // a part of the message would keep it
        let (tell, told) = oneshot::channel();
        let (number, plan, id) = (state.next_seat, request.plan.clone(), request.id.clone());
        let deadline_ns = request.deadline_ns;
        let group = state.groups.entry(plan.group).or_default();
        group.asked(charge_ns, deadline_ns);
        group.parked.insert(number, Seat { request, charge_ns, tell });
        let too_many = group.parked.len() > WAITING_MOST;
        state.next_seat += 1;
        state.parked += 1;
        if too_many {
            self.let_go(state, plan.group, None);
        }
        Admission::Parked(Box::new(Parked { direct: self.clone(), plan, id, number, deadline_ns, told }))
    }

    /// Lets go of whoever need not wait any more, of all groups.
    pub(crate) fn unpark_all(self: &Arc<Self>, state: &mut State) {
        if state.parked > 0 {
            let waiting = state.groups.iter().filter(|(_, group)| !group.parked.is_empty());
            for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.unpark(state, id);
            }
        }
    }

    /// Lets go of whoever need not wait any more: the oldest first.
    pub(crate) fn unpark(self: &Arc<Self>, state: &mut State, id: u32) {
        let Some(group) = state.groups.get(&id) else { return };
        let mut left = if group.with_engine <= ENGINE_LEFT { ENGINE_MOST - group.with_engine } else { 0 };
        while let Some(first) = state.groups.get(&id).and_then(|group| group.parked.first_key_value()) {
            let plan = first.1.request.plan.clone();
            let full = state.groups.get(&id).is_some_and(|group| state.is_full(group));
            let place = if plan.is_live() { state.place_for(&plan) } else { None };
            if place.is_none() && (full && plan.is_live() || left == 0) {
                break;
            }
            left -= usize::from(place.is_none());
            self.let_go(state, id, place);
        }
    }

    /// Gives the oldest to a lane, or else to the engine.
    fn let_go(self: &Arc<Self>, state: &mut State, id: u32, place: Option<(u32, Slot)>) {
        let Some(group) = state.groups.get_mut(&id) else { return };
        let Some((_, Seat { request, charge_ns, tell })) = group.parked.pop_first() else { return };
        state.parked -= 1;
        let admission = match place {
            Some((lane, slot)) => {
                group.ended(charge_ns);
                self.take_up(state, request, lane, slot)
            }
            None => {
                group.with_engine += 1;
                Admission::Engine(Some(Asked { direct: self.clone(), group: id, charge_ns, waits: true }))
            }
        };
        // Whoever waits leaves its seat before it goes, so this is never dropped here, where the lock is held.
        let told = tell.send(admission);
        debug_assert!(told.is_ok(), "nobody sits there");
    }
}

#[cfg(test)]
#[path = "parking_tests.rs"]
mod tests;
