//! The native front door of the edge appliance: an HTTP/2 server for gRPC on a thread of its own.
//!
//! It carries calls and decides nothing. Python is handed whole messages and answers with messages and statuses; the
//! thread never takes the interpreter's lock. This file is all that Python sees of it.

pub mod answer;
pub mod authority;
pub mod bell;
pub mod body;
pub mod budget;
pub mod call;
pub mod calls;
pub mod clock;
pub mod conduct;
pub mod connection;
pub mod connections;
pub mod door;
pub mod frames;
pub mod framing;
pub mod limits;
pub mod listener;
pub mod mailbox;
pub mod python;
pub mod rate;
pub mod statistics;
pub mod status;
pub mod tls;
pub mod transport;
pub mod vigil;
pub mod window;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _door {
    #[pymodule_export]
    use crate::python::{Door, Message, Tls};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::python::add_constants(module)
    }
}
