//! The worker's side of its lane as Python sees it, and the daemon's hold on the memory of a lane.
//!
//! `WorkerRing` forms batches, lays their tensors out and tells their ends; what runs a batch is Python's business. One
//! batch is out at a time. The arena is shared with the door and with other workers: no reference to its bytes is ever
//! made, they are copied through raw pointers.

use crate::clock::now_ns;
use crate::lane_memory::{self, Completion, Submission, WorkerEnd, status};
use crate::worker_plans::{Plan, Plans, Tensor, aligned};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// The memory of one lane, held by the daemon; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_door")]
pub struct LaneMemory {
    memory: lane_memory::LaneMemory,
    doorbell: OwnedFd,
}

#[pymethods]
impl LaneMemory {
    #[new]
    fn new() -> PyResult<Self> {
        let memory = lane_memory::LaneMemory::create().map_err(PyOSError::new_err)?;
        Ok(Self { memory, doorbell: lane_memory::doorbell().map_err(PyOSError::new_err)? })
    }

    fn fileno(&self) -> RawFd {
        self.memory.fd()
    }

    fn doorbell(&self) -> RawFd {
        self.doorbell.as_raw_fd()
    }

    fn mail(&self) {
        self.memory.mail();
    }
}

/// A request of the batch that is out.
struct Request {
    ticket: u64,
    offset: usize,
    out_offset: usize,
    plan: Arc<Plan>,
}

/// The batch that is out. Empty: none is.
#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    rows: u32,
    /// The least that one of them allows.
    bound: u32,
    started_ns: u64,
}

impl Batch {
    /// Whether a request of this plan may run with those that are in it.
    fn takes(&self, plan: &Plan, batch_rows: u32) -> bool {
        self.requests.first().is_none_or(|first| {
            let bound = first.plan.max_rows.min(self.bound).min(allowed(batch_rows));
            plan.kind == first.plan.kind && self.rows.saturating_add(plan.rows) <= bound
        })
    }
}

fn allowed(batch_rows: u32) -> u32 {
    if batch_rows == 0 { u32::MAX } else { batch_rows }
}

/// The worker's end of its lane; see the stub of the package.
#[pyclass(module = "edge_appliance_door")]
pub struct WorkerRing {
    end: WorkerEnd,
    arena: PyUntypedBuffer,
    plans: Plans,
    batch: Batch,
    ended: Vec<Completion>,
}

/// What `take` gives: kind, plan, rows, count, offset, out_offset.
type Taken = (u32, u32, u32, usize, usize, usize);

#[pymethods]
impl WorkerRing {
    #[new]
    fn new(memory_fd: RawFd, doorbell_fd: RawFd, arena: &Bound<'_, PyAny>) -> PyResult<Self> {
        let memory = lane_memory::LaneMemory::open(memory_fd).map_err(PyOSError::new_err)?;
        let arena = PyUntypedBuffer::get(arena)?;
        if arena.readonly() || !arena.is_c_contiguous() {
            return Err(PyValueError::new_err("the arena must be writable and contiguous"));
        }
        Ok(Self {
            end: WorkerEnd::new(memory, duplicate(doorbell_fd).map_err(PyOSError::new_err)?),
            arena,
            plans: Plans::default(),
            batch: Batch { bound: u32::MAX, ..Batch::default() },
            ended: Vec::new(),
        })
    }

    fn wait(&self, py: Python<'_>, timeout_ms: u64) -> u32 {
        match self.end.wait(Duration::ZERO) {
            0 if timeout_ms > 0 => py.detach(|| self.end.wait(Duration::from_millis(timeout_ms))),
            flags => flags,
        }
    }

    fn learn(
        &mut self,
        plan: u32,
        kind: u32,
        rows: u32,
        max_rows: u32,
        input_sizes: Vec<usize>,
        output_sizes: Vec<usize>,
    ) -> PyResult<()> {
        let learned = self.plans.learn(plan, kind, (rows, max_rows), &input_sizes, &output_sizes);
        learned.map_err(PyValueError::new_err)
    }

    fn forget(&mut self, plan: u32) {
        self.plans.forget(plan);
    }

    fn take(&mut self) -> PyResult<Option<Taken>> {
        if !self.batch.requests.is_empty() {
            return Err(PyRuntimeError::new_err("the batch before has not been completed"));
        }
        self.form_batch();
        let Some(first) = self.batch.requests.first() else { return Ok(None) };
        let (kind, count) = (first.plan.kind, self.batch.requests.len());
        Ok(Some((kind, first.plan.id, self.batch.rows, count, first.offset, first.out_offset)))
    }

