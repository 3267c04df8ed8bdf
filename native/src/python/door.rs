//! The classes that Python sees.

use crate::door::DoorThread;
use crate::h2::endpoint::Endpoint;
use crate::h2::framing::{PREFIX, Prefix};
use crate::h2::service::Service;
use crate::h2::status::{add_metadata, code, trailers};
use crate::handover::calls::{Calls, End, Kind, Misuse, Slot};
use crate::handover::mailbox::{Arrival, Event, Told};
use crate::http::front::{Answers, Front};
use crate::http::service::Service as HttpService;
use crate::listen::identity::Names;
use crate::listen::listener::{self, ListeningSocket};
use crate::listen::tls;
use crate::measure::budget::{self, Budget};
use crate::measure::limits::{Limits, NAMES};
use crate::python::grants::Grants;
use crate::python::quotas::{self, Account, Quotas};
use crate::resources::Resources;
use bytes::Bytes;
use http::HeaderMap;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMapping, PyTuple};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::raw::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const UNARY: u8 = 0;
const STREAM: u8 = 1;
const CALL: u8 = 0;
const MESSAGE: u8 = 1;
const SENT: u8 = 2;
const GONE: u8 = 3;
const NEWS: u8 = 4;
const TURNED_AWAY: u8 = 5;
const HTTP: u8 = 6;
const OVER_QUOTA: u8 = 7;
const HANDSHAKE: u8 = 8;

/// Up to here a message is copied into `bytes`; above, Python reads it where it lies.
const COPIED: usize = 64 * 1024;

/// Adds the constants of the module.
pub(crate) fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for (name, value) in [
        ("UNARY", UNARY),
        ("STREAM", STREAM),
        ("CALL", CALL),
        ("MESSAGE", MESSAGE),
        ("SENT", SENT),
        ("GONE", GONE),
        ("NEWS", NEWS),
        ("TURNED_AWAY", TURNED_AWAY),
        ("HTTP", HTTP),
        ("OVER_QUOTA", OVER_QUOTA),
        ("HANDSHAKE", HANDSHAKE),
    ] {
        module.add(name, value)?;
    }
    module.add("LIMITS", PyTuple::new(module.py(), NAMES)?)
}

enum Stage {
    Built(Vec<ListeningSocket>),
    Serving(DoorThread),
    Closed,
}

/// The door; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_door")]
pub(crate) struct Door {
    resources: Arc<Resources>,
    endpoint: Arc<Endpoint>,
    http: Arc<HttpService>,
    stage: Mutex<Stage>,
    /// What was said of HTTP.
    front: Mutex<Option<Arc<Front>>>,
}

