//! What the door answers when it is asked whether it serves a request by itself.

use crate::fastpath::direct::{Direct, forget_empty};
use crate::fastpath::flight::Flight;
use crate::fastpath::parking::Parked;
use std::sync::Arc;

/// What the door can do about a request by itself.
pub enum Admission {
    /// Its tensors can be copied.
    Flight(Box<Flight>),
    /// It cannot be in time: what its client is told, and when it would be worth trying again.
    Late(String, u64),
    /// It waits.
    Parked(Box<Parked>),
    /// It is the engine's. What is known of it counts as work ahead of others while this is held.
    Engine(Option<Asked>),
}

impl Admission {
    /// The flight, if it is one.
    pub(crate) fn flight(self) -> Option<Box<Flight>> {
        if let Self::Flight(flight) = self { Some(flight) } else { None }
    }
}

/// A request that was left to the engine.
pub struct Asked {
    pub(crate) direct: Arc<Direct>,
    pub(crate) group: u32,
    pub(crate) charge_ns: u64,
    /// It is one of those that wait at the door while the engine has many of them.
    pub(crate) waits: bool,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut state = self.direct.state();
        if let Some(group) = state.groups.get_mut(&self.group) {
            group.ended(self.charge_ns);
            group.with_engine -= usize::from(self.waits);
            forget_empty(&mut state.groups, self.group);
        }
        if state.parked > 0 {
            self.direct.unpark(&mut state, self.group);
        }
    }
}
