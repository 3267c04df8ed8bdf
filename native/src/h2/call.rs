//! One call, from its headers to its end.

use crate::fastpath::admission::Asked;
use crate::fastpath::serving::{Left, Refused};
use crate::h2::answer::Answer;
use crate::h2::body::{Received, RequestBody, over_budget};
use crate::h2::framing::{Coding, timeout_ns};
use crate::h2::infer::{self, HandedOver, TRACEPARENT};
use crate::h2::service::Caller;
use crate::h2::service::Service;
use crate::h2::status::{Fault, code, text_metadata};
use crate::h2::stream::Stream;
use crate::handover::calls::Kind;
use crate::handover::link::Ticket;
use crate::handover::mailbox::{Arrival, Event};
use crate::listen::quota::Hold;
use crate::measure::budget::Reservation;
use crate::measure::clock::now_ns;
use crate::measure::limits::Limit;
use crate::measure::statistics::{Count, Statistics};
use crate::resources::Resources;
use bytes::Bytes;
use futures_util::FutureExt;
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::{Method, Request, request};
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Carries a call of a connection to its end. Never fails and never panics: a panic on the way ends the call with
/// INTERNAL.
pub(crate) async fn serve(
    service: Arc<Service>,
    caller: Arc<Caller>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let Resources { statistics, limits, .. } = &*service.resources;
    statistics.count(Count::CallsTotal);
    let mut answer = Answer::new(respond, caller.monitor.clone(), limits.duration(Limit::WriteStallMs));
    let mine = caller.account.open_call(CALLS_OF_CLIENT);
    let (Some(_open), Some(_)) = (statistics.open_within(Count::CallsOpen, CALLS), &mine) else {
        statistics.count(Count::CallsRefused);
        return answer.refuse(Fault::status(code::RESOURCE_EXHAUSTED, TOO_MANY));
    };
    // Where it lies it stays: to move a future is to copy all that it may ever hold.
    let carried = unpanicked(statistics, pin!(carry(&service, &caller, request, &mut answer))).await;
    let Err(fault) = carried else { return };
    match fault {
        Fault::Reset => {
            statistics.count(Count::Resets);
            caller.monitor.lock().reset(now_ns());
        }
        Fault::Stalled => statistics.strike(Limit::WriteStallMs),
        _ => {}
    }
    answer.refuse(fault);
}

/// Calls of one client under way over all its connections, and those of all: more than may be queued, and no more than
/// there is memory for, even of streams that say nothing.
const CALLS_OF_CLIENT: u64 = 32_768;
const CALLS: u64 = 4 * CALLS_OF_CLIENT;
const TOO_MANY: &str = "too many RPCs are under way";

/// What the headers of a call say, and its body.
struct Begun {
    method: u32,
    kind: Kind,
    headers: HeaderMap,
    body: RequestBody,
    arrived_ns: u64,
    /// 0: none.
    deadline_ns: u64,
    /// A deadline only bounds the wait for a unary body; the rest is Python's to decide.
    body_deadline: Option<Instant>,
    /// Memory for the headers, if they are many.
    _room: Option<Reservation>,
}

/// Headers up to this many bytes are no more than what else a call takes.
const LIGHT: usize = 1024;
/// How long after its deadline a call waits for Python's own word on it.
const LATE: Duration = Duration::from_millis(50);

fn unanswered() -> Fault {
    Fault::status(code::DEADLINE_EXCEEDED, "the deadline passed and the engine did not answer")
}

async fn unpanicked(
    statistics: &Statistics,
    call: Pin<&mut impl Future<Output = Result<(), Fault>>>,
) -> Result<(), Fault> {
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
        statistics.count(Count::Panics);
        Err(Fault::status(code::INTERNAL, "the front end failed within this call"))
    })
}

async fn carry(
    service: &Service,
    caller: &Caller,
    request: Request<RecvStream>,
    answer: &mut Answer,
) -> Result<(), Fault> {
    let mut begun = begin(service, caller, request)?;
    match begun.kind {
        Kind::Unary => unary(service, caller, &mut begun, answer).await,
        // Other calls shall not be as large.
        Kind::Stream => Box::pin(stream(service, caller, &mut begun, answer)).await,
    }
}

