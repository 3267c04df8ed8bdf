//! The classes that Python sees.

pub mod door;
pub mod grants;
pub mod parts;
pub mod quotas;
pub mod worker_ring;
