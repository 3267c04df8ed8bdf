//! A call that Python knows.

use crate::door::Core;
use crate::handover::calls::{Kind, Slot};
use crate::handover::mailbox::Event;
use crate::measure::budget::Budget;
use std::sync::Arc;

/// A call from the moment at which Python is told of it. Dropped before Python has ended it, it tells that the call is gone.
pub struct Ticket {
    core: Arc<Core>,
    /// Its id.
    pub id: u64,
    /// Where Python leaves its orders.
    pub slot: Arc<Slot>,
}

impl Ticket {
    /// A call whose answers take their memory from this budget.
    pub fn open(core: &Arc<Core>, kind: Kind, answers: Arc<Budget>) -> Self {
        let (id, slot) = core.calls.open(kind, answers);
        Self { core: core.clone(), id, slot }
    }

    /// Tells something of the call, unless Python has ended it meanwhile.
    pub fn tell(&self, event: Event) {
        if self.core.calls.is_live(self.id) {
            self.core.mailbox.push(event);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.core.calls.forget(self.id) {
            self.core.mailbox.push(Event::Gone(self.id));
        }
    }
}
