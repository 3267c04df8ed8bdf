//! The worker's side of its lane as Python sees it, and the daemon's hold on the memory of a lane.
//!
//! `WorkerRing` forms batches, lays their tensors out and tells their ends; what runs a batch is Python's business.
//! What Python has prepared and kept here (`lanes/worker_runs.rs`) is called in a loop that otherwise stays out of the
//! interpreter: after a halt every line of code is fetched anew, and Python's are many. One batch is out at a time.
//! The arena is shared with the front end and with other workers: no reference to its bytes is ever made, they are
//! copied through raw pointers.

use crate::lanes::memory::{self as lane_memory, Completion, MAIL, Submission, WorkerEnd, status};
use crate::lanes::worker_batch::{Batch, Direction, Request, allowed, within};
use crate::lanes::worker_layouts::{Layouts, Tensor, aligned};
use crate::lanes::worker_runs::{Alone, Merged, Overlapped, Runs, Turns};
use crate::measure::clock::now_ns;
use crate::measure::lock::Lock;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The memory of one lane, held by the daemon; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_native")]
pub(crate) struct LaneMemory {
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

/// The worker's end of its lane; see the stub of the package. Prepared runs may be dropped by another thread while this
/// one sleeps in `serve`, so they are not a part of what that holds.
#[pyclass(frozen, module = "edge_appliance_native")]
pub(crate) struct WorkerRing {
    serving: Mutex<Serving>,
    pub(super) runs: Lock<Runs>,
}

/// What only the thread that serves uses.
pub(super) struct Serving {
    end: WorkerEnd,
    arena: PyUntypedBuffer,
    layouts: Layouts,
    /// The batch that is out, or is being formed.
    pub(super) batch: Batch,
    /// The batch that is out was formed by `serve`, and `take` has not told of it yet.
    left: bool,
    ended: Vec<Completion>,
}

/// What `serve` and `serve_one` tell: nothing was there.
const NOTHING: u32 = 0;
/// A batch is out for which no run is kept.
const LEFT: u32 = 2;
/// A batch ran.
const RAN: u32 = 4;

/// What a batch spent: gathering, running, scattering.
pub(super) type Spent = [u64; 3];

/// What `take` gives: kind, template, rows, count, offset, out_offset.
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
        let serving = Serving {
            end: WorkerEnd::new(memory, duplicate(doorbell_fd).map_err(PyOSError::new_err)?),
            arena,
            layouts: Layouts::default(),
            batch: Batch::default(),
            left: false,
            ended: Vec::new(),
        };
        Ok(Self { serving: Mutex::new(serving), runs: Lock::default() })
    }

    fn wait(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<u32> {
        Ok(self.serving()?.wait(py, timeout_ms))
    }

    fn add_template(
        &self,
        template: u32,
        kind: u32,
        rows: u32,
        max_rows: u32,
        input_sizes: Vec<usize>,
        output_sizes: Vec<usize>,
    ) -> PyResult<()> {
        let layouts = &mut self.serving()?.layouts;
        layouts
            .add(template, kind, (rows, max_rows), &input_sizes, &output_sizes)
            .map_err(PyValueError::new_err)
    }

    fn drop_template(&self, template: u32) -> PyResult<()> {
        let layout = self.serving()?.layouts.drop_of(template);
        if let Some(layout) = layout {
            let dropped = self.runs.lock().split_off_template(template, layout.kind);
            drop(dropped); // what ends with it is Python's, and no lock is held any more
        }
        Ok(())
    }

    fn take(&self) -> PyResult<Option<Taken>> {
        let mut serving = self.serving()?;
        if !std::mem::take(&mut serving.left) {
            serving.none_is_out()?;
            serving.form_batch(0);
        }
        let Some(first) = serving.batch.requests.first() else { return Ok(None) };
        let (kind, count) = (first.layout.kind, serving.batch.requests.len());
        Ok(Some((kind, first.layout.id, serving.batch.rows, count, first.offset, first.out_offset)))
    }

    fn gather(&self, address: usize, nbytes: usize) -> PyResult<()> {
        let serving = self.serving()?;
        let gathered = serving.copy_batch(&serving.batch, Direction::Gather, (address, nbytes));
        gathered.map_err(PyValueError::new_err)
    }

    fn scatter(&self, address: usize, nbytes: usize) -> PyResult<()> {
        let serving = self.serving()?;
        serving.scatter(&serving.batch, (address, nbytes)).map_err(PyValueError::new_err)
    }

    fn complete(&self, status: u32, gather_ns: u64, run_ns: u64, scatter_ns: u64) -> PyResult<()> {
        let mut serving = self.serving()?;
        serving.left = false;
        let batch = std::mem::take(&mut serving.batch);
        serving.complete(&batch, status, [gather_ns, run_ns, scatter_ns]);
        Ok(())
    }

    fn keep_alone(&self, kind: u32, template: u32, at: (usize, usize), run: Py<PyAny>) -> usize {
        let mut runs = self.runs.lock();
        let replaced = runs.alone.insert((template, at.0, at.1), Alone { kind, run });
        let kept = runs.count();
        drop(runs);
        drop(replaced); // as above
        kept
    }

    fn keep_merged(
        &self,
        kind: u32,
        rows: u32,
        source: (usize, usize),
        place: (usize, usize),
        run: Py<PyAny>,
    ) -> usize {
        let mut runs = self.runs.lock();
        let replaced = runs.merged.insert((kind, rows), Merged { source, place, run });
        let kept = runs.count();
        drop(runs);
        drop(replaced); // as above
        kept
    }

    fn keep_turns(
        &self,
        kind: u32,
        max_rows: u32,
        starts: Vec<usize>,
        nbytes: usize,
        addresses: (usize, usize),
    ) {
        let turns = Turns { max_rows, starts: starts.into(), nbytes, addresses: addresses.into() };
        self.runs.lock().turns.insert(kind, Arc::new(turns));
    }

    fn keep_overlapped(
        &self,
        kind: u32,
        rows: u32,
        turn: usize,
        place: (usize, usize),
        run: Py<PyAny>,
    ) -> usize {
        let mut runs = self.runs.lock();
        let replaced =
            runs.overlapped.insert((kind, rows, turn), Overlapped { place, run, took_ns: Arc::default() });
        let kept = runs.count();
        drop(runs);
        drop(replaced); // as above
        kept
    }

    #[pyo3(signature = (kind = None))]
    fn drop_runs(&self, kind: Option<u32>) {
        let dropped = match kind {
            None => std::mem::take(&mut *self.runs.lock()),
            Some(kind) => self.runs.lock().split_off(kind),
        };
        drop(dropped); // as above
    }

    fn serve(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<u32> {
        let mut serving = self.serving()?;
        serving.none_is_out()?;
        loop {
            match self.step(py, &mut serving, true) {
                RAN => {}
                LEFT => return Ok(LEFT),
                _ => match serving.wait(py, timeout_ms) {
                    NOTHING => return Ok(NOTHING),
                    flags if flags & MAIL != 0 => return Ok(MAIL),
                    _ => {}
                },
            }
        }
    }

    fn serve_one(&self, py: Python<'_>) -> PyResult<u32> {
        let mut serving = self.serving()?;
        serving.none_is_out()?;
        Ok(self.step(py, &mut serving, false))
    }
}

impl WorkerRing {
    /// What the serving thread uses. Fails while it is in use: by another thread, or by a run that serves again.
    fn serving(&self) -> PyResult<MutexGuard<'_, Serving>> {
        self.serving.try_lock().map_err(|_| PyRuntimeError::new_err("the ring is in use"))
    }

    /// Forms a batch, and runs it if a run is kept for it: LEFT if there is none, NOTHING if nothing waits or mail goes
    /// first. A run that fails hands its batch over, and what was kept for its kind is not called again. `on`: more
    /// batches may follow it for as long as one can be begun before the one before it has ended.
    fn step(&self, py: Python<'_>, serving: &mut Serving, on: bool) -> u32 {
        serving.form_batch(0);
        let mut told = NOTHING;
        while !serving.batch.requests.is_empty() {
            told = self.run_formed(py, serving, on);
            if told == LEFT {
                serving.left = true;
                break;
            }
        }
        told
    }

    fn run_formed(&self, py: Python<'_>, serving: &mut Serving, on: bool) -> u32 {
        let Some(first) = serving.batch.requests.first() else { return NOTHING };
        let (kind, rows) = (first.layout.kind, serving.batch.rows);
        let ran = if serving.batch.requests.len() == 1 {
            let key = (first.layout.id, first.offset, first.out_offset);
            let run = self.runs.lock().alone.get(&key).map(|alone| alone.run.clone_ref(py));
            run.map(|run| serving.run_alone(py, &run))
        } else if self.overlap(py, serving, on) {
            return RAN;
        } else {
            let merged = self.runs.lock().merged.get(&(kind, rows)).map(|merged| merged.clone_ref(py));
            merged.map(|merged| serving.run_merged(py, &merged))
        };
        let Some(ran) = ran else { return LEFT };
        let batch = std::mem::take(&mut serving.batch);
        self.settle(serving, &batch, ran);
        RAN
    }

    /// Tells the end of a batch.
    pub(super) fn settle(&self, serving: &mut Serving, batch: &Batch, ran: PyResult<Spent>) {
        match ran {
            Ok(spent) => serving.complete(batch, status::OK, spent),
            Err(_) => {
                self.drop_runs(batch.kind()); // whatever it was, the run that follows says it
                serving.complete(batch, status::HAND_OVER, [0; 3]);
            }
        }
    }
}