impl Door {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(
        &self,
        call: u64,
        order: impl FnOnce(&Calls) -> Result<Option<Arc<Slot>>, Misuse>,
    ) -> PyResult<bool> {
        match order(&self.resources.link.calls).map_err(|misuse| misused(call, misuse))? {
            Some(slot) => {
                self.resources.link.wakeups.wake_for(slot);
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

impl Door {
    /// The end of a call whose answer finds no room.
    fn no_room(&self) -> HeaderMap {
        trailers(code::RESOURCE_EXHAUSTED, &self.resources.no_room())
    }
}

/// Has listening sockets taken in; they stay the caller's when that fails.
fn handed<T>(
    listeners: &[RawFd],
    take_in: impl FnOnce(Vec<ListeningSocket>) -> std::io::Result<T>,
) -> PyResult<T> {
    let taken = take_in(listener::take_over(listeners).map_err(PyOSError::new_err)?)?;
    listener::leave(listeners);
    Ok(taken)
}

fn misused(call: u64, misuse: Misuse) -> PyErr {
    PyValueError::new_err(match misuse {
        Misuse::Kind(Kind::Unary) => {
            format!("call {call} is UNARY: it is ended by reply or by finish with an error")
        }
        Misuse::Kind(Kind::Stream) => format!("call {call} is a STREAM: it is answered by send and finish"),
        Misuse::ReadTwice => format!("call {call} is being read: its MESSAGE has not come yet"),
        Misuse::SentTwice => format!("call {call} is being sent to: its SENT has not come yet"),
    })
}

#[pymethods]
impl Door {
    #[new]
    #[pyo3(signature = (*, listeners, methods, limits, tls = None, quotas = None, inferences = Vec::new()))]
    fn new(
        listeners: Vec<RawFd>,
        methods: Vec<(String, u8)>,
        limits: &Bound<'_, PyMapping>,
        tls: Option<&Bound<'_, Tls>>,
        quotas: Option<&Bound<'_, Quotas>>,
        inferences: Vec<u32>,
    ) -> PyResult<Self> {
        let limits = Limits::new(limit_pairs(limits)?).map_err(PyValueError::new_err)?;
        let methods = method_table(methods)?;
        let quotas = quotas.map(|quotas| quotas.get().0.clone()).unwrap_or_default();
        let resources = Arc::new(Resources::new(limits, quotas)?);
        let service = Service { resources: resources.clone(), methods, inferences };
        let endpoint = Endpoint::new(Arc::new(service), tls.map(|tls| tls.get().0.clone()));
        let http = HttpService::new(resources.clone());
        let bound = handed(&listeners, Ok)?;
        Ok(Self {
            resources,
            endpoint: Arc::new(endpoint),
            http: Arc::new(http),
            stage: Mutex::new(Stage::Built(bound)),
            front: Mutex::default(),
        })
    }

    fn start(&self) -> PyResult<()> {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::Closed) {
            Stage::Built(bound) => {
                *stage = Stage::Serving(DoorThread::start(self.endpoint.clone(), bound)?);
                Ok(())
            }
            Stage::Serving(thread) => {
                *stage = Stage::Serving(thread);
                Err(PyRuntimeError::new_err("the door has been started already"))
            }
            Stage::Closed => Err(PyRuntimeError::new_err("the door is closed")),
        }
    }

    #[pyo3(signature = (*, listeners))]
    fn listen(&self, listeners: Vec<RawFd>) -> PyResult<()> {
        let Stage::Serving(thread) = &*self.stage() else {
            return Err(PyRuntimeError::new_err("the door is not serving"));
        };
        handed(&listeners, |bound| thread.listen(bound))
    }

    #[pyo3(signature = (*, listeners, limits, server, full, crowded, plain = Vec::new(), tls = None))]
    #[allow(clippy::too_many_arguments)]
    fn serve_http(
        &self,
        listeners: Vec<RawFd>,
        limits: &Bound<'_, PyMapping>,
        server: String,
        full: Vec<u8>,
        crowded: Vec<u8>,
        plain: Vec<u8>,
        tls: Option<&Bound<'_, Tls>>,
    ) -> PyResult<()> {
        let answers = Answers { full, crowded, plain };
        let tls = tls.map(|tls| tls.get().0.clone());
        let front = Front::new(self.http.clone(), &limit_pairs(limits)?, server, answers, tls)
            .map_err(PyValueError::new_err)?;
        *self.front.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(front));
        self.listen_http(listeners)
    }

    #[pyo3(signature = (*, listeners))]
    fn listen_http(&self, listeners: Vec<RawFd>) -> PyResult<()> {
        let front = self.front.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (Stage::Serving(thread), Some(front)) = (&*self.stage(), front) else {
            return Err(PyRuntimeError::new_err("the door is not serving"));
        };
        handed(&listeners, |bound| thread.serve_http(&front, bound))
    }

    fn end_http(&self) {
        self.http.end();
    }

    fn fileno(&self) -> RawFd {
        self.resources.link.mailbox.descriptor()
    }

    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let events = self.resources.link.mailbox.take().map_err(PyRuntimeError::new_err)?;
        let mut told = Vec::with_capacity(events.len());
        for event in events {
            let call = event.call();
            let ends = matches!(event, Event::Gone(_));
            match event_tuple(py, event) {
                Ok(tuple) => told.push(tuple),
                // The others must not be lost with it. The memory is at its end: that call cannot go on.
                Err(error) => {
                    error.write_unraisable(py, None);
                    if ends {
                        self.resources.link.mailbox.push(Event::Gone(call));
                    } else {
                        let end = trailers(code::INTERNAL, "the request could not be handed over");
                        self.order(call, |calls| calls.break_off(call, None, end))?;
                    }
                }
            }
        }
        PyList::new(py, told)
    }

    fn reply(&self, call: u64, message: &Bound<'_, PyAny>) -> PyResult<bool> {
        let pieces = pieces(message)?;
        let Some(answers) = self.resources.link.calls.answers(call) else { return Ok(false) };
        let end = match framed(&pieces, &answers)? {
            Some(message) => End::Reply(message),
            None => End::Finish(self.no_room()),
        };
        self.order(call, |calls| calls.end(call, Some(Kind::Unary), end))
    }

    fn read(&self, call: u64) -> PyResult<bool> {
        self.order(call, |calls| calls.read(call))
    }

    fn stop_reading(&self, call: u64) -> PyResult<bool> {
        self.order(call, |calls| calls.stop_reading(call))
    }

    fn send(&self, call: u64, message: &Bound<'_, PyAny>) -> PyResult<bool> {
        let pieces = pieces(message)?;
        let Some(answers) = self.resources.link.calls.answers(call) else { return Ok(false) };
        match framed(&pieces, &answers)? {
            Some(message) => self.order(call, |calls| calls.send(call, message)),
            None => self.order(call, |calls| calls.break_off(call, Some(Kind::Stream), self.no_room())),
        }
    }

    #[pyo3(signature = (call, code, text = "", metadata = Vec::new()))]
    fn finish(&self, call: u64, code: u32, text: &str, metadata: Vec<(String, String)>) -> PyResult<bool> {
        if code > code::LAST {
            return Err(PyValueError::new_err(format!("{code} is not a gRPC status code: they are 0 to 16")));
        }
        let mut trailers = trailers(code, text);
        for (key, value) in metadata {
            add_metadata(&mut trailers, &key, &value).map_err(PyValueError::new_err)?;
        }
        let only = (code == 0).then_some(Kind::Stream); // a good end of a unary call has a message
        self.order(call, |calls| calls.end(call, only, End::Finish(trailers)))
    }

    fn grants(&self) -> Grants {
        Grants(self.resources.direct.clone())
    }

    fn drain(&self) {
        self.resources.drain();
        let mut stage = self.stage();
        if matches!(*stage, Stage::Built(_)) {
            *stage = Stage::Closed; // its listeners close here
        }
    }

    fn close(&self, py: Python<'_>) {
        let stage = std::mem::replace(&mut *self.stage(), Stage::Closed);
        py.detach(|| drop(stage));
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = PyDict::new(py);
        let Resources { statistics, requests, answers, .. } = &*self.resources;
        for (name, count) in statistics.report(requests.used(), answers.used()) {
            report.set_item(name, count)?;
        }
        for (name, count) in self.endpoint.handshakes.report().chain(self.http.figures.report()) {
            report.set_item(name, count)?;
        }
        Ok(report)
    }
}

fn limit_pairs(limits: &Bound<'_, PyMapping>) -> PyResult<Vec<(String, i128)>> {
    let mut pairs = Vec::new();
    for item in limits.items()?.iter() {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        let value = value.extract::<i64>().map_err(|_| {
            PyValueError::new_err(format!("limit '{name}' is {value}; it must be a whole number"))
        })?;
        pairs.push((name, i128::from(value)));
    }
    Ok(pairs)
}

fn method_table(methods: Vec<(String, u8)>) -> PyResult<HashMap<String, (u32, Kind)>> {
    let mut table = HashMap::with_capacity(methods.len());
    for (index, (path, kind)) in methods.into_iter().enumerate() {
        let kind = match kind {
            UNARY => Kind::Unary,
            STREAM => Kind::Stream,
            _ => return Err(PyValueError::new_err(format!("method '{path}' is neither UNARY nor STREAM"))),
        };
        if !path.starts_with('/') {
            return Err(PyValueError::new_err(format!(
                "method '{path}' is not of the form /package.Service/Method"
            )));
        }
        let index = u32::try_from(index).map_err(|_| PyValueError::new_err("too many methods"))?;
        if table.insert(path.clone(), (index, kind)).is_some() {
            return Err(PyValueError::new_err(format!("method '{path}' is given twice")));
        }
    }
    Ok(table)
}

fn event_tuple(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyTuple>> {
    match event {
        Event::Call(arrival) => call_tuple(py, *arrival),
        Event::Message(call, None) => (MESSAGE, call, py.None(), 0, 0, py.None(), 0).into_pyobject(py),
        Event::Message(call, Some(Told { message, arrived_ns, attempts, deadline_ns, refusal })) => {
            let (message, over) = (handed_over(py, Some(message))?, quotas::told(refusal));
            (MESSAGE, call, message, attempts, deadline_ns, over, arrived_ns).into_pyobject(py)
        }
        Event::Sent(call) => (SENT, call).into_pyobject(py),
        Event::Gone(call) => (GONE, call).into_pyobject(py),
        Event::News => (NEWS,).into_pyobject(py),
        Event::TurnedAway(peer, client, section) => (TURNED_AWAY, &*peer, client, section).into_pyobject(py),
        Event::Handshake(peer, why, text) => (HANDSHAKE, &*peer, why, text).into_pyobject(py),
        Event::OverQuota(client, reason) => (OVER_QUOTA, client, reason).into_pyobject(py),
        Event::Http(connection, peer, attempts, client, entry) => {
            let account = Account(entry);
            let told =
                (HTTP, connection.as_raw_fd(), &*peer, attempts, &*client, account).into_pyobject(py)?;
            let _ = connection.into_raw_fd(); // Python's from here on
            Ok(told)
        }
    }
}

fn call_tuple(py: Python<'_>, arrival: Arrival) -> PyResult<Bound<'_, PyTuple>> {
    let Arrival { call, method, message, deadline_ns, metadata, peer, attempts, client, arrived_ns } =
        arrival;
    let message = handed_over(py, message)?;
    let pairs = metadata.iter().map(|(key, value)| (key.as_str(), value.to_str().unwrap_or_default()));
    let metadata = PyTuple::new(py, pairs.collect::<Vec<_>>())?;
    (CALL, call, method, message, deadline_ns, metadata, &*peer, attempts, &*client, arrived_ns)
        .into_pyobject(py)
}

/// A message as Python gets it. What is copied gives its memory back here, what is not when Python drops it.
fn handed_over(py: Python<'_>, message: Option<budget::Message>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(message) = message else { return Ok(None) };
    if message.bytes.len() <= COPIED {
        return Ok(Some(PyBytes::new(py, &message.bytes).into_any()));
    }
    Ok(Some(Bound::new(py, Message(message))?.into_any()))
}

/// The pieces of a message from Python, or its only one.
fn pieces<'py>(message: &Bound<'py, PyAny>) -> PyResult<Vec<Piece<'py>>> {
    if let Ok(whole) = Piece::new(message) {
        return Ok(vec![whole]);
    }
    let wrong = || PyTypeError::new_err("a message is bytes, or a sequence of bytes and memoryviews");
    let pieces = message.try_iter().map_err(|_| wrong())?;
    pieces.map(|piece| Piece::new(&piece?)).collect()
}

/// A message from Python, with its prefix, copied; None when the budget has no room for it.
fn framed(pieces: &[Piece<'_>], answers: &Arc<Budget>) -> PyResult<Option<Bytes>> {
    let length = pieces.iter().map(Piece::len).sum();
    let prefix = Prefix::encode(length).ok_or_else(|| {
        PyValueError::new_err(format!("a message of {length} bytes is longer than gRPC can carry"))
    })?;
    let mut reservation = answers.reserve();
    if reservation.resize(PREFIX + length).is_err() {
        return Ok(None);
    }
    let mut frame = Vec::with_capacity(PREFIX + length);
    frame.extend_from_slice(&prefix);
    for piece in pieces {
        piece.append_to(&mut frame);
    }
    Ok(Some(reservation.hold(frame)))
}

/// A piece of a message, borrowed from Python.
enum Piece<'py> {
    Bytes(Bound<'py, PyBytes>),
    Buffer(PyUntypedBuffer),
}

impl<'py> Piece<'py> {
    fn new(piece: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = piece.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        let buffer = PyUntypedBuffer::get(piece)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("a piece of a message is not contiguous"));
        }
        Ok(Self::Buffer(buffer))
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes().len(),
            Self::Buffer(buffer) => buffer.len_bytes(),
        }
    }

    fn append_to(&self, frame: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => frame.extend_from_slice(bytes.as_bytes()),
            Self::Buffer(buffer) if buffer.len_bytes() == 0 => {}
            // SAFETY: the buffer is contiguous, held by `self`, and this thread holds the interpreter's lock, so that
            // no Python code writes to it meanwhile.
            Self::Buffer(buffer) => frame.extend_from_slice(unsafe {
                std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
            }),
        }
    }
}

