//! What the fuzzers of the door hold it to. The modules under test are read from the door's own sources, without the
//! rest of it: no Python, no network, and little to build.

#[path = "../../src/budget.rs"]
pub mod budget;
#[path = "../../src/frames.rs"]
pub mod frames;
#[path = "../../src/framing.rs"]
pub mod framing;
#[path = "../../src/scan.rs"]
pub mod scan;

pub mod frames_check;
pub mod framing_check;
pub mod message;
pub mod scan_check;