impl Serving {
    fn none_is_out(&self) -> PyResult<()> {
        if self.batch.requests.is_empty() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err("the batch before has not been completed"))
    }

    fn wait(&self, py: Python<'_>, timeout_ms: u64) -> u32 {
        let end = &self.end;
        match end.wait(Duration::ZERO) {
            0 if timeout_ms > 0 => py.detach(|| end.wait(Duration::from_millis(timeout_ms))),
            flags => flags,
        }
    }

    fn run_alone(&self, py: Python<'_>, run: &Py<PyAny>) -> PyResult<Spent> {
        run.call0(py)?;
        Ok([0, now_ns().saturating_sub(self.batch.started_ns), 0])
    }

    fn run_merged(&self, py: Python<'_>, merged: &Merged) -> PyResult<Spent> {
        let fits = PyValueError::new_err;
        self.copy_batch(&self.batch, Direction::Gather, merged.source).map_err(fits)?;
        let gathered_ns = now_ns();
        merged.run.call0(py)?;
        let ran_ns = now_ns();
        self.scatter(&self.batch, merged.place).map_err(fits)?;
        let stages = [self.batch.started_ns, gathered_ns, ran_ns, now_ns()];
        Ok(std::array::from_fn(|stage| stages[stage + 1].saturating_sub(stages[stage])))
    }

    /// Tells the ends of the requests of a batch, which is none any more.
    pub(super) fn complete(&mut self, batch: &Batch, status: u32, [gather_ns, run_ns, scatter_ns]: Spent) {
        let &Batch { rows: batch_rows, started_ns, .. } = batch;
        self.end.complete(batch.requests.iter().enumerate().map(|(index, request)| Completion {
            ticket: request.ticket,
            status,
            batch_rows,
            first: u32::from(index == 0),
            started_ns,
            gather_ns,
            run_ns,
            scatter_ns,
        }));
    }

    /// Takes what may run together from the front, unless there is mail, to what was taken before; what cannot run is
    /// completed on the way. Whether the batch can take no more. What would be late at `begins_ns`, and is not yet, is
    /// left until it is known.
    pub(super) fn form_batch(&mut self, begins_ns: u64) -> bool {
        let mut waiting = self.end.waiting();
        // After `waiting`: a template that was sent before one of these submissions is not overtaken by it.
        if waiting == 0 || self.end.has_mail() {
            return self.batch.is_full();
        }
        let (now_ns, mut closed) = (now_ns(), false);
        if self.batch.requests.is_empty() {
            self.batch.started_ns = now_ns;
        }
        while waiting > 0 && !closed {
            let submission = self.end.peek(0);
            if (now_ns + 1..=begins_ns).contains(&submission.start_by_ns) {
                break;
            }
            match self.judge(&submission, now_ns) {
                Ok(request) if self.batch.takes(&request.layout, submission.batch_rows) => {
                    self.batch.bound = self.batch.bound.min(allowed(submission.batch_rows));
                    self.batch.rows += request.layout.rows;
                    self.batch.requests.push(request);
                }
                Ok(_) => {
                    closed = true;
                    continue;
                }
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
        closed || self.batch.is_full()
    }

    /// What is to run, or the status with which it ends at once.
    fn judge(&self, submission: &Submission, now_ns: u64) -> Result<Request, u32> {
        let &Submission { ticket, offset, out_offset, start_by_ns, rows, withdrawn, .. } = submission;
        if withdrawn != 0 {
            return Err(status::WITHDRAWN);
        }
        if start_by_ns != 0 && start_by_ns <= now_ns {
            return Err(status::EXPIRED);
        }
        let before = self.batch.requests.last().filter(|request| request.layout.id == submission.template);
        let known = before.map(|request| &request.layout).or_else(|| self.layouts.get(submission.template));
        let layout = known.ok_or(status::HAND_OVER)?;
        if layout.rows != rows || !layout.fits(offset, out_offset, self.arena.len_bytes()) {
            return Err(status::HAND_OVER);
        }
        // Neither is larger than the arena, which is in memory.
        Ok(Request {
            ticket,
            offset: offset as usize,
            out_offset: out_offset as usize,
            layout: layout.clone(),
        })
    }

    /// Copies the inputs of the requests from number `from` on of the batch that is formed to one of the places where
    /// batches of its kind are gathered; the rows before them are there.
    pub(super) fn gather_on(&self, from: usize, turns: &Turns, turn: usize) -> Result<(), String> {
        let mut row =
            self.batch.requests[..from].iter().map(|request| request.layout.rows as usize).sum::<usize>();
        for request in &self.batch.requests[from..] {
            let rows = request.layout.rows as usize;
            let (tensors, offset) = request.tensors(Direction::Gather);
            for (column, Tensor { start, size }) in tensors.iter().enumerate() {
                let place = turns.starts.get(column).map_or(usize::MAX, |start| start + row * (size / rows));
                let arena = self.arena.buf_ptr().cast::<u8>().wrapping_add(offset + start);
                within(turns.nbytes, place, *size)?;
                // SAFETY: as in `copy_batch`; the keeper vouches for `nbytes` from each address.
                unsafe {
                    let to = (turns.addresses[turn] as *mut u8).wrapping_add(place);
                    std::ptr::copy_nonoverlapping(arena.cast_const(), to, *size);
                }
            }
            row += rows;
        }
        Ok(())
    }

    /// Copies outputs that lie column after column, row after row, to the places of the requests.
    pub(super) fn scatter(&self, batch: &Batch, place: (usize, usize)) -> Result<(), String> {
        self.copy_batch(batch, Direction::Scatter, place)
    }

    /// Copies between the places of the requests and memory where their tensors lie column after column, row after row.
    fn copy_batch(
        &self,
        batch: &Batch,
        direction: Direction,
        (address, nbytes): (usize, usize),
    ) -> Result<(), String> {
        let columns = batch.requests.first().map_or(0, |first| first.tensors(direction).0.len());
        let mut position = 0;
        for column in 0..columns {
            for request in &batch.requests {
                let (tensors, offset) = request.tensors(direction);
                let Tensor { start, size } = tensors[column]; // those of a kind have as many columns
                within(nbytes, position, size)?;
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

fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is only borrowed for this call; the kernel refuses a number that is no descriptor.
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()
}
