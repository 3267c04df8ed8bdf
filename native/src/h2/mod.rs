//! gRPC over HTTP/2: connections, calls, streams, and what their clients may cost. It knows no model and no tensor;
//! where a request goes is the fast path's or Python's.

pub(crate) mod allowance;
pub(crate) mod answer;
pub(crate) mod authority;
pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod frames;
pub(crate) mod framing;
pub(crate) mod infer;
pub(crate) mod keepalive;
pub(crate) mod monitor;
pub(crate) mod refusal;
pub(crate) mod service;
pub(crate) mod status;
pub(crate) mod stream;
pub(crate) mod underway;
pub(crate) mod watch;
pub(crate) mod window;
