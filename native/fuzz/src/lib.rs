//! What the fuzzers of the door hold it to. The modules under test are read from the door's own sources, without the
//! rest of it: no Python, no network, and little to build.

#[path = "../../src/allowance.rs"]
pub mod allowance;
#[path = "../../src/budget.rs"]
pub mod budget;
#[path = "../../src/frames.rs"]
pub mod frames;
#[path = "../../src/framing.rs"]
pub mod framing;
#[path = "../../src/http_array.rs"]
pub mod http_array;
#[path = "../../src/http_head.rs"]
pub mod http_head;
#[path = "../../src/http_json.rs"]
pub mod http_json;
#[path = "../../src/http_number.rs"]
pub mod http_number;
#[path = "../../src/scan.rs"]
pub mod scan;

pub mod frames_check;
pub mod framing_check;
pub mod http_head_check;
pub mod http_json_check;
pub mod message;
pub mod scan_check;
