//! Runs the rules of `../src/lanes/rings.rs` in every order that the memory model allows:
//! `RUSTFLAGS="--cfg loom" cargo test --release` here. Without that flag there is nothing.
//!
//! Loom tells a lost wake-up as a deadlock, for who sleeps here sleeps until woken. The futex and the doorbell are what
//! the kernel promises: a look at a word and the sleep are one step for those who wake.
#![cfg(loom)]

#[allow(dead_code)]
#[path = "../../src/lanes/rings.rs"]
mod rings;

use loom::sync::atomic::Ordering::Relaxed;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use rings::{Completion, ServerIndices, Shared, Submission, WorkerIndices, status};

/// The memory, and what the kernel adds to it: the futex of the worker and the doorbell of the front end.
struct Lane {
    shared: Box<Shared>,
    futex: Mutex<()>,
    futex_woken: Condvar,
    doorbell: Mutex<bool>,
    rung: Condvar,
}

impl Lane {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            shared: Shared::zeroed(),
            futex: Mutex::new(()),
            futex_woken: Condvar::new(),
            doorbell: Mutex::new(false),
            rung: Condvar::new(),
        })
    }

    /// As `lane_memory::LaneMemory::wake_worker`.
    fn wake_worker(&self) {
        if self.shared.must_wake() {
            let _queue = self.futex.lock().unwrap();
            self.futex_woken.notify_all();
        }
    }

    /// As `lane_memory::WorkerEnd::wait`, without a time-out: whether there is mail.
    fn wait(&self, worker: &WorkerIndices) -> bool {
        loop {
            let waiting = worker.waiting(&self.shared);
            let mail = self.shared.collect();
            if waiting > 0 || mail {
                return mail;
            }
            self.shared.fall_asleep();
            if !self.shared.has_mail() && worker.waiting(&self.shared) == 0 {
                let queue = self.futex.lock().unwrap();
                if self.shared.asleep_word().load(Relaxed) == 1 {
                    drop(self.futex_woken.wait(queue).unwrap());
                }
            }
            self.shared.awake();
        }
    }

    /// As `lane_memory::WorkerEnd::complete`.
    fn complete(&self, worker: &mut WorkerIndices, ended: impl Iterator<Item = Completion>) {
        worker.complete(&self.shared, ended);
        if self.shared.must_ring() {
            *self.doorbell.lock().unwrap() = true;
            self.rung.notify_all();
        }
    }

    /// The front end has nothing to do: sleeps until the doorbell rings, unless there is something to take after arming it.
    fn sleep(&self, server: &ServerIndices) {
        self.shared.arm();
        if !server.pending(&self.shared) {
            let mut rung = self.doorbell.lock().unwrap();
            while !*rung {
                rung = self.rung.wait(rung).unwrap();
            }
            *rung = false;
        }
        self.shared.disarm();
    }
}

/// All orders in which no thread is interrupted more than three times: the number of all takes too long.
fn explore(scenario: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(scenario);
}

/// The only request that a scenario may withdraw.
const WITHDRAWN: u64 = 0;

fn submission(ticket: u64) -> Submission {
    Submission { ticket, offset: ticket + 100, rows: 1, ..Submission::default() }
}

/// Serves `count` requests as they come, each as a batch of what waits; gives how often there was mail.
fn serve(lane: &Lane, count: u64) -> u64 {
    let mut worker = WorkerIndices::default();
    let (mut next, mut mails) = (0, 0);
    while next < count {
        mails += u64::from(lane.wait(&worker));
        let waiting = worker.waiting(&lane.shared);
        let batch: Vec<_> = (0..waiting).map(|index| worker.peek(&lane.shared, index)).collect();
        for (given, ticket) in batch.iter().zip(next..) {
            let withdrawn = given.withdrawn;
            assert!(withdrawn == 0 || ticket == WITHDRAWN, "another's request was withdrawn");
            let expected = Submission { withdrawn, ..submission(ticket) };
            assert_eq!(*given, expected, "a request was torn, lost or overtaken");
        }
        next += waiting as u64;
        worker.advance(waiting);
        let ended = |given: &Submission| Completion {
            ticket: given.ticket,
            status: status::OK,
            run_ns: given.offset,
            ..Completion::default()
        };
        lane.complete(&mut worker, batch.iter().map(ended));
    }
    mails
}

