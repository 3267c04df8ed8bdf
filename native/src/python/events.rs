//! Events as Python is told them: tuples, of which the first element says what they tell.

use crate::handover::mailbox::{Arrival, Event, Sender, Told};
use crate::python::messages::handed_over;
use crate::python::quotas::{self, Account};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::os::fd::{AsRawFd, IntoRawFd};

const CALL: u8 = 0;
const MESSAGE: u8 = 1;
const SENT: u8 = 2;
const GONE: u8 = 3;
const NEWS: u8 = 4;
const TURNED_AWAY: u8 = 5;
const HTTP: u8 = 6;
const OVER_QUOTA: u8 = 7;
const HANDSHAKE: u8 = 8;

/// Their names in the module.
pub(crate) const NAMES: [(&str, u8); 9] = [
    ("CALL", CALL),
    ("MESSAGE", MESSAGE),
    ("SENT", SENT),
    ("GONE", GONE),
    ("NEWS", NEWS),
    ("TURNED_AWAY", TURNED_AWAY),
    ("HTTP", HTTP),
    ("OVER_QUOTA", OVER_QUOTA),
    ("HANDSHAKE", HANDSHAKE),
];

/// One event.
pub(crate) fn event_tuple(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyTuple>> {
    match event {
        Event::Call(arrival) => call_tuple(py, *arrival),
        Event::Message(call, None) => (MESSAGE, call, py.None(), 0, 0, py.None(), 0).into_pyobject(py),
        Event::Message(call, Some(Told { message, arrived_ns, attempts, deadline_ns, refusal })) => {
            let (message, over) = (handed_over(py, Some(message))?, quotas::told(refusal));
            (MESSAGE, call, message, attempts, deadline_ns, over, arrived_ns).into_pyobject(py)
        }
        Event::Sent(call) => (SENT, call).into_pyobject(py),
        Event::Gone(call) => (GONE, call).into_pyobject(py),
        Event::News => (NEWS,).into_pyobject(py),
        Event::TurnedAway(peer, client, section) => (TURNED_AWAY, &*peer, client, section).into_pyobject(py),
        Event::Handshake(peer, why, text) => (HANDSHAKE, &*peer, why, text).into_pyobject(py),
        Event::OverQuota(client, reason) => (OVER_QUOTA, client, reason).into_pyobject(py),
        Event::Http(connection, Sender { peer, name, user }, attempts, entry) => {
            let (account, user) = (Account(entry), number(user));
            let told =
                (HTTP, connection.as_raw_fd(), &*peer, attempts, &*name, account, user).into_pyobject(py)?;
            let _ = connection.into_raw_fd(); // Python's from here on
            Ok(told)
        }
    }
}

fn call_tuple(py: Python<'_>, arrival: Arrival) -> PyResult<Bound<'_, PyTuple>> {
    let Arrival { call, method, message, deadline_ns, metadata, who, attempts, client, user, arrived_ns } =
        arrival;
    let message = handed_over(py, message)?;
    let pairs = metadata.iter().map(|(key, value)| (key.as_str(), value.to_str().unwrap_or_default()));
    let metadata = PyTuple::new(py, pairs.collect::<Vec<_>>())?;
    (CALL, call, method, message, deadline_ns, metadata, &*who, attempts, &*client, arrived_ns, number(user))
        .into_pyobject(py)
}

/// A user as Python is told it: -1 where it is not known.
fn number(user: Option<u32>) -> i64 {
    user.map_or(-1, i64::from)
}
