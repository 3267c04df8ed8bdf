//! The calls that Python knows and has not ended: where its orders to them are left.
//!
//! A call is in the table from its CALL event until it ends, and only what takes it out of the table ends it: Python by
//! `reply` or `finish`, or the front end, which then tells GONE. Ids count up and are never used again.

use crate::measure::budget::Budget;
use crate::measure::ids::ById;
use crate::measure::lock::Lock;
use bytes::Bytes;
use http::HeaderMap;
use std::sync::Arc;
use std::task::Waker;

/// How the requests of a method reach Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The one message comes with the call.
    Unary,
    /// Messages are asked for one by one.
    Stream,
}

/// How Python ended a call.
pub(crate) enum End {
    /// With one message, prefix included, and status 0.
    Reply(Bytes),
    /// With these trailers.
    Finish(HeaderMap),
}

/// An order that cannot be, whatever the state of the call: the caller's mistake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    /// The call is of the other kind.
    Kind(Kind),
    /// The MESSAGE that was asked for before has not come yet.
    ReadTwice,
    /// The SENT of the message before has not come yet.
    SentTwice,
}

#[derive(Default)]
struct Orders {
    read: bool,
    reading: bool,
    stop: bool,
    message: Option<Bytes>,
    sending: bool,
    end: Option<End>,
    task: Option<Waker>,
}

/// Where Python leaves its orders to one call, and the call's task finds them.
pub(crate) struct Slot {
    kind: Kind,
    answers: Arc<Budget>,
    orders: Lock<Orders>,
}

impl Slot {
    /// A slot without orders, whose answers take their memory from this budget.
    pub(crate) fn new(kind: Kind, answers: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { kind, answers, orders: Lock::default() })
    }

    /// The task to wake when there are orders.
    pub(crate) fn register(&self, task: &Waker) {
        let mut orders = self.orders.lock();
        if !orders.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            orders.task = Some(task.clone());
        }
    }

    /// Wakes the task.
    pub(crate) fn wake(&self) {
        let task = self.orders.lock().task.clone();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Takes the order to read.
    pub(crate) fn take_read(&self) -> bool {
        std::mem::take(&mut self.orders.lock().read)
    }

    /// Whether no more is to be read from the client.
    pub(crate) fn is_stopped(&self) -> bool {
        self.orders.lock().stop
    }

    /// What was read is being told; the next may be asked for.
    pub(crate) fn read_done(&self) {
        self.orders.lock().reading = false;
    }

    /// Takes the message to send.
    pub(crate) fn take_message(&self) -> Option<Bytes> {
        self.orders.lock().message.take()
    }

    /// The message was sent, which is being told; the next may be given.
    pub(crate) fn send_done(&self) {
        self.orders.lock().sending = false;
    }

    /// Takes the end of the call.
    pub(crate) fn take_end(&self) -> Option<End> {
        self.orders.lock().end.take()
    }
}

#[derive(Default)]
struct Table {
    last: u64,
    live: ById<u64, Arc<Slot>>,
}

/// The table of live calls.
#[derive(Default)]
pub(crate) struct Calls(Lock<Table>);

impl Calls {
    /// Enters a call, whose answers take their memory from this budget.
    pub(crate) fn open(&self, kind: Kind, answers: Arc<Budget>) -> (u64, Arc<Slot>) {
        let slot = Slot::new(kind, answers);
        let mut table = self.0.lock();
        table.last += 1;
        let id = table.last;
        table.live.insert(id, slot.clone());
        (id, slot)
    }

    /// Whether Python still waits for this call.
    pub(crate) fn is_live(&self, id: u64) -> bool {
        self.0.lock().live.contains_key(&id)
    }

    /// The memory for answers to this call; None when it has ended.
    pub(crate) fn answers(&self, id: u64) -> Option<Arc<Budget>> {
        self.0.lock().live.get(&id).map(|slot| slot.answers.clone())
    }

