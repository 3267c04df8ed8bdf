//! Quotas: how many requests per second, and at a time, each client may have.
//!
//! A bucket holds a burst of tokens and gets one each `interval_ns`; a request takes one. Kept is only when the bucket
//! will be full again (the generic cell rate algorithm, ITU-T I.371 annex A): a request is let in while that is at
//! most `tolerance_ns` ahead, and moves it on by `interval_ns`; else the next token comes when it is. So a client that
//! owes nothing and has nothing in flight is as one that never came, and can be forgotten.
//!
//! What is looked at for each request is atomic, because Python asks as well, for requests that it takes by itself.
//! What changes seldom is behind a lock that only connections that open, and refusals, take.

use crate::listen::connections::network;
use crate::listen::identity::{Identity, matches};
use crate::measure::lock::Lock;
use crate::measure::statistics::Open;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// So seldom a client's refusals are told at most.
pub(crate) const TELL_NS: u64 = 10_000_000_000;
/// Models of which one client is held at most: of more, what it asks is not kept from the front end.
const HELD: usize = 64;
/// The client that stands for all connections over Unix sockets.
pub(crate) const UNIX: &str = "unix";
/// Clients that found no room of their own.
pub(crate) const STRANGERS: &str = "*";

/// What a client may ask (0: no bound), the words for exceeding it, and under which label that is counted.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// Under which refusals are counted.
    pub(crate) label: String,
    /// A token comes so often.
    pub(crate) interval_ns: u64,
    /// So far ahead of its tokens a client may be.
    pub(crate) tolerance_ns: u64,
    /// Requests at a time.
    pub(crate) in_flight: u64,
    /// What is said where tokens are missing.
    pub(crate) rate_text: String,
    /// What is said where too many are in flight.
    pub(crate) in_flight_text: String,
}

/// How often clients with one label were refused, for want of tokens and for what is in flight.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) rate: AtomicU64,
    pub(crate) in_flight: AtomicU64,
}

/// Who a client is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// By its certificate.
    Named(Identity),
    /// By its address, or the network of that.
    At(IpAddr),
    /// Whoever comes over Unix sockets.
    Local,
    /// Whoever found no room.
    Stranger,
}

impl Who {
    /// By what is known of a connection.
    pub(crate) fn of(identity: Option<Identity>, address: Option<IpAddr>) -> Self {
        match (identity, address) {
            (Some(identity), _) => Self::Named(identity),
            (None, Some(address)) => Self::At(network(address)),
            (None, None) => Self::Local,
        }
    }

    /// As Python names it.
    pub(crate) fn parse(client: &str) -> Self {
        match client.parse() {
            Ok(address) => Self::At(network(address)),
            Err(_) if client == UNIX => Self::Local,
            Err(_) => Self::Named(Identity::new(client)),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Named(identity) => identity.text().to_string(),
            Self::At(address) => address.to_string(),
            Self::Local => UNIX.to_string(),
            Self::Stranger => STRANGERS.to_string(),
        }
    }

    /// Whether a name of the configuration is this client's.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        match self {
            Self::Named(identity) => matches(name, identity),
            Self::At(address) => name == address.to_string(),
            Self::Local => name == UNIX,
            Self::Stranger => false,
        }
    }
}

/// Why a request is not let in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// When the next token comes; None: too many are in flight.
    pub(crate) wait_ns: Option<u64>,
    /// In words.
    pub(crate) text: String,
    /// Whether that is to be told, which is seldom.
    pub(crate) tell: bool,
}

/// What is held of a request that was let in, or why it was not.
pub(crate) type Entered = Result<Option<Hold>, Refusal>;

/// A request that was let in, until it ends. None: nothing bounded it.
#[derive(Debug)]
pub(crate) struct Hold(Arc<Account>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.give();
    }
}

/// One client.
pub(crate) struct Account {
    who: Who,
    interval_ns: AtomicU64,
    tolerance_ns: AtomicU64,
    most: AtomicU64,
    due_ns: AtomicU64,
    in_flight: AtomicU64,
    told_ns: AtomicU64,
    /// Of gRPC, under way over all its connections.
    calls: AtomicU64,
    /// When the last of what is `held` ends.
    held_ns: AtomicU64,
    /// Models of which it is held, and until when.
    held: Lock<Vec<(u32, u64)>>,
    pub(crate) terms: Lock<(Arc<Terms>, Arc<Counts>)>,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.who.text())
    }
}

impl Account {
    pub(crate) fn new(who: Who, terms: Arc<Terms>, counts: Arc<Counts>) -> Arc<Self> {
        Arc::new(Self {
            who,
            interval_ns: terms.interval_ns.into(),
            tolerance_ns: terms.tolerance_ns.into(),
            most: terms.in_flight.into(),
            due_ns: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            told_ns: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            held_ns: AtomicU64::new(0),
            held: Lock::default(),
            terms: Lock::new((terms, counts)),
        })
    }

    /// Who it is.
    pub(crate) fn who(&self) -> &Who {
        &self.who
    }

