//! Who may connect, how often and how much: sockets, TLS, names of clients, quotas.

pub mod connections;
pub mod handshakes;
pub mod identity;
pub mod listener;
pub mod quota;
pub mod tls;
