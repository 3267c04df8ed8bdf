//! One streaming call. Python reads and writes messages one by one; on streams of inferences the front end reads ahead
//! of it and serves by itself what it has templates for, between what it hands over.
//!
//! Three things go on side by side, in one task: reading, landing and writing. They are polled in this order whenever
//! the task wakes, so that what one of them leaves behind is seen by the next at once; only what lies before it must
//! be told.

use crate::fastpath::admission::{Admission, Asked};
use crate::fastpath::direct::StreamWindow;
use crate::fastpath::flight::Flight;
use crate::fastpath::serving::{InFlight, Left};
use crate::h2::answer::Answer;
use crate::h2::body::{Begun, Received, RequestBody};
use crate::h2::infer::HandedOver;
use crate::h2::service::Caller;
use crate::h2::status::Fault;
use crate::h2::underway::{Chunk, Underway};
use crate::handover::calls::End;
use crate::handover::link::Ticket;
use crate::handover::mailbox::{Event, Told};
use crate::listen::quota::{Entered, Hold, Refusal};
use crate::measure::clock::now_ns;
use crate::measure::lock::Lock;
use crate::resources::Resources;
use bytes::Bytes;
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// See the head of this file.
pub(crate) struct Stream<'a> {
    resources: &'a Resources,
    caller: &'a Caller,
    ticket: &'a Ticket,
    /// The client's trace context.
    parent: Option<&'a [u8]>,
    deadline_ns: u64,
    /// What may be under way, if it may be the front end's own.
    window: Option<StreamWindow>,
    /// Whether its messages are requests that the client's quota bounds.
    metered: bool,
    underway: Lock<Underway>,
    /// Rung when what is under way has changed.
    changed: Notify,
}

/// What is to be sent next.
enum Order {
    /// A message of Python's.
    Message(Bytes),
    /// Answers of the front end's own.
    Chunk(Chunk),
    End(End),
}

impl<'a> Stream<'a> {
    /// A stream that Python has been told of. `window`: what may be under way, if it may be the front end's own;
    /// `metered`: whether the client's quota bounds its messages.
    pub(crate) fn new(
        resources: &'a Resources,
        caller: &'a Caller,
        ticket: &'a Ticket,
        parent: Option<&'a [u8]>,
        deadline_ns: u64,
        window: Option<StreamWindow>,
        metered: bool,
    ) -> Self {
        let unused = StreamWindow { requests: 0, bytes: 0 };
        let underway = Lock::new(Underway::new(window.unwrap_or(unused)));
        Self {
            resources,
            caller,
            ticket,
            parent,
            deadline_ns,
            window,
            metered,
            underway,
            changed: Notify::new(),
        }
    }

    /// Carries it to its end.
    pub(crate) async fn serve(&self, body: &mut RequestBody, answer: &mut Answer) -> Result<(), Fault> {
        let read = async {
            match self.window {
                Some(_) => self.read_ahead(body).await,
                None => self.read_as_asked(body).await,
            }
        };
        tokio::select! {
            biased;
            Err(fault) = read => Err(fault),
            fault = poll_fn(|cx| self.poll_landing(cx)) => Err(fault),
            end = self.write(answer) => end,
        }
    }

    // --- reading

    async fn read_as_asked(&self, body: &mut RequestBody) -> Result<Infallible, Fault> {
        loop {
            self.asked().await;
            if !self.begins(body).await? {
                self.tell(None);
                continue;
            }
            let arrived_ns = now_ns();
            let entered = if self.metered { self.caller.account.take(arrived_ns) } else { Ok(None) };
            let (hold, refusal) = self.split(entered);
            let message = body.next().await?;
            if self.metered {
                self.underway.lock().told_as_asked(hold); // whose answer it is that comes next is known of no other
            }
            self.tell(Some(Told { message, arrived_ns, attempts: 0, deadline_ns: 0, refusal }));
        }
    }

    /// Python is told the end of the client's side when nothing can be handed over any more: what it answers then is
    /// the end of the stream.
    async fn read_ahead(&self, body: &mut RequestBody) -> Result<Infallible, Fault> {
        loop {
            self.until(Underway::has_room).await;
            if !self.begins(body).await? {
                break;
            }
            self.take(body.next_of_its_own(&self.caller.account, self.deadline_ns).await?)?;
        }
        self.until(Underway::is_settled).await;
        loop {
            self.asked().await;
            self.tell(None);
        }
    }

    /// Whether a message is to be read. One that has begun to come is read to its end, whatever Python wants meanwhile.
    async fn begins(&self, body: &mut RequestBody) -> Result<bool, Fault> {
        tokio::select! {
            biased;
            () = self.stopped() => Ok(false),
            begins = body.begins() => begins,
        }
    }

