//! Requests that the door serves by itself: recognised, booked on a lane, or waiting for one.

pub mod admission;
mod backlog;
mod booking;
pub mod direct;
mod dispatch;
pub mod flight;
pub mod request;
#[cfg(test)]
pub(crate) mod rig;
pub mod upload;