/// One request and one answer: by the fast path, or by Python.
async fn unary(
    service: &Service,
    caller: &Caller,
    begun: &mut Begun,
    answer: &mut Answer,
) -> Result<(), Fault> {
    let (resources, times_ns) = (&service.resources, (begun.arrived_ns, begun.deadline_ns));
    let _hold = begun.enter(service, caller)?;
    let direct = resources.direct.may_serve(begun.method);
    // The body knows of a reset while it waits for data, the answer knows of it also while there is work to do.
    let received = tokio::select! {
        biased;
        received = begun.body.only(direct, times_ns.0, times_ns.1) => received?,
        fault = poll_fn(|cx| answer.poll_gone(cx)) => return Err(fault),
    };
    let handed = match received {
        Received::Message(message) if !direct => HandedOver::whole(message, times_ns.0),
        received => {
            let parent = begun.headers.get(TRACEPARENT).map(|value| value.as_bytes());
            match infer::serve(resources, caller, received, times_ns, parent, answer).await? {
                None => return Ok(()),
                Some(handed) => handed,
            }
        }
    };
    let HandedOver { message, left: Left { attempts, deadline_ns, asked }, .. } = handed;
    let deadline_ns = if begun.deadline_ns > 0 { begun.deadline_ns } else { deadline_ns };
    let ticket = Ticket::open(&resources.link, Kind::Unary, caller.answers.clone());
    let arrival = begun.arrival(caller, ticket.id);
    let arrival = Arrival { message: Some(message), deadline_ns, attempts, ..arrival };
    resources.link.mailbox.push(Event::Call(Box::new(arrival)));
    let ended = by_python(&ticket, asked, answer);
    let Some(deadline) = begun.body_deadline else { return ended.await };
    timeout_at(deadline + LATE, ended).await.unwrap_or_else(|_| Err(unanswered()))
}

/// Until Python has ended the call. `asked` ends with its word: how long the client takes over the answer is no work
/// of the engine's.
async fn by_python(ticket: &Ticket, asked: Option<Asked>, answer: &mut Answer) -> Result<(), Fault> {
    let end = poll_fn(|cx| {
        ticket.slot.register(cx.waker());
        match ticket.slot.take_end() {
            Some(end) => Poll::Ready(Ok(end)),
            None => answer.poll_gone(cx).map(Err),
        }
    })
    .await?;
    drop(asked);
    answer.end(end).await
}

/// Many messages, of which Python is told as it asks for them.
async fn stream(
    service: &Service,
    caller: &Caller,
    begun: &mut Begun,
    answer: &mut Answer,
) -> Result<(), Fault> {
    let resources = &service.resources;
    let ticket = Ticket::open(&resources.link, Kind::Stream, caller.answers.clone());
    resources.link.mailbox.push(Event::Call(Box::new(begun.arrival(caller, ticket.id))));
    let (parent, window) = (
        begun.headers.get(TRACEPARENT).map(|value| value.as_bytes()),
        resources.direct.window_of(begun.method),
    );
    let metered = service.inferences.contains(&begun.method);
    let stream = Stream::new(resources, caller, &ticket, parent, begun.deadline_ns, window, metered);
    stream.serve(&mut begun.body, answer).await
}

impl Begun {
    /// Enters the request against its client's quota, if that bounds it.
    fn enter(&self, service: &Service, caller: &Caller) -> Result<Option<Hold>, Fault> {
        if !service.inferences.contains(&self.method) {
            return Ok(None);
        }
        caller.account.take(self.arrived_ns).map_err(|refusal| {
            service.resources.link.over_quota(caller.account.who(), &refusal);
            Fault::Refused(Refused::over_quota(&refusal))
        })
    }

    /// What Python is told of the call, as far as its headers say it.
    fn arrival(&self, caller: &Caller, call: u64) -> Arrival {
        Arrival {
            call,
            method: self.method,
            message: None,
            deadline_ns: self.deadline_ns,
            metadata: text_metadata(&self.headers),
            who: caller.who.clone(),
            client: caller.client.clone(),
            user: caller.user,
            arrived_ns: self.arrived_ns,
            attempts: 0,
        }
    }
}

fn begin(service: &Service, caller: &Caller, request: Request<RecvStream>) -> Result<Begun, Fault> {
    let arrived_ns = now_ns();
    let (head, stream) = request.into_parts();
    let (method, kind, size) = admit(service, &head)?;
    let room = if size > LIGHT { Some(room_for(&service.resources, caller, size)?) } else { None };
    let coding = coding(&head.headers)?;
    let timeout = timeout(&head.headers)?;
    let deadline_ns = timeout.map_or(0, |timeout| arrived_ns.saturating_add(timeout).min(i64::MAX as u64));
    let body_deadline = match kind {
        Kind::Unary => timeout.and_then(|timeout| Instant::now().checked_add(Duration::from_nanos(timeout))),
        Kind::Stream => None,
    };
    let body = RequestBody::new(service.resources.clone(), caller, stream, coding, body_deadline);
    Ok(Begun {
        method,
        kind,
        headers: head.headers,
        body,
        arrived_ns,
        deadline_ns,
        body_deadline,
        _room: room,
    })
}

