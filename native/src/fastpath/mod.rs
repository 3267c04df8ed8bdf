//! Requests that the door serves by itself: recognised, booked on a lane, or waiting for one.

pub mod admission;
pub mod booking;
pub mod direct;
pub mod flight;
pub mod parking;
pub mod plan;
#[cfg(test)]
pub(crate) mod rig;
pub mod scan;
pub mod upload;
