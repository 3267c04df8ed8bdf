//! A call that Python knows.

use crate::handover::calls::{Kind, Slot};
use crate::handover::link::Link;
use crate::handover::mailbox::Event;
use crate::measure::budget::Budget;
use std::sync::Arc;

/// A call from the moment at which Python is told of it. Dropped before Python has ended it, it tells that the call is gone.
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
