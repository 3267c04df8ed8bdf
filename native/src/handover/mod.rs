//! The way to Python and back: events, calls that it knows, and what wakes the thread.

pub mod bell;
pub mod calls;
pub mod mailbox;
pub mod ticket;
