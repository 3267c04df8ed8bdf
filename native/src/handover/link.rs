//! The way to Python and back: what it is told, where its orders are left, and how the thread hears of them.

use crate::handover::calls::Calls;
use crate::handover::calls::{Kind, Slot};
use crate::handover::mailbox::{Event, Mailbox};
use crate::handover::wakeup::WakeUps;
use crate::listen::quota::{Refusal, Who};
use crate::measure::budget::Budget;
use crate::measure::clock::now_ns;
use crate::measure::limits::RATE_WINDOW;
use crate::measure::lock::Lock;
use crate::measure::rate::Rate;
use std::collections::HashMap;
use std::io::Result;
use std::sync::Arc;
use std::time::Duration;

/// Clients that were turned away or refused, told in a stretch of time; the others are only counted.
const TURNED_AWAY: u64 = 50;
/// In each of these stretches one failed handshake of each kind is told: a scan of ports must not fill the log.
const HANDSHAKES: Duration = Duration::from_secs(60);

/// See the head of this file.
pub(crate) struct Link {
    /// Live calls.
    pub(crate) calls: Calls,
    /// Events to Python.
    pub(crate) mailbox: Mailbox,
    /// Wake-ups from Python.
    pub(crate) wakeups: WakeUps,
    turned_away: Lock<Rate>,
    /// What was told of late of TLS handshakes that came to nothing, by why they did.
    handshakes: Lock<HashMap<&'static str, Rate>>,
}

impl Link {
    /// Nothing is on its way.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            calls: Calls::default(),
            mailbox: Mailbox::new()?,
            wakeups: WakeUps::default(),
            turned_away: Lock::new(Rate::new(TURNED_AWAY, RATE_WINDOW)),
            handshakes: Lock::default(),
        })
    }

    fn has_told_enough(&self) -> bool {
        self.turned_away.lock().exceeded(now_ns())
    }

    /// A client was turned away for its name, in this section of the configuration; told now and then.
    pub(crate) fn turned_away(&self, peer: &Arc<str>, client: String, section: &'static str) {
        if !self.has_told_enough() {
            self.mailbox.push(Event::TurnedAway(peer.clone(), client, section));
        }
    }

    /// A TLS handshake came to nothing; told now and then.
    pub(crate) fn handshake_failed(&self, peer: &Arc<str>, reason: &'static str, text: String, now_ns: u64) {
        let mut told = self.handshakes.lock();
        if !told.entry(reason).or_insert_with(|| Rate::new(1, HANDSHAKES)).exceeded(now_ns) {
            self.mailbox.push(Event::Handshake(peer.clone(), reason, text));
        }
    }

    /// A client was refused for its quota; told now and then.
    pub(crate) fn over_quota(&self, who: &Who, refusal: &Refusal) {
        if refusal.tell && !self.has_told_enough() {
            self.mailbox.push(Event::OverQuota(who.text(), refusal.text.clone()));
        }
    }
}

/// A call from the moment at which Python is told of it. Dropped before Python has ended it, it tells that the call is
/// gone.
pub(crate) struct Ticket {
    link: Arc<Link>,
    /// Its id.
    pub(crate) id: u64,
    /// Where Python leaves its orders.
    pub(crate) slot: Arc<Slot>,
}

impl Ticket {
    /// A call whose answers take their memory from this budget.
    pub(crate) fn open(link: &Arc<Link>, kind: Kind, answers: Arc<Budget>) -> Self {
        let (id, slot) = link.calls.open(kind, answers);
        Self { link: link.clone(), id, slot }
    }

    /// Tells something of the call, unless Python has ended it meanwhile.
    pub(crate) fn tell(&self, event: Event) {
        if self.link.calls.is_live(self.id) {
            self.link.mailbox.push(event);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.link.calls.forget(self.id) {
            self.link.mailbox.push(Event::Gone(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: u64 = 60_000_000_000;

    #[test]
    fn one_failed_handshake_of_a_kind_is_told_in_a_minute() {
        let link = Link::new().unwrap();
        let told = |reason, after_ns| {
            link.handshake_failed(&"".into(), reason, String::new(), MINUTE_NS + after_ns);
            !link.mailbox.take().unwrap().is_empty()
        };
        assert_eq!([told("failed", 0), told("failed", MINUTE_NS - 1)], [true, false]);
        assert!(told("plain", 5), "another kind");
        assert!(told("failed", MINUTE_NS), "another minute");
    }
}
