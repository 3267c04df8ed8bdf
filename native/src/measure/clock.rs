//! CLOCK_MONOTONIC, the clock of deadlines (the same that Python's `time.monotonic_ns` reads), and an alarm of the
//! kernel's.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Nanoseconds now.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a valid timespec, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Wakes the thread once, so long after it was set; within a runtime. A timer of the runtime's that is due soon would
/// be given to the kernel and taken from it again with every sleep of the thread, which costs a virtual machine more
/// than the sleep itself.
pub(crate) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// An alarm that is not set.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: no pointers are passed.
        let descriptor =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: the registration owns the descriptor, which stays open until it is dropped.
        let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        registered.map(Self).map_err(Error::from)
    }

    /// Ready so long from now, which must be more than nothing. The descriptor is never read: each expiry is an
    /// edge.
    pub(crate) async fn after(&self, time: Duration) -> Result<()> {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let once = libc::itimerspec {
            it_interval: never,
            it_value: libc::timespec {
                tv_sec: time.as_secs() as libc::time_t,
                tv_nsec: time.subsec_nanos() as libc::c_long,
            },
        };
        // SAFETY: the new setting is valid for the call, and the old one is not asked for.
        if unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const once, null_mut()) } < 0 {
            return Err(Error::last_os_error());
        }
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn it_rings_each_time_and_never_early() {
        let alarm = Alarm::new().unwrap();
        for time in [1, 3, 2].map(Duration::from_millis) {
            let set = Instant::now();
            alarm.after(time).await.unwrap();
            assert!(set.elapsed() >= time);
        }
    }
}
