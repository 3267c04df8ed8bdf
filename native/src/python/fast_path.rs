//! What Python says of requests that are served without it, and what it is told of them.

use crate::fastpath::direct::{Direct, StreamWindow};
use crate::http::head::is_inference;
use crate::http::json::Outline;
use crate::lanes::load::Price;
use crate::lanes::memory::{LaneMemory, ServerEnd};
use crate::lanes::news::Tally;
use crate::lanes::outcome::Closed;
use crate::lanes::slots::Slots;
use crate::lanes::trace::Trace;
use crate::listen::registry::Registry;
use crate::measure::clock::now_ns;
use crate::templates::template::Subject;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::io::Error;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

/// Templates, prices and leases; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_native")]
pub(crate) struct FastPath {
    pub(crate) direct: Arc<Direct>,
    pub(crate) quotas: Arc<Registry>,
    /// The front end's.
    pub(crate) runtime: Handle,
}

#[pymethods]
impl FastPath {
    #[pyo3(signature = (*, method, arena_bytes, slots, bounds_ns, slow_ns))]
    fn attach(
        &self,
        method: u32,
        arena_bytes: usize,
        slots: Vec<(usize, Vec<usize>)>,
        bounds_ns: Vec<u64>,
        slow_ns: u64,
    ) -> PyResult<()> {
        let slots = Slots::new(slots, arena_bytes).map_err(PyValueError::new_err)?;
        self.direct.attach(method, slots, bounds_ns, slow_ns).map_err(PyValueError::new_err)
    }

    fn open_lane(
        &self,
        lane: u32,
        group: u32,
        memory: RawFd,
        doorbell: RawFd,
        tensors: (u32, RawFd),
    ) -> PyResult<()> {
        let memory = Arc::new(LaneMemory::open(memory)?);
        let object = self.direct.object(tensors.0, tensors.1)?;
        if doorbell < 0 {
            return Err(PyOSError::new_err("the doorbell is no descriptor"));
        }
        // SAFETY: the caller holds the descriptor open during this call; it is only duplicated.
        let doorbell = unsafe { BorrowedFd::borrow_raw(doorbell) }.try_clone_to_owned()?;
        let _entered = self.runtime.enter();
        // SAFETY: the registration owns the descriptor, which stays open until it is dropped.
        let watched =
            unsafe { AsyncFd::register_with_interest(doorbell, Interest::READABLE) }.map_err(Error::from)?;
        self.direct
            .open_lane(lane, group, (ServerEnd::new(memory), object), Some(watched))
            .map_err(PyValueError::new_err)
    }

    fn close_lane(&self, lane: u32, last: bool) -> (i64, usize, Vec<String>) {
        let Closed { model, had, clients } = self.direct.close_lane(lane, last);
        (model.map_or(-1, i64::from), had, clients)
    }

    fn hold(&self, client: &str, model: u32, until_ns: u64) {
        self.quotas.hold(client, model, until_ns, now_ns());
    }

    fn lease(&self, lane: u32, limit: u32) -> bool {
        self.direct.lease(lane, limit)
    }

    fn end_lease(&self, lane: u32) -> bool {
        self.direct.lease(lane, 0)
    }

    fn load(&self, lane: u32) -> (u32, u64, u64) {
        self.direct.load(lane)
    }

    fn serve_stream(&self, method: u32, requests: usize, nbytes: usize) -> PyResult<()> {
        let window = StreamWindow { requests, bytes: nbytes };
        self.direct.serve_stream(method, window).map_err(PyValueError::new_err)
    }

    #[pyo3(signature = (head, **spec))]
    fn add_template(&self, head: Vec<u8>, spec: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let spec = spec.ok_or_else(|| PyTypeError::new_err("nothing is said of the template"))?.extract()?;
        self.direct.add_template(head, spec).map_err(PyValueError::new_err)
    }

    #[staticmethod]
    fn http_head<'py>(py: Python<'py>, target: &str, json: &[u8]) -> Option<Bound<'py, PyBytes>> {
        let mut outline = Outline::default();
        let known = is_inference(target.as_bytes()) && outline.read(target.as_bytes(), json).is_some();
        known.then(|| PyBytes::new(py, &outline.key))
    }

    #[pyo3(signature = (model = None))]
    fn drop_templates(&self, model: Option<u32>) {
        self.direct.drop_templates(model);
    }

    fn retire_template(&self, head: &[u8], spare: bool) -> bool {
        self.direct.retire_template(head, spare)
    }

    #[pyo3(signature = (kind, charge_per_row_ns, batch_ns, margin_ns, batch_rows = 0))]
    fn price(&self, kind: u32, charge_per_row_ns: u64, batch_ns: u64, margin_ns: u64, batch_rows: u32) {
        self.direct.price(kind, Price { charge_per_row_ns, batch_ns, margin_ns, batch_rows });
    }

    fn forget_price(&self, kind: u32) {
        self.direct.forget_price(kind);
    }

    fn in_flight(&self, model: u32) -> usize {
        self.direct.in_flight_of(model)
    }

    fn backlog(&self, model: u32) -> usize {
        self.direct.backlog_of(model)
    }

    fn sample(&self, one_in: u64) {
        self.direct.sample(one_in);
    }

    fn traces<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.direct.traces().into_iter().map(|trace| traced(py, &trace)).collect()
    }

    fn free_slots(&self) -> Vec<usize> {
        self.direct.free_slots()
    }

    fn news<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, Vec<u32>)> {
        let (tallies, broken) = self.direct.news();
        let told = PyList::empty(py);
        for (subject, tally) in tallies {
            told.append(told_of(py, subject, tally)?)?;
        }
        Ok((told, broken))
    }
}

fn traced<'py>(py: Python<'py>, trace: &Trace) -> PyResult<Bound<'py, PyTuple>> {
    let Trace { model, lane, rows, id, parent, arrived_ns, admitted_ns, dispatched_ns, stages, replied_ns } =
        trace;
    let taken_ns = arrived_ns + stages.queue_ns;
    let ran_ns = taken_ns + stages.gather_ns;
    let split_ns = ran_ns + stages.run_ns;
    let ended_ns = split_ns + stages.scatter_ns;
    let stamps =
        [*arrived_ns, *admitted_ns, *dispatched_ns, taken_ns, ran_ns, split_ns, ended_ns, *replied_ns];
    let stamps = PyTuple::new(py, stamps)?;
    (model, lane, rows, PyBytes::new(py, id), PyBytes::new(py, parent), stamps).into_pyobject(py)
}

fn told_of<'py>(py: Python<'py>, subject: Subject, tally: Tally) -> PyResult<Bound<'py, PyTuple>> {
    let (model, kind, lane) = subject;
    let batches: Vec<_> = tally
        .batches
        .iter()
        .map(|(rows, sums)| (*rows, sums.count, sums.gather_ns, sums.run_ns, sums.scatter_ns))
        .collect();
    let stages: Vec<_> =
        tally.stages.iter().map(|histogram| (histogram.counts.clone(), histogram.sum_ns)).collect();
    let slow: Vec<_> = tally
        .slow
        .iter()
        .map(|slow| (PyBytes::new(py, &slow.id), slow.stages_ns.to_vec(), &slow.client))
        .collect();
    let Tally { requests, rows, refused, cancelled, expired, budget_ns, .. } = tally;
    (model, kind, lane, requests, rows, batches, stages, refused, cancelled, expired, budget_ns, slow)
        .into_pyobject(py)
}
