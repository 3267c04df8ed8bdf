//! The Open Inference Protocol over HTTP/1.1: what the door serves by itself, and what it passes to the edge.

pub mod admission;
pub mod answer;
pub mod client;
pub mod connection;
pub mod front;
pub mod handshake;
pub mod head;
pub mod json;
pub mod pass;
pub mod serve;
pub mod stream;
pub mod upload;
