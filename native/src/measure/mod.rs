//! What everything is measured with: the clock, memory, rates and the bounds that are kept. It decides nothing and uses
//! no other room.

pub(crate) mod budget;
pub(crate) mod clock;
pub(crate) mod ids;
pub(crate) mod limits;
pub(crate) mod lock;
pub(crate) mod rate;
pub(crate) mod statistics;
