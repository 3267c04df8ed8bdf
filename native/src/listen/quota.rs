//! Quotas: how many requests per second, and at a time, each client may have. The arithmetic is that of `frontend/quota/rule.py`,
//! where it is explained.
//!
//! What is looked at for each request is atomic, because Python asks as well, for requests that it takes by itself. What
//! changes seldom is behind a lock that only connections that open, and refusals, take.

use crate::listen::connections::network;
use crate::listen::identity::{Identity, matches};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So seldom a client's refusals are told at most.
const TELL_NS: u64 = 10_000_000_000;
/// So seldom idle clients are looked for at most, where there is no room for another.
const SWEEP_NS: u64 = 100_000_000;
/// So many clients are told apart until Python says how many.
const CLIENTS: usize = 4096;
/// The client that all are who come over Unix sockets.
pub(crate) const UNIX: &str = "unix";
/// Those who found no room of their own.
const STRANGERS: &str = "*";

/// What a client may ask (0: no bound), the words for who exceeds it, and under which label that is counted.
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
struct Counts {
    rate: AtomicU64,
    in_flight: AtomicU64,
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
    fn has_name(&self, name: &str) -> bool {
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
    terms: Mutex<(Arc<Terms>, Arc<Counts>)>,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.who.text())
    }
}

impl Account {
    fn new(who: Who, terms: Arc<Terms>, counts: Arc<Counts>) -> Arc<Self> {
        Arc::new(Self {
            who,
            interval_ns: terms.interval_ns.into(),
            tolerance_ns: terms.tolerance_ns.into(),
            most: terms.in_flight.into(),
            due_ns: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            told_ns: AtomicU64::new(0),
            terms: Mutex::new((terms, counts)),
        })
    }

    fn terms(&self) -> MutexGuard<'_, (Arc<Terms>, Arc<Counts>)> {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who it is.
    pub(crate) fn who(&self) -> &Who {
        &self.who
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
        let (terms, counts) = &*self.terms();
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
        let terms = self.terms();
        if rate { terms.0.rate_text.clone() } else { terms.0.in_flight_text.clone() }
    }

    fn is_idle(&self, now_ns: u64) -> bool {
        self.in_flight.load(Relaxed) == 0 && self.due_ns.load(Relaxed) <= now_ns
    }

    /// Other terms hold; a client waits for no more than one token of them.
    fn change(&self, terms: Arc<Terms>, counts: Arc<Counts>, now_ns: u64) {
        let mut known = self.terms();
        self.interval_ns.store(terms.interval_ns, Relaxed);
        self.tolerance_ns.store(terms.tolerance_ns, Relaxed);
        self.most.store(terms.in_flight, Relaxed);
        self.due_ns.fetch_min(now_ns + terms.tolerance_ns + terms.interval_ns, Relaxed);
        *known = (terms, counts);
    }
}

/// What is behind the registry's lock.
struct Known {
    default: Arc<Terms>,
    /// The names of the configuration, those that stand for one client first.
    named: Vec<(String, Arc<Terms>)>,
    most: usize,
    accounts: HashMap<Who, Arc<Account>>,
    counts: HashMap<String, Arc<Counts>>,
    sweep_at_ns: u64,
    strangers: Arc<Account>,
}

/// The clients that are told apart: those that are named one by one, and so many others at most.
pub(crate) struct Registry(Mutex<Known>);

impl Default for Registry {
    /// Without bounds.
    fn default() -> Self {
        let (default, counts) = (Arc::new(unbounded()), Arc::new(Counts::default()));
        let strangers = Account::new(Who::Stranger, default.clone(), counts.clone());
        let counts = HashMap::from([(default.label.clone(), counts)]);
        Self(Mutex::new(Known {
            default,
            named: Vec::new(),
            most: CLIENTS,
            accounts: HashMap::new(),
            counts,
            sweep_at_ns: 0,
            strangers,
        }))
    }
}

fn unbounded() -> Terms {
    Terms { label: STRANGERS.into(), ..Terms::default() }
}

