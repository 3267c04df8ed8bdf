//! The classes that Python sees: arguments in, values out. What they do is in the rooms below.

pub(crate) mod events;
pub(crate) mod fast_path;
pub(crate) mod messages;
pub(crate) mod overlap;
pub(crate) mod parts;
pub(crate) mod quotas;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod worker_ring;
