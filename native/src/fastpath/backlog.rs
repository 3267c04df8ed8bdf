//! Requests that wait for a lease to come, or for the engine to have time: where a lane has no lease, or no more room,
//! the engine is given only as many requests of a group as it can serve soon, and the others stay here, first in,
//! first out. Else its queue would never be empty while more comes than Python can serve, and only an empty queue ends
//! in a lease. Only requests that can wait count for that: whatever else the engine has, streams and HTTP connections
//! that are kept busy, must not keep those here for ever.
//!
//! Whoever waits goes down a lane as soon as one has room, before newer requests. As long as none is leased, the engine
//! gets the next ones whenever it is done with most of what it had: so they go on at its pace, if a lease never comes.

use crate::fastpath::dispatch::{Dispatch, Entry, Place};
use crate::fastpath::request::{EngineWork, Queued, Request, Verdict};
use crate::measure::clock::now_ns;
use bytes::Bytes;
use tokio::sync::oneshot;

/// Requests of a group that the engine has at most, before others of it wait: a few batches, which Python serves within
/// some 30 ms.
pub(crate) const ENGINE_MOST: usize = 256;
/// With so few left it gets more. Most were answered by then, so that it had a moment with nothing queued, and what is
/// left keeps it busy meanwhile.
pub(crate) const ENGINE_LEFT: usize = 64;
/// Requests of a group that wait at most, as the engine queues them for one model; beyond that the oldest is the
/// engine's.
pub(crate) const WAITING_MOST: usize = 4_000;
/// What the engine takes for a request, or less: what would be late even so is refused.
const ENGINE_PACE_NS: u64 = 100_000;

/// Whether a request of this group that has no lane waits, which the caller can and others may not.
pub(crate) fn shall_wait(dispatch: &Dispatch, id: u32) -> bool {
    let Some(group) = dispatch.groups.get(&id) else { return false };
    dispatch.is_full(group) || !group.backlog.is_empty() || group.with_engine >= ENGINE_MOST
}

/// Whether the engine cannot be done in time with a request that would wait for it.
pub(crate) fn waits_in_vain(dispatch: &Dispatch, id: u32, deadline_ns: u64) -> Option<u64> {
    let group = dispatch.groups.get(&id).filter(|group| deadline_ns > 0 && !dispatch.is_full(group))?;
    let done_ns = now_ns() + u64::from(group.asked) * ENGINE_PACE_NS;
    done_ns.checked_sub(deadline_ns).filter(|late_ns| *late_ns > 0)
}

/// Has a request wait that the engine would be asked for, and which counts as work ahead of others as if it were.
pub(crate) fn enter(dispatch: &mut Dispatch, mut request: Request, charge_ns: u64) -> Verdict {
    request.id = Bytes::copy_from_slice(&request.id); // a part of the message would keep it
    let (release, released) = oneshot::channel();
    let (number, template, id) = (dispatch.next_entry, request.template.clone(), request.id.clone());
    let deadline_ns = request.deadline_ns;
    let group = dispatch.groups.entry(template.group).or_default();
    group.asked(charge_ns, deadline_ns);
    group.backlog.insert(number, Entry { request, charge_ns, release });
    let too_many = group.backlog.len() > WAITING_MOST;
    dispatch.next_entry += 1;
    dispatch.waiting += 1;
    if too_many {
        let_go(dispatch, template.group, None);
    }
    Verdict::Waits(Queued { template, id, number, deadline_ns, released })
}

/// Takes out a request whose client has gone, if it still waits.
pub(crate) fn leave(dispatch: &mut Dispatch, group: u32, number: u64) {
    let Some(known) = dispatch.groups.get_mut(&group) else { return };
    if let Some(entry) = known.backlog.remove(&number) {
        known.ended(entry.charge_ns);
        dispatch.forget_empty(group);
        dispatch.waiting -= 1;
    }
}

/// Lets go of what need not wait any more, of all groups.
pub(crate) fn release_all(dispatch: &mut Dispatch) {
    if dispatch.waiting > 0 {
        let waiting = dispatch.groups.iter().filter(|(_, group)| !group.backlog.is_empty());
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            release(dispatch, id);
        }
    }
}

/// Lets go of what need not wait any more: the oldest first.
pub(crate) fn release(dispatch: &mut Dispatch, id: u32) {
    let Some(group) = dispatch.groups.get(&id) else { return };
    let mut left = if group.with_engine <= ENGINE_LEFT { ENGINE_MOST - group.with_engine } else { 0 };
    while let Some(first) = dispatch.groups.get(&id).and_then(|group| group.backlog.first_key_value()) {
        let template = first.1.request.template.clone();
        let full = dispatch.groups.get(&id).is_some_and(|group| dispatch.is_full(group));
        let place = if template.is_live() { dispatch.place_for(&template) } else { None };
        if place.is_none() && (full && template.is_live() || left == 0) {
            break;
        }
        left -= usize::from(place.is_none());
        let_go(dispatch, id, place);
    }
}

/// Gives the oldest to a lane, or else to the engine.
fn let_go(dispatch: &mut Dispatch, id: u32, place: Option<Place>) {
    let Some(group) = dispatch.groups.get_mut(&id) else { return };
    let Some((_, Entry { request, charge_ns, release })) = group.backlog.pop_first() else { return };
    dispatch.waiting -= 1;
    let verdict = match place {
        Some(place) => {
            group.ended(charge_ns);
            dispatch.take_up(request, place)
        }
        None => {
            group.with_engine += 1;
            Verdict::Engine(Some(EngineWork { group: id, charge_ns, waits: true }))
        }
    };
    // What waits leaves the backlog before it goes, so the receiver is there to hear it.
    let told = release.send(verdict);
    debug_assert!(told.is_ok(), "nobody waits there");
}

#[cfg(test)]
#[path = "backlog_tests.rs"]
mod tests;
