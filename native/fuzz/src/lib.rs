//! What the fuzzers of the front end hold it to. The modules under test are read from the front end's own sources, without the
//! rest of it: no Python, no network, and little to build.

#![allow(dead_code)] // of those modules, what only the front end needs

#[path = "../../src/h2"]
pub mod h2 {
    pub mod allowance;
    pub mod frames;
    pub mod framing;
}
#[path = "../../src/http"]
pub mod http {
    pub mod head;
    pub mod json;
}
#[path = "../../src/measure"]
pub mod measure {
    pub mod budget;
}
#[path = "../../src/templates"]
pub mod templates {
    pub mod array;
    pub mod number;
    pub mod scan;
}

pub mod frames_check;
pub mod framing_check;
pub mod http_head_check;
pub mod http_json_check;
pub mod message;
pub mod scan_check;
