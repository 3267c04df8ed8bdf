//! The Open Inference Protocol over HTTP/1.1: what is served here, and what is passed to the application in Python. It
//! gives no answer of its own to what is unusual.

pub(crate) mod admission;
pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod front;
pub(crate) mod head;
pub(crate) mod json;
pub(crate) mod pass;
pub(crate) mod serve;
