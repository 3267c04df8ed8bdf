//! The request side of a call: DATA frames to whole messages, one at a time, so that a client is only as far ahead as
//! the flow-control windows let it.

use crate::fastpath::upload::{Progress, UPLOAD, Upload};
use crate::h2::framing::{Coding, InflateError, Inflation, PREFIX, Prefix};
use crate::h2::service::Caller;
use crate::h2::status::{Fault, code};
use crate::h2::window::Window;
use crate::listen::quota::{Account, Entered};
use crate::measure::budget::{Assembly, Budget, Message, OverBudget};
use crate::measure::clock::now_ns;
use crate::measure::limits::{Limit, PROGRESS};
use crate::measure::statistics::Count;
use crate::resources::Resources;
use bytes::{Buf, Bytes};
use h2::RecvStream;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::time::{Instant, Sleep, sleep_until};

/// What of the client's side has come and was not yet asked for.
pub(crate) struct RequestBody {
    resources: Arc<Resources>,
    budget: Arc<Budget>,
    window: Arc<Window>,
    stream: RecvStream,
    /// Of a frame, the window of which is given back when nothing is left of it.
    rest: Bytes,
    frame: usize,
    coding: Option<Coding>,
    deadline: Option<Instant>,
    stall: Option<Pin<Box<Sleep>>>,
    progress: usize,
}

/// The one message of a unary call.
pub(crate) enum Received {
    /// As it came.
    Message(Message),
    /// Its tensors are where the worker wants them.
    Upload(Upload),
}

/// A message of a stream.
pub(crate) struct Begun {
    /// All of it.
    pub(crate) received: Received,
    /// When it began to come.
    pub(crate) arrived_ns: u64,
    /// Whether its client may ask that much.
    pub(crate) entered: Entered,
}

/// Whether the body may stand still.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Unbounded,
    Bounded,
}

impl RequestBody {
    /// The body of a request, whose messages take their memory from the caller's share. `deadline` bounds the wait for
    /// what a client owes.
    pub(crate) fn new(
        resources: Arc<Resources>,
        caller: &Caller,
        stream: RecvStream,
        coding: Option<Coding>,
        deadline: Option<Instant>,
    ) -> Self {
        let (budget, window) = (caller.requests.clone(), caller.window.clone());
        Self {
            resources,
            budget,
            window,
            stream,
            rest: Bytes::new(),
            frame: 0,
            coding,
            deadline,
            stall: None,
            progress: 0,
        }
    }

    /// The one message of a unary call. Where the front end may serve it by itself (`direct`), a large one goes into
    /// its slot as it arrives.
    pub(crate) async fn only(
        &mut self,
        direct: bool,
        arrived_ns: u64,
        deadline_ns: u64,
    ) -> Result<Received, Fault> {
        let none = || Fault::status(code::INTERNAL, "the request has no message");
        self.progressed(PROGRESS);
        if !self.has_more(Patience::Bounded).await? {
            return Err(none());
        }
        let prefix = self.prefix().await?;
        let mut received = self.received(prefix, direct, arrived_ns, deadline_ns).await?;
        if let (Received::Message(message), false) = (&mut received, direct) {
            message.settle();
        }
        self.progressed(PROGRESS);
        if !self.rest.is_empty() || self.data(Patience::Bounded).await?.is_some() {
            return Err(Fault::status(code::INTERNAL, "the request has more than one message"));
        }
        Ok(received)
    }

    /// Whether the next message of a stream begins; else the client's side has ended. The client may take its time
    /// between messages, not within one. Who stops waiting for this has taken nothing.
    pub(crate) async fn begins(&mut self) -> Result<bool, Fault> {
        self.has_more(Patience::Unbounded).await
    }

    /// A message that begins, of a stream that the front end may serve by itself, when its first bytes had come, and
    /// whether its client may ask that much; see `only`.
    pub(crate) async fn next_of_its_own(
        &mut self,
        account: &Arc<Account>,
        deadline_ns: u64,
    ) -> Result<Begun, Fault> {
        self.progressed(PROGRESS);
        let prefix = self.prefix().await?;
        let arrived_ns = now_ns();
        let entered = account.take(arrived_ns);
        let received = self.received(prefix, entered.is_ok(), arrived_ns, deadline_ns).await?;
        Ok(Begun { received, arrived_ns, entered })
    }

    async fn received(
        &mut self,
        prefix: Prefix,
        direct: bool,
        arrived_ns: u64,
        deadline_ns: u64,
    ) -> Result<Received, Fault> {
        let upload = direct && !prefix.compressed && prefix.length >= UPLOAD;
        let uploaded =
            if upload { Box::pin(self.upload(&prefix, arrived_ns, deadline_ns)).await? } else { None };
        match uploaded {
            Some(received) => Ok(received),
            None => self.announced_message(prefix).await.map(Received::Message),
        }
    }

