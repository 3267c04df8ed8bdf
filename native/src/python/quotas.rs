//! Quotas as Python sets and asks them.

use crate::listen::quota::{self, Entry, Refusal, Terms, Who};
use crate::listen::registry::Registry;
use pyo3::prelude::*;
use std::sync::Arc;

/// Answers of `Account.take`, besides the nanoseconds until the next token.
const LET_IN: i64 = 0;
const IN_FLIGHT: i64 = -1;
const LET_IN_BEFORE: i64 = -2;

type TermsOfPython = (String, u64, u64, u64, String, String);

fn terms((label, interval_ns, tolerance_ns, in_flight, rate_text, in_flight_text): TermsOfPython) -> Terms {
    Terms { label, interval_ns, tolerance_ns, in_flight, rate_text, in_flight_text }
}

/// What clients may ask; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_native")]
pub(crate) struct Quotas(pub(crate) Arc<Registry>);

#[pymethods]
impl Quotas {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    fn set(
        &self,
        default: TermsOfPython,
        named: Vec<(String, TermsOfPython)>,
        max_clients: usize,
        now_ns: u64,
    ) {
        let named = named.into_iter().map(|(name, given)| (name, terms(given))).collect();
        self.0.set(terms(default), named, max_clients, now_ns);
    }

    fn account(&self, client: &str, now_ns: u64) -> Account {
        Account(Entry::new(self.0.account(Who::parse(client), now_ns)))
    }

    fn figures(&self) -> (usize, Vec<(String, u64, u64)>) {
        self.0.figures()
    }
}

/// One client; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_native")]
pub(crate) struct Account(pub(crate) Entry);

#[pymethods]
impl Account {
    #[getter]
    fn client(&self) -> String {
        self.0.account.who().text()
    }

    fn arrived_ns(&self) -> u64 {
        self.0.arrived_ns()
    }

    fn take(&self, now_ns: u64) -> (i64, bool) {
        if self.0.was_let_in() {
            return (LET_IN_BEFORE, false);
        }
        match self.0.account.enter(now_ns) {
            Ok(()) => (LET_IN, false),
            Err(refusal) => (wait_of(&refusal), refusal.tell),
        }
    }

    fn give(&self) {
        self.0.account.give();
    }

    fn reason(&self, wait_ns: i64) -> String {
        self.0.account.reason(wait_ns > 0)
    }
}

/// Why a request was refused, as a number.
pub(crate) fn wait_of(refusal: &quota::Refusal) -> i64 {
    refusal.wait_ns.map_or(IN_FLIGHT, |wait_ns| i64::try_from(wait_ns).unwrap_or(i64::MAX))
}

/// Likewise, with the words for it.
pub(crate) fn told(refusal: Option<Refusal>) -> Option<(i64, String)> {
    refusal.map(|refusal| (wait_of(&refusal), refusal.text))
}
