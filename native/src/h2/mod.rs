//! gRPC over HTTP/2: connections, calls, streams, and what their clients may do.

pub mod allowance;
pub mod answer;
pub mod authority;
pub mod body;
pub mod call;
pub mod carriers;
pub mod conduct;
pub mod connection;
pub mod frames;
pub mod framing;
pub mod guest;
pub mod infer;
pub mod refusal;
pub mod statistics;
pub mod status;
pub mod stream;
pub mod transport;
pub mod underway;
pub mod vigil;
pub mod window;
