//! Makes calls and keeps what became of them. One thread, one epoll; nobody else touches anything here.
//!
//! Open loop: a call goes out when it is due, whatever has become of the earlier ones. Closed loop: each end of a call
//! starts the next one. Each call is written with a system call of its own, as separate clients would do it, unless
//! calls that fall together are to be joined.

use crate::arrivals::Arrivals;
use crate::connection::{Connection, Finished, code};
use crate::plan::{Plan, Shape};
use crate::report::{Call, OPEN};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Error, Result};
use std::iter::Peekable;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DRAIN_TIMEOUT_NS: u64 = 30_000_000_000;
const EVENTS: usize = 64;
const TIMER: u64 = u64::MAX;
const MESSAGE_MAX: usize = 200;

struct Expiry {
    at: u64,
    call: usize,
    connection: usize,
}

/// The caller.
pub struct Caller<'a> {
    plan: &'a Plan,
    start: Instant,
    epoll: OwnedFd,
    timer: OwnedFd,
    events: Vec<epoll::Event>,
    connections: Vec<Connection>,
    /// Connections to be flushed, and those that wait until their socket takes more.
    touched: Vec<bool>,
    blocked: Vec<bool>,
    next: usize,
    expiring: VecDeque<Expiry>,
    finished: Vec<Finished>,
    /// Times of this thread end here for new calls of a closed loop.
    again_until: u64,
    open: usize,
    /// All calls so far.
    pub calls: Vec<Call>,
    /// The first text of each status that is not OK.
    pub messages: BTreeMap<u32, String>,
}

fn framed(payload: &[u8]) -> Arc<[u8]> {
    let mut message = vec![0];
    message.extend((payload.len() as u32).to_be_bytes());
    message.extend(payload);
    message.into()
}

impl<'a> Caller<'a> {
    /// Connects, and waits until all connections can make calls.
    pub fn connect(plan: &'a Plan) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // Edge-triggered, so that the timer need not be read: setting it anew is enough.
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        let message = framed(&plan.payload);
        let connections =
            (0..plan.channels).map(|_| Connection::open(plan, &message)).collect::<Result<Vec<_>>>()?;
        for (place, connection) in connections.iter().enumerate() {
            let socket = connection.transport().socket();
            epoll::add(&epoll, socket, EventData::new_u64(place as u64), EventFlags::IN)?;
        }
        let expected = plan.seconds + plan.warm_up_s;
        let calls = match plan.shape {
            Shape::Closed(_) => 1 << 16,
            Shape::Poisson(rate) | Shape::Constant(rate) => (rate * expected * 1.1) as usize,
        };
        let mut caller = Self {
            plan,
            start: Instant::now(),
            epoll,
            timer,
            events: Vec::with_capacity(EVENTS),
            touched: vec![true; connections.len()],
            blocked: vec![false; connections.len()],
            connections,
            next: 0,
            expiring: VecDeque::new(),
            finished: Vec::new(),
            again_until: 0,
            open: 0,
            calls: Vec::with_capacity(calls),
            messages: BTreeMap::new(),
        };
        caller.await_ready()?;
        Ok(caller)
    }