    /// A call has come, unless so many are under way.
    pub(crate) fn open_call(&self, most: u64) -> Option<Open<'_>> {
        Open::within(&self.calls, most)
    }

    /// What it asks of a model is the engine's until then: workers may have died of what it asked.
    pub(crate) fn hold(&self, model: u32, until_ns: u64, now_ns: u64) {
        let mut held = self.held.lock();
        held.retain(|(other, until_ns)| *other != model && *until_ns > now_ns);
        if held.len() < HELD {
            held.push((model, until_ns));
        }
        self.held_ns.fetch_max(until_ns, Relaxed);
    }

    /// Whether what it asks of a model is the engine's.
    pub(crate) fn is_held(&self, model: u32, now_ns: u64) -> bool {
        self.held_ns.load(Relaxed) > now_ns
            && self.held.lock().iter().any(|(held, until_ns)| *held == model && *until_ns > now_ns)
    }

    /// A request came. What it is given is held until it has ended.
    pub(crate) fn take(self: &Arc<Self>, now_ns: u64) -> Entered {
        if self.interval_ns.load(Relaxed) == 0 && self.most.load(Relaxed) == 0 {
            return Ok(None);
        }
        self.enter(now_ns).map(|()| Some(Hold(self.clone())))
    }

    /// As `take`, to be given back by hand.
    pub(crate) fn enter(&self, now_ns: u64) -> Result<(), Refusal> {
        let most = self.most.load(Relaxed);
        let before = self.in_flight.fetch_add(1, Relaxed);
        if most > 0 && before >= most {
            self.give();
            return Err(self.refused(None, now_ns));
        }
        self.draw(now_ns).map_err(|wait_ns| {
            self.give();
            self.refused(Some(wait_ns), now_ns)
        })
    }

    /// A request that was let in has ended.
    pub(crate) fn give(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Takes a token, or says when the next one comes.
    fn draw(&self, now_ns: u64) -> Result<(), u64> {
        let (interval_ns, tolerance_ns) = (self.interval_ns.load(Relaxed), self.tolerance_ns.load(Relaxed));
        if interval_ns == 0 {
            return Ok(());
        }
        let mut known_ns = self.due_ns.load(Relaxed);
        loop {
            let due_ns = known_ns.max(now_ns);
            if due_ns - now_ns > tolerance_ns {
                return Err(due_ns - now_ns - tolerance_ns);
            }
            match self.due_ns.compare_exchange_weak(known_ns, due_ns + interval_ns, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other_ns) => known_ns = other_ns,
            }
        }
    }

    fn refused(&self, wait_ns: Option<u64>, now_ns: u64) -> Refusal {
        let (terms, counts) = &*self.terms.lock();
        let (count, text) = match wait_ns {
            Some(_) => (&counts.rate, &terms.rate_text),
            None => (&counts.in_flight, &terms.in_flight_text),
        };
        count.fetch_add(1, Relaxed);
        let tell = now_ns >= self.told_ns.load(Relaxed);
        if tell {
            self.told_ns.store(now_ns + TELL_NS, Relaxed);
        }
        Refusal { wait_ns, text: text.clone(), tell }
    }

    /// Why `take` refused.
    pub(crate) fn reason(&self, rate: bool) -> String {
        let terms = self.terms.lock();
        if rate { terms.0.rate_text.clone() } else { terms.0.in_flight_text.clone() }
    }

    pub(crate) fn is_idle(&self, now_ns: u64) -> bool {
        self.in_flight.load(Relaxed) == 0
            && self.due_ns.load(Relaxed) <= now_ns
            && self.held_ns.load(Relaxed) <= now_ns
    }

    /// Other terms hold; a client waits for no more than one token of them.
    pub(crate) fn change(&self, terms: Arc<Terms>, counts: Arc<Counts>, now_ns: u64) {
        let mut known = self.terms.lock();
        self.interval_ns.store(terms.interval_ns, Relaxed);
        self.tolerance_ns.store(terms.tolerance_ns, Relaxed);
        self.most.store(terms.in_flight, Relaxed);
        self.due_ns.fetch_min(now_ns + terms.tolerance_ns + terms.interval_ns, Relaxed);
        *known = (terms, counts);
    }
}

/// A client's account as the application has it for one connection, together with when the request that is being
/// passed on came and whether it was let in already.
#[derive(Clone)]
pub(crate) struct Entry {
    /// The client's.
    pub(crate) account: Arc<Account>,
    passed: Arc<AtomicBool>,
    arrived_ns: Arc<AtomicU64>,
}

impl Entry {
    /// For a connection of this client's.
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self { account, passed: Arc::default(), arrived_ns: Arc::default() }
    }

    /// Says whether it was, and when it came; 0: that does not matter.
    pub(crate) fn note(&self, let_in: bool, arrived_ns: u64) {
        self.passed.store(let_in, Relaxed);
        self.arrived_ns.store(arrived_ns, Relaxed);
    }

    /// When it came, 0 where that is not known; asked once for each request.
    pub(crate) fn arrived_ns(&self) -> u64 {
        self.arrived_ns.swap(0, Relaxed)
    }

    /// Whether it was; asked once for each request.
    pub(crate) fn was_let_in(&self) -> bool {
        self.passed.swap(false, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_of_a_request_holds_for_no_other() {
        let entry = Entry::new(Account::new(Who::Local, Arc::default(), Arc::default()));
        entry.note(true, 5);
        assert_eq!((entry.arrived_ns(), entry.was_let_in()), (5, true));
        assert_eq!((entry.arrived_ns(), entry.was_let_in()), (0, false));
    }
}
