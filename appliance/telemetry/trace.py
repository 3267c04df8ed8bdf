"""Traces of single requests, some of them: where the time of each went, stage by stage, as OpenTelemetry reads it.

A request that is not traced costs a count. One that is gets a Trace, into which its front end and the engine write when
it was where; nothing here decides what becomes of it. Lines are written by a Sink, so that nothing here blocks or
raises once the file is open.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from appliance import __version__
from appliance.config.telemetry import TraceConfig
from appliance.domain.errors import OperatorError, Unsupported
from appliance.domain.model import ModelVersion
from appliance.domain.protocol import SERVER_NAME
from appliance.store.full_disk import reason_of
from appliance.telemetry.exemplars import Exemplar, Exemplars
from appliance.telemetry.meter import Result
from appliance.telemetry.otlp import Parent, Told, parent_of, trace_id_of, trace_line
from appliance.telemetry.request_line import LineBudget, LoggedRequest
from appliance.telemetry.sink import FileTarget, Sink
from appliance.telemetry.snapshot import TraceFigures

SPAN: Final = "infer"
"""What a request is called in its trace."""
TRACEPARENT: Final = "traceparent"
CLOSE_S: Final = 2.0
QUEUE_LINES: Final = 1_000
"""Traces that may wait to be written: ten seconds of a disk that stalls, at the usual bound."""
TELL_NS: Final = 10_000_000_000
"""Between two lines of the log that tell how many traces were left out."""
TEXT_MAX: Final = 256
"""Characters of what clients choose, such as ids."""


class Traced(LoggedRequest, Protocol):
    """A request of the engine's that has ended."""

    @property
    def worker(self) -> int:
        """The worker that served it; negative: none."""


class Trace:
    """One request on its way, in nanoseconds of the monotonic clock. Its edge makes it and ends it."""

    __slots__ = (
        "_stamps_ns",
        "admitted_ns",
        "arrived_ns",
        "attributes",
        "edge",
        "error",
        "parent",
        "replied_ns",
    )

    def __init__(self, edge: str, arrived_ns: int, parent: Parent | None) -> None:
        self.edge = edge
        self.parent = parent
        self.arrived_ns = arrived_ns
        self.admitted_ns = 0
        self._stamps_ns = (0, 0, 0, 0, 0)
        self.replied_ns = 0
        self.attributes: dict[str, str | int] = {}
        self.error = ""

    def ended(self, request: Traced, result: Result, error: Exception | None, now_ns: int) -> None:
        """What the engine knows. A worker tells how long its steps took, not when: they are taken to have ended when
        the engine heard of it, so that the way back counts as part of the hand-over."""
        model = request.plan.model
        self.attributes = _described(model, request.request_id, "asked", request.worker, request.plan.rows)
        self.attributes |= {
            "appliance.outcome": result.value,
            "appliance.batch.rows": request.batch_rows,
            "appliance.attempts": request.attempts,
        }
        self.error = "" if error is None else str(error)
        if not request.dispatched_ns:
            return
        self._stamps_ns = (request.dispatched_ns, 0, 0, 0, 0)
        if request.batch_rows:
            gather_ns, run_ns, scatter_ns = request.stages_ns
            ran_ns = now_ns - scatter_ns
            gathered_ns = ran_ns - run_ns
            steps_ns = (gathered_ns - gather_ns, gathered_ns, ran_ns, now_ns)
            taken, gathered, ran, split = (max(request.dispatched_ns, step_ns) for step_ns in steps_ns)
            self._stamps_ns = (request.dispatched_ns, taken, gathered, ran, split)

    @property
    def stamps_ns(self) -> tuple[int, ...]:
        """When it arrived, was admitted, was dispatched, was taken by the worker, was in a batch, had run, had its
        outputs split off, and was answered; 0: never."""
        return (self.arrived_ns, self.admitted_ns, *self._stamps_ns, self.replied_ns)


