//! The flow-control window of one connection: how much a client may send that was not asked for yet.
//!
//! What lies in the windows is memory beside the budget of messages, so the windows have a budget of their own, half
//! of that one. Each connection has the least that the protocol knows; what is beyond is taken from this budget: a
//! little when the connection begins, while half of the budget is free, and more once messages come that need it. A
//! window that was given cannot be taken back from the client, so it stays until the connection ends; without
//! room in the budget a connection is slower, and nothing else.
//!
//! Frames of a few bytes take more memory than a window says: what they are kept with until their call reads them. For
//! that there is a budget of its own, as large as that of the windows. A connection beyond its part of it is cut, so
//! the part must do for what clients may have under way: small messages on streams that wait for answers. One that
//! finds no room in the budget has the library's own bound, a fraction of that.

use crate::measure::budget::{Budget, Reservation};
use crate::measure::limits::{Limit, Limits};
use crate::measure::lock::Lock;
use std::sync::Arc;
use std::task::Waker;

/// What the protocol gives every connection and every stream at first.
const LEAST: u32 = 64 << 10;
const USUAL: u32 = 1 << 20;
const LARGEST: u32 = 8 << 20;
/// What frames of 40 bytes and less are kept with when they fill a window of the usual and of the least size.
const USUAL_FRAMES: usize = 4 << 20;
const LEAST_FRAMES: usize = 1 << 20;
/// Messages of one size that should find room in the window together.
const TOGETHER: usize = 8;

/// The memory for the windows of all connections.
pub(crate) struct WindowBudget {
    all: Arc<Budget>,
    usual: Arc<Budget>,
    frames: Arc<Budget>,
    usual_frames: Arc<Budget>,
}

impl WindowBudget {
    /// Half of what messages may take; half of that for windows of the usual size.
    pub(crate) fn new(limits: &Limits) -> Self {
        let all = Budget::new(limits.get(Limit::BytesInFlight) / 2);
        let usual = all.share(limits.get(Limit::BytesInFlight) / 4);
        let frames = Budget::new(limits.get(Limit::BytesInFlight) / 2);
        let usual_frames = frames.share(limits.get(Limit::BytesInFlight) / 4);
        Self { all, usual, frames, usual_frames }
    }

    /// The window of a connection that begins.
    pub(crate) fn open(&self) -> Arc<Window> {
        let mut usual = self.usual.reserve();
        let size = usual.resize((USUAL - LEAST) as usize).map_or(LEAST, |()| USUAL);
        let growth = self.all.reserve();
        let (budget, bytes) = match size {
            LEAST => (&self.frames, LEAST_FRAMES),
            _ => (&self.usual_frames, USUAL_FRAMES),
        };
        let mut frames = budget.reserve();
        let frame_bytes = frames.resize(bytes).is_ok().then_some(bytes);
        Arc::new(Window(Lock::new(State {
            first: size,
            size,
            _usual: usual,
            _frames: frames,
            frame_bytes,
            growth,
            grown: false,
            task: None,
        })))
    }

    /// Bytes that are given beyond the least.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.all.used()
    }
}

struct State {
    first: u32,
    size: u32,
    _usual: Reservation,
    _frames: Reservation,
    frame_bytes: Option<usize>,
    growth: Reservation,
    grown: bool,
    task: Option<Waker>,
}

/// The window of one connection.
pub(crate) struct Window(Lock<State>);

impl Window {
    /// How large it is for the connection, and for each stream of it, so that streams that are not read for a while
    /// leave room to others.
    pub(crate) fn sizes(&self) -> (u32, u32) {
        let size = self.0.lock().size;
        (size, (size / 4).max(LEAST))
    }

    /// What frames that no call has read yet may be kept with; None: as the library has it.
    pub(crate) fn frame_bytes(&self) -> Option<usize> {
        self.0.lock().frame_bytes
    }

    /// The task of the connection, to be woken on growth.
    pub(crate) fn register(&self, task: &Waker) {
        self.0.lock().task = Some(task.clone());
    }

    /// A message of this length is coming: grows the window, as far as there is room, to hold several like it.
    pub(crate) fn want(&self, length: usize) {
        let mut state = self.0.lock();
        let mut wanted = length.saturating_mul(TOGETHER).min(LARGEST as usize) as u32;
        while wanted / 2 >= state.size {
            let more = (wanted - state.first) as usize;
            if state.growth.resize(more).is_ok() {
                (state.size, state.grown) = (wanted, true);
                if let Some(task) = &state.task {
                    task.wake_by_ref();
                }
                return;
            }
            wanted /= 2;
        }
    }

    /// Whether it has grown since the last time.
    pub(crate) fn take_growth(&self) -> bool {
        std::mem::take(&mut self.0.lock().grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::limits::LIMITS;

    fn budget(bytes_in_flight: i64) -> WindowBudget {
        let value = |name: &str| if name == "bytes_in_flight" { bytes_in_flight } else { 1000 };
        WindowBudget::new(
            &Limits::new(LIMITS.iter().map(|(name, ..)| (name.to_string(), value(name)))).unwrap(),
        )
    }

    #[test]
    fn a_window_grows_for_large_messages_and_stays() {
        let budget = budget(256 << 20);
        let window = budget.open();
        assert_eq!(window.sizes(), (USUAL, USUAL / 4));
        window.want(100_000);
        assert!(!window.take_growth(), "several such messages find room as it is");
        window.want(600_000);
        assert!(window.take_growth() && !window.take_growth());
        assert_eq!(window.sizes(), (4_800_000, 1_200_000));
        window.want(64 << 20);
        window.want(1);
        assert_eq!(window.sizes().0, 4_800_000, "twice as much or nothing");
        assert_eq!(budget.used(), 4_800_000 - u64::from(LEAST));
        drop(window);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn all_windows_together_are_bounded_and_large_messages_keep_some_room() {
        let budget = budget(64 << 20);
        let windows: Vec<_> = (0..100).map(|_| budget.open()).collect();
        assert!(budget.used() <= 16 << 20);
        assert_eq!(windows[99].sizes(), (LEAST, LEAST));
        windows.iter().for_each(|window| window.want(64 << 20));
        assert!(budget.used() > 24 << 20 && budget.used() <= 32 << 20);
        assert_eq!(windows[0].sizes().0, LARGEST);
        assert_eq!(windows[99].sizes().0, LEAST);
    }

    #[test]
    fn what_small_frames_are_kept_with_is_bounded_and_the_least_windows_keep_some_room() {
        let budget = budget(64 << 20);
        let windows: Vec<_> = (0..100).map(|_| budget.open()).collect();
        let of = |bytes: Option<usize>| windows.iter().filter(|window| window.frame_bytes() == bytes).count();
        assert_eq!(of(Some(USUAL_FRAMES)), 4);
        assert_eq!(of(Some(LEAST_FRAMES)), 16);
        assert_eq!(of(None), 80);
        drop(windows);
        assert_eq!(budget.frames.used(), 0);
    }
}
