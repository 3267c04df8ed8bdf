//! One lane as the front end sees it: the requests that it has given to one worker, and what became of them.
//!
//! The worker is not trusted: a completion counts only when it names a request that is in flight, by number and
//! generation, and the times it tells are bounded by the front end's own.

use crate::lanes::load::{Load, Price};
use crate::lanes::memory::{Completion, ServerEnd, Submission, status};
use crate::lanes::news::{Batches, News};
use crate::lanes::outcome::{Closed, Outcome, Stages};
use crate::lanes::slots::{MemoryObject, Slot, Slots};
use crate::listen::quota::Account;
use crate::templates::template::Template;
use bytes::Bytes;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use tokio::io::unix::AsyncFd;

/// Requests in flight at most, whatever was leased: as many as the rings hold.
pub(crate) const DEPTH: u32 = 1024;

/// Rows of a batch at most, where nothing is planned yet.
const ROWS: u32 = 1 << 16;

/// So long after it had something to do a worker has begun with it.
const BEGINS_NS: u64 = 50_000_000;

#[derive(Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Its tensors are being copied.
    Filling,
    /// The worker has it.
    Running,
    /// The worker has it, and its client has gone: it passes over it, unless it has begun it.
    Abandoned,
    /// It is over, and its call has not yet looked.
    Over(Outcome),
}

struct Entry {
    generation: u32,
    state: State,
    template: Option<Arc<Template>>,
    slot: Option<Slot>,
    arrived_ns: u64,
    submitted_ns: u64,
    /// How many were submitted before it.
    sequence: u64,
    charge_ns: u64,
    price: Price,
    waker: Option<Waker>,
    /// Its client may take its time over its tensors.
    arriving: bool,
    /// Its client's.
    account: Option<Arc<Account>>,
}

/// What names a request in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    number: u32,
    generation: u32,
}

impl Ticket {
    fn wire(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.number)
    }

    fn of_wire(wire: u64) -> Self {
        Self { number: wire as u32, generation: (wire >> 32) as u32 }
    }
}

/// A lane; see the head of this file.
pub(crate) struct Lane {
    /// Its id, the worker's.
    pub(crate) id: u32,
    /// The lanes with the same models.
    pub(crate) group: u32,
    /// Requests that may be in flight without asking; 0: none.
    pub(crate) limit: u32,
    /// The worker said what cannot be.
    pub(crate) broken: bool,
    /// Its process has ended; it stays until the last call has looked.
    pub(crate) closed: bool,
    /// What tensors of its requests lie in.
    pub(crate) object: Arc<MemoryObject>,
    end: ServerEnd,
    /// Registered with the runtime until the lane is closed, so that a ring ends the thread's sleep, after which it looks
    /// at its lanes. No task hears a ring, and the descriptor is never read: each ring is an edge.
    doorbell: Option<AsyncFd<OwnedFd>>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    used: u32,
    /// What the worker has.
    load: Load,
    /// Those of them that are still coming.
    arriving: u32,
    submitted: u64,
    /// Something was submitted since the worker was last woken.
    unheard: bool,
}

impl Lane {
    /// A lane without a lease.
    pub(crate) fn new(
        id: u32,
        group: u32,
        (end, object): (ServerEnd, Arc<MemoryObject>),
        doorbell: Option<AsyncFd<OwnedFd>>,
    ) -> Self {
        Self {
            id,
            group,
            limit: 0,
            broken: false,
            closed: false,
            object,
            end,
            doorbell,
            entries: Vec::new(),
            free: Vec::new(),
            used: 0,
            load: Load::default(),
            arriving: 0,
            submitted: 0,
            unheard: false,
        }
    }

    /// Requests that are not over, those of clients that have gone included.
    pub(crate) fn in_flight(&self) -> u32 {
        self.used
    }

    /// The work that the worker has. Requests whose tensors are still coming, for which a client may take its time,
    /// are no work yet.
    pub(crate) fn load(&self) -> &Load {
        &self.load
    }

    /// Whether requests may be given to it, were there room, and most of what it has has come.
    pub(crate) fn is_busy(&self) -> bool {
        self.limit > 0 && !self.broken && !self.closed && self.arriving * 2 < self.used
    }

