//! The memory that a front end and one worker share, and the rules by which they use it: two rings of requests, and
//! who wakes whom. Safe code without a system call, so that loom can run every interleaving of it (`native/model`).
//!
//! Nothing here is taken on trust. Each side keeps its own indices and reads of the other only how many entries it has
//! published; entries are words, copied once; an impossible count marks the ring as broken, for good.
//!
//! A ring cannot overflow: the front end has at most RING requests in flight and each is completed once, in an entry
//! that the front end has read. So neither side tells the other how far it has read.
//!
//! That no wake-up is lost is the rule of `handover/wakeup.rs`: publish, fence, look whether the other sleeps;
//! against: say that one sleeps, fence, look at what was published.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use std::borrow::Borrow;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

/// Entries of each ring, and so the most requests that may be in flight.
#[cfg(not(loom))]
pub(crate) const RING: usize = 1024;
/// A ring that goes round within a model.
#[cfg(loom)]
pub(crate) const RING: usize = 2;

const WORDS: usize = 8;
/// The word of a submission that the front end may write once more after it was published.
const WITHDRAWN: usize = 6;

/// How a request ended.
pub(crate) mod status {
    /// The outputs lie in their place.
    pub(crate) const OK: u32 = 0;
    /// It failed, or its template is unknown: Python shall try.
    pub(crate) const HAND_OVER: u32 = 1;
    /// Its deadline passed before it ran.
    pub(crate) const EXPIRED: u32 = 2;
    /// It was withdrawn before it ran.
    pub(crate) const WITHDRAWN: u32 = 3;
}

/// One request for the worker, which travels as the words of an entry; offsets in bytes from the start of the arena, `start_by_ns` on CLOCK_MONOTONIC (0:
/// none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Submission {
    /// The front end's name for the request; means nothing to the worker.
    pub(crate) ticket: u64,
    /// Where its inputs begin.
    pub(crate) offset: u64,
    /// Where its outputs shall begin.
    pub(crate) out_offset: u64,
    /// After this it is of no use to begin.
    pub(crate) start_by_ns: u64,
    /// The template, which says what lies there.
    pub(crate) template: u32,
    /// Rows of the batch that it brings.
    pub(crate) rows: u32,
    /// Rows of the largest batch that it may join others in; 0: as many as its kind allows.
    pub(crate) batch_rows: u32,
    /// Not 0: it is not wanted any more, and need not begin.
    pub(crate) withdrawn: u64,
}

/// The end of one request, which travels likewise; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completion {
    /// That of its submission.
    pub(crate) ticket: u64,
    /// One of `status`.
    pub(crate) status: u32,
    /// Rows of the batch that it ran in.
    pub(crate) batch_rows: u32,
    /// 1 for the first of its batch, else 0.
    pub(crate) first: u32,
    /// When the worker took its batch, on CLOCK_MONOTONIC.
    pub(crate) started_ns: u64,
    /// What gathering the batch took.
    pub(crate) gather_ns: u64,
    /// What running it took.
    pub(crate) run_ns: u64,
    /// What scattering its outputs took.
    pub(crate) scatter_ns: u64,
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Submission {
    fn words(&self) -> [u64; WORDS] {
        let (template, batch) = (pair(self.template, self.rows), u64::from(self.batch_rows));
        [self.ticket, self.offset, self.out_offset, self.start_by_ns, template, batch, self.withdrawn, 0]
    }

    fn of([ticket, offset, out_offset, start_by_ns, template, batch, withdrawn, _]: [u64; WORDS]) -> Self {
        let ((template, rows), batch_rows) = (halves(template), halves(batch).0);
        Self { ticket, offset, out_offset, start_by_ns, template, rows, batch_rows, withdrawn }
    }
}

impl Completion {
    fn words(&self) -> [u64; WORDS] {
        let (ended, first) = (pair(self.status, self.batch_rows), pair(self.first, 0));
        [self.ticket, ended, first, self.started_ns, self.gather_ns, self.run_ns, self.scatter_ns, 0]
    }

    fn of([ticket, ended, first, started_ns, gather_ns, run_ns, scatter_ns, _]: [u64; WORDS]) -> Self {
        let (status, batch_rows) = halves(ended);
        let first = halves(first).0;
        Self { ticket, status, batch_rows, first, started_ns, gather_ns, run_ns, scatter_ns }
    }
}

