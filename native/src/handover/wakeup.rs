//! Wakes the front end's thread when Python has given it something to do: once for many things, and not at all while
//! the thread is awake and will look by itself.
//!
//! The rule that no wake-up is lost: Python queues, then looks whether the thread sleeps; the thread says that it is
//! about to sleep, then looks at the queue. Each does its two steps in that order, with a full fence between them, so
//! at least one of them sees the other.

use crate::handover::calls::Slot;
use crate::measure::lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*, fence};
use std::task::Waker;

/// What is to be looked at, and whether the thread must be woken for it.
#[derive(Default)]
pub(crate) struct WakeUps {
    due: Lock<Vec<Arc<Slot>>>,
    pending: AtomicBool,
    sleeping: AtomicBool,
    thread: Lock<Option<Waker>>,
}

impl WakeUps {
    /// From Python: the task of this call has something to do.
    pub(crate) fn wake_for(&self, slot: Arc<Slot>) {
        self.due.lock().push(slot);
        self.pending.store(true, Release);
        fence(SeqCst);
        if self.sleeping.load(Relaxed) && self.sleeping.swap(false, AcqRel) {
            self.wake_thread();
        }
    }

    /// Wakes the thread in any case, for things that are rare: to drain and to close.
    pub(crate) fn wake_thread(&self) {
        if let Some(waker) = self.thread.lock().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// The root task of the thread leaves its waker here.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut thread = self.thread.lock();
        if !thread.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *thread = Some(waker.clone());
        }
    }

    /// The thread has ended. Its waker holds the runtime, which holds these wake-ups.
    pub(crate) fn forget(&self) {
        *self.thread.lock() = None;
    }

    /// On the thread: wakes the tasks that have something to do. Cheap when there are none.
    pub(crate) fn deliver(&self) {
        if !self.pending.load(Acquire) || !self.pending.swap(false, AcqRel) {
            return;
        }
        let due = std::mem::take(&mut *self.due.lock());
        for slot in due {
            slot.wake();
        }
    }

    /// On the thread, when it has nothing left to do. Tasks that this wakes keep it from sleeping.
    pub(crate) fn before_sleep(&self) {
        self.deliver();
        self.sleeping.store(true, SeqCst);
        fence(SeqCst);
        if self.pending.load(Acquire) {
            self.sleeping.store(false, Relaxed);
            self.deliver();
        }
    }

    /// On the thread, when it woke.
    pub(crate) fn after_sleep(&self) {
        self.sleeping.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::calls::Kind;
    use crate::measure::budget::Budget;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn slot(task: &Arc<Count>) -> Arc<Slot> {
        let slot = Slot::new(Kind::Unary, Budget::new(0));
        slot.register(&Waker::from(task.clone()));
        slot
    }

    #[test]
    fn many_rings_wake_a_sleeping_thread_once() {
        let (wakeups, thread, task) = (WakeUps::default(), Arc::<Count>::default(), Arc::<Count>::default());
        wakeups.register(&Waker::from(thread.clone()));
        wakeups.before_sleep();
        (0..5).for_each(|_| wakeups.wake_for(slot(&task)));
        assert_eq!((thread.0.load(SeqCst), task.0.load(SeqCst)), (1, 0));
        wakeups.after_sleep();
        wakeups.deliver();
        assert_eq!(task.0.load(SeqCst), 5);
    }

    #[test]
    fn a_thread_that_is_awake_is_not_woken_but_looks_before_it_sleeps() {
        let (wakeups, thread, task) = (WakeUps::default(), Arc::<Count>::default(), Arc::<Count>::default());
        wakeups.register(&Waker::from(thread.clone()));
        wakeups.wake_for(slot(&task));
        assert_eq!((thread.0.load(SeqCst), task.0.load(SeqCst)), (0, 0));
        wakeups.before_sleep();
        assert_eq!((thread.0.load(SeqCst), task.0.load(SeqCst)), (0, 1));
    }

    #[test]
    fn no_ring_is_lost_between_looking_and_sleeping() {
        const RINGS: usize = 20_000;
        let (wakeups, task) = (Arc::new(WakeUps::default()), Arc::<Count>::default());
        let (ringer, rung) = (wakeups.clone(), task.clone());
        let sleeper = std::thread::current();
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        wakeups.register(&Waker::from(Arc::new(Unpark(sleeper))));
        let other = std::thread::spawn(move || (0..RINGS).for_each(|_| ringer.wake_for(slot(&rung))));
        while task.0.load(SeqCst) < RINGS {
            let before = task.0.load(SeqCst);
            wakeups.before_sleep();
            if task.0.load(SeqCst) == before {
                std::thread::park(); // forever, if a ring were lost
            }
            wakeups.after_sleep();
        }
        other.join().unwrap();
    }
}
