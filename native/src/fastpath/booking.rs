//! Whether the fast path can serve a request, and on which lane: by what is leased, by its deadline, and by what is
//! ahead of it.

use crate::fastpath::backlog;
use crate::fastpath::dispatch::Dispatch;
use crate::fastpath::request::{Asks, Booking, EngineWork, Request, Verdict, shown};
use crate::lanes::load::Price;
use crate::measure::clock::now_ns;
use crate::templates::template::Template;

/// What is to be done about a request and its deadline.
enum Timeliness {
    /// It can be taken.
    InTime,
    /// By so much it cannot be in time, and being about the last in the order of deadlines the engine would refuse it,
    /// too.
    Late(u64),
    /// The engine decides: it may let it overtake others, and where nothing is ahead of it, try whether the price is
    /// right.
    Engine,
}

/// Whether a request would be in time, and if not, whose business that is.
fn timeliness(dispatch: &Dispatch, template: &Template, price: Price, deadline_ns: u64) -> Timeliness {
    let Some(group) = dispatch.groups.get(&template.group).filter(|group| !group.lanes.is_empty()) else {
        return Timeliness::InTime; // as far as can be known
    };
    if deadline_ns == 0 {
        return Timeliness::InTime;
    }
    let now_ns = now_ns();
    let ahead = dispatch.lanes_of(group).map(|lane| lane.load().ahead_ns(template.kind, price, now_ns));
    let ahead_ns = ahead.min().unwrap_or(0);
    let work_ns = ahead_ns + group.asked_ns / group.lanes.len() as u64;
    let end_ns = now_ns + work_ns + price.own_ns(template.rows) + price.margin_ns;
    if end_ns <= deadline_ns {
        return Timeliness::InTime;
    }
    let last_ns = deadline_ns + price.batch_ns + price.margin_ns;
    let last =
        group.latest_ns <= last_ns && dispatch.lanes_of(group).all(|lane| lane.load().is_latest(last_ns));
    let busy = group.asked > 0 || dispatch.lanes_of(group).any(|lane| lane.load().given() > 0);
    if last && busy { Timeliness::Late(end_ns - deadline_ns) } else { Timeliness::Engine }
}

/// Takes up a request of which not all has come. Whoever would be late, or finds no room, is looked at again when it
/// has, and counted then.
pub(crate) fn book_ahead(dispatch: &mut Dispatch, request: Request) -> Option<Booking> {
    let template = &request.template;
    let price = dispatch.price_of(template.kind);
    let in_time = timeliness(dispatch, template, price, request.deadline_ns);
    if !matches!(in_time, Timeliness::InTime) || dispatch.is_waited_for(template.group) {
        return None;
    }
    let place = dispatch.place_for(template)?;
    let Verdict::Lane(booking) = dispatch.take_up(request, place) else { return None };
    if let Some(given) = dispatch.lanes.get_mut(&booking.lane) {
        given.await_rest(booking.ticket);
    }
    Some(booking)
}

/// Gives a request to the lane with the least work, refuses it, has it wait, or leaves it to the engine.
pub(crate) fn book(dispatch: &mut Dispatch, request: Request, asks: Asks) -> Verdict {
    let Request { template, deadline_ns, .. } = &request;
    let (group, deadline_ns) = (template.group, *deadline_ns);
    let price = dispatch.price_of(template.kind);
    match timeliness(dispatch, template, price, deadline_ns) {
        Timeliness::InTime => {}
        Timeliness::Late(late_ns) if asks != Asks::Within => {
            return refuse(dispatch, &request, late_ns);
        }
        Timeliness::Late(_) | Timeliness::Engine => return ask(dispatch, &request, price, false),
    }
    let place = if dispatch.is_waited_for(group) { None } else { dispatch.place_for(template) };
    if let Some(place) = place {
        return dispatch.take_up(request, place);
    }
    let waits = asks == Asks::Alone;
    if !waits || !backlog::shall_wait(dispatch, group) {
        return ask(dispatch, &request, price, waits);
    }
    if let Some(late_ns) = backlog::waits_in_vain(dispatch, group, deadline_ns) {
        return refuse(dispatch, &request, late_ns);
    }
    let charge_ns = price.charge(template.rows);
    backlog::enter(dispatch, request, charge_ns)
}

/// Refuses a request that would be late by so much.
fn refuse(dispatch: &mut Dispatch, request: &Request, late_ns: u64) -> Verdict {
    let Request { template, id, arrived_ns, deadline_ns, .. } = request;
    let subject = template.subject(0);
    dispatch.news.refused(subject);
    dispatch.news.budget(subject, deadline_ns.saturating_sub(*arrived_ns));
    dispatch.announce();
    Verdict::Late(format!("[request id: {}] {}", shown(id), template.late_text), late_ns)
}

/// Leaves a request to the engine; what is ahead of others grows by it until it has ended. `waits`: it would have
/// waited, had the engine many such.
fn ask(dispatch: &mut Dispatch, request: &Request, price: Price, waits: bool) -> Verdict {
    let (id, charge_ns) = (request.template.group, price.charge(request.template.rows));
    let group = dispatch.groups.entry(id).or_default();
    group.asked(charge_ns, request.deadline_ns);
    group.with_engine += usize::from(waits);
    Verdict::Engine(Some(EngineWork { group: id, charge_ns, waits }))
}
