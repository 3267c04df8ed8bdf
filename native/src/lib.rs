//! The native front door of the edge appliance: an HTTP/2 server for gRPC on a thread of its own.
//!
//! Python decides and the door executes: calls are handed over as whole messages and answered with messages and statuses,
//! and requests that Python has taught and granted are served without it (`direct.rs`). The thread never takes the
//! interpreter's lock. This file is all that Python sees of it.

pub mod admission;
pub mod alarm;
pub mod allowance;
pub mod answer;
pub mod authority;
pub mod bell;
pub mod body;
pub mod booking;
pub mod budget;
pub mod call;
pub mod calls;
pub mod carriers;
pub mod clock;
pub mod conduct;
pub mod connection;
pub mod connections;
pub mod direct;
pub mod door;
pub mod flight;
pub mod frames;
pub mod framing;
pub mod grants;
pub mod guest;
pub mod handshakes;
pub mod http_admission;
pub mod http_answer;
pub mod http_array;
pub mod http_client;
pub mod http_connection;
pub mod http_front;
pub mod http_handshake;
pub mod http_head;
pub mod http_json;
pub mod http_number;
pub mod http_pass;
pub mod http_serve;
pub mod http_stream;
pub mod http_upload;
pub mod identity;
pub mod ids;
pub mod infer;
pub mod lane;
pub mod lane_memory;
pub mod limits;
pub mod listener;
pub mod mailbox;
pub mod news;
pub mod outcome;
pub mod parking;
pub mod parts;
pub mod plan;
pub mod price;
pub mod python;
pub mod quota;
pub mod quotas;
pub mod rate;
pub mod refusal;
#[cfg(test)]
mod rig;
pub mod rings;
pub mod scan;
pub mod slots;
pub mod statistics;
pub mod status;
pub mod stream;
pub mod ticket;
pub mod tls;
pub mod trace;
pub mod transport;
pub mod underway;
pub mod upload;
pub mod vigil;
pub mod window;
pub mod worker_plans;
pub mod worker_ring;
pub mod worker_runs;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _door {
    #[pymodule_export]
    use crate::grants::Grants;
    #[pymodule_export]
    use crate::parts::{json_read, json_written, scan};
    #[pymodule_export]
    use crate::python::{Door, Message, Tls};
    #[pymodule_export]
    use crate::quotas::{Account, Quotas};
    #[pymodule_export]
    use crate::worker_ring::{LaneMemory, WorkerRing};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::python::add_constants(module)
    }
}