/// A request message that is too large to copy: bytes that Python reads where they lie.
#[pyclass(frozen, module = "edge_appliance_door")]
pub(crate) struct Message(budget::Message);

#[pymethods]
impl Message {
    fn __len__(&self) -> usize {
        self.0.bytes.len()
    }

    /// Fills a view that keeps this object, and so the memory, alive.
    ///
    /// # Safety
    /// As the buffer protocol demands: `view` is valid or null.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0.bytes;
        // SAFETY: the view takes a reference to the object, which is frozen and owns the bytes; read-only.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len() as ffi::Py_ssize_t,
                1,
                flags,
            )
        };
        if result == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Server certificates; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_door")]
pub(crate) struct Tls(Arc<tls::Tls>);

#[pymethods]
impl Tls {
    #[new]
    #[pyo3(signature = (
        certificate, key, client_ca = b"".as_slice(), client_names = Vec::new(), protocol = "h2".into()
    ))]
    fn new(
        certificate: &[u8],
        key: &[u8],
        client_ca: &[u8],
        client_names: Vec<String>,
        protocol: String,
    ) -> PyResult<Self> {
        let names = Names::new(client_names);
        let tls =
            tls::Tls::new(certificate, key, client_ca, names, protocol).map_err(PyValueError::new_err)?;
        Ok(Self(Arc::new(tls)))
    }

    #[pyo3(signature = (certificate, key, client_ca = b"".as_slice()))]
    fn reload(&self, certificate: &[u8], key: &[u8], client_ca: &[u8]) -> PyResult<()> {
        self.0.reload(certificate, key, client_ca).map_err(PyValueError::new_err)
    }
}
