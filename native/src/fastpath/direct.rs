//! The fast path: what Python has said of requests that are served without it, and the requests in flight under leases.
//!
//! Everything is behind one lock, held for a few steps at a time and never over a copy of tensors or a wait, so that
//! what Python ends or forgets holds from the moment at which it returns. The counters that the thread looks at
//! whenever it turns round are atomic.

use crate::fastpath::backlog;
use crate::fastpath::dispatch::Dispatch;
use crate::lanes::lane::Lane;
use crate::lanes::load::Price;
use crate::lanes::memory::ServerEnd;
use crate::lanes::news::{News, Tally};
use crate::lanes::outcome::Closed;
use crate::lanes::slots::{MemoryObject, Slots};
use crate::lanes::trace::Trace;
use crate::measure::clock::now_ns;
use crate::measure::lock::Lock;
use crate::templates::scan::Scanned;
use crate::templates::template::{Subject, TemplateSpec};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, OnceLock};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// How much may be under way on one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamWindow {
    /// Requests.
    pub(crate) requests: usize,
    /// Bytes of messages, beyond which no more are read.
    pub(crate) bytes: usize,
}

/// See the head of this file.
pub(crate) struct Direct {
    /// Index of the method that can be served.
    method: OnceLock<u32>,
    /// Index of the streaming method, and what may be under way on one stream.
    stream: OnceLock<(u32, StreamWindow)>,
    pub(crate) dispatch: Lock<Dispatch>,
    /// Of the message that is looked at; used again for the next one.
    pub(crate) scanned: Lock<Scanned>,
    has_templates: AtomicBool,
    in_flight: Arc<AtomicUsize>,
    /// Woken when there is something to tell.
    pub(crate) notifier: Arc<Notify>,
}

impl Default for Direct {
    fn default() -> Self {
        let (in_flight, notifier) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        Self {
            method: OnceLock::new(),
            stream: OnceLock::new(),
            dispatch: Lock::new(Dispatch::new(in_flight.clone(), notifier.clone())),
            scanned: Lock::default(),
            has_templates: AtomicBool::new(false),
            in_flight,
            notifier,
        }
    }
}

impl Direct {
    // --- by Python

    /// Names the method that can be served, and the slots for it; once.
    pub(crate) fn attach(
        &self,
        method: u32,
        slots: Slots,
        bounds_ns: Vec<u64>,
        slow_ns: u64,
    ) -> Result<(), String> {
        self.method.set(method).map_err(|_| "the front end is attached already".to_string())?;
        let mut state = self.dispatch.lock();
        state.slots = slots;
        state.news = News::new(bounds_ns, slow_ns);
        Ok(())
    }

    /// Whether anything is shared with workers.
    pub(crate) fn is_attached(&self) -> bool {
        self.method.get().is_some()
    }

    /// Names the method whose streams carry such requests, and what may be under way on one; once.
    pub(crate) fn serve_stream(&self, method: u32, window: StreamWindow) -> Result<(), String> {
        self.stream.set((method, window)).map_err(|_| "the streaming method is named already".to_string())
    }

    /// The object that tensors of a lane lie in; `descriptor` is looked at only if no other lane shares it.
    pub(crate) fn object(&self, number: u32, descriptor: RawFd) -> io::Result<Arc<MemoryObject>> {
        self.dispatch.lock().slots.object(number, descriptor)
    }

    /// A worker's lane, without a lease; its tensors lie in `object`. A ring of its `doorbell` ends the thread's sleep.
    pub(crate) fn open_lane(
        &self,
        lane: u32,
        group: u32,
        (end, object): (ServerEnd, Arc<MemoryObject>),
        doorbell: Option<AsyncFd<OwnedFd>>,
    ) -> Result<(), String> {
        let mut dispatch = self.dispatch.lock();
        if dispatch.lanes.contains_key(&lane) {
            return Err(format!("lane {lane} is open already"));
        }
        dispatch.slots.share(&object);
        dispatch.lanes.insert(lane, Lane::new(lane, group, (end, object), doorbell));
        dispatch.groups.entry(group).or_default().lanes.push(lane);
        Ok(())
    }

    /// The worker's process has ended; what it ran alone is tried no more if that is `last`.
    pub(crate) fn close_lane(&self, lane: u32, last: bool) -> Closed {
        let mut state = self.dispatch.lock();
        let Dispatch { lanes, groups, slots, news, .. } = &mut *state;
        let Some(closing) = lanes.get_mut(&lane).filter(|lane| !lane.closed) else {
            return Closed::default();
        };
        let drained = closing.drain(slots, news, now_ns()) as usize;
        let closed = closing.close(slots, last);
        slots.leave(closing.object.number);
        let group = closing.group;
        if let Some(others) = groups.get_mut(&group) {
            others.lanes.retain(|other| *other != lane);
        }
        lanes.retain(|_, lane| !lane.is_done());
        state.count(drained + closed.had);
        state.forget_empty(group);
        backlog::release_all(&mut state);
        closed
    }

    /// Leases a lane: so many requests may be in flight on it without asking; 0 ends the lease. False when there is no
    /// such lane.
    pub(crate) fn lease(&self, lane: u32, limit: u32) -> bool {
        let mut state = self.dispatch.lock();
        let Some(leased) = state.lanes.get_mut(&lane) else { return false };
        leased.limit = limit;
        backlog::release_all(&mut state);
        true
    }