    /// By the front end: takes the call out; true when it was there, so that Python must be told.
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.0.lock().live.remove(&id).is_some()
    }

    /// By Python: asks for the next message. The slot to wake, or None when the call has ended.
    pub(crate) fn read(&self, id: u64) -> Result<Option<Arc<Slot>>, Misuse> {
        self.order(id, Some(Kind::Stream), |orders| {
            if std::mem::replace(&mut orders.reading, true) {
                return Err(Misuse::ReadTwice);
            }
            orders.read = true;
            Ok(())
        })
    }

    /// By Python: the client's side of a stream is taken to have ended.
    pub(crate) fn stop_reading(&self, id: u64) -> Result<Option<Arc<Slot>>, Misuse> {
        self.order(id, Some(Kind::Stream), |orders| {
            orders.stop = true;
            Ok(())
        })
    }

    /// By Python: one message, prefix included, to send.
    pub(crate) fn send(&self, id: u64, message: Bytes) -> Result<Option<Arc<Slot>>, Misuse> {
        self.order(id, Some(Kind::Stream), |orders| {
            if std::mem::replace(&mut orders.sending, true) {
                return Err(Misuse::SentTwice);
            }
            orders.message = Some(message);
            Ok(())
        })
    }

    /// By the front end, whatever Python wanted: ends the call, if it is of this kind. Python is then told GONE.
    pub(crate) fn break_off(
        &self,
        id: u64,
        only: Option<Kind>,
        trailers: HeaderMap,
    ) -> Result<Option<Arc<Slot>>, Misuse> {
        self.order(id, only, |orders| {
            orders.end = Some(End::Finish(trailers));
            Ok(())
        })
    }

    fn order(
        &self,
        id: u64,
        only: Option<Kind>,
        order: impl FnOnce(&mut Orders) -> Result<(), Misuse>,
    ) -> Result<Option<Arc<Slot>>, Misuse> {
        let table = self.0.lock();
        let Some(slot) = table.live.get(&id) else { return Ok(None) };
        if only.is_some_and(|kind| kind != slot.kind) {
            return Err(Misuse::Kind(slot.kind));
        }
        order(&mut slot.orders.lock())?;
        Ok(Some(slot.clone()))
    }

    /// By Python: ends the call. `only` is the kind that can end so, if not both can.
    pub(crate) fn end(&self, id: u64, only: Option<Kind>, end: End) -> Result<Option<Arc<Slot>>, Misuse> {
        let mut table = self.0.lock();
        let Some(slot) = table.live.get(&id) else { return Ok(None) };
        if only.is_some_and(|kind| kind != slot.kind) {
            return Err(Misuse::Kind(slot.kind));
        }
        slot.orders.lock().end = Some(end);
        Ok(table.live.remove(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> End {
        End::Reply(Bytes::new())
    }

    #[test]
    fn an_id_is_never_used_again() {
        let calls = Calls::default();
        let (first, _) = calls.open(Kind::Unary, Budget::new(0));
        assert!(calls.forget(first));
        let (second, _) = calls.open(Kind::Unary, Budget::new(0));
        assert_ne!(first, second);
        assert!(!calls.forget(first));
    }

    #[test]
    fn a_call_is_ended_once() {
        let calls = Calls::default();
        let (id, slot) = calls.open(Kind::Unary, Budget::new(0));
        assert!(calls.end(id, Some(Kind::Unary), reply()).unwrap().is_some());
        assert!(calls.end(id, Some(Kind::Unary), reply()).unwrap().is_none());
        assert!(!calls.forget(id), "nobody needs to be told");
        assert!(slot.take_end().is_some());
    }

    #[test]
    fn a_call_that_is_gone_takes_no_orders() {
        let calls = Calls::default();
        let (id, _) = calls.open(Kind::Stream, Budget::new(0));
        assert!(calls.forget(id));
        assert!(calls.read(id).unwrap().is_none());
        assert!(calls.send(id, Bytes::new()).unwrap().is_none());
        assert!(calls.end(id, None, End::Finish(HeaderMap::new())).unwrap().is_none());
    }

    #[test]
    fn orders_of_the_other_kind_are_mistakes_and_end_nothing() {
        let calls = Calls::default();
        let (unary, _) = calls.open(Kind::Unary, Budget::new(0));
        let (stream, _) = calls.open(Kind::Stream, Budget::new(0));
        assert_eq!(calls.read(unary).err(), Some(Misuse::Kind(Kind::Unary)));
        assert_eq!(calls.end(stream, Some(Kind::Unary), reply()).err(), Some(Misuse::Kind(Kind::Stream)));
        assert!(calls.is_live(unary) && calls.is_live(stream));
    }

    #[test]
    fn a_call_that_is_broken_off_ends_and_python_is_told() {
        let calls = Calls::default();
        let (id, slot) = calls.open(Kind::Stream, Budget::new(0));
        assert!(
            calls.break_off(id, Some(Kind::Unary), HeaderMap::new()).is_err() && slot.take_end().is_none()
        );
        assert!(calls.break_off(id, None, HeaderMap::new()).unwrap().is_some());
        assert!(slot.take_end().is_some());
        assert!(calls.forget(id), "so that GONE is told");
        assert!(calls.break_off(id, None, HeaderMap::new()).unwrap().is_none());
    }

    #[test]
    fn one_read_and_one_message_at_a_time() {
        let calls = Calls::default();
        let (id, slot) = calls.open(Kind::Stream, Budget::new(0));
        calls.read(id).unwrap();
        assert_eq!(calls.read(id).err(), Some(Misuse::ReadTwice));
        assert!(slot.take_read() && !slot.take_read());
        slot.read_done();
        calls.read(id).unwrap();
        calls.send(id, Bytes::from_static(b"1")).unwrap();
        assert_eq!(calls.send(id, Bytes::from_static(b"2")).err(), Some(Misuse::SentTwice));
        assert_eq!(slot.take_message().unwrap(), "1");
        slot.send_done();
        assert!(calls.send(id, Bytes::from_static(b"2")).unwrap().is_some());
    }
}
