//! The request side of a call: DATA frames to whole messages, one at a time, so that a client is only as far ahead as
//! the flow-control windows let it.

use crate::budget::{Assembly, Message, OverBudget};
use crate::door::Core;
use crate::framing::{InflateError, Inflation, PREFIX, Prefix};
use crate::limits::Limit;
use crate::status::{Fault, code};
use bytes::{Buf, Bytes};
use h2::RecvStream;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::time::{Instant, Sleep, sleep_until};

/// What of the client's side has come and was not yet asked for.
pub struct RequestBody {
    core: Arc<Core>,
    stream: RecvStream,
    rest: Bytes,
    gzip: bool,
    deadline: Option<Instant>,
}

/// Whether the body may stand still.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Unbounded,
    Bounded,
}

impl RequestBody {
    /// The body of a request. `deadline` bounds the wait for what a client owes.
    pub fn new(core: Arc<Core>, stream: RecvStream, gzip: bool, deadline: Option<Instant>) -> Self {
        Self { core, stream, rest: Bytes::new(), gzip, deadline }
    }

    /// The one message of a unary call.
    pub async fn only(&mut self) -> Result<Message, Fault> {
        let none = || Fault::status(code::INTERNAL, "the request has no message");
        let message = self.message(Patience::Bounded).await?.ok_or_else(none)?;
        if !self.rest.is_empty() || self.data(Patience::Bounded).await?.is_some() {
            return Err(Fault::status(code::INTERNAL, "the request has more than one message"));
        }
        Ok(message)
    }

    /// The next message of a stream; None when the client's side has ended. The client may take its time between
    /// messages, not within one.
    pub async fn next(&mut self) -> Result<Option<Message>, Fault> {
        self.message(Patience::Unbounded).await
    }

    async fn message(&mut self, patience: Patience) -> Result<Option<Message>, Fault> {
        let Some(prefix) = self.prefix(patience).await? else { return Ok(None) };
        let Prefix { compressed, length } = Prefix::parse(prefix)
            .ok_or_else(|| Fault::status(code::INTERNAL, "the flag before a message is neither 0 nor 1"))?;
        if compressed && !self.gzip {
            return Err(Fault::status(
                code::INTERNAL,
                "a message is compressed but grpc-encoding says nothing of it",
            ));
        }
        if length > self.core.limits.size(Limit::MessageBytes) {
            return Err(self.too_large(&format!("is {length} bytes long")));
        }
        if !self.core.budget.has_room(length) {
            return Err(self.over_budget());
        }
        let message = self.contents(length).await?;
        if compressed { self.inflated(message).await.map(Some) } else { Ok(Some(message)) }
    }

    async fn prefix(&mut self, mut patience: Patience) -> Result<Option<[u8; PREFIX]>, Fault> {
        let mut prefix = [0; PREFIX];
        let mut have = 0;
        while have < PREFIX {
            if self.rest.is_empty() {
                match self.data(patience).await? {
                    Some(data) => self.rest = data,
                    None if have == 0 => return Ok(None),
                    None => return Err(cut_short()),
                }
            }
            let taken = (PREFIX - have).min(self.rest.len());
            self.rest.copy_to_slice(&mut prefix[have..have + taken]);
            have += taken;
            patience = Patience::Bounded;
        }
        Ok(Some(prefix))
    }

    async fn contents(&mut self, length: usize) -> Result<Message, Fault> {
        if self.rest.is_empty() && length > 0 {
            self.rest = self.data(Patience::Bounded).await?.ok_or_else(cut_short)?;
        }
        if self.rest.len() >= length {
            let mut reservation = self.core.budget.reserve();
            reservation.resize(length).map_err(|_| self.over_budget())?;
            return Ok(Message { bytes: self.rest.split_to(length), reservation });
        }
        let mut assembly = Assembly::new(&self.core.budget, length);
        loop {
            let piece = self.rest.split_to(assembly.missing().min(self.rest.len()));
            assembly.push(&piece).map_err(|OverBudget| self.over_budget())?;
            if assembly.missing() == 0 {
                return Ok(assembly.finish());
            }
            self.rest = self.data(Patience::Bounded).await?.ok_or_else(cut_short)?;
        }
    }

    async fn inflated(&self, message: Message) -> Result<Message, Fault> {
        let bound = self.core.limits.size(Limit::MessageBytes);
        let mut inflation = Inflation::new(message.bytes.clone(), &self.core.budget, bound);
        loop {
            match inflation.step() {
                Ok(true) => return Ok(inflation.finish()),
                Ok(false) => tokio::task::yield_now().await,
                Err(InflateError::TooLarge) => return Err(self.too_large("is longer when decompressed")),
                Err(InflateError::OverBudget) => return Err(self.over_budget()),
                Err(InflateError::Malformed(why)) => {
                    return Err(Fault::status(
                        code::INVALID_ARGUMENT,
                        format!("a message is not gzip: {why}"),
                    ));
                }
            }
        }
    }

    /// The next DATA frame that is not empty; its flow-control window is given back, since it is consumed now.
    async fn data(&mut self, patience: Patience) -> Result<Option<Bytes>, Fault> {
        let mut timer: Option<Pin<Box<Sleep>>> = None;
        let idle = self.core.limits.duration(Limit::IdleBodyMs);
        loop {
            let (stream, deadline) = (&mut self.stream, self.deadline);
            let data = poll_fn(|cx| {
                if let Poll::Ready(data) = stream.poll_data(cx) {
                    return Poll::Ready(Ok(data));
                }
                if patience == Patience::Unbounded {
                    return Poll::Pending;
                }
                let timer = timer.get_or_insert_with(|| {
                    let idle = Instant::now() + idle;
                    Box::pin(sleep_until(deadline.map_or(idle, |deadline| deadline.min(idle))))
                });
                timer.as_mut().poll(cx).map(|()| Err(()))
            })
            .await;
            match data {
                Err(()) => return Err(self.late()),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Fault::of(&error)),
                Ok(Some(Ok(data))) => {
                    let _ = self.stream.flow_control().release_capacity(data.len()); // fails only for too much
                    if !data.is_empty() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    fn late(&self) -> Fault {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Fault::status(
                code::DEADLINE_EXCEEDED,
                "the deadline passed before the request had arrived",
            );
        }
        self.core.statistics.strike(Limit::IdleBodyMs);
        let idle = self.core.limits.get(Limit::IdleBodyMs);
        Fault::status(code::DEADLINE_EXCEEDED, format!("the request stood still for {idle} ms"))
    }

    fn too_large(&self, how: &str) -> Fault {
        self.core.statistics.strike(Limit::MessageBytes);
        let bound = self.core.limits.get(Limit::MessageBytes);
        Fault::status(
            code::RESOURCE_EXHAUSTED,
            format!("a request message {how}; the largest that is accepted has {bound} bytes"),
        )
    }

    fn over_budget(&self) -> Fault {
        self.core.statistics.strike(Limit::BytesInFlight);
        let bound = self.core.limits.get(Limit::BytesInFlight);
        Fault::status(
            code::RESOURCE_EXHAUSTED,
            format!("there is no memory for this request now: all requests together may take {bound} bytes"),
        )
    }
}

fn cut_short() -> Fault {
    Fault::status(code::INTERNAL, "the request ended within a message")
}