/// Headers are held as long as their call, so that they count as its message does.
fn room_for(resources: &Resources, caller: &Caller, size: usize) -> Result<Reservation, Fault> {
    let mut room = caller.requests.reserve();
    room.resize(size).map_err(|over| over_budget(resources, over))?;
    Ok(room)
}

/// Which method, if the request is gRPC and the method is known, and the size of its headers.
fn admit(service: &Service, head: &request::Parts) -> Result<(u32, Kind, usize), Fault> {
    if head.method != Method::POST || !is_grpc(&head.headers) {
        return Err(Fault::NotGrpc);
    }
    let bound = service.resources.limits.size(Limit::MetadataBytes);
    let size = header_list_bytes(head);
    if size > bound {
        service.resources.statistics.strike(Limit::MetadataBytes);
        return Err(Fault::status(
            code::RESOURCE_EXHAUSTED,
            format!("the metadata of the request is larger than {bound} bytes"),
        ));
    }
    let known = service.methods.get(head.uri.path());
    let (method, kind) =
        known.copied().ok_or_else(|| Fault::status(code::UNIMPLEMENTED, "Method not found!"))?;
    Ok((method, kind, size))
}

/// Whether the content type is gRPC's own, with or without a message format or parameters; gRPC-Web is another
/// protocol.
fn is_grpc(headers: &HeaderMap) -> bool {
    let content = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let rest = content.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// The size of a header list as HTTP/2 counts it: 32 bytes for each field besides its name and value.
fn header_list_bytes(head: &request::Parts) -> usize {
    const FIELD: usize = 32;
    let pseudo =
        4 * FIELD + head.uri.path().len() + head.uri.authority().map_or(0, |name| name.as_str().len());
    head.headers.iter().map(|(key, value)| key.as_str().len() + value.len() + FIELD).sum::<usize>() + pseudo
}

/// How messages may be compressed; None: not at all.
fn coding(headers: &HeaderMap) -> Result<Option<Coding>, Fault> {
    match headers.get("grpc-encoding").map(|value| value.as_bytes()) {
        None | Some(b"identity") => Ok(None),
        Some(name) => match Coding::named(name) {
            None => Err(Fault::Encoding(String::from_utf8_lossy(name).into_owned())),
            known => Ok(known),
        },
    }
}

fn timeout(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let malformed = || {
        Fault::status(
            code::INVALID_ARGUMENT,
            "grpc-timeout is malformed: up to 8 digits and a unit of HMSmun",
        )
    };
    timeout_ns(value.as_bytes()).ok_or_else(malformed).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_its_call_and_nothing_else() {
        let statistics = Statistics::default();
        let panicked = unpanicked(&statistics, pin!(async { panic!("on purpose") })).await;
        assert!(matches!(panicked, Err(Fault::Status(code::INTERNAL, _))));
        assert!(unpanicked(&statistics, pin!(async { Ok(()) })).await.is_ok());
        assert!(matches!(unpanicked(&statistics, pin!(async { Err(Fault::Gone) })).await, Err(Fault::Gone)));
        assert!(statistics.report().any(|count| count == ("panics", 1)));
    }

    #[test]
    fn what_only_begins_like_grpc_is_not_grpc() {
        let with = |value: &'static str| HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]);
        for content in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert!(is_grpc(&with(content)), "{content}");
        }
        for content in
            ["application/grpc-web", "application/grpc-web+proto", "application/grpcx", "text/plain", ""]
        {
            assert!(!is_grpc(&with(content)), "{content}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn only_gzip_deflate_and_identity_are_spoken() {
        let with = |value: &'static str| {
            HeaderMap::from_iter([("grpc-encoding".parse().unwrap(), value.parse().unwrap())])
        };
        assert_eq!(coding(&HeaderMap::new()).unwrap(), None);
        assert_eq!(coding(&with("identity")).unwrap(), None);
        assert_eq!(coding(&with("gzip")).unwrap(), Some(Coding::Gzip));
        assert_eq!(coding(&with("deflate")).unwrap(), Some(Coding::Deflate));
        assert!(matches!(coding(&with("snappy")), Err(Fault::Encoding(name)) if name == "snappy"));
    }
}
