//! Inference requests that the front end serves by itself, from the message to the answer. Whatever does not go well
//! is not answered here: it is the engine's, as if it had just arrived.

use crate::fastpath::admission::Admission;
use crate::fastpath::serving::{InFlight, Left, Unserved, admitted, landed};
use crate::h2::answer::Answer;
use crate::h2::body::{self, Received};
use crate::h2::framing::{PREFIX, Prefix};
use crate::h2::service::Caller;
use crate::h2::status::{Fault, code};
use crate::listen::quota::{Hold, Refusal};
use crate::measure::budget::Message;
use crate::resources::Resources;
use bytes::{BufMut, BytesMut};

/// The header with the trace context of a client.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// A request that the front end does not serve after all.
pub(crate) struct HandedOver {
    /// As it came.
    pub(crate) message: Message,
    /// When it came.
    pub(crate) arrived_ns: u64,
    /// What the front end knows of it.
    pub(crate) left: Left,
    /// To be held until it has ended, for its client's quota.
    pub(crate) hold: Option<Hold>,
    /// It is not to be served.
    pub(crate) refusal: Option<Refusal>,
}

impl HandedOver {
    /// As it came, and it lies in memory of its own.
    pub(crate) fn whole(message: Message, arrived_ns: u64) -> Self {
        Self { message, arrived_ns, left: Left::default(), hold: None, refusal: None }
    }

    /// As it came, to be kept.
    pub(crate) fn untouched(mut message: Message, arrived_ns: u64, left: Left) -> Self {
        message.settle();
        Self { left, ..Self::whole(message, arrived_ns) }
    }
}

impl InFlight<Message> {
    /// How long its message is.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Message(_, message) => message.bytes.len(),
            Self::Upload(upload) => upload.length(),
        }
    }

    /// Gives it to the worker. False: it is the engine's.
    pub(crate) fn depart(&mut self) -> bool {
        match self {
            Self::Message(flight, message) => flight.depart(&message.bytes),
            Self::Upload(upload) => upload.flight.depart(&[]),
        }
    }

    /// Gives it up, after so many attempts. A fault: there is no memory to put its message together again.
    pub(crate) fn hand_over(
        self,
        resources: &Resources,
        caller: &Caller,
        attempts: u32,
    ) -> Result<HandedOver, Fault> {
        let (message, flight) = match self {
            Self::Message(flight, message) => (message, flight),
            Self::Upload(upload) => (body::restored(resources, &caller.requests, &upload)?, upload.flight),
        };
        let left = Left { attempts, deadline_ns: flight.deadline_ns(), asked: None };
        Ok(HandedOver::untouched(message, flight.arrived_ns(), left))
    }
}

/// Serves a request if there is a template and a lease for it. What it gives is the engine's.
pub(crate) async fn serve(
    resources: &Resources,
    caller: &Caller,
    received: Received,
    (arrived_ns, deadline_ns): (u64, u64),
    parent: Option<&[u8]>,
    answer: &mut Answer,
) -> Result<Option<HandedOver>, Fault> {
    let mut request = match received {
        Received::Upload(upload) => InFlight::Upload(upload),
        Received::Message(mut message) => {
            let admission = resources.direct.admit(&message.bytes, arrived_ns, deadline_ns, true);
            if let Admission::Flight(flight) = admission {
                InFlight::Message(flight, message)
            } else {
                message.settle();
                match Box::pin(admitted(admission, |cx| answer.poll_gone(cx))).await {
                    Ok(flight) => InFlight::Message(flight, message),
                    Err(unserved) => {
                        let left = left(unserved)?;
                        return Ok(Some(HandedOver { left, ..HandedOver::whole(message, arrived_ns) }));
                    }
                }
            }
        }
    };
    request.note_client(&caller.account, parent);
    if !request.depart() {
        return request.hand_over(resources, caller, 0).map(Some);
    }
    match landed(request.flight(), |cx| answer.poll_gone(cx)).await {
        Ok(()) => reply(resources, request, caller, answer).await.map(|()| None),
        Err(unserved) => request.hand_over(resources, caller, left(unserved)?.attempts).map(Some),
    }
}

/// What is left to the engine; a fault: nothing is.
fn left(unserved: Unserved<Fault>) -> Result<Left, Fault> {
    match unserved {
        Unserved::Engine(left) => Ok(left),
        Unserved::Refused(refused) => Err(Fault::Refused(refused)),
        Unserved::Gone(fault) => Err(fault),
    }
}

/// Answers, if there is memory for the answer; else the client is told that there is none.
async fn reply(
    resources: &Resources,
    mut request: InFlight<Message>,
    caller: &Caller,
    answer: &mut Answer,
) -> Result<(), Fault> {
    let flight = request.flight();
    let length = flight.answer_length();
    let mut reservation = caller.answers.reserve();
    let Some(prefix) = Prefix::encode(length).filter(|_| reservation.resize(PREFIX + length).is_ok()) else {
        flight.finish(&caller.client); // the model has answered it
        return Err(Fault::status(code::RESOURCE_EXHAUSTED, resources.no_room()));
    };
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_slice(&prefix);
    flight.answer(&mut frame);
    flight.finish(&caller.client);
    drop(request); // its slot is needed no longer, however long the client takes
    answer.reply(reservation.hold(frame)).await
}