    /// None: nothing was taken, the message is to be gathered.
    async fn upload(
        &mut self,
        prefix: &Prefix,
        arrived_ns: u64,
        deadline_ns: u64,
    ) -> Result<Option<Received>, Fault> {
        if self.rest.is_empty() {
            self.more().await?;
        }
        if self.rest.len() >= prefix.length {
            return Ok(None);
        }
        let first = &self.rest;
        let begun = Upload::begin(&self.resources.direct, first, prefix.length, arrived_ns, deadline_ns);
        let Some(mut upload) = begun else { return Ok(None) };
        self.window.want(prefix.length);
        drop(self.take(upload.opening_length()));
        while upload.missing() > 0 {
            if self.rest.is_empty() {
                self.more().await?;
            }
            let piece = self.take(upload.missing().min(self.rest.len()));
            self.progressed(piece.len());
            if let Progress::Strange(taken) = upload.push(&piece) {
                let mut assembly = Assembly::new(&self.budget, prefix.length);
                for known in [&upload.restore()[..], &piece[taken..]] {
                    assembly.push(known).map_err(|over| self.over_budget(over))?;
                }
                drop(upload);
                return self.gather(assembly).await.map(|message| Some(Received::Message(message)));
            }
        }
        Ok(Some(Received::Upload(upload)))
    }

    /// A message of a stream that begins.
    pub(crate) async fn next(&mut self) -> Result<Message, Fault> {
        self.progressed(PROGRESS);
        let prefix = self.prefix().await?;
        let mut message = self.announced_message(prefix).await?;
        message.settle();
        Ok(message)
    }

    /// What a prefix announces, if it may be.
    fn announced(&self, prefix: [u8; PREFIX]) -> Result<Prefix, Fault> {
        let Prefix { compressed, length } = Prefix::parse(prefix)
            .ok_or_else(|| Fault::status(code::INTERNAL, "the flag before a message is neither 0 nor 1"))?;
        if compressed && self.coding.is_none() {
            return Err(Fault::status(
                code::INTERNAL,
                "a message is compressed but grpc-encoding says nothing of it",
            ));
        }
        if length > self.resources.limits.size(Limit::MessageBytes) {
            return Err(self.too_large(&format!("is {length} bytes long")));
        }
        self.budget.check_room(length).map_err(|over| self.over_budget(over))?;
        Ok(Prefix { compressed, length })
    }

    async fn announced_message(&mut self, prefix: Prefix) -> Result<Message, Fault> {
        let message = self.contents(prefix.length).await?;
        match self.coding.filter(|_| prefix.compressed) {
            Some(coding) => Box::pin(self.inflated(coding, message)).await,
            None => Ok(message),
        }
    }

    /// What comes before a message, of which something has come.
    async fn prefix(&mut self) -> Result<Prefix, Fault> {
        let mut prefix = [0; PREFIX];
        let mut have = 0;
        while have < PREFIX {
            if self.rest.is_empty() {
                self.more().await?;
            }
            let taken = (PREFIX - have).min(self.rest.len());
            self.rest.copy_to_slice(&mut prefix[have..have + taken]);
            self.note_taken();
            have += taken;
        }
        self.announced(prefix)
    }

    async fn contents(&mut self, length: usize) -> Result<Message, Fault> {
        if self.rest.is_empty() && length > 0 {
            self.more().await?;
        }
        if self.rest.len() >= length {
            let mut reservation = self.budget.reserve();
            reservation.resize(length).map_err(|over| self.over_budget(over))?;
            return Ok(Message { bytes: self.take(length), reservation });
        }
        self.window.want(length);
        Box::pin(self.gather(Assembly::new(&self.budget, length))).await
    }

    async fn gather(&mut self, mut assembly: Assembly) -> Result<Message, Fault> {
        loop {
            let piece = self.take(assembly.missing().min(self.rest.len()));
            assembly.push(&piece).map_err(|over| self.over_budget(over))?;
            if assembly.missing() == 0 {
                return Ok(assembly.finish());
            }
            self.progressed(piece.len());
            self.more().await?;
        }
    }

