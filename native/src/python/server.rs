//! The classes that Python sees.

use crate::h2::service::Service;
use crate::h2::status::{add_metadata, code, trailers};
use crate::handover::calls::{Calls, End, Kind, Misuse, Slot};
use crate::handover::mailbox::Event;
use crate::http::front::{Answers, Front};
use crate::listen::listener::{self, ListeningSocket};
use crate::measure::limits::{LIMITS, Limits};
use crate::measure::lock::Lock;
use crate::python::events::{self, event_tuple};
use crate::python::fast_path::FastPath;
use crate::python::messages::{framed, pieces};
use crate::python::quotas::Quotas;
use crate::python::tls::Tls;
use crate::resources::Resources;
use crate::thread::{self, ServerThread};
use http::HeaderMap;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyTuple};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use tokio::runtime::{Handle, Runtime};

const UNARY: u8 = 0;
const STREAM: u8 = 1;

/// Adds the constants of the module.
pub(crate) fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for (name, value) in [("UNARY", UNARY), ("STREAM", STREAM)].into_iter().chain(events::NAMES) {
        module.add(name, value)?;
    }
    module.add("LIMITS", PyTuple::new(module.py(), LIMITS.iter().map(|(name, ..)| name))?)
}

enum Stage {
    Built(Runtime, Vec<ListeningSocket>),
    Serving(ServerThread),
    Closed,
}

/// The front end; see the stub of the package.
#[pyclass(frozen, module = "edge_appliance_native")]
pub(crate) struct NativeServer {
    resources: Arc<Resources>,
    service: Arc<Service>,
    runtime: Handle,
    stage: Lock<Stage>,
    /// What was said of HTTP.
    front: Lock<Option<Arc<Front>>>,
}

impl NativeServer {
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

impl NativeServer {
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
impl NativeServer {
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
        let tls = tls.map(|tls| tls.get().0.clone());
        let service = Service::new(resources.clone(), methods, inferences, tls);
        let runtime = thread::runtime(&resources)?;
        let bound = handed(&listeners, Ok)?;
        Ok(Self {
            resources,
            service: Arc::new(service),
            runtime: runtime.handle().clone(),
            stage: Lock::new(Stage::Built(runtime, bound)),
            front: Lock::default(),
        })
    }

    fn start(&self) -> PyResult<()> {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Closed) {
            Stage::Built(runtime, bound) => {
                *stage = Stage::Serving(ServerThread::start(runtime, self.service.clone(), bound)?);
                Ok(())
            }
            Stage::Serving(thread) => {
                *stage = Stage::Serving(thread);
                Err(PyRuntimeError::new_err("the front end has been started already"))
            }
            Stage::Closed => Err(PyRuntimeError::new_err("the front end is closed")),
        }
    }

    #[pyo3(signature = (*, listeners))]
    fn listen(&self, listeners: Vec<RawFd>) -> PyResult<()> {
        let Stage::Serving(thread) = &*self.stage.lock() else {
            return Err(PyRuntimeError::new_err("the front end is not serving"));
        };
        handed(&listeners, |bound| thread.listen(&self.service, bound))
    }

    #[pyo3(signature = (*, listeners, limits, hosts, server, full, crowded, plain = Vec::new(), tls = None))]
    #[allow(clippy::too_many_arguments)]
    fn serve_http(
        &self,
        listeners: Vec<RawFd>,
        limits: &Bound<'_, PyMapping>,
        hosts: Option<Vec<String>>,
        server: String,
        full: Vec<u8>,
        crowded: Vec<u8>,
        plain: Vec<u8>,
        tls: Option<&Bound<'_, Tls>>,
    ) -> PyResult<()> {
        let answers = Answers { full, crowded, plain };
        let tls = tls.map(|tls| tls.get().0.clone());
        let front = Front::new(self.resources.clone(), limit_pairs(limits)?, hosts, server, answers, tls)
            .map_err(PyValueError::new_err)?;
        *self.front.lock() = Some(Arc::new(front));
        self.listen_http(listeners)
    }

    #[pyo3(signature = (*, listeners))]
    fn listen_http(&self, listeners: Vec<RawFd>) -> PyResult<()> {
        let front = self.front.lock().clone();
        let (Stage::Serving(thread), Some(front)) = (&*self.stage.lock(), front) else {
            return Err(PyRuntimeError::new_err("the front end is not serving"));
        };
        handed(&listeners, |bound| thread.listen(&front, bound))
    }

    fn end_http(&self) {
        self.resources.end_http();
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

    fn fast_path(&self) -> FastPath {
        FastPath {
            direct: self.resources.direct.clone(),
            quotas: self.resources.quotas.clone(),
            runtime: self.runtime.clone(),
        }
    }

    fn drain(&self) {
        self.resources.drain();
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Built(..)) {
            *stage = Stage::Closed; // its listeners close here
        }
    }

    fn close(&self, py: Python<'_>) {
        let stage = std::mem::replace(&mut *self.stage.lock(), Stage::Closed);
        py.detach(|| drop(stage));
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = PyDict::new(py);
        let Resources { statistics, requests, answers, direct, .. } = &*self.resources;
        let (templates, retired) = direct.templates();
        let held = [
            ("bytes_in_flight", requests.used()),
            ("answer_bytes", answers.used()),
            ("templates", templates),
            ("templates_retired", retired),
        ];
        for (name, count) in statistics.report().chain(held) {
            report.set_item(name, count)?;
        }
        Ok(report)
    }
}

fn limit_pairs(limits: &Bound<'_, PyMapping>) -> PyResult<Vec<(String, i64)>> {
    let mut pairs = Vec::new();
    for item in limits.items()?.iter() {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        let value = value.extract::<i64>().map_err(|_| {
            PyValueError::new_err(format!("limit '{name}' is {value}; it must be a whole number"))
        })?;
        pairs.push((name, value));
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
