//! A request that the front end serves, with what it takes to hand it over after all.

use crate::fastpath::admission::Asked;
use crate::fastpath::flight::Flight;
use crate::fastpath::upload::Upload;
use crate::h2::body;
use crate::h2::service::Caller;
use crate::h2::status::Fault;
use crate::listen::quota::{Hold, Refusal};
use crate::measure::budget::Message;
use crate::resources::Resources;
use http::HeaderValue;

/// The header with the trace context of a client.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// A request that the front end does not serve after all.
pub(crate) struct HandedOver {
    /// As it came.
    pub(crate) message: Message,
    /// When it came.
    pub(crate) arrived_ns: u64,
    /// How often a worker died with it.
    pub(crate) attempts: u32,
    /// Its deadline, if only the front end knows it; 0: it does not.
    pub(crate) deadline_ns: u64,
    /// To be held until it has ended.
    pub(crate) asked: Option<Asked>,
    /// Likewise, for its client's quota.
    pub(crate) hold: Option<Hold>,
    /// It is not to be served.
    pub(crate) refusal: Option<Refusal>,
}

impl HandedOver {
    /// As it came, and it lies in memory of its own.
    pub(crate) fn whole(message: Message, arrived_ns: u64) -> Self {
        Self { message, arrived_ns, attempts: 0, deadline_ns: 0, asked: None, hold: None, refusal: None }
    }

    /// As it came, and nothing more is known of it.
    pub(crate) fn untouched(mut message: Message, arrived_ns: u64, asked: Option<Asked>) -> Self {
        message.settle();
        Self { asked, ..Self::whole(message, arrived_ns) }
    }
}

/// See the head of this file.
pub(crate) enum InFlight {
    /// The message is as it came.
    Message(Box<Flight>, Message),
    /// The tensors are in its slot.
    Upload(Upload),
}

impl InFlight {
    /// Its way to the worker and back.
    pub(crate) fn flight(&mut self) -> &mut Flight {
        match self {
            Self::Message(flight, _) => flight,
            Self::Upload(upload) => &mut upload.flight,
        }
    }

    /// How long its message is.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Message(_, message) => message.bytes.len(),
            Self::Upload(upload) => upload.length(),
        }
    }

    /// Its way alone: nothing is handed over any more.
    pub(crate) fn into_flight(self) -> Flight {
        match self {
            Self::Message(flight, _) => *flight,
            Self::Upload(upload) => *upload.flight,
        }
    }

    /// Notes the trace context of its client, if it is traced.
    pub(crate) fn note_parent(&mut self, parent: Option<&HeaderValue>) {
        if let (Some(trace), Some(parent)) = (self.flight().trace(), parent) {
            trace.note_parent(parent.as_bytes());
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
        let untouched = HandedOver::untouched(message, flight.arrived_ns(), None);
        Ok(HandedOver { attempts, deadline_ns: flight.deadline_ns(), ..untouched })
    }
}