    async fn inflated(&self, coding: Coding, message: Message) -> Result<Message, Fault> {
        let bound = self.resources.limits.size(Limit::MessageBytes);
        let mut inflation = Inflation::new(coding, message.bytes.clone(), &self.budget, bound);
        loop {
            match inflation.step() {
                Ok(true) => return Ok(inflation.finish()),
                Ok(false) if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                    return Err(self.late());
                }
                Ok(false) => {
                    self.resources.catch_up(); // a thread that only yields never sleeps, and so never looks
                    tokio::task::yield_now().await;
                }
                Err(InflateError::TooLarge) => return Err(self.too_large("is longer when decompressed")),
                Err(InflateError::OverBudget(over)) => return Err(self.over_budget(over)),
                Err(InflateError::Malformed(why)) => {
                    return Err(Fault::status(
                        code::INVALID_ARGUMENT,
                        format!("a message is not {}: {why}", coding.name()),
                    ));
                }
            }
        }
    }

    /// More of a message, of which nothing is left.
    async fn more(&mut self) -> Result<(), Fault> {
        if self.has_more(Patience::Bounded).await? { Ok(()) } else { Err(cut_short()) }
    }

    /// Whether there is something in `rest`, or comes; else the client's side has ended.
    async fn has_more(&mut self, patience: Patience) -> Result<bool, Fault> {
        if self.rest.is_empty() {
            match self.data(patience).await? {
                Some(data) => self.rest = data,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn take(&mut self, length: usize) -> Bytes {
        let taken = self.rest.split_to(length);
        self.note_taken();
        taken
    }

    /// Gives back a frame's memory and flow-control window when nothing of it is left. Until then both are the
    /// client's: what was not asked for yet is in no budget.
    fn note_taken(&mut self) {
        if self.rest.is_empty() && self.frame > 0 {
            self.rest = Bytes::new(); // an empty part would keep the whole
            let _ = self.stream.flow_control().release_capacity(std::mem::take(&mut self.frame)); // fails only for too much
        }
    }

    /// The next DATA frame that is not empty, when nothing is left of the one before.
    async fn data(&mut self, patience: Patience) -> Result<Option<Bytes>, Fault> {
        let idle = self.resources.limits.duration(Limit::IdleBodyMs);
        loop {
            let (stream, stall, deadline) = (&mut self.stream, &mut self.stall, self.deadline);
            let data = poll_fn(|cx| {
                if let Poll::Ready(data) = stream.poll_data(cx) {
                    return Poll::Ready(Ok(data));
                }
                if patience == Patience::Unbounded {
                    return Poll::Pending;
                }
                let stall = stall.get_or_insert_with(|| {
                    let idle = Instant::now() + idle;
                    Box::pin(sleep_until(deadline.map_or(idle, |deadline| deadline.min(idle))))
                });
                stall.as_mut().poll(cx).map(|()| Err(()))
            })
            .await;
            match data {
                Err(()) => return Err(self.late()),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Fault::of(&error)),
                Ok(Some(Ok(data))) => {
                    if !data.is_empty() {
                        self.frame = data.len();
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Notes what has come; enough of it, and the client has its time anew.
    fn progressed(&mut self, bytes: usize) {
        self.progress += bytes;
        if self.progress >= PROGRESS {
            (self.progress, self.stall) = (0, None);
        }
    }

    fn late(&self) -> Fault {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Fault::status(
                code::DEADLINE_EXCEEDED,
                "the deadline passed before the request had arrived",
            );
        }
        self.resources.statistics.strike(Limit::IdleBodyMs);
        let idle = self.resources.limits.get(Limit::IdleBodyMs);
        Fault::status(code::DEADLINE_EXCEEDED, format!("the request made too little progress for {idle} ms"))
    }

    fn too_large(&self, how: &str) -> Fault {
        self.resources.statistics.strike(Limit::MessageBytes);
        let bound = self.resources.limits.get(Limit::MessageBytes);
        Fault::status(
            code::RESOURCE_EXHAUSTED,
            format!(
                "a request message {how}; the largest that is accepted has {bound} bytes (grpc.max_message_bytes)"
            ),
        )
    }

    fn over_budget(&self, over: OverBudget) -> Fault {
        over_budget(&self.resources, over)
    }
}

/// A message that was uploaded, after all as one: its tensors leave their slot.
pub(crate) fn restored(
    resources: &Resources,
    budget: &Arc<Budget>,
    upload: &Upload,
) -> Result<Message, Fault> {
    let message = upload.restore();
    let mut assembly = Assembly::new(budget, message.len());
    assembly.push(&message).map_err(|over| over_budget(resources, over))?;
    Ok(assembly.finish())
}

/// What a client is told for whose request there is no memory now.
pub(crate) fn over_budget(resources: &Resources, over: OverBudget) -> Fault {
    let (whose, bound) = match over {
        OverBudget::Whole => {
            resources.statistics.strike(Limit::BytesInFlight);
            ("all requests together", resources.limits.get(Limit::BytesInFlight))
        }
        OverBudget::Share => {
            resources.statistics.count(Count::SharesRefused);
            ("the requests of one connection", resources.limits.connection_bytes())
        }
    };
    Fault::status(
        code::RESOURCE_EXHAUSTED,
        format!(
            "there is no memory for this request now: {whose} may take {bound} bytes (grpc.max_messages_bytes)"
        ),
    )
}

fn cut_short() -> Fault {
    Fault::status(code::INTERNAL, "the request ended within a message")
}