class Tracer:
    """Says which requests are traced, and writes what became of them; ``say`` puts into the log that there were
    too many. Clocks are ``now_ns``, monotonic, and ``wall_ns``. Owner: the event loop's thread."""

    def __init__(
        self,
        config: TraceConfig,
        sink: Sink,
        say: Callable[..., None],
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        random_bits: Callable[[int], int] = random.getrandbits,
    ) -> None:
        self.one_in = config.one_in
        self._sink = sink
        self._say = say
        self._now_ns = now_ns
        self._wall_ns = wall_ns
        self._random_bits = random_bits
        self._per_s = config.traces_per_s
        self._budget = LineBudget(config.traces_per_s)
        self._left_out = 0
        self._silent_until_ns = 0
        self._seen = 0
        self._exemplars = Exemplars()
        self._resource: Mapping[str, str | int] = {
            "service.name": SERVER_NAME,
            "service.version": __version__,
            "process.pid": os.getpid(),
        }

    def begin(self, edge: str, arrived_ns: int, traceparent: str) -> Trace | None:
        """A request has arrived at ``edge``; ``traceparent`` is its client's ("": it sent none). None: it is not
        traced. Whether there is room for its trace is asked when that is to be written: much never is."""
        self._seen += 1
        parent = parent_of(traceparent) if traceparent else None
        wanted = parent.sampled if parent else self._seen % self.one_in == 0
        return Trace(edge, arrived_ns, parent) if wanted else None

    def end(self, trace: Trace, client: str = "") -> None:
        """Its answer was given to the transport. ``client`` is who it is by its certificate. What never became a
        request of the engine's is not written."""
        if trace.attributes and self._has_room():
            trace.replied_ns = self._now_ns()
            self._write(trace, trace.stamps_ns, client)

    def leased(self, model: ModelVersion, told: tuple[int, int, int, bytes, bytes, tuple[int, ...]]) -> None:
        """A request was served under a lease: what the front end told of it."""
        _, lane, rows, request_id, traceparent, stamps_ns = told
        parent = parent_of(traceparent.decode("ascii", "replace"))
        if (parent is not None and not parent.sampled) or not self._has_room():
            return
        trace = Trace("", stamps_ns[0], parent)
        trace.attributes = _described(model, request_id.decode(errors="replace"), "leased", lane, rows)
        trace.attributes["appliance.outcome"] = Result.SUCCESS.value
        self._write(trace, stamps_ns, "")

    def figures(self) -> TraceFigures:
        """What ``/metrics`` tells of traces."""
        sink = self._sink.statistics()
        return TraceFigures(
            written=sink.written,
            left_out=self._left_out,
            lost=sink.lost,
            exemplars=self._exemplars.frozen(),
        )

    def close(self) -> None:
        """Write what is queued, within CLOSE_S seconds."""
        self._tell()
        self._sink.close(CLOSE_S)

    def _has_room(self) -> bool:
        """Whether one more trace may be written in this second; counts it as left out when not."""
        now_ns = self._now_ns()
        if not self._budget.take(now_ns):
            self._left_out += 1
            return False
        if now_ns >= self._silent_until_ns and self._tell():
            self._silent_until_ns = now_ns + TELL_NS
        return True

    def _tell(self) -> int:
        """Say how many were left out since this was said last; gives that number."""
        count = self._budget.left_out()
        if count:
            reason = f"trace.traces_per_s allows {self._per_s} in a second"
            self._say("traces were left out", traces=count, reason=reason)
        return count

    def _write(self, trace: Trace, stamps_ns: Sequence[int], client: str) -> None:
        if trace.edge:
            trace.attributes["appliance.edge"] = trace.edge
        if client:
            trace.attributes["appliance.client"] = client
        offset_ns = self._wall_ns() - self._now_ns()
        # Of a clock that was set to its beginning, nothing is before that.
        stamps_ns = [max(stamp_ns + offset_ns, 1) if stamp_ns else 0 for stamp_ns in stamps_ns]
        trace_id = trace_id_of(trace.parent, self._random_bits)
        if trace.attributes.get("appliance.outcome") == Result.SUCCESS.value:
            name, version = (
                str(trace.attributes["appliance.model"]),
                int(trace.attributes["appliance.model.version"]),
            )
            end_ns = max(stamps_ns)
            self._exemplars.add(name, version, Exemplar(trace_id, end_ns - stamps_ns[0], end_ns))
        told = Told(SPAN, trace_id, trace.parent, stamps_ns, trace.attributes, trace.error[:TEXT_MAX])
        self._sink.write(trace_line(told, self._resource, self._random_bits))


def open_tracer(config: TraceConfig, say: Callable[..., None]) -> Tracer | None:
    """A tracer that writes to the configured file and tells the log through ``say``; None when nothing is to be traced.
    Raises OperatorError when the file cannot be opened."""
    if not config.one_in:
        return None
    try:
        target = FileTarget(Path(config.file), config.max_file_bytes)
    except OSError as error:
        raise OperatorError(
            f"trace file '{config.file}' cannot be opened: {error.strerror}; change trace.file in the configuration"
        ) from error

    def failed(error: OSError) -> None:
        """Called by the sink's thread."""
        say("traces cannot be written", error=reason_of(error, config.file))

    return Tracer(config, Sink(target, QUEUE_LINES, "traces", failed), say)


TRACE_SETTINGS: Final = frozenset(
    ("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency", "trace_mode")
)
"""The settings of the trace extension."""


def trace_settings(tracer: Tracer | None) -> Mapping[str, tuple[str, ...]]:
    """What is in force, by the names and in the words of the trace extension; ``tracer`` None: nothing is traced."""
    if tracer is None:
        return {"trace_level": ("OFF",)}
    return {"trace_level": ("TIMESTAMPS",), "trace_rate": (str(tracer.one_in),)}


def check_trace_setting(tracer: Tracer | None, key: str, values: Sequence[object]) -> None:
    """Raise Unsupported for ``values`` of setting ``key`` that would change it; none, or None, asks for what is
    configured, which no client has changed."""
    now = trace_settings(tracer)
    if key in TRACE_SETTINGS and all(value is None for value in values):
        return
    if key in now and all(str(value) in now[key] for value in values):
        return
    in_force = ", ".join(f"{name} is {' '.join(words)}" for name, words in now.items())
    raise Unsupported(
        f"trace setting '{key}' cannot be {list(values)}: changing request tracing is not offered, it belongs to the "
        f"[trace] section of the configuration; {in_force}"
    )


def _described(
    model: ModelVersion, request_id: str, path: str, worker: int, rows: int
) -> dict[str, str | int]:
    return {
        "appliance.request.id": request_id[:TEXT_MAX],
        "appliance.model": model.name,
        "appliance.model.version": model.version,
        "appliance.path": path,
        "appliance.worker": worker,
        "appliance.rows": rows,
    }
