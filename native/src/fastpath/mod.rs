//! The fast path: requests that are served without Python: recognised, booked on a lane, or waiting for one. It decides
//! by the prices and leases that the engine gave, and has no words for an error: what does not go well is handed over.

pub(crate) mod admission;
mod backlog;
mod booking;
pub(crate) mod direct;
mod dispatch;
pub(crate) mod flight;
pub(crate) mod request;
pub(crate) mod serving;
pub(crate) mod upload;
