"""The log: structured lines for people (console) or machines (JSON).

structlog is used here and nowhere else. One line per failed or slow request and none per request that went well; so
many request lines a second at most, and the next one says how many were left out. Nothing here raises or blocks once it
is configured: lines go through a Sink. The standard library's logging ends up in the same place.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from appliance.config.telemetry import LogConfig, LogFormat, LogLevel
from appliance.domain.model import ModelVersion
from appliance.telemetry.log_file import STDERR, target_of
from appliance.telemetry.log_settings import LogSettings, Setting
from appliance.telemetry.log_text import bounded, printable
from appliance.telemetry.meter import Result
from appliance.telemetry.request_line import LineBudget, LoggedRequest, request_fields, slow_fields
from appliance.telemetry.sink import Sink, SinkStatistics


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Import something as if ``package`` were not installed: structlog would load rich for its coloured tracebacks,
    which costs a start 110 ms and 6 MB and is never used here."""
    there = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if there is None:
            del sys.modules[package]
        else:
            sys.modules[package] = there


with _without("rich"):
    import structlog

Listener = Callable[[str, Mapping[str, object], bool], None]
"""Is told what happened, its fields, and whether that is trouble."""

CLOSE_S: Final = 2.0
QUEUE_LINES: Final = 10_000
"""Lines that may wait to be written: some seconds of a disk that stalls, at a few megabytes."""
LIBRARY_LINES_PER_S: Final = 20
"""Lines by libraries in a second: a traceback for each client that goes away would drown our own."""


_URGENT: Final = frozenset({Result.FAILED})
_QUIET: Final = frozenset({Result.INVALID, Result.CANCELLED})


