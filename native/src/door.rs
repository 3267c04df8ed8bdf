//! The door as a whole: what its tasks share, and its thread.

use crate::fastpath::direct::{Direct, Doorbell};
use crate::h2::carriers::Carriers;
use crate::h2::statistics::Statistics;
use crate::h2::window::WindowBudget;
use crate::handover::bell::Bell;
use crate::handover::calls::{Calls, Kind};
use crate::handover::mailbox::{Event, Mailbox};
use crate::http::front::{self as http_front, Figures, Front};
use crate::listen::connections::Connections;
use crate::listen::handshakes::{Handshakes, Reason};
use crate::listen::listener::{self, ListeningSocket};
use crate::listen::quota::{Refusal, Registry, Who};
use crate::listen::tls::Tls;
use crate::measure::alarm::Alarm;
use crate::measure::budget::Budget;
use crate::measure::clock::now_ns;
use crate::measure::limits::{Limit, Limits, RATE_WINDOW};
use crate::measure::rate::Rate;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Clients that were turned away or refused, told in a stretch of time; the others are only counted.
const TURNED_AWAY: u64 = 50;

/// What Python, the thread and its tasks share.
pub struct Core {
    /// The bounds.
    pub limits: Limits,
    /// Index and kind of each method by its path.
    pub methods: HashMap<String, (u32, Kind)>,
    /// Those of them whose messages are inference requests, which clients' quotas bound.
    pub inferences: Vec<u32>,
    /// Certificates, if the door speaks TLS.
    pub tls: Option<Arc<Tls>>,
    /// What clients may ask.
    pub quotas: Arc<Registry>,
    /// Live calls.
    pub calls: Calls,
    /// The tasks that carry them.
    pub carriers: Carriers,
    /// Events to Python.
    pub mailbox: Mailbox,
    /// Wake-ups from Python.
    pub bell: Bell,
    /// Requests that the door serves by itself.
    pub direct: Arc<Direct>,
    /// Memory for request messages.
    pub budget: Arc<Budget>,
    /// Memory for answers that clients have not taken yet, as much as for requests.
    pub answers: Arc<Budget>,
    /// Memory for what clients send ahead.
    pub windows: WindowBudget,
    /// Connections.
    pub connections: Connections,
    /// Counts.
    pub statistics: Statistics,
    /// TLS handshakes of gRPC that came to nothing.
    pub handshakes: Handshakes,
    turned_away: Mutex<Rate>,
    /// Counts of HTTP.
    pub http: Figures,
    draining: AtomicBool,
    closing: AtomicBool,
}

impl Core {
    /// A door that nobody has opened yet, without quotas.
    pub fn new(
        limits: Limits,
        methods: HashMap<String, (u32, Kind)>,
        tls: Option<Arc<Tls>>,
    ) -> Result<Arc<Self>> {
        Self::bare(limits, methods, tls).map(Arc::new)
    }

    /// As `new`, with what clients may ask: quotas, and the methods that they bound.
    pub fn with_quotas(
        limits: Limits,
        methods: HashMap<String, (u32, Kind)>,
        tls: Option<Arc<Tls>>,
        quotas: Arc<Registry>,
        inferences: Vec<u32>,
    ) -> Result<Arc<Self>> {
        let bare = Self::bare(limits, methods, tls)?;
        Ok(Arc::new(Self { quotas, inferences, ..bare }))
    }

    fn bare(limits: Limits, methods: HashMap<String, (u32, Kind)>, tls: Option<Arc<Tls>>) -> Result<Self> {
        Ok(Self {
            budget: Budget::new(limits.get(Limit::BytesInFlight)),
            answers: Budget::new(limits.get(Limit::BytesInFlight)),
            windows: WindowBudget::new(&limits),
            limits,
            methods,
            inferences: Vec::new(),
            tls,
            quotas: Arc::default(),
            calls: Calls::default(),
            carriers: Carriers::default(),
            mailbox: Mailbox::new()?,
            bell: Bell::default(),
            direct: Arc::default(),
            connections: Connections::default(),
            statistics: Statistics::default(),
            handshakes: Handshakes::default(),
            turned_away: Mutex::new(Rate::new(TURNED_AWAY, RATE_WINDOW)),
            http: Figures::default(),
            draining: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        })
    }

    /// Whether new calls are no longer wanted.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Acquire)
    }

    /// Counts a client of gRPC that was turned away for its name, and tells some of them.
    pub fn turned_away(&self, peer: &Arc<str>, client: String) {
        self.statistics.client_refused();
        self.tell_turned_away(peer, client, "grpc");
    }

    /// The same of HTTP.
    pub fn turned_away_http(&self, peer: &Arc<str>, client: String) {
        self.http.clients_refused.fetch_add(1, Relaxed);
        self.tell_turned_away(peer, client, "http");
    }

    fn tell_turned_away(&self, peer: &Arc<str>, client: String, section: &'static str) {
        if !self.turned_away.lock().unwrap_or_else(PoisonError::into_inner).exceeded(now_ns()) {
            self.mailbox.push(Event::TurnedAway(peer.clone(), client, section));
        }
    }

    /// Counts a TLS handshake of gRPC that came to nothing, and tells some of them.
    pub fn handshake_failed(&self, peer: &Arc<str>, reason: Reason, text: String) {
        if self.handshakes.fail(reason, now_ns()) {
            self.mailbox.push(Event::Handshake(peer.clone(), reason.name(), text));
        }
    }

    /// A client was refused for its quota, which is told now and then.
    pub fn over_quota(&self, who: &Who, refusal: &Refusal) {
        if refusal.tell && !self.turned_away.lock().unwrap_or_else(PoisonError::into_inner).exceeded(now_ns())
        {
            self.mailbox.push(Event::OverQuota(who.text(), refusal.text.clone()));
        }
    }

    /// An answer finds no room: counts it, and says so.
    pub fn no_room(&self) -> String {
        self.statistics.answer_refused();
        let bound = self.limits.get(Limit::BytesInFlight);
        format!(
            "there is no memory for this answer now: all answers that clients have not taken yet may take {bound} bytes, \
             and those of one connection half of it"
        )
    }

    /// Listeners close, clients are asked to leave.
    pub fn drain(&self) {
        if !self.draining.swap(true, AcqRel) {
            self.bell.wake_thread();
        }
    }
}

