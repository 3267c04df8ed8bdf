//! Requests that the door serves by itself: recognised, booked on a lane, or waiting for one.

pub(crate) mod admission;
mod backlog;
mod booking;
pub(crate) mod direct;
mod dispatch;
pub(crate) mod flight;
pub(crate) mod request;
pub(crate) mod upload;
