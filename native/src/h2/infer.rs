//! Inference requests that the front end serves by itself, from the message to the answer. Whatever does not go well
//! is not answered here: it is the engine's, as if it had just arrived.

use crate::fastpath::admission::Admission;
use crate::fastpath::admission::Waiting;
use crate::fastpath::flight::{Flight, Landing};
use crate::h2::answer::Answer;
use crate::h2::body::Received;
use crate::h2::framing::{PREFIX, Prefix};
use crate::h2::in_flight::{HandedOver, InFlight, TRACEPARENT};
use crate::h2::service::Caller;
use crate::h2::status::{Fault, code, pushback, trailers};
use crate::measure::clock::now_ns;
use crate::resources::Resources;
use bytes::{BufMut, BytesMut};
use http::HeaderMap;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;
use tokio::time::sleep;

/// What became of a request.
pub(crate) enum Served {
    /// It is answered.
    Done,
    /// It is the engine's.
    Engine(HandedOver),
}

/// Serves a request if there is a template and a lease for it.
pub(crate) async fn serve(
    resources: &Resources,
    caller: &Caller,
    received: Received,
    (arrived_ns, deadline_ns): (u64, u64),
    headers: &HeaderMap,
    answer: &mut Answer,
) -> Result<Served, Fault> {
    let mut request = match received {
        Received::Upload(upload) => InFlight::Upload(upload),
        Received::Message(mut message) => {
            let mut admission = resources.direct.admit(&message.bytes, arrived_ns, deadline_ns, true);
            let mut known_ns = 0;
            if let Admission::Waiting(waiting) = admission {
                known_ns = waiting.deadline_ns();
                message.settle();
                admission = Box::pin(wait(waiting, answer)).await?;
            }
            match admission {
                Admission::Flight(flight) => InFlight::Message(flight, message),
                // Who has waited does not wait again.
                Admission::Waiting(_) => {
                    return Ok(Served::Engine(HandedOver::untouched(message, arrived_ns, None)));
                }
                Admission::Engine(asked) => {
                    let handed = HandedOver::untouched(message, arrived_ns, asked);
                    return Ok(Served::Engine(HandedOver { deadline_ns: known_ns, ..handed }));
                }
                Admission::Late(text, late_ns) => {
                    let mut trailers = trailers(code::RESOURCE_EXHAUSTED, &text);
                    pushback(&mut trailers, late_ns);
                    answer.finish(trailers);
                    return Ok(Served::Done);
                }
            }
        }
    };
    request.note_parent(headers.get(TRACEPARENT));
    if !request.depart() {
        return request.hand_over(resources, caller, 0).map(Served::Engine);
    }
    let landed = poll_fn(|cx| match request.flight().poll(cx) {
        Poll::Ready(landed) => Poll::Ready(Ok(landed)),
        Poll::Pending => answer.poll_gone(cx).map(Err),
    })
    .await;
    match landed {
        Ok(Ok(Landing::Late)) => Err(Fault::status(code::DEADLINE_EXCEEDED, request.into_flight().expire())),
        Ok(Ok(Landing::Well)) => reply(resources, request.into_flight(), caller, answer).await,
        Ok(Err(attempts)) => request.hand_over(resources, caller, attempts).map(Served::Engine),
        Err(fault) => {
            request.into_flight().cancel();
            Err(fault)
        }
    }
}

/// Until something becomes of a request that waits: its deadline and the going of its client included.
async fn wait(mut waiting: Box<Waiting>, answer: &mut Answer) -> Result<Admission, Fault> {
    let left_ns = waiting.deadline_ns().saturating_sub(now_ns());
    let mut expiry = (waiting.deadline_ns() > 0).then(|| Box::pin(sleep(Duration::from_nanos(left_ns))));
    let became = poll_fn(|cx| {
        if let Poll::Ready(admission) = waiting.poll(cx) {
            return Poll::Ready(Ok(admission));
        }
        if expiry.as_mut().is_some_and(|expiry| expiry.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(None));
        }
        answer.poll_gone(cx).map(|fault| Err(Some(fault)))
    })
    .await;
    match became {
        Ok(admission) => Ok(admission),
        Err(None) => Err(Fault::status(code::DEADLINE_EXCEEDED, waiting.expire())),
        Err(Some(fault)) => {
            waiting.cancel();
            Err(fault)
        }
    }
}

/// Answers, if there is memory for the answer; else the client is told that there is none.
async fn reply(
    resources: &Resources,
    flight: Flight,
    caller: &Caller,
    answer: &mut Answer,
) -> Result<Served, Fault> {
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
    answer.reply(reservation.hold(frame)).await?;
    Ok(Served::Done)
}
