//! The Open Inference Protocol over HTTP/1.1: what the door serves by itself, and what it passes to the edge.

pub(crate) mod admission;
pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod front;
pub(crate) mod handshake;
pub(crate) mod head;
pub(crate) mod json;
pub(crate) mod pass;
pub(crate) mod serve;
pub(crate) mod service;
pub(crate) mod stream;
pub(crate) mod upload;
