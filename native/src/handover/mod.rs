//! The way to Python and back: events, calls that it knows, and what wakes the thread. It never takes the interpreter's
//! lock.

pub(crate) mod calls;
pub(crate) mod link;
pub(crate) mod mailbox;
pub(crate) mod wakeup;