class LogControl:
    """Writes lines and knows what is written. ``clock`` is monotonic nanoseconds."""

    def __init__(self, config: LogConfig, sink: Sink, colours: bool, clock: Callable[[], int]) -> None:
        self._settings = LogSettings(config)
        self._sink = sink
        self._clock = clock
        self._budget = LineBudget(config.request_lines_per_s)
        self._lost = 0
        self._listener: Listener | None = None
        console = config.format is LogFormat.CONSOLE
        self._logger = structlog.wrap_logger(
            _SinkLogger(sink),
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                bounded,
                *(_console(colours) if console else (structlog.processors.JSONRenderer(default=str),)),
            ],
            wrapper_class=structlog.BoundLogger,
        ).bind()  # once: else each line makes a logger of its own, which refers to itself and waits for the collector

    def event(self, what: str, **fields: object) -> None:
        """Write what happened; a warning when a ``reason`` or an ``error`` is given, else information."""
        troubled = bool(fields.get("reason") or fields.get("error"))
        if self._listener is not None:
            self._listener(what, fields, troubled)
        self.line(LogLevel.WARNING if troubled else LogLevel.INFO, what, fields)

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` called with each event from now on, in the thread that tells it."""
        self._listener = listener

    def request(
        self, *, request: LoggedRequest, result: Result, error: Exception | None, total_ns: int
    ) -> None:
        """Write the line of one failed or slow request."""
        if self._may_tell(result):
            what = "request" if error else "slow request"
            self._tell(what, result, request_fields(request, result, error, total_ns))

    def slow(self, *, model: ModelVersion, request_id: str, client: str, stages_ns: Sequence[int]) -> None:
        """Write the line of one slow request that the front end served by itself."""
        if self._may_tell(Result.SUCCESS):
            self._tell("slow request", Result.SUCCESS, slow_fields(model, request_id, client, stages_ns))

    def rejected(
        self,
        *,
        model: str,
        version: int,
        request_id: str,
        client: str,
        result: Result,
        error: Exception,
    ) -> None:
        """Write the line of one request that was refused before it became one."""
        if not self._may_tell(result):
            return
        fields: dict[str, object] = {
            "outcome": result.value,
            "request_id": request_id,
            "error": str(error),
        }
        if model:
            fields |= {"model": model, "version": version}
        if client:
            fields["client"] = client
        self._tell("request", result, fields)

    def _may_tell(self, result: Result) -> bool:
        """Whether a request that ended so has a line, by its level and how many there were in this second."""
        return self._settings.has(_level_of(result)) and self._budget.take(self._clock())

    def _tell(self, what: str, result: Result, fields: dict[str, object]) -> None:
        if left_out := self._budget.left_out():
            fields["lines_left_out"] = left_out
        self.line(_level_of(result), what, fields)

    def line(self, level: LogLevel, what: str, fields: Mapping[str, object]) -> None:
        """Write one line, when ``level`` is on. It says how many were lost since the start, when more were."""
        if not self._settings.has(level):
            return
        lost = self._sink.lost
        if lost != self._lost:
            fields = {**fields, "lines_lost": lost}
            self._lost = lost
        self._logger.msg(what, level=level.value, **fields)

    def settings(self) -> Mapping[str, Setting]:
        """The settings in force, by the names of the logging extension."""
        return self._settings.values()

    def update(self, changes: Mapping[str, Setting]) -> None:
        """Change some settings, all or none. Raises as ``LogSettings.update``."""
        self._settings.update(changes)
        logging.getLogger().setLevel(self.library_level)

    @property
    def library_level(self) -> int:
        """See LogSettings."""
        return self._settings.library_level

    def statistics(self) -> SinkStatistics:
        """Lines written and lost."""
        return self._sink.statistics()

    def close(self) -> None:
        """Write what is queued, within CLOSE_S seconds."""
        self._sink.close(CLOSE_S)


def configure(config: LogConfig, clock: Callable[[], int] = time.monotonic_ns) -> LogControl:
    """Open the log and lead the standard library's logging into it. Raises OperatorError when the file cannot be
    opened. Called once, by a composition root."""
    colours = not config.file and os.isatty(STDERR)
    chosen = config
    if config.format is LogFormat.AUTO:
        chosen = replace(config, format=LogFormat.CONSOLE if colours else LogFormat.JSON)
    control = LogControl(chosen, Sink(target_of(config), QUEUE_LINES), colours, clock)
    bridge = _Bridge(control, clock)
    logging.raiseExceptions = False
    logging.basicConfig(level=control.library_level, handlers=[bridge], force=True)
    atexit.register(control.close)
    return control


def _level_of(result: Result) -> LogLevel:
    if result in _URGENT:
        return LogLevel.ERROR
    return LogLevel.INFO if result in _QUIET else LogLevel.WARNING


class _SinkLogger:
    """What structlog hands finished lines to."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def msg(self, line: str) -> None:
        self._sink.write(line.encode("utf-8", "backslashreplace") + b"\n")


class _Bridge(logging.Handler):
    """Turns records of the standard library's logging into lines, LIBRARY_LINES_PER_S at the most."""

    def __init__(self, control: LogControl, clock: Callable[[], int]) -> None:
        super().__init__()
        self._control = control
        self._budget = LineBudget(LIBRARY_LINES_PER_S)
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        if not self._budget.take(self._clock()):
            return
        try:
            fields: dict[str, object] = {"logger": record.name}
            if left_out := self._budget.left_out():
                fields["lines_left_out"] = left_out
            if record.exc_info:
                fields["exception"] = logging.Formatter().formatException(record.exc_info)
            self._control.line(_level_of_record(record.levelno), record.getMessage(), fields)
        except Exception:  # noqa: BLE001 - a record that cannot be formatted must not break what logs it
            self._control.event("unreadable log record", logger=record.name)


def _level_of_record(number: int) -> LogLevel:
    if number >= logging.ERROR:
        return LogLevel.ERROR
    if number >= logging.WARNING:
        return LogLevel.WARNING
    return LogLevel.INFO if number >= logging.INFO else LogLevel.DEBUG


def _console(colours: bool) -> tuple[Any, ...]:
    renderer = structlog.dev.ConsoleRenderer(24, colors=colours, sort_keys=False, timestamp_key="time")
    return (printable, renderer)
