//! For tests: a front end with one lane, and the worker at its other end.

use crate::corpus::message;
use crate::fastpath::admission::Admission;
use crate::fastpath::direct::Direct;
use crate::fastpath::flight::Flight;
use crate::lanes::memory::{Completion, LaneMemory, ServerEnd, Submission, WorkerEnd, doorbell};
use crate::lanes::slots::{MemoryObject, Slots};
use crate::measure::clock::now_ns;
use crate::measure::limits::{LIMITS, Limits};
use crate::resources::Resources;
use crate::templates::template::TemplateSpec;
use bytes::{Bytes, BytesMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// A request message made of its parts.
pub(crate) fn rebuilt(head: &[u8], id: &[u8], tensors: &[&[u8]]) -> Bytes {
    message::rebuilt(head, id, tensors).into()
}

pub(crate) const HEAD: &[u8] = b"\x0a\x01m";
/// A page, so that what is in it can be discarded.
pub(crate) const SLOT: usize = 4096;
pub(crate) const SLOTS: usize = 8;

/// A front end with one lane, and the worker at its other end.
pub(crate) struct Rig {
    pub(crate) direct: Arc<Direct>,
    pub(crate) worker: WorkerEnd,
    /// What tensors of its lanes lie in.
    pub(crate) tensors: Arc<MemoryObject>,
}

fn descriptor(made: i32) -> OwnedFd {
    assert!(made >= 0);
    // SAFETY: just made, and with no other owner.
    unsafe { OwnedFd::from_raw_fd(made) }
}

fn object(number: u32) -> Arc<MemoryObject> {
    // SAFETY: a valid name and no other pointers.
    let memory = descriptor(unsafe { libc::memfd_create(c"tensors".as_ptr(), 0) });
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::ftruncate(memory.as_raw_fd(), (SLOT * SLOTS) as i64) }, 0);
    Arc::new(MemoryObject::map(number, memory.as_raw_fd(), SLOT * SLOTS).unwrap())
}

impl Rig {
    pub(crate) fn new() -> Self {
        let direct = Arc::new(Direct::default());
        let tensors = object(1);
        let slots = vec![(SLOT, (0..SLOTS).map(|number| number * SLOT).collect())];
        direct.attach(0, Slots::new(slots, SLOT * SLOTS).unwrap(), vec![1_000_000], 0).unwrap();
        let lane = LaneMemory::create().unwrap();
        let worker = WorkerEnd::new(LaneMemory::open(lane.fd()).unwrap(), doorbell().unwrap());
        direct.open_lane(1, 1, (ServerEnd::new(Arc::new(lane)), tensors.clone()), None).unwrap();
        direct.add_template(HEAD.to_vec(), spec(1)).unwrap();
        Self { direct, worker, tensors }
    }

    /// Another lane, whose worker does nothing.
    pub(crate) fn open_lane(&self, lane: u32, group: u32) {
        self.open_lane_with(lane, group, self.tensors.clone());
    }

    /// The same with a memory object of its own.
    pub(crate) fn open_lane_apart(&self, lane: u32, group: u32) {
        self.open_lane_with(lane, group, object(lane));
    }

    fn open_lane_with(&self, lane: u32, group: u32, object: Arc<MemoryObject>) {
        let end = ServerEnd::new(Arc::new(LaneMemory::create().unwrap()));
        self.direct.open_lane(lane, group, (end, object), None).unwrap();
    }

    /// What is in each slot of the first lane, as far as a request's tensor.
    pub(crate) fn stored(&self) -> Vec<BytesMut> {
        let of = |slot| {
            let mut stored = BytesMut::new();
            self.tensors.append_to(slot * SLOT, 8, &mut stored);
            stored
        };
        (0..SLOTS).map(of).collect()
    }

    pub(crate) fn leased() -> Self {
        let rig = Self::new();
        assert!(rig.direct.lease(1, 4));
        rig
    }

    pub(crate) fn admit(&self, deadline_ns: u64) -> Admission {
        self.direct.admit(&message(), now_ns(), deadline_ns, true)
    }

    pub(crate) fn fly(&self) -> Flight {
        let Admission::Flight(mut flight) = self.admit(0) else { panic!("not admitted") };
        assert!(flight.depart(&message()));
        *flight
    }

    pub(crate) fn complete(&mut self, status: u32) -> Submission {
        let taken = self.worker.peek(0);
        self.worker.advance(1);
        let now = now_ns();
        let (ticket, first) = (taken.ticket, 1);
        let run_ns = 10;
        let told = Completion {
            ticket,
            status,
            first,
            batch_rows: 1,
            started_ns: now,
            run_ns,
            ..Default::default()
        };
        self.worker.complete([told]);
        self.direct.collect();
        taken
    }

    pub(crate) fn free(&self) -> usize {
        self.direct.free_slots()[0]
    }
}

pub(crate) fn spec(model: u32) -> TemplateSpec {
    TemplateSpec {
        id: 1,
        kind: 1,
        model,
        group: 1,
        rows: 1,
        inputs: vec![(8, 0)],
        out_offset: 64,
        span: 128,
        opening: b"open".to_vec(),
        described: b"described".to_vec(),
        outputs: vec![(b"".to_vec(), 64, 4)],
        closing: b"closing".to_vec(),
        input_texts: Vec::new(),
        output_texts: Vec::new(),
        late_text: "too late".into(),
        default_timeout_ns: 0,
    }
}

pub(crate) fn message() -> Bytes {
    rebuilt(HEAD, b"42", &[b"12345678"])
}

/// What connections share, with this much of everything.
pub(crate) fn resources(limit: i64) -> Resources {
    let limits = Limits::new(LIMITS.iter().map(|(name, ..)| (name.to_string(), limit))).unwrap();
    Resources::new(limits, Arc::default()).unwrap()
}
