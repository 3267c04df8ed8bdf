//! The native front end of the edge appliance: serves gRPC and HTTP on a thread of its own.
//!
//! Python decides and the front end executes: calls are handed over as whole messages and answered with messages and
//! statuses, and requests of which it has left a template are served without it (`fastpath/direct.rs`). The thread
//! never takes the interpreter's lock. This file is all that Python sees of it.

#[cfg(test)]
mod corpus;
mod fastpath;
mod h2;
mod handover;
mod http;
mod lanes;
mod listen;
mod measure;
mod python;
mod resources;
#[cfg(test)]
mod rig;
mod templates;
mod thread;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::python::fast_path::FastPath;
    #[pymodule_export]
    use crate::python::messages::Message;
    #[pymodule_export]
    use crate::python::parts::{json_read, json_written, scan};
    #[pymodule_export]
    use crate::python::quotas::{Account, Quotas};
    #[pymodule_export]
    use crate::python::server::NativeServer;
    #[pymodule_export]
    use crate::python::tls::Tls;
    #[pymodule_export]
    use crate::python::worker_ring::{LaneMemory, WorkerRing};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::python::server::add_constants(module)
    }
}