/// A word on a cache line of its own, so that writing it disturbs nothing else.
#[repr(C, align(64))]
#[derive(Default)]
struct Word(AtomicU32);

/// Sets a flag back that is 1; true where it was set.
fn take_flag(flag: &Word) -> bool {
    flag.0.load(Relaxed) == 1 && flag.0.compare_exchange(1, 0, AcqRel, Relaxed).is_ok()
}

/// Eight words: atomic, for the other side may write them at any moment, against the rules.
#[repr(C, align(64))]
#[derive(Default)]
struct Entry([AtomicU64; WORDS]);

impl Entry {
    fn write(&self, words: [u64; WORDS]) {
        for (place, word) in self.0.iter().zip(words) {
            place.store(word, Relaxed);
        }
    }

    fn read(&self) -> [u64; WORDS] {
        std::array::from_fn(|index| self.0[index].load(Relaxed))
    }
}

/// What lies in the shared memory. All zeros is its beginning.
#[repr(C)]
pub(crate) struct Shared {
    submitted: Word,
    completed: Word,
    mail: Word,
    asleep: Word,
    armed: Word,
    submissions: [Entry; RING],
    completions: [Entry; RING],
}

impl Shared {
    /// From the daemon, after `submit` or `post`: whether the worker sleeps and must be woken through `asleep_word`.
    #[must_use]
    pub(crate) fn must_wake(&self) -> bool {
        fence(SeqCst);
        take_flag(&self.asleep)
    }

    /// From any thread of the daemon: there is mail on the worker's socket.
    pub(crate) fn post(&self) {
        self.mail.0.store(1, Release);
    }

    /// On the worker: whether there is mail. Left set for `collect`.
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.0.load(Acquire) != 0
    }

    /// On the worker, before it reads its socket until nothing is left there: whether there is mail.
    pub(crate) fn collect(&self) -> bool {
        self.has_mail() && self.mail.0.swap(0, AcqRel) != 0
    }

    /// On the worker: says that it sleeps. It must look once more before it does, for what came before will not wake
    /// it.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.0.store(1, SeqCst);
        fence(SeqCst);
    }

    /// On the worker: says that it is awake.
    pub(crate) fn awake(&self) {
        self.asleep.0.store(0, Relaxed);
    }

    /// What the worker sleeps on: 1 while it sleeps.
    pub(crate) fn asleep_word(&self) -> &AtomicU32 {
        &self.asleep.0
    }

    /// On the front end: the next completion shall ring the doorbell. It must look once more before it sleeps.
    pub(crate) fn arm(&self) {
        self.armed.0.store(1, SeqCst);
        fence(SeqCst);
    }

    /// On the front end: it looks by itself.
    pub(crate) fn disarm(&self) {
        self.armed.0.store(0, Relaxed);
    }

    /// On the worker, after `complete`: whether the doorbell must be rung.
    #[must_use]
    pub(crate) fn must_ring(&self) -> bool {
        fence(SeqCst);
        take_flag(&self.armed)
    }
}

/// How far the front end is; its own, never shared.
#[derive(Debug, Default)]
pub(crate) struct ServerIndices {
    submitted: u32,
    settled: u32,
    seen: u32,
    broken: bool,
}

impl ServerIndices {
    /// Publishes a request; false when RING are in flight or the worker is not to be believed.
    #[must_use]
    pub(crate) fn submit(&mut self, shared: &Shared, submission: &Submission) -> bool {
        if self.broken || self.in_flight() >= RING {
            return false;
        }
        shared.submissions[self.submitted as usize % RING].write(submission.words());
        self.submitted = self.submitted.wrapping_add(1);
        shared.submitted.0.store(self.submitted, Release);
        true
    }

    /// Says of the request that was submitted after `number` others, over and over from 0, that it is not wanted any
    /// more. No more than a hint: the worker may have begun it, and completes it either way. Its entry may have become
    /// another's, which is left alone: that the worker has taken it is certain then.
    pub(crate) fn withdraw(&self, shared: &Shared, number: u32) {
        if self.submitted.wrapping_sub(number) as usize <= RING {
            shared.submissions[number as usize % RING].0[WITHDRAWN].store(1, Relaxed);
        }
    }

