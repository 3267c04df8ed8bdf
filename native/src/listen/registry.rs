//! The clients that are told apart, and what each of them may ask.

use crate::listen::quota::{Account, Counts, STRANGERS, Terms, Who};
use crate::measure::lock::Lock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// So many clients are told apart until Python says how many.
const CLIENTS: usize = 4096;
/// So seldom idle clients are looked for at most, where there is no room for another.
const SWEEP_NS: u64 = 100_000_000;
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
pub(crate) struct Registry(Lock<Known>);

impl Default for Registry {
    /// Without bounds.
    fn default() -> Self {
        let (default, counts) = (Arc::new(unbounded()), Arc::new(Counts::default()));
        let strangers = Account::new(Who::Stranger, default.clone(), counts.clone());
        let counts = HashMap::from([(default.label.clone(), counts)]);
        Self(Lock::new(Known {
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
    /// These terms hold from now on, for clients that are here as well.
    pub(crate) fn set(&self, default: Terms, named: Vec<(String, Terms)>, most: usize, now_ns: u64) {
        let known = &mut *self.0.lock();
        known.default = Arc::new(default);
        known.named = named.into_iter().map(|(name, terms)| (name, Arc::new(terms))).collect();
        known.most = most;
        let labels = known.named.iter().map(|(_, terms)| terms).chain([&known.default]);
        for label in labels.map(|terms| terms.label.clone()).collect::<Vec<_>>() {
            known.counts.entry(label).or_default();
        }
        let accounts: Vec<_> = known.accounts.values().chain([&known.strangers]).cloned().collect();
        for account in accounts {
            let (terms, _) = known.terms_of(account.who());
            let counts = known.counted(&terms);
            account.change(terms, counts, now_ns);
        }
    }

    /// That of a client, or what all share that find no room.
    pub(crate) fn account(&self, who: Who, now_ns: u64) -> Arc<Account> {
        let known = &mut *self.0.lock();
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

    /// What a client asks of a model is the engine's until then.
    pub(crate) fn hold(&self, client: &str, model: u32, until_ns: u64, now_ns: u64) {
        let account = match client {
            STRANGERS => self.0.lock().strangers.clone(),
            _ => self.account(Who::parse(client), now_ns),
        };
        account.hold(model, until_ns, now_ns);
    }

    /// How many clients are known, and how often which were refused: for want of tokens, for what was in flight.
    pub(crate) fn figures(&self) -> (usize, Vec<(String, u64, u64)>) {
        let known = self.0.lock();
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

    /// Forgets those that are as if they had never come, if they are not held.
    fn has_room(&mut self, now_ns: u64) -> bool {
        if self.accounts.len() >= self.most && now_ns >= self.sweep_at_ns {
            self.sweep_at_ns = now_ns + SWEEP_NS;
            self.accounts.retain(|_, account| Arc::strong_count(account) > 1 || !account.is_idle(now_ns));
        }
        self.accounts.len() < self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::quota::{Refusal, TELL_NS, UNIX};

    const MS: u64 = 1_000_000;

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
            account.terms.lock().0.label.clone()
        };
        assert_eq!(label("10.0.0.1"), "10.0.0.1");
        assert_eq!(label("10.0.0.2"), "*");
        assert_eq!(label("A.site.example"), "a.site.example");
        assert_eq!(label("b.site.example"), "*.site.example");
        assert_eq!(label("unix"), "*");
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
    fn who_is_named_alone_finds_room_and_who_is_one_of_many_may_not() {
        let named = ["10.0.0.9", "*.site.example", UNIX].map(|name| (name.into(), terms(name, 1, 1, 1)));
        let registry = registry(terms("*", 1, 1, 0), named.into(), 1);
        let account = |client: &str| registry.account(Who::parse(client), 0);
        let held = ["10.0.0.1", "10.0.0.9", UNIX].map(account);
        for (client, account) in ["10.0.0.9", UNIX].iter().zip(&held[1..]) {
            assert_eq!(account.who(), &Who::parse(client));
            assert_eq!(account.reason(true), format!("{client} too fast"));
            assert_eq!(account.reason(false), format!("{client} too many"));
        }
        for client in ["10.0.0.2", "a.site.example"] {
            assert_eq!(account(client).who(), &Who::Stranger, "{client}");
        }
        assert_eq!(registry.figures().0, held.len());
    }

    #[test]
    fn room_is_looked_for_now_and_then_alone() {
        let registry = registry(terms("*", 1000, 1, 0), Vec::new(), 1);
        assert_eq!(wait(&registry.account(Who::parse("10.0.0.1"), 0), 0), None);
        for (now_ns, alone) in [(0, false), (SWEEP_NS - 1, false), (SWEEP_NS, true)] {
            let who = Who::parse("10.0.0.2");
            assert_eq!(registry.account(who.clone(), now_ns).who() == &who, alone, "{now_ns}");
        }
    }

    #[test]
    fn who_is_held_is_not_forgotten_while_that_lasts() {
        let registry = registry(unbounded(), Vec::new(), 1);
        registry.hold("10.0.0.1", 1, 500 * MS, 0);
        let held = |now_ns| registry.account(Who::parse("10.0.0.1"), now_ns).is_held(1, now_ns);
        assert!(!registry.account(Who::parse("10.0.0.1"), 0).is_held(2, 0), "that is another model");
        registry.account(Who::parse("10.0.0.2"), 499 * MS);
        assert!(held(499 * MS));
        registry.account(Who::parse("10.0.0.2"), 1000 * MS);
        assert!(!held(1000 * MS));
        registry.hold(STRANGERS, 1, 5000 * MS, 0);
        assert!(registry.account(Who::parse("10.0.0.3"), 1001 * MS).is_held(1, 1001 * MS));
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