    fn await_ready(&mut self) -> Result<()> {
        loop {
            self.flush()?;
            if let Some(reason) = self.connections.iter().find_map(Connection::lost) {
                return Err(Error::other(reason.to_string()));
            }
            if self.connections.iter().all(Connection::is_ready) {
                return Ok(());
            }
            let left = CONNECT_TIMEOUT.checked_sub(self.start.elapsed());
            let left = left.ok_or_else(|| Error::other("the server does not answer the HTTP/2 preface"))?;
            self.wait(Some(self.now() + left.as_nanos() as u64))?;
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Makes all calls of the plan; returns when they began, in ns. Calls that end much later stay open.
    pub fn run(&mut self) -> Result<u64> {
        let begin = self.now();
        let total_s = self.plan.seconds + self.plan.warm_up_s;
        let end = begin + (total_s * 1e9) as u64;
        if let Shape::Closed(concurrency) = self.plan.shape {
            self.again_until = end;
            (0..concurrency).try_for_each(|_| self.send(self.now()))?;
        }
        let mut arrivals = Arrivals::new(self.plan.shape, self.plan.seed, total_s).peekable();
        loop {
            let due = self.send_due(&mut arrivals, begin)?;
            self.expire()?;
            self.flush()?;
            self.settle()?;
            if self.touched.iter().any(|touched| *touched) {
                continue; // calls that ended meanwhile have started others
            }
            if due.is_none() && self.open == 0 || self.now() > end + DRAIN_TIMEOUT_NS {
                return Ok(begin);
            }
            let next_expiry = self.next_expiry();
            let until = [due, next_expiry, Some(end + DRAIN_TIMEOUT_NS + 1)].into_iter().flatten().min();
            self.wait(until)?;
            self.settle()?;
        }
    }

    /// Sends what is due; returns when the next call is.
    fn send_due(&mut self, arrivals: &mut Peekable<Arrivals>, begin: u64) -> Result<Option<u64>> {
        while let Some(offset) = arrivals.peek() {
            let due = begin + offset;
            if due > self.now() {
                return Ok(Some(due));
            }
            arrivals.next();
            self.send(due)?;
        }
        Ok(None)
    }

    fn send(&mut self, due: u64) -> Result<()> {
        let (number, place) = (self.calls.len(), self.next);
        self.next = (self.next + 1) % self.connections.len();
        let sent = self.now();
        let deadline = self.plan.deadline_ns;
        let timeout_us =
            if deadline == 0 { 0 } else { ((due + deadline).saturating_sub(sent) / 1000).max(1) };
        self.calls.push(Call { due, sent, done: 0, code: OPEN });
        self.open += 1;
        self.connections[place].call(number, timeout_us, &mut self.finished);
        self.touched[place] = true;
        if deadline > 0 {
            self.expiring.push_back(Expiry { at: due + deadline, call: number, connection: place });
        }
        if self.plan.joined { Ok(()) } else { self.flush_one(place) }
    }

    /// Gives up on calls whose deadline has passed, as every gRPC client does.
    fn expire(&mut self) -> Result<()> {
        while let Some(expiry) = self.expiring.front() {
            if self.calls[expiry.call].code == OPEN {
                if expiry.at > self.now() {
                    break;
                }
                if self.connections[expiry.connection].cancel(expiry.call) {
                    self.touched[expiry.connection] = true;
                    self.end(expiry.call, code::DEADLINE_EXCEEDED, "the deadline passed at the client")?;
                    continue;
                }
            }
            self.expiring.pop_front();
        }
        Ok(())
    }

    fn next_expiry(&self) -> Option<u64> {
        self.expiring.front().map(|expiry| expiry.at)
    }

    fn flush(&mut self) -> Result<()> {
        (0..self.connections.len()).try_for_each(|place| self.flush_one(place))
    }

    fn flush_one(&mut self, place: usize) -> Result<()> {
        if std::mem::take(&mut self.touched[place]) {
            let blocked = self.connections[place].flush(&mut self.finished);
            if self.connections[place].lost().is_none() && blocked != self.blocked[place] {
                self.blocked[place] = blocked;
                let interest = if blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
                let socket = self.connections[place].transport().socket();
                epoll::modify(&self.epoll, socket, EventData::new_u64(place as u64), interest)?;
            }
        }
        Ok(())
    }

    /// Waits for sockets, until a moment, and reads what has come.
    fn wait(&mut self, until: Option<u64>) -> Result<()> {
        let now = self.now();
        let at_once = until.is_some_and(|until| until <= now);
        if let (Some(until), false) = (until, at_once) {
            self.arm(until - now)?;
        }
        self.events.clear();
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, room, at_once.then_some(&none)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = std::mem::take(&mut self.events);
        events.drain(..).for_each(|event| self.take(event));
        self.events = events; // keeps its memory
        Ok(())
    }

    fn take(&mut self, event: epoll::Event) {
        let (data, flags) = (event.data.u64(), event.flags);
        if data == TIMER {
            return;
        }
        let place = data as usize;
        self.touched[place] = true; // there may be acknowledgements to send
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.connections[place].receive(self.plan, &mut self.finished);
        }
        if self.connections[place].lost().is_some() {
            let _ = epoll::delete(&self.epoll, self.connections[place].transport().socket());
        }
    }

    fn arm(&self, ns: u64) -> Result<()> {
        let value = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    /// Records what has ended and, in a closed loop, makes the next calls.
    fn settle(&mut self) -> Result<()> {
        let mut finished = std::mem::take(&mut self.finished);
        for Finished { call, status } in finished.drain(..) {
            self.end(call, status.code, &status.message)?;
        }
        if self.finished.is_empty() {
            self.finished = finished; // keeps its memory
        }
        Ok(())
    }

    fn end(&mut self, number: usize, code: u32, message: &str) -> Result<()> {
        let now = self.now();
        let call = &mut self.calls[number];
        (call.done, call.code) = (now, code);
        self.open -= 1;
        if code != code::OK {
            let text = || message.chars().take(MESSAGE_MAX).collect();
            self.messages.entry(code).or_insert_with(text);
        }
        // A closed loop ends early when the server leaves: calls that fail at once would only spin.
        if now < self.again_until && self.connections.iter().all(Connection::takes_calls) {
            self.send(now)?;
        }
        Ok(())
    }

    /// How many calls never ended.
    pub fn unanswered(&self) -> usize {
        self.open
    }
}