    /// The next end of a request, in the order in which the worker told them.
    pub(crate) fn take(&mut self, shared: &Shared) -> Option<Completion> {
        if self.seen == self.settled && !self.look(shared) {
            return None;
        }
        let completion = Completion::of(shared.completions[self.settled as usize % RING].read());
        self.settled = self.settled.wrapping_add(1);
        Some(completion)
    }

    /// Whether there is something to take; also looks for it.
    fn look(&mut self, shared: &Shared) -> bool {
        let completed = shared.completed.0.load(Acquire);
        if completed.wrapping_sub(self.settled) as usize > self.in_flight() {
            self.broken = true; // it completed what it was not given, or its memory was written over
        }
        if !self.broken {
            self.seen = completed;
        }
        self.seen != self.settled
    }

    /// Whether something was completed that has not been taken, or the worker is found out.
    pub(crate) fn pending(&self, shared: &Shared) -> bool {
        !self.broken && shared.completed.0.load(Acquire) != self.settled
    }

    /// Submitted and not yet taken back.
    pub(crate) fn in_flight(&self) -> usize {
        self.submitted.wrapping_sub(self.settled) as usize
    }

    /// Whether the worker has published what cannot be. Nothing more is submitted or taken then.
    pub(crate) fn broken(&self) -> bool {
        self.broken
    }
}

/// How far the worker is; its own, never shared.
#[derive(Debug, Default)]
pub(crate) struct WorkerIndices {
    taken: u32,
    completed: u32,
}

impl WorkerIndices {
    /// How many submissions wait. 0 as well for a count that cannot be, for then this memory is not to be believed.
    pub(crate) fn waiting(&self, shared: &Shared) -> usize {
        let waiting = shared.submitted.0.load(Acquire).wrapping_sub(self.taken) as usize;
        if waiting > RING { 0 } else { waiting }
    }

    /// The submission `index` places from the front, which must be less than what waits.
    pub(crate) fn peek(&self, shared: &Shared, index: usize) -> Submission {
        Submission::of(shared.submissions[(self.taken as usize).wrapping_add(index) % RING].read())
    }

    /// Takes `count` from the front. Each must be completed some time.
    pub(crate) fn advance(&mut self, count: usize) {
        self.taken = self.taken.wrapping_add(count as u32);
    }

    /// Publishes the ends of requests.
    pub(crate) fn complete(
        &mut self,
        shared: &Shared,
        completions: impl IntoIterator<Item = impl Borrow<Completion>>,
    ) {
        for completion in completions {
            shared.completions[self.completed as usize % RING].write(completion.borrow().words());
            self.completed = self.completed.wrapping_add(1);
        }
        shared.completed.0.store(self.completed, Release);
    }
}

#[cfg(loom)]
impl WorkerIndices {
    /// A worker that has taken and completed so many.
    pub(crate) fn at(count: u32) -> Self {
        Self { taken: count, completed: count }
    }
}

#[cfg(any(test, loom))]
impl Shared {
    /// As fresh shared memory, on the heap.
    pub(crate) fn zeroed() -> Box<Self> {
        Box::new(Self {
            submitted: Word::default(),
            completed: Word::default(),
            mail: Word::default(),
            asleep: Word::default(),
            armed: Word::default(),
            submissions: std::array::from_fn(|_| Entry::default()),
            completions: std::array::from_fn(|_| Entry::default()),
        })
    }

