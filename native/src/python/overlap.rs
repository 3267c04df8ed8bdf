//! Batches that a device runs by itself: while one does, the next is gathered, and begun as soon as it can take no
//! more, so that the device waits neither for copies nor for what is told of the batch before.
//!
//! A batch that could still grow is begun when the device has ended the one before it. At most two have been begun. They
//! are gathered in two places in turn: the one of a batch that has ended is free.

use crate::lanes::worker_batch::Batch;
use crate::lanes::worker_runs::{Overlapped, Turns};
use crate::measure::clock::now_ns;
use crate::python::worker_ring::{Serving, Spent, WorkerRing};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The rest between two looks whether a device has ended a batch, unless it should end so soon and the device has nothing
/// behind it, for which it would wait: then it is looked again and again.
const REST: Duration = Duration::from_micros(50);
/// That is before an eighth of the time is left that such a batch took last, for as long again.
const KEEN_PART: u64 = 8;
/// Between two looks then another thread of Python may run.
const GLANCE_NS: u64 = 3_000;

/// A batch that has been begun.
struct UnderWay {
    batch: Batch,
    overlapped: Overlapped,
    gather_ns: u64,
    begun_ns: u64,
}

/// The batch that is formed next, as far as it has been gathered.
struct Next {
    turn: usize,
    requests: usize,
    gather_ns: u64,
}

impl WorkerRing {
    /// Runs the batch that is formed if a device can do that by itself, and those that come meanwhile, if `on`; what is
    /// formed then is another one. False: it cannot.
    pub(super) fn overlap(&self, py: Python<'_>, serving: &mut Serving, on: bool) -> bool {
        let mut next = Next { turn: 0, requests: 0, gather_ns: 0 };
        let Some(mut under_way) = self.begin(py, serving, &mut next) else { return false };
        let mut ended_ns = 0;
        loop {
            let keen_ns = under_way.as_ref().map_or(0..0, |under_way| under_way.ends_ns(ended_ns));
            let mut behind = None;
            loop {
                if on && behind.is_none() {
                    let kind = under_way.as_ref().ok().and_then(|under_way| under_way.batch.kind());
                    let full = self.gather_more(serving, &mut next, keen_ns.start);
                    if full && serving.batch.kind() == kind {
                        behind = self.begin(py, serving, &mut next);
                    }
                }
                let Ok(UnderWay { overlapped, .. }) = &under_way else { break };
                // What it raises is raised by `finish` as well.
                let ended =
                    overlapped.run.call_method0(py, "ended").and_then(|told| told.extract::<bool>(py));
                if ended.unwrap_or(true) {
                    break;
                }
                pause(py, behind.is_some() || !keen_ns.contains(&now_ns()));
            }
            let (batch, ran, gather_ns, began_ns) = match under_way {
                Ok(UnderWay { batch, overlapped, gather_ns, begun_ns }) => {
                    let finished = overlapped.run.call_method0(py, "finish").map(|_| overlapped.place);
                    let began_ns = begun_ns.max(ended_ns);
                    overlapped.took_ns.store(now_ns().saturating_sub(began_ns), Relaxed);
                    (batch, finished, gather_ns, began_ns)
                }
                Err((batch, problem)) => (batch, Err(problem), 0, now_ns()),
            };
            ended_ns = now_ns();
            if behind.is_none() && serving.batch.kind() == batch.kind() {
                behind = self.begin(py, serving, &mut next); // of another kind, it may end this process before that is told
            }
            self.tell(serving, batch, ran, gather_ns, (began_ns, ended_ns));
            match behind {
                Some(begun) => under_way = begun,
                None => return true,
            }
        }
    }

    /// Gathers what of the batch that is formed has not been, and begins it; None if no such run is kept for it. A batch
    /// that could not be begun comes back with why.
    fn begin(
        &self,
        py: Python<'_>,
        serving: &mut Serving,
        next: &mut Next,
    ) -> Option<Result<UnderWay, (Batch, PyErr)>> {
        let (kind, rows) = (serving.batch.kind()?, serving.batch.rows);
        let runs = self.runs.lock();
        let overlapped = runs.overlapped.get(&(kind, rows, next.turn)).map(|kept| kept.clone_ref(py));
        let turns = runs.turns.get(&kind).cloned();
        drop(runs);
        let (overlapped, turns) = (overlapped?, turns.filter(|turns| rows <= turns.max_rows)?);
        if serving.batch.requests.len() == 1 {
            return None; // it runs where it lies
        }
        let gathered = next.gather(serving, &turns);
        let begun_ns = now_ns();
        let begun = gathered.and_then(|()| overlapped.run.call_method0(py, "begin"));
        let batch = std::mem::take(&mut serving.batch);
        let gather_ns = next.gather_ns;
        *next = Next { turn: 1 - next.turn, requests: 0, gather_ns: 0 };
        Some(match begun {
            Ok(_) => Ok(UnderWay { batch, overlapped, gather_ns, begun_ns }),
            Err(problem) => Err((batch, problem)),
        })
    }

    /// Takes what has come to the batch that is formed, which can begin at `begins_ns`, and gathers it where it will be
    /// read. Whether it can take no more.
    fn gather_more(&self, serving: &mut Serving, next: &mut Next, begins_ns: u64) -> bool {
        let full = serving.form_batch(begins_ns);
        let turns = serving.batch.kind().and_then(|kind| self.runs.lock().turns.get(&kind).cloned());
        if let Some(turns) = turns.filter(|turns| serving.batch.rows <= turns.max_rows) {
            let _ = next.gather(serving, &turns); // `begin` tells what is wrong
        }
        full
    }

    /// Scatters the outputs of a batch that has ended, and tells its end.
    fn tell(
        &self,
        serving: &mut Serving,
        mut batch: Batch,
        finished: PyResult<(usize, usize)>,
        gather_ns: u64,
        (began_ns, ended_ns): (u64, u64),
    ) {
        let run_ns = ended_ns.saturating_sub(began_ns);
        batch.started_ns = ended_ns.saturating_sub(run_ns + gather_ns);
        let told: PyResult<Spent> = finished.and_then(|place| {
            serving.scatter(&batch, place).map_err(PyValueError::new_err)?;
            Ok([gather_ns, run_ns, now_ns().saturating_sub(ended_ns)])
        });
        self.settle(serving, &batch, told);
    }
}

impl UnderWay {
    /// When it should end, as a device begins it where it has ended the one before, which was at `before_ns`.
    fn ends_ns(&self, before_ns: u64) -> Range<u64> {
        let took_ns = self.overlapped.took_ns.load(Relaxed);
        let end_ns = self.begun_ns.max(before_ns) + took_ns;
        let part_ns = (took_ns / KEEN_PART).max(2 * REST.as_nanos() as u64);
        end_ns.saturating_sub(part_ns)..end_ns + part_ns
    }
}

impl Next {
    fn gather(&mut self, serving: &Serving, turns: &Arc<Turns>) -> PyResult<()> {
        let requests = serving.batch.requests.len();
        if requests > self.requests {
            let before_ns = now_ns();
            serving.gather_on(self.requests, turns, self.turn).map_err(PyValueError::new_err)?;
            self.requests = requests;
            self.gather_ns += now_ns() - before_ns;
        }
        Ok(())
    }
}

/// Lets another thread of Python run before the next look.
fn pause(py: Python<'_>, rest: bool) {
    py.detach(|| {
        if rest {
            std::thread::sleep(REST);
            return;
        }
        let until_ns = now_ns() + GLANCE_NS;
        while now_ns() < until_ns {
            std::hint::spin_loop();
        }
    });
}
