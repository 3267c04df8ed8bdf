//! The memory of one lane: a memfd that the front end and one worker map, the worker's sleep on a futex and the
//! doorbell that wakes the front end. What the two say there, and when, is in `lanes/rings.rs`; all `unsafe` of shared
//! memory is here.
//!
//! The memory is sealed against a change of its size, so that no worker can make the front end's reads fault.
//! Everything in it is atomic words, so that what a worker writes there against the rules is wrong data and nothing
//! worse.

pub(crate) use crate::lanes::rings::{Completion, Submission, status};
use crate::lanes::rings::{ServerIndices, Shared, WorkerIndices};
use std::borrow::Borrow;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Flag of `WorkerEnd::wait`: there is mail on the worker's socket.
pub(crate) const MAIL: u32 = 1;
/// Flag of `WorkerEnd::wait`: there are submissions.
pub(crate) const SUBMISSIONS: u32 = 2;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The memory of one lane, mapped into this process. Of either side.
pub(crate) struct LaneMemory {
    file: OwnedFd,
    shared: NonNull<Shared>,
}

// SAFETY: the mapping is not bound to a thread, and it is only reached as `&Shared`, which is atomic words.
unsafe impl Send for LaneMemory {}
// SAFETY: as above.
unsafe impl Sync for LaneMemory {}

