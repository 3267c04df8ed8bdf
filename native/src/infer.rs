//! Inference requests that the door serves by itself, from the message to the answer. Whatever does not go well is not
//! answered here: it is the engine's, as if it had just arrived.

use crate::answer::Answer;
use crate::budget::{Budget, Message};
use crate::direct::{Admission, Flight};
use crate::door::Core;
use crate::framing::{PREFIX, Prefix};
use crate::status::{Fault, code, pushback, trailers};
use bytes::{BufMut, Bytes, BytesMut};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// What became of a request.
pub enum Served {
    /// It is answered.
    Done,
    /// It is the engine's, after so many attempts.
    Engine(Message, u32),
}

/// Serves a request if that was taught and granted.
pub async fn serve(
    core: &Core,
    answers: &Arc<Budget>,
    message: Message,
    arrived_ns: u64,
    deadline_ns: u64,
    answer: &mut Answer,
) -> Result<Served, Fault> {
    let mut flight = match core.direct.admit(&message.bytes, arrived_ns, deadline_ns) {
        Admission::Flight(flight) => flight,
        Admission::Engine => return Ok(Served::Engine(message, 0)),
        Admission::Late(text, late_ns) => {
            let mut trailers = trailers(code::RESOURCE_EXHAUSTED, &text);
            pushback(&mut trailers, late_ns);
            answer.finish(trailers);
            return Ok(Served::Done);
        }
    };
    if !flight.depart(&message.bytes) {
        return Ok(Served::Engine(message, 0));
    }
    let landed = poll_fn(|cx| match flight.poll(cx) {
        Poll::Ready(landed) => Poll::Ready(Ok(landed)),
        Poll::Pending => answer.poll_gone(cx).map(Err),
    })
    .await;
    match landed {
        Ok(Ok(())) => reply(core, *flight, answers, answer).await,
        Ok(Err(attempts)) => Ok(Served::Engine(message, attempts)),
        Err(fault) => {
            flight.cancel();
            Err(fault)
        }
    }
}

/// Answers, if there is memory for the answer; else the engine says so.
async fn reply(
    core: &Core,
    flight: Flight,
    answers: &Arc<Budget>,
    answer: &mut Answer,
) -> Result<Served, Fault> {
    let length = flight.answer_length();
    let mut reservation = answers.reserve();
    let Some(prefix) = Prefix::encode(length).filter(|_| reservation.resize(PREFIX + length).is_ok()) else {
        core.statistics.answer_refused();
        let text = "there is no memory for this answer now: clients have not taken those before it";
        return Err(Fault::status(code::RESOURCE_EXHAUSTED, text));
    };
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_slice(&prefix);
    flight.answer(&mut frame);
    flight.finish();
    answer.reply(held(frame, reservation)).await?;
    Ok(Served::Done)
}

fn held(frame: BytesMut, reservation: crate::budget::Reservation) -> Bytes {
    struct Owner(BytesMut, #[allow(dead_code)] crate::budget::Reservation);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Owner(frame, reservation))
}