    /// Serves a request or hands it over.
    fn take(&self, begun: Begun) -> Result<(), Fault> {
        let Begun { received, arrived_ns, entered } = begun;
        let (hold, refusal) = self.split(entered);
        let mut request = match received {
            Received::Upload(upload) => InFlight::Upload(upload),
            Received::Message(message) => {
                let admitted =
                    if refusal.is_none() { self.admit(&message.bytes, arrived_ns) } else { Err(None) };
                match admitted {
                    Ok(flight) => InFlight::Message(flight, message),
                    Err(asked) => {
                        let left = Left { asked, ..Left::default() };
                        let untouched = HandedOver::untouched(message, arrived_ns, left);
                        self.underway.lock().hand_over(HandedOver { hold, refusal, ..untouched });
                        return Ok(());
                    }
                }
            }
        };
        request.note_client(&self.caller.account, self.parent);
        let departed = self.underway.lock().depart(request, hold, &self.caller.answers);
        if let Err((request, hold)) = departed {
            let handed = request.hand_over(self.resources, self.caller, 0)?;
            self.underway.lock().hand_over(HandedOver { hold, ..handed });
        }
        Ok(())
    }

    /// What is held of a request, and why it is not to be served, which is told now and then.
    fn split(&self, entered: Entered) -> (Option<Hold>, Option<Refusal>) {
        entered.map_or_else(
            |refusal| {
                self.resources.link.over_quota(self.caller.account.who(), &refusal);
                (None, Some(refusal))
            },
            |hold| (hold, None),
        )
    }

    fn admit(&self, message: &Bytes, arrived_ns: u64) -> Result<Box<Flight>, Option<Asked>> {
        let direct = &self.resources.direct;
        if !direct.has_templates() {
            return Err(None);
        }
        // What would be late is refused in the stream or ends it, as its client wants: the engine's side knows how.
        match direct.admit(message, arrived_ns, self.deadline_ns, false) {
            Admission::Flight(flight) => Ok(flight),
            Admission::Engine(asked) => Err(asked),
            Admission::Late(..) | Admission::Waiting(_) => Err(None),
        }
    }

    async fn until(&self, holds: impl Fn(&Underway) -> bool) {
        while !holds(&self.underway.lock()) {
            self.changed.notified().await;
        }
    }

    /// Until Python asks for a message.
    async fn asked(&self) {
        poll_fn(|cx| {
            self.ticket.slot.register(cx.waker());
            if self.ticket.slot.take_read() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Until Python wants no more to be read.
    async fn stopped(&self) {
        poll_fn(|cx| {
            self.ticket.slot.register(cx.waker());
            if self.ticket.slot.is_stopped() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn tell(&self, message: Option<Told>) {
        self.ticket.slot.read_done();
        self.ticket.tell(Event::Message(self.ticket.id, message));
    }

    // --- landing

    /// Takes what workers are done with, and hands over what Python has asked for.
    fn poll_landing(&self, cx: &mut Context<'_>) -> Poll<Fault> {
        self.ticket.slot.register(cx.waker());
        loop {
            let failed = self.underway.lock().poll_landed(cx, &self.caller.client);
            let Poll::Ready((request, hold, attempts)) = failed else { break };
            match request.hand_over(self.resources, self.caller, attempts) {
                Ok(handed) => self.underway.lock().hand_over(HandedOver { hold, ..handed }),
                Err(fault) => return Poll::Ready(fault),
            }
        }
        while self.underway.lock().has_handed() && self.ticket.slot.take_read() {
            let told = self.underway.lock().take_handed();
            self.tell(told);
        }
        self.note_changes();
        Poll::Pending
    }

    fn note_changes(&self) {
        if self.underway.lock().take_changed() {
            self.changed.notify_one();
        }
    }

    // --- writing

    async fn write(&self, answer: &mut Answer) -> Result<(), Fault> {
        loop {
            match poll_fn(|cx| self.poll_order(cx, answer)).await? {
                Order::Message(message) => {
                    self.underway.lock().answered();
                    answer.send(message).await?;
                    self.underway.lock().answer_sent();
                    self.ticket.slot.send_done();
                    self.ticket.tell(Event::Sent(self.ticket.id));
                }
                Order::Chunk(chunk) => {
                    let weight = chunk.weight();
                    answer.send(chunk.into_bytes()).await?;
                    self.underway.lock().sent(weight);
                }
                Order::End(end) => return answer.end(end).await,
            }
            self.note_changes();
        }
    }

    /// What is there to be sent; all messages before the end.
    fn poll_order(&self, cx: &mut Context<'_>, answer: &mut Answer) -> Poll<Result<Order, Fault>> {
        let slot = &self.ticket.slot;
        slot.register(cx.waker());
        if let Some(message) = slot.take_message() {
            return Poll::Ready(Ok(Order::Message(message)));
        }
        if let Some(chunk) = self.underway.lock().take_landed() {
            return Poll::Ready(Ok(Order::Chunk(chunk)));
        }
        if let Some(end) = slot.take_end() {
            return Poll::Ready(Ok(Order::End(end)));
        }
        answer.poll_gone(cx).map(Err)
    }
}