    /// What a hostile worker may do.
    pub(crate) fn forge_completed(&self, count: u32) {
        self.completed.0.store(count, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn submission(ticket: u64) -> Submission {
        Submission { ticket, offset: 64 * ticket, template: 7, rows: 3, ..Submission::default() }
    }

    fn completion(ticket: u64) -> Completion {
        Completion { ticket, status: status::OK, batch_rows: 9, first: 1, run_ns: 5, ..Completion::default() }
    }

    #[test]
    fn entries_lie_in_lines_of_64_bytes_and_arrive_as_they_were() {
        assert_eq!(size_of::<Entry>(), 64);
        let given = Submission {
            ticket: u64::MAX,
            offset: 1,
            out_offset: 2,
            start_by_ns: 3,
            template: u32::MAX,
            rows: 4,
            batch_rows: 5,
            withdrawn: 6,
        };
        assert_eq!(Submission::of(given.words()), given);
        let given = Completion {
            ticket: u64::MAX,
            status: 1,
            batch_rows: u32::MAX,
            first: 1,
            started_ns: 2,
            gather_ns: 3,
            run_ns: 4,
            scatter_ns: u64::MAX,
        };
        assert_eq!(Completion::of(given.words()), given);
    }

    #[test]
    fn requests_go_round_the_ring_in_order() {
        let (shared, mut server, mut worker) =
            (Shared::zeroed(), ServerIndices::default(), WorkerIndices::default());
        let mut next = 0;
        let rounds = if cfg!(miri) { 400 } else { 5 * RING as u64 }; // under Miri more would take minutes
        for round in 0..rounds {
            for _ in 0..3 {
                assert!(server.submit(&shared, &submission(next)));
                next += 1;
            }
            assert_eq!(worker.waiting(&shared), 3);
            let tickets: Vec<_> = (0..3).map(|index| worker.peek(&shared, index).ticket).collect();
            assert_eq!(tickets, [3 * round, 3 * round + 1, 3 * round + 2]);
            worker.advance(3);
            worker.complete(&shared, tickets.iter().map(|&ticket| completion(ticket)));
            let ended: Vec<_> =
                std::iter::from_fn(|| server.take(&shared)).map(|ended| ended.ticket).collect();
            assert_eq!(ended, tickets);
        }
        assert_eq!((server.in_flight(), server.broken()), (0, false));
    }

    #[test]
    fn no_more_than_the_ring_is_in_flight_whatever_the_worker_has_taken() {
        let (shared, mut server, mut worker) =
            (Shared::zeroed(), ServerIndices::default(), WorkerIndices::default());
        (0..RING as u64).for_each(|ticket| assert!(server.submit(&shared, &submission(ticket))));
        worker.advance(RING);
        assert!(!server.submit(&shared, &submission(0)));
        worker.complete(&shared, [completion(0)]);
        assert!(!server.submit(&shared, &submission(0)), "it has not been taken back");
        assert!(server.pending(&shared) && server.take(&shared).is_some());
        assert!(server.submit(&shared, &submission(0)));
    }

    #[test]
    fn what_is_withdrawn_is_told_until_its_entry_is_anothers() {
        let (shared, mut server, mut worker) =
            (Shared::zeroed(), ServerIndices::default(), WorkerIndices::default());
        let withdrawn = |worker: &WorkerIndices, index| worker.peek(&shared, index).withdrawn != 0;
        (0..RING as u64).for_each(|ticket| assert!(server.submit(&shared, &submission(ticket))));
        server.withdraw(&shared, 1);
        assert_eq!([0, 1, 2].map(|index| withdrawn(&worker, index)), [false, true, false]);
        worker.advance(3); // and the first is still under way while the other two have ended
        worker.complete(&shared, [completion(1), completion(2)]);
        assert!(server.take(&shared).is_some() && server.take(&shared).is_some());
        (0..2).for_each(|ticket| assert!(server.submit(&shared, &submission(ticket))));
        server.withdraw(&shared, 0);
        server.withdraw(&shared, 1);
        let last = worker.waiting(&shared) - 1;
        assert_eq!([last - 1, last].map(|index| withdrawn(&worker, index)), [false; 2]);
        server.withdraw(&shared, RING as u32 + 1);
        assert_eq!([last - 1, last].map(|index| withdrawn(&worker, index)), [false, true]);
    }

    #[test]
    fn a_worker_that_completes_what_it_was_not_given_is_found_out() {
        for forged in [2, RING as u32 + 5, u32::MAX] {
            let (shared, mut server) = (Shared::zeroed(), ServerIndices::default());
            assert!(server.submit(&shared, &submission(1)));
            shared.forge_completed(forged);
            assert!(server.pending(&shared));
            assert_eq!(server.take(&shared), None);
            assert!(server.broken() && !server.pending(&shared) && !server.submit(&shared, &submission(2)));
            shared.forge_completed(1);
            assert_eq!(server.take(&shared), None, "it is not believed again");
        }
    }

    #[test]
    fn a_sleeping_worker_is_woken_once_and_the_server_once() {
        let shared = Shared::zeroed();
        assert!(!shared.must_wake() && !shared.must_ring());
        shared.fall_asleep();
        shared.arm();
        assert!(shared.must_wake() && !shared.must_wake());
        assert!(shared.must_ring() && !shared.must_ring());
        shared.post();
        assert!(shared.has_mail() && shared.collect() && !shared.collect());
    }
}