    fn gather(&self, address: usize, nbytes: usize) -> PyResult<()> {
        self.copy_batch(Direction::Gather, address, nbytes)
    }

    fn scatter(&self, address: usize, nbytes: usize) -> PyResult<()> {
        self.copy_batch(Direction::Scatter, address, nbytes)
    }

    fn complete(&mut self, status: u32, gather_ns: u64, run_ns: u64, scatter_ns: u64) {
        let Batch { rows: batch_rows, started_ns, .. } = self.batch;
        self.end.complete(self.batch.requests.iter().enumerate().map(|(index, request)| Completion {
            ticket: request.ticket,
            status,
            batch_rows,
            first: u32::from(index == 0),
            started_ns,
            gather_ns,
            run_ns,
            scatter_ns,
            ..Completion::default()
        }));
        self.batch.requests.clear();
        (self.batch.rows, self.batch.bound) = (0, u32::MAX);
    }
}

impl WorkerRing {
    /// Takes what may run together from the front, unless there is mail; what cannot run is completed on the way.
    fn form_batch(&mut self) {
        let mut waiting = self.end.waiting();
        // After `waiting`: a plan that was sent before one of these submissions is not overtaken by it.
        if waiting == 0 || self.end.has_mail() {
            return;
        }
        let now_ns = now_ns();
        while waiting > 0 {
            let submission = self.end.peek(0);
            match self.judge(&submission, now_ns) {
                Ok(request) if self.batch.takes(&request.plan, submission.batch_rows) => {
                    self.batch.bound = self.batch.bound.min(allowed(submission.batch_rows));
                    self.batch.rows += request.plan.rows;
                    self.batch.requests.push(request);
                }
                Ok(_) => break,
                Err(status) => self.ended.push(Completion {
                    ticket: submission.ticket,
                    status,
                    started_ns: now_ns,
                    ..Completion::default()
                }),
            }
            self.end.advance(1);
            waiting -= 1;
        }
        if !self.ended.is_empty() {
            self.end.complete(self.ended.drain(..));
        }
        self.batch.started_ns = now_ns;
    }

    /// What is to run, or the status with which it ends at once.
    fn judge(&self, submission: &Submission, now_ns: u64) -> Result<Request, u32> {
        let &Submission { ticket, offset, out_offset, start_by_ns, rows, .. } = submission;
        if start_by_ns != 0 && start_by_ns <= now_ns {
            return Err(status::EXPIRED);
        }
        let plan = self.plans.get(submission.plan).ok_or(status::HAND_OVER)?;
        if plan.rows != rows || !plan.fits(offset, out_offset, self.arena.len_bytes()) {
            return Err(status::HAND_OVER);
        }
        // Neither is larger than the arena, which is in memory.
        Ok(Request { ticket, offset: offset as usize, out_offset: out_offset as usize, plan: plan.clone() })
    }

    /// Copies between the places of the requests and memory where their tensors lie column after column, row after row.
    fn copy_batch(&self, direction: Direction, address: usize, nbytes: usize) -> PyResult<()> {
        let requests = &self.batch.requests;
        let columns = requests.first().map_or(0, |first| first.tensors(direction).0.len());
        let mut position = 0;
        for column in 0..columns {
            for request in requests {
                let (tensors, offset) = request.tensors(direction);
                let Tensor { start, size } = tensors[column]; // those of a kind have as many columns
                if nbytes.checked_sub(position).is_none_or(|room| room < size) {
                    return Err(PyValueError::new_err(format!("the batch does not fit into {nbytes} bytes")));
                }
                let scratch = (address as *mut u8).wrapping_add(position);
                let place = self.arena.buf_ptr().cast::<u8>().wrapping_add(offset + start);
                let (from, to) = match direction {
                    Direction::Gather => (place, scratch),
                    Direction::Scatter => (scratch, place),
                };
                // SAFETY: `place` lies in the arena, which the buffer keeps mapped: `judge` has checked it. The caller
                // vouches for `nbytes` from `address`, as memory of this process outside of the arena.
                unsafe { std::ptr::copy_nonoverlapping(from, to, size) };
                position += size;
            }
            position = aligned(position).unwrap_or(usize::MAX);
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Gather,
    Scatter,
}

impl Request {
    /// Its tensors that go this way, and where they begin in the arena.
    fn tensors(&self, direction: Direction) -> (&[Tensor], usize) {
        match direction {
            Direction::Gather => (&self.plan.inputs, self.offset),
            Direction::Scatter => (&self.plan.outputs, self.out_offset),
        }
    }
}

fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is only borrowed for this call; the kernel refuses a number that is no descriptor.
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()
}
