//! One request that the front end may serve by itself, whatever protocol it came over: from its admission, over a wait
//! if it must, to its landing. What protocols do differently is in what is told of a client that has gone, and in how
//! a request is put together again that is the engine's after all.

use crate::fastpath::admission::{Admission, Asked};
use crate::fastpath::flight::{Flight, Landing};
use crate::fastpath::request::shown;
use crate::fastpath::upload::Upload;
use crate::listen::quota::{Account, Refusal};
use crate::measure::clock::now_ns;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::sleep;

/// What a client is told whose request is not served.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It would be late: when it is worth trying again, in nanoseconds.
    Late(String, u64),
    /// The client asks too much: likewise.
    OverQuota(String, u64),
    /// Its deadline is over.
    Expired(String),
}

impl Refused {
    /// Because of the client's quota.
    pub(crate) fn over_quota(refusal: &Refusal) -> Self {
        let text = format!("[request id: {}] {}", shown(b""), refusal.text);
        Self::OverQuota(text, refusal.wait_ns.unwrap_or(0))
    }
}

/// Why the front end does not answer a request from its slot.
pub(crate) enum Unserved<Gone> {
    /// It is refused.
    Refused(Refused),
    /// It is the engine's.
    Engine(Left),
    /// Its client has gone.
    Gone(Gone),
}

/// What is known of a request that is left to the engine.
#[derive(Default)]
pub(crate) struct Left {
    /// How often a worker died with it.
    pub(crate) attempts: u32,
    /// Its deadline, if only the front end knows it; 0: it does not.
    pub(crate) deadline_ns: u64,
    /// To be held until it has ended.
    pub(crate) asked: Option<Asked>,
}

/// A request that was admitted, with what it takes to hand it over after all.
pub(crate) enum InFlight<Message> {
    /// The message is as it came.
    Message(Box<Flight>, Message),
    /// The tensors are in its slot.
    Upload(Upload),
}

impl<Message> InFlight<Message> {
    /// Its way to the worker and back.
    pub(crate) fn flight(&mut self) -> &mut Flight {
        match self {
            Self::Message(flight, _) => flight,
            Self::Upload(upload) => &mut upload.flight,
        }
    }

    /// Notes whose it is, and the trace context of its client, if it is traced.
    pub(crate) fn note_client(&mut self, account: &Arc<Account>, parent: Option<&[u8]>) {
        self.flight().note_client(account);
        if let (Some(trace), Some(parent)) = (self.flight().trace(), parent) {
            trace.note_parent(parent);
        }
    }
}

/// Until something becomes of a request that was looked at: its deadline and the going of its client included.
pub(crate) async fn admitted<Gone>(
    mut admission: Admission,
    mut poll_gone: impl FnMut(&mut Context<'_>) -> Poll<Gone>,
) -> Result<Box<Flight>, Unserved<Gone>> {
    let mut deadline_ns = 0;
    if let Admission::Waiting(mut waiting) = admission {
        deadline_ns = waiting.deadline_ns();
        let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
        let mut expiry = (deadline_ns > 0).then(|| Box::pin(sleep(left)));
        let became = poll_fn(|cx| {
            if let Poll::Ready(admission) = waiting.poll(cx) {
                return Poll::Ready(Ok(admission));
            }
            if expiry.as_mut().is_some_and(|expiry| expiry.as_mut().poll(cx).is_ready()) {
                return Poll::Ready(Err(Unserved::Refused(Refused::Expired(waiting.expire()))));
            }
            poll_gone(cx).map(|gone| {
                waiting.cancel();
                Err(Unserved::Gone(gone))
            })
        });
        admission = became.await?;
    }
    match admission {
        Admission::Flight(flight) => Ok(flight),
        Admission::Late(text, late_ns) => Err(Unserved::Refused(Refused::Late(text, late_ns))),
        Admission::Engine(asked) => Err(Unserved::Engine(Left { asked, deadline_ns, ..Left::default() })),
        // Who has waited does not wait again.
        Admission::Waiting(_) => Err(Unserved::Engine(Left::default())),
    }
}

/// Until a request that has departed can be answered from its slot.
pub(crate) async fn landed<Gone>(
    flight: &mut Flight,
    mut poll_gone: impl FnMut(&mut Context<'_>) -> Poll<Gone>,
) -> Result<(), Unserved<Gone>> {
    let landed = poll_fn(|cx| match flight.poll(cx) {
        Poll::Ready(landed) => Poll::Ready(Ok(landed)),
        Poll::Pending => poll_gone(cx).map(Err),
    });
    match landed.await {
        Ok(Ok(Landing::Well)) => Ok(()),
        Ok(Ok(Landing::Late)) => Err(Unserved::Refused(Refused::Expired(flight.expire()))),
        Ok(Err(attempts)) => Err(Unserved::Engine(Left { attempts, ..Left::default() })),
        Err(gone) => {
            flight.cancel();
            Err(Unserved::Gone(gone))
        }
    }
}
