//! The tasks that carry calls, one call after another. A task of its own for each call would be allocated, registered
//! and given back each time, with room for all that a call may ever need; these are there already, and warm.

use crate::measure::lock::Lock;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Tasks that wait for an errand, at most; others end with theirs.
const IDLE: usize = 64;

/// What a carrier does once. It must not panic.
pub(crate) trait Errand: Send + 'static {
    /// Does it.
    fn run(&mut self) -> impl Future<Output = ()> + Send;
}

/// One task, and what it is given to do.
struct Carrier<E>(Lock<Given<E>>);

struct Given<E> {
    errand: Option<E>,
    task: Option<Waker>,
}

impl<E> Carrier<E> {
    fn give(&self, errand: E) {
        let mut given = self.0.lock();
        given.errand = Some(errand);
        if let Some(task) = &given.task {
            task.wake_by_ref();
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<E> {
        let mut given = self.0.lock();
        if let Some(errand) = given.errand.take() {
            return Poll::Ready(errand);
        }
        if !given.task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            given.task = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Those that wait; the one that waits since last is the next to go.
pub(crate) struct Carriers<E>(Lock<Vec<Arc<Carrier<E>>>>);

impl<E> Default for Carriers<E> {
    fn default() -> Self {
        Self(Lock::new(Vec::new()))
    }
}

impl<E: Errand> Carriers<E> {
    /// Has an errand done. Within the runtime.
    pub(crate) fn carry(self: &Arc<Self>, errand: E) {
        let idle = self.0.lock().pop();
        let carrier = idle.unwrap_or_else(|| {
            let carrier = Arc::new(Carrier(Lock::new(Given { errand: None, task: None })));
            tokio::spawn(serve(self.clone(), carrier.clone()));
            carrier
        });
        carrier.give(errand);
    }

    fn wait(&self, carrier: &Arc<Carrier<E>>) -> bool {
        let mut idle = self.0.lock();
        let waits = idle.len() < IDLE;
        if waits {
            idle.push(carrier.clone());
        }
        waits
    }
}

async fn serve<E: Errand>(carriers: Arc<Carriers<E>>, carrier: Arc<Carrier<E>>) {
    loop {
        let mut errand = poll_fn(|cx| carrier.poll(cx)).await;
        errand.run().await;
        drop(errand);
        if !carriers.wait(&carrier) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    /// Waits until it may end.
    struct Waits(Option<oneshot::Receiver<()>>);

    impl Errand for Waits {
        async fn run(&mut self) {
            drop(self.0.take().unwrap().await);
        }
    }

    /// Has so many errands done at once; how many tasks wait afterwards.
    async fn carried(carriers: &Arc<Carriers<Waits>>, errands: usize) -> usize {
        let mut ends = Vec::new();
        for _ in 0..errands {
            let (end, ended) = oneshot::channel();
            carriers.carry(Waits(Some(ended)));
            ends.push(end);
        }
        tokio::task::yield_now().await;
        for end in ends {
            end.send(()).unwrap();
        }
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        carriers.0.lock().len()
    }

    #[tokio::test]
    async fn a_task_does_one_errand_after_another_and_not_all_are_kept() {
        let carriers = Arc::default();
        assert_eq!((carried(&carriers, 1).await, carried(&carriers, 1).await), (1, 1));
        assert_eq!(carried(&carriers, IDLE + 16).await, IDLE);
        assert_eq!(carried(&carriers, 1).await, IDLE);
    }
}
