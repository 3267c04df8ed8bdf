//! The tasks that carry calls, one call after another. A task of its own for each call would be allocated, registered and
//! given back each time, with room for all that a call may ever need; these are there already, and warm.

use crate::door::Core;
use crate::h2::call::{self, Call};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Tasks that wait for a call, at most; others end with theirs.
const IDLE: usize = 64;

/// One task, and what it is given to do.
#[derive(Default)]
struct Carrier(Mutex<Errand>);

#[derive(Default)]
struct Errand {
    call: Option<Call>,
    task: Option<Waker>,
}

impl Carrier {
    fn errand(&self) -> MutexGuard<'_, Errand> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, call: Call) {
        let mut errand = self.errand();
        errand.call = Some(call);
        if let Some(task) = &errand.task {
            task.wake_by_ref();
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Call> {
        let mut errand = self.errand();
        if let Some(call) = errand.call.take() {
            return Poll::Ready(call);
        }
        if !errand.task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            errand.task = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Those that wait; the one that waits since last is the next to go.
#[derive(Default)]
pub struct Carriers(Mutex<Vec<Arc<Carrier>>>);

impl Carriers {
    fn idle(&self) -> MutexGuard<'_, Vec<Arc<Carrier>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a call carried to its end. Within the runtime.
    pub fn carry(core: &Arc<Core>, call: Call) {
        let idle = core.carriers.idle().pop();
        let carrier = idle.unwrap_or_else(|| {
            let carrier = Arc::<Carrier>::default();
            tokio::spawn(serve(core.clone(), carrier.clone()));
            carrier
        });
        carrier.give(call);
    }

    fn wait(&self, carrier: &Arc<Carrier>) -> bool {
        let mut idle = self.idle();
        let waits = idle.len() < IDLE;
        if waits {
            idle.push(carrier.clone());
        }
        waits
    }
}

async fn serve(core: Arc<Core>, carrier: Arc<Carrier>) {
    loop {
        let mut call = poll_fn(|cx| carrier.poll(cx)).await;
        call::run(&core, &mut call).await;
        drop(call);
        if !core.carriers.wait(&carrier) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::call::Caller;
    use crate::h2::conduct::{Conduct, SharedConduct};
    use crate::listen::quota::Who;
    use crate::measure::limits::{Limits, NAMES};
    use h2::{client, server};
    use http::{Request, StatusCode};
    use std::collections::HashMap;

    fn core() -> Arc<Core> {
        let limits = Limits::new(NAMES.iter().map(|name| (name.to_string(), 1000))).unwrap();
        Core::new(limits, HashMap::new(), None).unwrap()
    }

    /// Has so many calls carried at once, which are none of gRPC's; how many tasks wait afterwards.
    async fn carried(core: &Arc<Core>, calls: usize) -> usize {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (near, far) = tokio::join!(client::handshake(near), server::handshake(far));
        let ((requests, connection), mut server) = (near.unwrap(), far.unwrap());
        tokio::spawn(async { drop(connection.await) });
        let caller = Arc::new(Caller {
            peer: "peer".into(),
            client: "".into(),
            account: core.quotas.account(Who::Local, 0),
            conduct: SharedConduct::new(Conduct::new(&core.limits)),
            requests: core.budget.clone(),
            answers: core.answers.clone(),
            window: core.windows.open(),
        });
        let served = core.clone();
        let serving = tokio::spawn(async move {
            while let Some(Ok((request, respond))) = server.accept().await {
                Carriers::carry(&served, Call::new(caller.clone(), request, respond));
            }
        });
        let mut answers = Vec::new();
        for _ in 0..calls {
            let request = Request::post("http://door/").body(()).unwrap();
            answers.push(requests.clone().ready().await.unwrap().send_request(request, true).unwrap().0);
        }
        for answer in answers {
            assert_eq!(answer.await.unwrap().status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
        drop(requests);
        serving.await.unwrap();
        core.carriers.idle().len()
    }

    #[tokio::test]
    async fn a_task_carries_one_call_after_another_and_not_all_are_kept() {
        let core = core();
        assert_eq!((carried(&core, 1).await, carried(&core, 1).await), (1, 1));
        let waiting = carried(&core, IDLE + 16).await;
        assert!((2..=IDLE).contains(&waiting));
        assert_eq!(carried(&core, 1).await, waiting);
    }
}