    /// Whether one more may be given to it.
    pub(crate) fn has_room(&self) -> bool {
        self.used < self.limit.min(DEPTH) && !self.broken && !self.closed
    }

    /// Requests of a model that the worker may touch, or whose calls have not looked yet how they ended.
    pub(crate) fn in_flight_of(&self, model: u32) -> usize {
        let of_model =
            |entry: &&Entry| entry.template.as_ref().is_some_and(|template| template.model == model);
        // What is still coming and was forgotten meanwhile will never depart.
        let open = |entry: &&Entry| match entry.state {
            State::Filling => entry.template.as_ref().is_some_and(|template| template.is_live()),
            State::Running | State::Abandoned | State::Over(_) => true,
            State::Free => false,
        };
        self.entries.iter().filter(open).filter(of_model).count()
    }

    /// Takes up a request whose tensors will be copied into `slot`.
    pub(crate) fn reserve(
        &mut self,
        template: &Arc<Template>,
        slot: Slot,
        arrived_ns: u64,
        price: Price,
    ) -> Ticket {
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                state: State::Free,
                template: None,
                slot: None,
                arrived_ns: 0,
                submitted_ns: 0,
                sequence: 0,
                charge_ns: 0,
                price: Price::default(),
                waker: None,
                arriving: false,
                account: None,
            });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[number as usize];
        debug_assert_eq!(entry.state, State::Free);
        entry.generation = entry.generation.wrapping_add(1);
        entry.state = State::Filling;
        entry.template = Some(template.clone());
        entry.slot = Some(slot);
        (entry.arrived_ns, entry.charge_ns, entry.price) = (arrived_ns, 0, price);
        self.used += 1;
        Ticket { number, generation: entry.generation }
    }

    /// Its tensors are yet to come.
    pub(crate) fn await_rest(&mut self, ticket: Ticket) {
        let entry = &mut self.entries[ticket.number as usize];
        debug_assert!(entry.state == State::Filling && !entry.arriving);
        entry.arriving = true;
        self.arriving += 1;
    }

    /// Notes whose it is.
    pub(crate) fn note_client(&mut self, ticket: Ticket, account: Option<&Arc<Account>>) {
        self.entries[ticket.number as usize].account = account.cloned();
    }

    /// Gives it to the worker, which `rouse` wakes. False when it no longer may be given: the caller
    /// then forgets it.
    pub(crate) fn submit(&mut self, ticket: Ticket, deadline_ns: u64, now_ns: u64) -> bool {
        if self.limit == 0 || self.broken || self.closed {
            return false;
        }
        let entry = &mut self.entries[ticket.number as usize];
        let (Some(template), Some(slot)) = (&entry.template, entry.slot) else { return false };
        if !template.is_live() {
            return false;
        }
        let submission = Submission {
            ticket: ticket.wire(),
            offset: slot.offset as u64,
            out_offset: (slot.offset + template.out_offset) as u64,
            start_by_ns: deadline_ns
                .saturating_sub(entry.price.own_ns(template.rows))
                .max(u64::from(deadline_ns > 0)),
            template: template.id,
            rows: template.rows,
            batch_rows: entry.price.batch_rows,
            ..Submission::default()
        };
        let (kind, rows, price) = (template.kind, template.rows, entry.price);
        if !self.end.submit(&submission) {
            return false;
        }
        self.unheard = true;
        let charge_ns = self.load.begin((kind, rows), price, deadline_ns, now_ns);
        let entry = &mut self.entries[ticket.number as usize];
        entry.charge_ns = charge_ns;
        entry.state = State::Running;
        self.arriving -= u32::from(std::mem::take(&mut entry.arriving));
        entry.submitted_ns = now_ns;
        entry.sequence = self.submitted;
        self.submitted += 1;
        true
    }

    /// Wakes the worker if it sleeps and something was submitted.
    pub(crate) fn rouse(&mut self) {
        if std::mem::take(&mut self.unheard) {
            self.end.wake_worker();
        }
    }

    /// The outcome, if it is over; else what is to be woken when it is.
    pub(crate) fn poll(&mut self, ticket: Ticket, task: &Waker) -> Option<Outcome> {
        let entry = &mut self.entries[ticket.number as usize];
        if let State::Over(outcome) = entry.state {
            return Some(outcome);
        }
        if !entry.waker.as_ref().is_some_and(|known| known.will_wake(task)) {
            entry.waker = Some(task.clone());
        }
        None
    }

    /// Its call is done with it: the slot goes back as soon as the worker is done with it, too. True when the worker
    /// still has it.
    pub(crate) fn release(&mut self, ticket: Ticket, slots: &mut Slots) -> bool {
        let entry = &mut self.entries[ticket.number as usize];
        if entry.generation != ticket.generation {
            return false;
        }
        match entry.state {
            State::Running => {
                entry.state = State::Abandoned;
                entry.waker = None;
                self.end.withdraw(entry.sequence as u32); // the ring counts as far
                true
            }
            State::Filling | State::Over(_) => {
                self.clear(ticket.number, slots);
                false
            }
            State::Free | State::Abandoned => false,
        }
    }

    fn clear(&mut self, number: u32, slots: &mut Slots) {
        let entry = &mut self.entries[number as usize];
        if let Some(slot) = entry.slot.take() {
            slots.give(slot);
        }
        if !matches!(entry.state, State::Over(_)) {
            self.used -= 1;
        }
        if entry.state == State::Abandoned {
            self.load.end(entry.charge_ns);
        }
        entry.state = State::Free;
        self.arriving -= u32::from(std::mem::take(&mut entry.arriving));
        (entry.template, entry.waker, entry.account) = (None, None, None);
        self.free.push(number);
    }

    fn over(&mut self, number: u32, outcome: Outcome) {
        let entry = &mut self.entries[number as usize];
        entry.state = State::Over(outcome);
        self.used -= 1;
        self.load.end(entry.charge_ns);
        if let Some(waker) = self.entries[number as usize].waker.take() {
            waker.wake();
        }
    }

    /// Takes what the worker has completed; how many requests that were. What it cannot have completed does not count.
    pub(crate) fn drain(&mut self, slots: &mut Slots, news: &mut News, now_ns: u64) -> u32 {
        let mut ended = 0;
        while !self.broken && !self.closed {
            let Some(completion) = self.end.take() else { break };
            if self.complete(&completion, slots, news, now_ns) {
                ended += 1;
                self.load.progressed(now_ns);
            } else {
                self.distrust(news);
            }
        }
        if self.end.broken() && !self.broken {
            self.distrust(news);
        }
        ended
    }

    /// Nothing that this worker says counts from here on; the engine has it killed, and `close` follows.
    fn distrust(&mut self, news: &mut News) {
        self.broken = true;
        news.broken(self.id);
    }

    fn complete(&mut self, told: &Completion, slots: &mut Slots, news: &mut News, now_ns: u64) -> bool {
        let ticket = Ticket::of_wire(told.ticket);
        let Some(entry) = self.entries.get(ticket.number as usize) else { return false };
        let running = matches!(entry.state, State::Running | State::Abandoned);
        if entry.generation != ticket.generation || !running {
            return false;
        }
        let Some(template) = &entry.template else { return false };
        let subject = template.subject(self.id);
        let most = if entry.price.batch_rows == 0 { ROWS } else { entry.price.batch_rows };
        if told.status == status::OK && !(template.rows..=most.max(template.rows)).contains(&told.batch_rows)
        {
            return false;
        }
        let outcome = match told.status {
            status::OK => {
                let stages = stages(told, entry.arrived_ns, entry.submitted_ns, now_ns);
                if told.first == 1 {
                    let Stages { gather_ns, run_ns, scatter_ns, .. } = stages;
                    news.batch(subject, told.batch_rows, Batches { count: 0, gather_ns, run_ns, scatter_ns });
                }
                Outcome::Ran(stages)
            }
            status::HAND_OVER => Outcome::HandOver { attempts: 0 },
            status::EXPIRED => Outcome::Expired,
            status::WITHDRAWN if entry.state == State::Abandoned => Outcome::Expired, // which is told to none
            _ => return false,
        };
        if entry.state == State::Abandoned {
            self.clear(ticket.number, slots);
        } else {
            self.over(ticket.number, outcome);
        }
        true
    }

    /// A request was answered; `who` are its id and its client.
    pub(crate) fn answered(
        &self,
        ticket: Ticket,
        stages: Stages,
        who: (&Bytes, &str),
        now_ns: u64,
        news: &mut News,
    ) {
        let entry = &self.entries[ticket.number as usize];
        let Some(template) = &entry.template else { return };
        let total_ns = now_ns.saturating_sub(entry.arrived_ns);
        let Stages { queue_ns, gather_ns, run_ns, scatter_ns } = stages;
        let stages_ns = [queue_ns, gather_ns, run_ns, scatter_ns, total_ns];
        news.answered(template.subject(self.id), who, template.rows, stages_ns);
    }

    /// Its process has ended: what it had is handed over, and its memory is the front end's again. Only what may have
    /// been in the batch that ran counts as tried: the worker takes requests in their order, and the others have nothing
    /// to do with its death. One that ran alone is tried no more if that is `last`.
    pub(crate) fn close(&mut self, slots: &mut Slots, last: bool) -> Closed {
        (self.closed, self.limit, self.doorbell) = (true, 0, None);
        let mut had: Vec<u32> =
            (0..self.entries.len() as u32).filter(|number| self.is_running(*number)).collect();
        had.sort_by_key(|number| self.entries[*number as usize].sequence);
        let first = had.first().and_then(|number| self.entries[*number as usize].template.clone());
        let ran = self.may_have_run(&had);
        let clients = had[..ran].iter().map(|number| {
            let account = &self.entries[*number as usize].account;
            account.as_ref().map_or_else(String::new, |account| account.who().text())
        });
        let clients = clients.collect();
        for (place, number) in had.iter().enumerate() {
            if self.entries[*number as usize].state == State::Abandoned {
                self.clear(*number, slots);
            } else {
                let attempts = if place >= ran { 0 } else { 1 + u32::from(last && ran == 1) };
                self.over(*number, Outcome::HandOver { attempts });
            }
        }
        Closed { model: first.map(|template| template.model), had: had.len(), clients }
    }

    /// How many of these, the oldest first, may have been in the batch that ran: requests of one kind that were there
    /// when it may have begun, as many rows as it may have had.
    fn may_have_run(&self, had: &[u32]) -> usize {
        let begun_ns = self.load.owing_ns().saturating_add(BEGINS_NS);
        let (mut rows, mut bound, mut kind) = (0u32, u32::MAX, None);
        let together = had.iter().take_while(|number| {
            let entry = &self.entries[**number as usize];
            let Some(template) = &entry.template else { return false };
            let own = if entry.price.batch_rows == 0 { u32::MAX } else { entry.price.batch_rows };
            bound = bound.min(own);
            let fits =
                rows == 0 || (rows.saturating_add(template.rows) <= bound && entry.submitted_ns <= begun_ns);
            rows = rows.saturating_add(template.rows);
            fits && *kind.get_or_insert(template.kind) == template.kind
        });
        together.count()
    }

    /// As if the request with this number had been submitted long after.
    #[cfg(test)]
    pub(crate) fn came_later(&mut self, number: u32) {
        self.entries[number as usize].submitted_ns += 2 * BEGINS_NS;
    }

    fn is_running(&self, number: u32) -> bool {
        matches!(self.entries[number as usize].state, State::Running | State::Abandoned)
    }

    /// Whether no call needs it any more.
    pub(crate) fn is_done(&self) -> bool {
        self.closed && self.free.len() == self.entries.len()
    }

    /// The thread is about to sleep: completions must ring.
    pub(crate) fn arm(&self) {
        self.end.arm();
    }

    /// The thread is awake.
    pub(crate) fn disarm(&self) {
        self.end.disarm();
    }

    /// Whether there is something to take.
    pub(crate) fn pending(&self) -> bool {
        !self.broken && !self.closed && self.end.pending()
    }
}

/// What the worker tells of times, as far as it can be true.
fn stages(told: &Completion, arrived_ns: u64, submitted_ns: u64, now_ns: u64) -> Stages {
    let started_ns = told.started_ns.clamp(submitted_ns, now_ns.max(submitted_ns));
    let mut left = now_ns.saturating_sub(started_ns);
    let mut bounded = |ns: u64| {
        let ns = ns.min(left);
        left -= ns;
        ns
    };
    Stages {
        queue_ns: started_ns.saturating_sub(arrived_ns),
        gather_ns: bounded(told.gather_ns),
        run_ns: bounded(told.run_ns),
        scatter_ns: bounded(told.scatter_ns),
    }
}