    /// Requests and work that the worker of a lane has, and since when it owes something.
    pub(crate) fn load(&self, lane: u32) -> (u32, u64, u64) {
        let state = self.dispatch.lock();
        let Some(lane) = state.lanes.get(&lane) else { return (0, 0, 0) };
        (lane.load().given(), lane.load().work_ns(now_ns()), lane.load().owing_ns())
    }

    /// Takes up a template for requests with this head.
    pub(crate) fn add_template(&self, head: Vec<u8>, spec: TemplateSpec) -> Result<(), String> {
        self.dispatch.lock().templates.add(head, spec)?;
        self.has_templates.store(true, Release);
        Ok(())
    }

    /// Drops the templates of a model, or all.
    pub(crate) fn drop_templates(&self, model: Option<u32>) {
        let mut state = self.dispatch.lock();
        state.templates.drop_of(model);
        self.has_templates.store(!state.templates.is_empty(), Release);
        backlog::release_all(&mut state);
    }

    /// Drops the template of a head, as `Templates` does.
    pub(crate) fn retire_template(&self, head: &[u8], spare: bool) -> bool {
        let mut state = self.dispatch.lock();
        let retired = state.templates.retire(head, spare);
        self.has_templates.store(!state.templates.is_empty(), Release);
        backlog::release_all(&mut state);
        retired
    }

    /// How many templates there are, and how many were retired.
    pub(crate) fn templates(&self) -> (u64, u64) {
        let templates = &self.dispatch.lock().templates;
        (templates.len() as u64, templates.retired())
    }

    /// What requests of a kind cost from now on.
    pub(crate) fn price(&self, kind: u32, price: Price) {
        self.dispatch.lock().prices.insert(kind, price);
    }

    /// There will be no requests of a kind any more.
    pub(crate) fn forget_price(&self, kind: u32) {
        self.dispatch.lock().prices.remove(&kind);
    }

    /// Requests of a model that a worker may still touch, or that are not answered yet.
    pub(crate) fn in_flight_of(&self, model: u32) -> usize {
        self.dispatch.lock().lanes.values().map(|lane| lane.in_flight_of(model)).sum()
    }

    /// Requests of a model that wait.
    pub(crate) fn backlog_of(&self, model: u32) -> usize {
        let state = self.dispatch.lock();
        state
            .groups
            .values()
            .flat_map(|group| group.backlog.values())
            .filter(|entry| entry.request.template.model == model)
            .count()
    }

    /// What happened since the last time, and the lanes whose workers talk nonsense.
    pub(crate) fn news(&self) -> (Vec<(Subject, Tally)>, Vec<u32>) {
        let mut state = self.dispatch.lock();
        state.begin_telling();
        state.news.take()
    }

    /// Traces one request in so many from here on; 0: none.
    pub(crate) fn sample(&self, one_in: u64) {
        self.dispatch.lock().traces.sample(one_in);
    }

    /// The traced requests that were answered since the last time.
    pub(crate) fn traces(&self) -> Vec<Trace> {
        self.dispatch.lock().traces.take()
    }

    /// Slots of each size that are free.
    pub(crate) fn free_slots(&self) -> Vec<usize> {
        self.dispatch.lock().slots.free()
    }

    // --- on the thread

    /// Whether requests for this method may be the front end's own.
    pub(crate) fn may_serve(&self, method: u32) -> bool {
        self.has_templates.load(Acquire) && self.method.get() == Some(&method)
    }

    /// What may be under way on a stream of this method, if it may be the front end's own.
    pub(crate) fn window_of(&self, method: u32) -> Option<StreamWindow> {
        self.stream.get().filter(|(streaming, _)| *streaming == method).map(|(_, window)| *window)
    }

    /// Whether there is any template.
    pub(crate) fn has_templates(&self) -> bool {
        self.has_templates.load(Acquire)
    }

    /// Takes what workers have completed and wakes whose it was; and wakes workers for what they were given since the
    /// last time. A worker that is woken for the first of many requests runs it alone, and may take the processor of
    /// this thread for it.
    pub(crate) fn collect(&self) {
        if self.in_flight.load(Relaxed) > 0 {
            self.take_completed(&mut self.dispatch.lock());
        }
    }

    /// Wakes the workers that were given something, and takes what they have completed.
    fn take_completed(&self, state: &mut Dispatch) {
        let Dispatch { lanes, slots, news, .. } = &mut *state;
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
            state.count(ended as usize);
            state.announce();
            backlog::release_all(state);
        }
    }

    /// Before the thread sleeps: whatever is completed from here on rings; what was completed before is taken.
    pub(crate) fn before_sleep(&self) {
        if self.in_flight.load(Relaxed) == 0 {
            return;
        }
        let mut state = self.dispatch.lock();
        state.lanes.values().filter(|lane| lane.in_flight() > 0).for_each(Lane::arm);
        self.take_completed(&mut state);
    }

    /// When the thread woke.
    pub(crate) fn after_sleep(&self) {
        if self.in_flight.load(Relaxed) == 0 {
            return;
        }
        let mut state = self.dispatch.lock();
        state.lanes.values().filter(|lane| lane.in_flight() > 0).for_each(Lane::disarm);
        self.take_completed(&mut state);
    }
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