impl Registry {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These terms hold from now on, for who is here as well.
    pub(crate) fn set(&self, default: Terms, named: Vec<(String, Terms)>, most: usize, now_ns: u64) {
        let known = &mut *self.known();
        known.default = Arc::new(default);
        known.named = named.into_iter().map(|(name, terms)| (name, Arc::new(terms))).collect();
        known.most = most;
        let labels = known.named.iter().map(|(_, terms)| terms).chain([&known.default]);
        for label in labels.map(|terms| terms.label.clone()).collect::<Vec<_>>() {
            known.counts.entry(label).or_default();
        }
        let accounts: Vec<_> = known.accounts.values().chain([&known.strangers]).cloned().collect();
        for account in accounts {
            let (terms, _) = known.terms_of(&account.who);
            let counts = known.counted(&terms);
            account.change(terms, counts, now_ns);
        }
    }

    /// That of a client, or what those share who find no room.
    pub(crate) fn account(&self, who: Who, now_ns: u64) -> Arc<Account> {
        let known = &mut *self.known();
        if let Some(account) = known.accounts.get(&who) {
            return account.clone();
        }
        let (terms, named) = known.terms_of(&who);
        if !named && !known.has_room(now_ns) {
            return known.strangers.clone();
        }
        let counts = known.counted(&terms);
        let account = Account::new(who.clone(), terms, counts);
        known.accounts.insert(who, account.clone());
        account
    }

    /// How many clients are known, and how often which were refused: for want of tokens, for what was in flight.
    pub(crate) fn figures(&self) -> (usize, Vec<(String, u64, u64)>) {
        let known = self.known();
        let counts = known.counts.iter().map(|(label, counts)| {
            (label.clone(), counts.rate.load(Relaxed), counts.in_flight.load(Relaxed))
        });
        (known.accounts.len(), counts.collect())
    }
}

impl Known {
    /// The terms of a client, and whether a name stands for it alone.
    fn terms_of(&self, who: &Who) -> (Arc<Terms>, bool) {
        match self.named.iter().find(|(name, _)| who.has_name(name)) {
            Some((name, terms)) => (terms.clone(), !name.starts_with("*.")),
            None if *who == Who::Local => (Arc::new(unbounded()), false),
            None => (self.default.clone(), false),
        }
    }

    fn counted(&mut self, terms: &Terms) -> Arc<Counts> {
        self.counts.entry(terms.label.clone()).or_default().clone()
    }

    /// Forgets those that are as if they had never come, if nobody holds them.
    fn has_room(&mut self, now_ns: u64) -> bool {
        if self.accounts.len() >= self.most && now_ns >= self.sweep_at_ns {
            self.sweep_at_ns = now_ns + SWEEP_NS;
            self.accounts.retain(|_, account| Arc::strong_count(account) > 1 || !account.is_idle(now_ns));
        }
        self.accounts.len() < self.most
    }
}

