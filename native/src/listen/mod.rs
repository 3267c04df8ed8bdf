//! Who may connect, how often and how much: sockets, TLS, names of clients, quotas. It knows no protocol above TLS.

pub(crate) mod connections;
pub(crate) mod identity;
pub(crate) mod listener;
pub(crate) mod quota;
pub(crate) mod registry;
pub(crate) mod stream;
pub(crate) mod tls;
