"""The log: structured lines for people (console) or machines (JSON), and the settings that clients may change.

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
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from appliance.config.telemetry import LogConfig, LogFormat, LogLevel
from appliance.domain.errors import InvalidRequest, OperatorError, Unsupported
from appliance.domain.model import ModelVersion
from appliance.telemetry.meter import Result
from appliance.telemetry.request_line import LineBudget, LoggedRequest, request_fields, slow_fields
from appliance.telemetry.sink import DescriptorTarget, FileTarget, Sink, SinkStatistics, Target


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

Setting = bool | int | str
Listener = Callable[[str, Mapping[str, object], bool], None]
"""Is told what happened, its fields, and whether that is trouble."""

STDERR: Final = 2
CLOSE_S: Final = 2.0
QUEUE_LINES: Final = 10_000
"""Lines that may wait to be written: some seconds of a disk that stalls, at a few megabytes."""
LIBRARY_LINES_PER_S: Final = 20
"""Lines by libraries in a second: a traceback for each client that goes away would drown our own."""
MAX_TEXT: Final = 2_000
TIME_FORMAT: Final = "ISO8601"


def file_problems(file: str) -> Iterator[str]:
    """What keeps ``file`` from being appended to and, unless it is a device or a pipe, from being moved away when it is
    full. Creates nothing; empty is standard error."""
    if not file:
        return
    folder = os.path.dirname(file) or "."
    moved = os.path.isfile(file) or not os.path.exists(file)
    if os.path.isdir(file):
        yield f"'{file}' is a directory; give the name of a file in it"
    elif moved and not os.path.isdir(folder):
        yield f"directory '{folder}' does not exist; make it, or give a file in another one"
    elif moved and not os.access(folder, os.W_OK | os.X_OK):
        yield f"directory '{folder}' is not writable; allow it, or give a file in another one"
    elif os.path.exists(file) and not os.access(file, os.W_OK):
        yield f"'{file}' is not writable; allow it, or give another file"


_URGENT: Final = frozenset({Result.FAILED})
_QUIET: Final = frozenset({Result.INVALID, Result.CANCELLED})


class LogControl:
    """Writes lines and knows what is written. ``clock`` is monotonic nanoseconds."""

    def __init__(self, config: LogConfig, sink: Sink, colours: bool, clock: Callable[[], int]) -> None:
        self._config = config
        self._sink = sink
        self._clock = clock
        self._budget = LineBudget(config.request_lines_per_s)
        self._lost = 0
        self._listener: Listener | None = None
        order = list(LogLevel)
        self._enabled = set(order[order.index(config.level) :])
        console = config.format is LogFormat.CONSOLE
        self._logger = structlog.wrap_logger(
            _SinkLogger(sink),
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                _bounded,
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
        return _level_of(result) in self._enabled and self._budget.take(self._clock())

    def _tell(self, what: str, result: Result, fields: dict[str, object]) -> None:
        if left_out := self._budget.left_out():
            fields["lines_left_out"] = left_out
        self.line(_level_of(result), what, fields)

    def line(self, level: LogLevel, what: str, fields: Mapping[str, object]) -> None:
        """Write one line, when ``level`` is on. It says how many were lost since the start, when more were."""
        if level not in self._enabled:
            return
        lost = self._sink.lost
        if lost != self._lost:
            fields = {**fields, "lines_lost": lost}
            self._lost = lost
        self._logger.msg(what, level=level.value, **fields)

    def settings(self) -> Mapping[str, Setting]:
        """The settings in force, by the names of the logging extension."""
        return {
            "log_file": self._config.file,
            "log_info": LogLevel.INFO in self._enabled,
            "log_warning": LogLevel.WARNING in self._enabled,
            "log_error": LogLevel.ERROR in self._enabled,
            "log_verbose_level": int(LogLevel.DEBUG in self._enabled),
            "log_format": TIME_FORMAT,
        }

    def update(self, changes: Mapping[str, Setting]) -> None:
        """Change some settings, all or none. Raises InvalidRequest for a key or a type that the extension does not
        have and Unsupported for what only the configuration can change."""
        for key, value in changes.items():
            self._check(key, value)
        for key, value in changes.items():
            if key in _SWITCHES:
                (self._enabled.add if value else self._enabled.discard)(_SWITCHES[key])
        logging.getLogger().setLevel(self.library_level)

    def _check(self, key: str, value: Setting) -> None:
        now = self.settings().get(key)
        if now is None:
            raise InvalidRequest(
                f"log setting '{key}' is not known; the settings are {', '.join(self.settings())}"
            )
        if type(value) is not type(now):
            raise InvalidRequest(f"log setting '{key}' must be {_TYPE_WORDS[type(now)]}, got {value!r}")
        if isinstance(value, int) and value < 0:
            raise InvalidRequest(f"log setting '{key}' must not be negative, got {value}")
        if key not in _SWITCHES and value != now:
            raise Unsupported(
                f"log setting '{key}' is {now!r} and is not for clients to change; it belongs to the "
                "configuration of the appliance"
            )

    @property
    def library_level(self) -> int:
        """What libraries may log: their debug lines only when ours are on, their information never."""
        return logging.DEBUG if LogLevel.DEBUG in self._enabled else logging.WARNING

    def statistics(self) -> SinkStatistics:
        """Lines written and lost."""
        return self._sink.statistics()

    def close(self) -> None:
        """Write what is queued, within CLOSE_S seconds."""
        self._sink.close(CLOSE_S)


_SWITCHES: Final[Mapping[str, LogLevel]] = {
    "log_info": LogLevel.INFO,
    "log_warning": LogLevel.WARNING,
    "log_error": LogLevel.ERROR,
    "log_verbose_level": LogLevel.DEBUG,
}
_TYPE_WORDS: Final[Mapping[type, str]] = {bool: "true or false", int: "an integer", str: "a text"}


def configure(config: LogConfig, clock: Callable[[], int] = time.monotonic_ns) -> LogControl:
    """Open the log and lead the standard library's logging into it. Raises OperatorError when the file cannot be
    opened. Called once, by a composition root."""
    colours = not config.file and os.isatty(STDERR)
    chosen = config
    if config.format is LogFormat.AUTO:
        chosen = replace(config, format=LogFormat.CONSOLE if colours else LogFormat.JSON)
    control = LogControl(chosen, Sink(_target(config), QUEUE_LINES), colours, clock)
    bridge = _Bridge(control, clock)
    logging.raiseExceptions = False
    logging.basicConfig(level=control.library_level, handlers=[bridge], force=True)
    atexit.register(control.close)
    return control


def _target(config: LogConfig) -> Target:
    if not config.file:
        return DescriptorTarget(STDERR)
    try:
        return FileTarget(Path(config.file), config.max_file_bytes)
    except OSError as error:
        raise OperatorError(
            f"log file '{config.file}' cannot be opened: {error.strerror}; change log.file in the configuration"
        ) from error


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


def _bounded(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut texts that callers made long."""
    for key, value in fields.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            fields[key] = f"{value[:MAX_TEXT]}... ({len(value)} characters)"
    return fields


def _console(colours: bool) -> tuple[Any, ...]:
    renderer = structlog.dev.ConsoleRenderer(24, colors=colours, sort_keys=False, timestamp_key="time")
    return (_printable, renderer)


def _printable(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep one line one line: a name that a caller chose must not forge another. Tracebacks keep theirs, set in, since
    what was raised may tell of such names, too."""
    for key, value in fields.items():
        if isinstance(value, str) and not value.isprintable():
            lines = value.split("\n") if key == "exception" else [value]
            fields[key] = "\n    ".join(each if each.isprintable() else _escaped(each) for each in lines)
    return fields


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")