/// The thread that serves; dropping it closes the door.
pub struct DoorThread {
    core: Arc<Core>,
    runtime: Handle,
    thread: Option<JoinHandle<()>>,
}

impl DoorThread {
    /// Accepts from here on.
    pub fn start(core: Arc<Core>, listeners: Vec<ListeningSocket>) -> Result<Self> {
        let runtime = runtime(&core)?;
        let entered = runtime.enter();
        for bound in listeners {
            tokio::spawn(listener::accept(core.clone(), bound)?);
        }
        if core.direct.attached().is_some() {
            tokio::spawn(watch_lanes(core.clone()));
            tokio::spawn(herald(core.clone(), Alarm::new()?));
        }
        drop(entered);
        let handle = runtime.handle().clone();
        let served = core.clone();
        let thread = std::thread::Builder::new().name("door".into()).spawn(move || {
            block_signals();
            // What can be caught was caught in its task; this is the last resort: say so instead of falling silent.
            if std::panic::catch_unwind(AssertUnwindSafe(|| serve(&served, runtime))).is_err() {
                served.statistics.panicked();
                served.mailbox.fail("the door's thread has failed; nothing is served any more".into());
            }
        })?;
        Ok(Self { core, runtime: handle, thread: Some(thread) })
    }

    /// Accepts on these as well from here on.
    pub fn listen(&self, listeners: Vec<ListeningSocket>) -> Result<()> {
        let entered = self.runtime.enter();
        let accepting: Result<Vec<_>> =
            listeners.into_iter().map(|bound| listener::accept(self.core.clone(), bound)).collect();
        accepting?.into_iter().for_each(|accept| drop(self.runtime.spawn(accept)));
        drop(entered);
        Ok(())
    }

    /// Accepts HTTP on these as well from here on.
    pub fn serve_http(&self, front: &Arc<Front>, listeners: Vec<ListeningSocket>) -> Result<()> {
        let entered = self.runtime.enter();
        let accepting: Result<Vec<_>> = listeners
            .into_iter()
            .map(|bound| http_front::accept(self.core.clone(), front.clone(), bound))
            .collect();
        accepting?.into_iter().for_each(|accept| drop(self.runtime.spawn(accept)));
        drop(entered);
        Ok(())
    }

    /// Cuts everything; returns when the thread has ended.
    pub fn close(&mut self) {
        self.core.draining.store(true, Release);
        self.core.closing.store(true, Release);
        self.core.bell.wake_thread();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was told through the mailbox
        }
    }
}

impl Drop for DoorThread {
    fn drop(&mut self) {
        self.close();
    }
}

fn runtime(core: &Arc<Core>) -> Result<Runtime> {
    let (before, after) = (core.clone(), core.clone());
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || {
            before.bell.before_sleep();
            before.direct.before_sleep();
        })
        .on_thread_unpark(move || {
            after.bell.after_sleep();
            after.direct.after_sleep();
        })
        .build()
}

/// Has the doorbell of each lane end the thread's sleep.
async fn watch_lanes(core: Arc<Core>) {
    let Some(mut doorbells) = core.direct.doorbells() else { return };
    while let Some(Doorbell { ring, closed }) = doorbells.recv().await {
        // SAFETY: the registration owns the descriptor, which stays open until it is dropped.
        match unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) } {
            Ok(ring) => drop(tokio::spawn(hear_doorbell(ring, closed))),
            Err(error) => core.mailbox.fail(format!("the doorbell of a lane cannot be watched: {error}")),
        }
    }
}

/// Keeps a doorbell registered until its lane is closed. No task has to hear a ring: all it must do is end the thread's
/// sleep, after which the thread looks at the lanes. Nor is the descriptor ever read: each ring is an edge.
async fn hear_doorbell(ring: AsyncFd<OwnedFd>, closed: oneshot::Receiver<()>) {
    let _ = closed.await; // an error means that it was closed as well
    drop(ring);
}

/// How long news are collected before they are told: with all that follows at most 2 ms.
const COLLECT: Duration = Duration::from_micros(1_750);

/// Tells Python that there is something to tell.
async fn herald(core: Arc<Core>, alarm: Alarm) {
    loop {
        core.direct.notifier.notified().await;
        if let Err(error) = alarm.after(COLLECT).await {
            core.mailbox.fail(format!("the door cannot tell what it has served: {error}"));
            return;
        }
        core.mailbox.push(Event::News);
    }
}

fn serve(core: &Arc<Core>, runtime: Runtime) {
    let mut told = false;
    runtime.block_on(poll_fn(|cx| {
        core.bell.register(cx.waker());
        core.bell.answer();
        core.direct.drain();
        if core.closing.load(Acquire) {
            return Poll::Ready(());
        }
        if core.is_draining() && !std::mem::replace(&mut told, true) {
            core.connections.wake_all();
        }
        Poll::Pending
    }));
    drop(runtime); // with all tasks: calls that are open tell that they are gone
}

/// Signals are for Python's thread, whose system calls they are meant to interrupt.
fn block_signals() {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}