impl LaneMemory {
    /// Fresh memory for a worker that is yet to start.
    pub(crate) fn create() -> io::Result<Self> {
        // SAFETY: the name ends with a zero.
        let fd = unsafe {
            libc::memfd_create(c"appliance-lane".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made above and has no other owner.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(size_of::<Shared>() as u64)?;
        // SAFETY: a call without pointers.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(file.into())
    }

    /// The memory behind a descriptor, which is duplicated. InvalidData when it is not a lane's.
    pub(crate) fn open(fd: RawFd) -> io::Result<Self> {
        // SAFETY: a call without pointers; a bad descriptor is an error.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made above and has no other owner.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(copy) });
        // SAFETY: a call without pointers.
        let seals = unsafe { libc::fcntl(copy, libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS || file.metadata()?.len() != size_of::<Shared>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not the memory of a lane"));
        }
        Self::map(file.into())
    }

    fn map(file: OwnedFd) -> io::Result<Self> {
        // SAFETY: a new mapping, where the kernel wants it; it collides with nothing.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let shared = NonNull::new(address.cast::<Shared>()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { file, shared })
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is at least as large, page-aligned, and lives as long as `self`; the file cannot shrink
        // (checked or made so above); all bit patterns are valid, and what other processes write at the same time are
        // atomic words.
        unsafe { self.shared.as_ref() }
    }

    /// The memory's descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// From any thread of the daemon: there is mail on the worker's socket. Wakes the worker if it sleeps.
    pub(crate) fn mail(&self) {
        self.shared().post();
        self.wake_worker();
    }

    fn wake_worker(&self) {
        if self.shared().must_wake() {
            futex_wake(self.shared().asleep_word());
        }
    }
}

/// A fresh doorbell: the eventfd of one lane that its worker writes to and nothing reads. No lane shares another's, so
/// that what a worker does to its own is missed by no other.
pub(crate) fn doorbell() -> io::Result<OwnedFd> {
    // SAFETY: a call without pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made above and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size; no reference into it outlives `self`.
        unsafe { libc::munmap(self.shared.as_ptr().cast(), size_of::<Shared>()) };
    }
}

/// Waits while the word is 1, at most so long; may return earlier, for no reason.
fn futex_wait(word: &AtomicU32, longest: Duration) {
    let longest = libc::timespec {
        tv_sec: longest.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: longest.subsec_nanos() as libc::c_long,
    };
    // SAFETY: both pointers are valid for the call. Not FUTEX_PRIVATE: the waker is another process.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 1, &raw const longest) };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel takes the address as the name of what to wake.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// The front end's end: produces submissions, consumes completions. One thread's.
pub(crate) struct ServerEnd {
    memory: Arc<LaneMemory>,
    indices: ServerIndices,
}

impl ServerEnd {
    /// Of a lane whose worker has not been given anything yet. At most one for each memory.
    pub(crate) fn new(memory: Arc<LaneMemory>) -> Self {
        Self { memory, indices: ServerIndices::default() }
    }

    /// Gives the worker a request, of which it hears when it is awake or woken. False when RING are in flight or the
    /// lane is broken.
    #[must_use]
    pub(crate) fn submit(&mut self, submission: &Submission) -> bool {
        self.indices.submit(self.memory.shared(), submission)
    }

    /// Wakes the worker if it sleeps; to be called after `submit`, once for several.
    pub(crate) fn wake_worker(&self) {
        self.memory.wake_worker();
    }

    /// Nobody wants the request any more that was submitted after so many others; the worker passes over it, unless it
    /// has begun it.
    pub(crate) fn withdraw(&self, number: u32) {
        self.indices.withdraw(self.memory.shared(), number);
    }

    /// The next end of a request. Its contents are the worker's word: ticket and status may be anything.
    pub(crate) fn take(&mut self) -> Option<Completion> {
        self.indices.take(self.memory.shared())
    }

    /// Whether the worker published what cannot be; it shall be killed. Nothing is submitted or taken any more.
    pub(crate) fn broken(&self) -> bool {
        self.indices.broken()
    }

    /// From now on the worker's next completion writes the doorbell. Look at `pending` after this and before sleeping.
    pub(crate) fn arm(&self) {
        self.memory.shared().arm();
    }

    /// The front end is awake and looks by itself.
    pub(crate) fn disarm(&self) {
        self.memory.shared().disarm();
    }

    /// Whether there is something to take.
    pub(crate) fn pending(&self) -> bool {
        self.indices.pending(self.memory.shared())
    }
}

/// The worker's end: consumes submissions, produces completions. One thread's.
pub(crate) struct WorkerEnd {
    memory: LaneMemory,
    doorbell: OwnedFd,
    indices: WorkerIndices,
}

impl WorkerEnd {
    /// `doorbell` is the eventfd that the front end sleeps on. At most one for each memory, before anything is
    /// submitted.
    pub(crate) fn new(memory: LaneMemory, doorbell: OwnedFd) -> Self {
        Self { memory, doorbell, indices: WorkerIndices::default() }
    }

    /// Sleeps until there is mail or a submission, at most `longest`; gives MAIL and SUBMISSIONS, 0 after that time.
    /// Who is told MAIL reads the socket until nothing is left there, for it is told once.
    pub(crate) fn wait(&self, longest: Duration) -> u32 {
        let shared = self.memory.shared();
        let flags = self.flags();
        if flags != 0 || longest.is_zero() {
            return flags;
        }
        shared.fall_asleep();
        if !shared.has_mail() && self.waiting() == 0 {
            futex_wait(shared.asleep_word(), longest);
        }
        shared.awake();
        self.flags()
    }

    fn flags(&self) -> u32 {
        let submissions = if self.waiting() > 0 { SUBMISSIONS } else { 0 };
        // After the submissions: mail that was posted before one of them is seen with it.
        let mail = if self.memory.shared().collect() { MAIL } else { 0 };
        mail | submissions
    }

    /// Whether it has said that it sleeps and was not woken.
    #[cfg(test)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.memory.shared().asleep_word().load(std::sync::atomic::Ordering::SeqCst) == 1
    }

    /// Submissions that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.indices.waiting(self.memory.shared())
    }

    /// Whether there is mail, which `wait` will tell. Asked after `waiting`: mail posted before one of those is seen.
    pub(crate) fn has_mail(&self) -> bool {
        self.memory.shared().has_mail()
    }

    /// The submission `index` places from the front, which must be less than `waiting`.
    pub(crate) fn peek(&self, index: usize) -> Submission {
        self.indices.peek(self.memory.shared(), index)
    }

    /// Takes `count` submissions from the front.
    pub(crate) fn advance(&mut self, count: usize) {
        self.indices.advance(count);
    }

    /// Tells the ends of requests, and rings the doorbell if the front end sleeps.
    pub(crate) fn complete(&mut self, completions: impl IntoIterator<Item = impl Borrow<Completion>>) {
        self.indices.complete(self.memory.shared(), completions);
        if self.memory.shared().must_ring() {
            let one = 1u64.to_ne_bytes();
            // SAFETY: the pointer is to eight bytes. It fails when the counter is full, which only a hostile worker
            // makes it.
            unsafe { libc::write(self.doorbell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn doorbell() -> OwnedFd {
        // SAFETY: a call without pointers; the descriptor has no other owner.
        unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
    }

    fn ends() -> (Arc<LaneMemory>, ServerEnd, WorkerEnd, OwnedFd) {
        let (memory, doorbell) = (Arc::new(LaneMemory::create().unwrap()), doorbell());
        let worker = WorkerEnd::new(LaneMemory::open(memory.fd()).unwrap(), doorbell.try_clone().unwrap());
        (memory.clone(), ServerEnd::new(memory), worker, doorbell)
    }

    fn rung(doorbell: &OwnedFd) -> bool {
        let mut poll = libc::pollfd { fd: doorbell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    fn submission(ticket: u64) -> Submission {
        Submission { ticket, rows: 1, ..Submission::default() }
    }

    #[test]
    fn both_ends_see_the_same_memory() {
        let (memory, mut server, mut worker, doorbell) = ends();
        assert_eq!(worker.wait(Duration::ZERO), 0);
        assert!(server.submit(&submission(5)));
        memory.mail();
        assert_eq!(worker.wait(Duration::MAX), MAIL | SUBMISSIONS);
        assert_eq!((worker.wait(Duration::MAX), worker.peek(0)), (SUBMISSIONS, submission(5)));
        worker.advance(1);
        let ended = Completion { ticket: 5, status: status::HAND_OVER, ..Completion::default() };
        worker.complete([ended]);
        assert!(!rung(&doorbell), "the front end did not ask for it");
        assert!(server.pending());
        assert_eq!((server.take(), server.take()), (Some(ended), None));
        server.arm();
        assert!(server.submit(&submission(6)));
        worker.advance(1);
        worker.complete([ended]);
        assert!(rung(&doorbell));
    }

    #[test]
    fn an_idle_wait_ends_with_its_time() {
        let (_memory, _server, worker, _) = ends();
        let begin = Instant::now();
        assert_eq!(worker.wait(Duration::from_millis(30)), 0);
        assert!(begin.elapsed() >= Duration::from_millis(25));
    }

    #[test]
    fn other_descriptors_are_refused() {
        let wrong = |fd| LaneMemory::open(fd).err().map(|error| error.kind());
        assert!(wrong(-1).is_some());
        assert_eq!(wrong(doorbell().as_raw_fd()), Some(io::ErrorKind::InvalidData));
        // SAFETY: the name ends with a zero; the descriptor has no other owner.
        let unsealed = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)) };
        unsealed.set_len(size_of::<Shared>() as u64).unwrap();
        assert_eq!(wrong(unsealed.as_raw_fd()), Some(io::ErrorKind::InvalidData));
        let memory = LaneMemory::create().unwrap();
        // SAFETY: a call without pointers.
        assert!(unsafe { libc::ftruncate(memory.fd(), 0) } < 0, "the memory can be taken away");
    }

    /// As many round trips as show a lost wake-up, which would hang until the time-out.
    #[test]
    fn no_submission_and_no_completion_is_slept_over() {
        const TRIPS: u64 = 20_000;
        let (memory, mut server, mut worker, doorbell) = ends();
        let other = std::thread::spawn(move || {
            let mut mails = 0;
            let mut ended = 0;
            while ended < TRIPS {
                let begin = Instant::now();
                let flags = worker.wait(Duration::from_secs(20)); // 0 after a wake-up that came late
                assert!(begin.elapsed() < Duration::from_secs(15), "a wake-up was lost");
                mails += u64::from(flags & MAIL);
                let waiting = worker.waiting();
                let tickets: Vec<_> = (0..waiting).map(|index| worker.peek(index).ticket).collect();
                worker.advance(waiting);
                worker.complete(tickets.iter().map(|&ticket| Completion { ticket, ..Completion::default() }));
                ended += waiting as u64;
            }
            mails
        });
        let mut next = 0;
        for ticket in 0..TRIPS {
            assert!(server.submit(&submission(ticket)));
            server.wake_worker();
            if ticket % 16 == 0 {
                memory.mail();
            }
            loop {
                server.arm(); // anew each time: a ring that came late has taken the flag with it
                if server.pending() {
                    break;
                }
                let mut poll = libc::pollfd { fd: doorbell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: the pointer is to one pollfd.
                assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1, "a ring of the doorbell was lost");
                let mut count = [0u8; 8];
                // SAFETY: the pointer is to eight bytes.
                unsafe { libc::read(doorbell.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
            }
            server.disarm();
            while let Some(ended) = server.take() {
                assert_eq!(ended.ticket, next);
                next += 1;
            }
        }
        assert_eq!(next, TRIPS);
        assert!(other.join().unwrap() > 0);
    }
}
