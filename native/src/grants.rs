//! What Python teaches and grants, and what it is told of requests that were served so.

use crate::direct::{Attached, Price};
use crate::door::Core;
use crate::lane_memory::{DoorEnd, LaneMemory};
use crate::news::{Subject, Tally};
use crate::plan::Lesson;
use crate::slots::Arena;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

/// Teaching and granting; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_door")]
pub struct Grants(pub Arc<Core>);

#[pymethods]
impl Grants {
    #[pyo3(signature = (*, method, arena, arena_bytes, doorbell, slots, bounds_ns, slow_ns))]
    #[allow(clippy::too_many_arguments)]
    fn attach(
        &self,
        method: u32,
        arena: RawFd,
        arena_bytes: usize,
        doorbell: RawFd,
        slots: Vec<(usize, Vec<usize>)>,
        bounds_ns: Vec<u64>,
        slow_ns: u64,
    ) -> PyResult<()> {
        let arena = Arena::map(arena, arena_bytes)?;
        if doorbell < 0 {
            return Err(PyOSError::new_err("the doorbell is no descriptor"));
        }
        // SAFETY: the caller holds the descriptor open during this call; it is only duplicated.
        let doorbell = unsafe { BorrowedFd::borrow_raw(doorbell) }.try_clone_to_owned()?;
        let attached = Attached { arena, doorbell, method };
        self.0.direct.attach(attached, slots, bounds_ns, slow_ns).map_err(PyValueError::new_err)
    }

    fn open_lane(&self, lane: u32, group: u32, memory: RawFd) -> PyResult<()> {
        let memory = Arc::new(LaneMemory::open(memory)?);
        self.0.direct.open_lane(lane, group, DoorEnd::new(memory)).map_err(PyValueError::new_err)
    }

    fn close_lane(&self, lane: u32) -> (i64, usize) {
        let (blamed, had) = self.0.direct.close_lane(lane);
        (blamed.map_or(-1, i64::from), had)
    }

    fn grant(&self, lane: u32, limit: u32) -> bool {
        self.0.direct.grant(lane, limit)
    }

    fn revoke(&self, lane: u32) -> bool {
        self.0.direct.grant(lane, 0)
    }

    fn load(&self, lane: u32) -> (u32, u64, u64) {
        self.0.direct.load(lane)
    }

    #[pyo3(signature = (head, *, plan, kind, model, group, rows, inputs, out_offset, span, opening, described, outputs,
                        late_text, default_timeout_ns))]
    #[allow(clippy::too_many_arguments)]
    fn teach(
        &self,
        head: Vec<u8>,
        plan: u32,
        kind: u32,
        model: u32,
        group: u32,
        rows: u32,
        inputs: Vec<(usize, usize)>,
        out_offset: usize,
        span: usize,
        opening: Vec<u8>,
        described: Vec<u8>,
        outputs: Vec<(Vec<u8>, usize, usize)>,
        late_text: String,
        default_timeout_ns: u64,
    ) -> PyResult<()> {
        let lesson = Lesson {
            plan,
            kind,
            model,
            group,
            rows,
            inputs,
            out_offset,
            span,
            opening,
            described,
            outputs,
            late_text,
            default_timeout_ns,
        };
        self.0.direct.teach(head, lesson).map_err(PyValueError::new_err)
    }

    #[pyo3(signature = (model = None))]
    fn forget(&self, model: Option<u32>) {
        self.0.direct.forget(model);
    }

    fn price(&self, kind: u32, charge_per_row_ns: u64, batch_ns: u64, margin_ns: u64) {
        self.0.direct.price(kind, Price { charge_per_row_ns, batch_ns, margin_ns });
    }

    fn in_flight(&self, model: u32) -> usize {
        self.0.direct.in_flight_of(model)
    }

    fn free_slots(&self) -> Vec<usize> {
        self.0.direct.free_slots()
    }

    fn news<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, Vec<u32>)> {
        let (tallies, broken) = self.0.direct.news();
        let told = PyList::empty(py);
        for (subject, tally) in tallies {
            told.append(told_of(py, subject, tally)?)?;
        }
        Ok((told, broken))
    }
}

fn told_of<'py>(py: Python<'py>, subject: Subject, tally: Tally) -> PyResult<Bound<'py, PyTuple>> {
    let (model, kind, lane) = subject;
    let batches: Vec<_> = tally
        .batches
        .into_iter()
        .map(|(rows, sums)| (rows, sums.count, sums.gather_ns, sums.run_ns, sums.scatter_ns))
        .collect();
    let stages: Vec<_> =
        tally.stages.into_iter().map(|histogram| (histogram.counts, histogram.sum_ns)).collect();
    let slow: Vec<_> =
        tally.slow.iter().map(|slow| (PyBytes::new(py, &slow.id), slow.stages_ns.to_vec())).collect();
    (model, kind, lane, tally.requests, tally.rows, batches, stages, tally.refused, tally.cancelled, slow)
        .into_pyobject(py)
}
