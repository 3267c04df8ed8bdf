//! What everything is measured with: the clock, memory, rates and the bounds that the door keeps.

pub mod alarm;
pub mod budget;
pub mod clock;
pub mod ids;
pub mod limits;
pub mod rate;