/// The front end submits and sleeps, the worker sleeps and serves: nothing is lost, torn or slept over, also when the ring
/// goes round.
#[test]
fn every_request_comes_back() {
    const COUNT: u64 = 3; // more than the ring of the model holds
    explore(|| {
        let lane = Lane::new();
        let other = lane.clone();
        let worker = thread::spawn(move || serve(&other, COUNT));
        let mut server = ServerIndices::default();
        let (mut submitted, mut settled) = (0, 0);
        while settled < COUNT {
            while submitted < COUNT && server.submit(&lane.shared, &submission(submitted)) {
                lane.wake_worker();
                submitted += 1;
            }
            lane.sleep(&server);
            while let Some(ended) = server.take(&lane.shared) {
                assert_eq!((ended.ticket, ended.run_ns), (settled, settled + 100));
                settled += 1;
            }
        }
        assert!(!server.broken() && server.in_flight() == 0);
        worker.join().unwrap();
    });
}

/// The front end withdraws a request at any moment, also when its entry has become another's: only that one is told to be.
#[test]
fn nobody_elses_request_is_withdrawn() {
    const COUNT: u64 = 3; // the last one in the first one's entry
    explore(|| {
        let lane = Lane::new();
        let other = lane.clone();
        let worker = thread::spawn(move || serve(&other, COUNT));
        let mut server = ServerIndices::default();
        let mut settled = 0;
        for ticket in 0..COUNT {
            while !server.submit(&lane.shared, &submission(ticket)) {
                lane.sleep(&server);
                settled += u64::from(server.take(&lane.shared).is_some());
            }
            server.withdraw(&lane.shared, WITHDRAWN as u32);
            lane.wake_worker();
        }
        while settled < COUNT {
            lane.sleep(&server);
            while server.take(&lane.shared).is_some() {
                settled += 1;
            }
        }
        worker.join().unwrap();
    });
}

/// Python posts mail while the front end submits: both wake a worker that sleeps, and neither takes the other's wake-up.
#[test]
fn mail_and_a_request_both_wake() {
    explore(|| {
        let lane = Lane::new();
        let other = lane.clone();
        let python = thread::spawn(move || {
            other.shared.post();
            other.wake_worker();
        });
        let other = lane.clone();
        let worker = thread::spawn(move || {
            let mut mails = serve(&other, 1);
            while mails == 0 {
                mails += u64::from(other.wait(&WorkerIndices::at(1)));
            }
            mails
        });
        let mut server = ServerIndices::default();
        assert!(server.submit(&lane.shared, &submission(0)));
        lane.wake_worker();
        python.join().unwrap();
        assert_eq!(worker.join().unwrap(), 1);
    });
}

/// Mail that was posted before a request was submitted, on whatever thread, is seen with it: a plan is not overtaken.
#[test]
fn a_request_does_not_overtake_mail() {
    explore(|| {
        let lane = Lane::new();
        let other = lane.clone();
        let python = thread::spawn(move || {
            other.shared.post();
            other.wake_worker();
        });
        let other = lane.clone();
        let server = thread::spawn(move || {
            python.join().unwrap(); // as FastPath.add_template, which comes after the mail
            let mut server = ServerIndices::default();
            assert!(server.submit(&other.shared, &submission(0)));
            other.wake_worker();
        });
        let worker = WorkerIndices::default();
        let mut mail = lane.wait(&worker);
        if worker.waiting(&lane.shared) > 0 {
            mail = mail || lane.shared.has_mail();
            assert!(mail, "the request came first");
        }
        server.join().unwrap();
    });
}