/// A client's account as the edge has it for one connection, together with when the request that is being passed on came
/// and whether it was let in already.
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

    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_noted_of_a_request_holds_for_no_other() {
        let entry = Entry::new(Registry::default().account(Who::Local, 0));
        entry.note(true, 5);
        assert_eq!((entry.arrived_ns(), entry.was_let_in()), (5, true));
        assert_eq!((entry.arrived_ns(), entry.was_let_in()), (0, false));
    }

    fn terms(label: &str, per_second: u64, burst: u64, in_flight: u64) -> Terms {
        let interval_ns = 1_000_000_000u64.checked_div(per_second).unwrap_or(0);
        Terms {
            label: label.into(),
            interval_ns,
            tolerance_ns: interval_ns * burst.saturating_sub(1),
            in_flight,
            rate_text: format!("{label} too fast"),
            in_flight_text: format!("{label} too many"),
        }
    }

    fn registry(default: Terms, named: Vec<(String, Terms)>, most: usize) -> Registry {
        let registry = Registry::default();
        registry.set(default, named, most, 0);
        registry
    }

    fn wait(account: &Arc<Account>, now_ns: u64) -> Option<u64> {
        account.take(now_ns).err().map(|refusal| refusal.wait_ns.unwrap_or(0))
    }

    #[test]
    fn a_burst_goes_through_and_then_a_token_at_a_time() {
        let registry = registry(terms("*", 100, 3, 0), Vec::new(), 16);
        let account = registry.account(Who::parse("10.0.0.1"), 0);
        assert!((0..3).all(|_| wait(&account, 1000 * MS).is_none()));
        assert_eq!(wait(&account, 1000 * MS), Some(10 * MS));
        assert_eq!(wait(&account, 1004 * MS), Some(6 * MS), "who is refused owes nothing");
        assert_eq!((wait(&account, 1010 * MS), wait(&account, 1010 * MS)), (None, Some(10 * MS)));
        assert!((0..3).all(|_| wait(&account, 2000 * MS).is_none()), "no more than the burst is saved");
        assert_eq!(wait(&account, 2000 * MS), Some(10 * MS));
        assert_eq!(registry.figures().1, [("*".to_string(), 4, 0)]);
    }

    #[test]
    fn what_is_in_flight_is_bounded_until_it_ends() {
        let registry = registry(terms("*", 0, 0, 2), Vec::new(), 16);
        let account = registry.account(Who::Local, 0);
        assert!(account.take(0).is_ok_and(|hold| hold.is_none()), "there is no default for Unix sockets");
        let account = registry.account(Who::parse("10.0.0.1"), 0);
        let held = [account.take(0).unwrap(), account.take(0).unwrap()];
        let refusal = account.take(0).unwrap_err();
        assert_eq!(refusal, Refusal { wait_ns: None, text: "* too many".into(), tell: true });
        assert!(!account.take(TELL_NS - 1).unwrap_err().tell);
        drop(held);
        assert!(account.take(0).is_ok());
    }

    #[test]
    fn names_have_numbers_of_their_own() {
        let named =
            ["10.0.0.1", "a.site.example", "*.site.example"].map(|name| (name.into(), terms(name, 1, 1, 0)));
        let registry = registry(terms("*", 0, 0, 0), named.into(), 16);
        let label = |client: &str| {
            let account = registry.account(Who::parse(client), 0);
            account.terms().0.label.clone()
        };
        assert_eq!(label("10.0.0.1"), "10.0.0.1");
        assert_eq!(label("10.0.0.2"), "*");
        assert_eq!(label("A.site.example"), "a.site.example");
        assert_eq!(label("b.site.example"), "*.site.example");
        let (b, c) =
            ["b", "c"].map(|name| registry.account(Who::parse(&format!("{name}.site.example")), 0)).into();
        assert_eq!((wait(&b, 0), wait(&c, 0)), (None, None), "each has a bucket of its own");
        assert!(wait(&b, 0).is_some());
    }

    #[test]
    fn who_finds_no_room_shares_and_idle_clients_make_room() {
        let registry = registry(terms("*", 1, 1, 0), Vec::new(), 2);
        let take = |client: &str, now_ns| wait(&registry.account(Who::parse(client), now_ns), now_ns);
        assert_eq!((take("10.0.0.1", 0), take("10.0.0.2", 0)), (None, None));
        assert_eq!((take("10.0.0.3", 1), take("10.0.0.4", 1)), (None, Some(1000 * MS)));
        let later = 1000 * MS;
        let held = registry.account(Who::parse("10.0.0.1"), later);
        assert_eq!((take("10.0.0.3", later), take("10.0.0.4", later)), (None, Some(MS * 1000 - later + 1)));
        assert_eq!(wait(&held, later), None, "a connection keeps its account");
        assert_eq!(registry.figures().0, 2);
    }

    #[test]
    fn other_terms_hold_for_who_is_here() {
        let registry = registry(terms("*", 1, 60, 0), Vec::new(), 16);
        let account = registry.account(Who::parse("10.0.0.1"), 0);
        assert!((0..60).all(|_| wait(&account, 0).is_none()));
        registry.set(terms("*", 100, 1, 0), Vec::new(), 16, 0);
        assert_eq!(wait(&account, 0), Some(10 * MS), "what was owed before does not keep it out");
        registry.set(unbounded(), Vec::new(), 16, 0);
        assert_eq!(wait(&account, 0), None);
    }
}
