"""What the log writes, and the settings that clients may change."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from appliance.config.telemetry import LogConfig, LogFormat, LogLevel
from appliance.domain.errors import InvalidRequest, OperatorError, QueueFull, Unsupported
from appliance.domain.inference import RequestHead, RequestPlan
from appliance.telemetry.log import LIBRARY_LINES_PER_S, LogControl, configure
from appliance.telemetry.meter import Result
from appliance.telemetry.request_line import LineBudget
from appliance.telemetry.sink import DescriptorTarget, FileTarget, Sink
from tests.domain.sample import make_version

JSON = LogConfig(format=LogFormat.JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """A request with the facts that a line tells."""

    request_id: str
    plan: RequestPlan
    arrived_ns: int = 1_000
    dispatched_ns: int = 0
    stages_ns: tuple[int, int, int] = (0, 0, 0)
    batch_rows: int = 0
    attempts: int = 0
    client: str = ""
    worker: int = 3


def ended(request_id: str = "7", **fields: Any) -> EndedRequest:
    model = make_version()
    head = RequestHead(model_name=model.name, model_version="", inputs=())
    plan = RequestPlan(model=model, head=head, rows=2, inputs=(), outputs=(), merge_shape=())
    return EndedRequest(request_id=request_id, plan=plan, **fields)


class Log:
    """A log into a file, read back when it is closed."""

    def __init__(self, path: Path, config: LogConfig) -> None:
        self._path = path
        self.now_ns = 0
        self.control = LogControl(config, Sink(FileTarget(path, 1 << 20), 1_000), False, lambda: self.now_ns)

    def text(self) -> str:
        self.control.close()
        return self._path.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Leave the standard library's logging as it was: at the level of debug all tests after these would take longer."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.fixture
def log(tmp_path: Path, root_logger: None) -> Iterator[Log]:
    opened = Log(tmp_path / "log", JSON)
    yield opened
    opened.control.close()


def test_an_event_is_one_json_line(log: Log) -> None:
    log.control.event("version ready", model="digits/2")
    (line,) = log.lines()
    assert (line["event"], line["level"], line["model"]) == ("version ready", "info", "digits/2")
    assert line["time"].endswith("Z")


def test_a_line_leaves_nothing_for_the_collector(log: Log) -> None:
    gc.collect()
    for _ in range(100):
        log.control.event("version ready", model="digits/2")
    assert gc.collect() < 100


def test_an_event_with_a_reason_is_a_warning(log: Log) -> None:
    log.control.event("version unavailable", reason="no file")
    assert log.lines()[0]["level"] == "warning"


def test_a_refused_request_tells_why(log: Log) -> None:
    error = QueueFull("Exceeds maximum queue size")
    log.control.request(request=ended(), result=Result.REFUSED, error=error, total_ns=5_000_000)
    (line,) = log.lines()
    assert line["event"] == "request"
    assert (line["outcome"], line["request_id"], line["rows"], line["total_us"]) == ("refused", "7", 2, 5_000)
    assert line["error"] == "Exceeds maximum queue size"
    assert "queue_us" not in line


def test_lines_say_who_asked_where_that_is_known(log: Log) -> None:
    error = QueueFull("full")
    log.control.request(request=ended(), result=Result.REFUSED, error=error, total_ns=1)
    log.control.request(request=ended(client="camera"), result=Result.REFUSED, error=error, total_ns=1)
    log.control.rejected(
        model="", version=0, request_id="1", client="spiffe://site/x", result=Result.INVALID, error=error
    )
    log.control.slow(model=make_version(), request_id="2", client="camera", stages_ns=[1, 2, 3, 4, 10])
    assert [line.get("client") for line in log.lines()] == [None, "camera", "spiffe://site/x", "camera"]


def test_a_slow_request_tells_where_the_time_went(log: Log) -> None:
    slow = ended(dispatched_ns=3_001_000, stages_ns=(1_000, 9_000_000, 2_000), batch_rows=8, attempts=1)
    log.control.request(request=slow, result=Result.SUCCESS, error=None, total_ns=13_000_000)
    (line,) = log.lines()
    assert (line["event"], line["queue_us"], line["run_us"], line["batch_rows"]) == (
        "slow request", 3_000, 9_000, 8,
    )  # fmt: skip
    assert "error" not in line


@pytest.mark.parametrize(
    ("result", "level"),
    [
        (Result.FAILED, "error"),
        (Result.EXPIRED, "warning"),
        (Result.INVALID, "info"),
        (Result.CANCELLED, "info"),
    ],
)
def test_levels_say_who_should_look(log: Log, result: Result, level: str) -> None:
    log.control.request(request=ended(), result=result, error=QueueFull("x"), total_ns=1)
    assert log.lines()[0]["level"] == level


def test_a_flood_of_requests_is_bounded_and_counted(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", replace(JSON, request_lines_per_s=3))
    for _ in range(10):
        log.control.request(request=ended(), result=Result.REFUSED, error=QueueFull("x"), total_ns=1)
    log.now_ns = 1_000_000_000
    log.control.request(request=ended(), result=Result.REFUSED, error=QueueFull("x"), total_ns=1)
    assert [line.get("lines_left_out", 0) for line in log.lines()] == [0, 0, 0, 7]


def test_no_bound_when_it_is_zero() -> None:
    budget = LineBudget(0)
    assert all(budget.take(0) for _ in range(1_000))
    assert budget.left_out() == 0


def test_lost_lines_are_told_by_the_next_one(tmp_path: Path) -> None:
    class FullAtFirst(Sink):
        """Loses two lines, as on a disk that was full."""

        losses = 2

        def write(self, line: bytes) -> None:
            if self.losses:
                self.losses -= 1
                self._refused += 1
            else:
                super().write(line)

    control = LogControl(JSON, FullAtFirst(FileTarget(tmp_path / "log", 1 << 20), 100), False, lambda: 0)
    for event in ("lost", "lost too", "written", "written too"):
        control.event(event)
    control.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["event"], line.get("lines_lost")) for line in lines] == [
        ("written", 2),
        ("written too", None),
    ]


def test_a_name_cannot_forge_a_line_on_the_console(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", LogConfig(format=LogFormat.CONSOLE))
    log.control.event("request", model="x\n2026 [error] forged\x1b[31m")
    text = log.text()
    assert text.count("\n") == 1
    assert "\x1b" not in text


@pytest.mark.usefixtures("root_logger")
def test_an_error_that_a_library_raised_cannot_forge_one_either(tmp_path: Path) -> None:
    control = configure(LogConfig(format=LogFormat.CONSOLE, file=str(tmp_path / "log")))
    try:
        raise RuntimeError("x\n2026 [error] forged\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}")
    except RuntimeError:
        logging.getLogger("some.library").exception("failed")
    control.close()
    text = (tmp_path / "log").read_text()
    assert "Traceback" in text
    assert "2026 [error] forged" in text
    assert not [line for line in text.splitlines() if line.startswith("2026 ") or not line.isprintable()]


def test_long_texts_are_cut(log: Log) -> None:
    log.control.event("request", error="x" * 100_000)
    (line,) = log.lines()
    assert len(line["error"]) < 3_000
    assert "100000 characters" in line["error"]


def test_texts_that_are_not_utf_8_are_written(log: Log) -> None:
    log.control.event("request", model="\udcff")
    assert len(log.lines()) == 1


def test_switches_turn_levels_on_and_off(log: Log) -> None:
    control = log.control
    control.update({"log_info": False, "log_verbose_level": 1})
    control.event("not written")
    control.line(LogLevel.DEBUG, "written", {})
    assert [line["event"] for line in log.lines()] == ["written"]
    assert control.settings()["log_info"] is False
    assert control.settings()["log_verbose_level"] == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"log_file": "/tmp/x"}, Unsupported),
        ({"log_format": "default"}, Unsupported),
        ({"log_colour": True}, InvalidRequest),
        ({"log_info": 1}, InvalidRequest),
        ({"log_verbose_level": True}, InvalidRequest),
        ({"log_verbose_level": -1}, InvalidRequest),
        ({"log_error": "no"}, InvalidRequest),
    ],
)
def test_what_cannot_be_changed_changes_nothing(
    log: Log, changes: dict[str, Any], error: type[Exception]
) -> None:
    before = dict(log.control.settings())
    with pytest.raises(error):
        log.control.update({"log_warning": False, **changes})
    assert log.control.settings() == before


def test_settings_may_be_set_to_what_they_are(log: Log) -> None:
    log.control.update(dict(log.control.settings()))


@pytest.mark.usefixtures("root_logger")
def test_the_standard_librarys_logging_ends_up_here(tmp_path: Path) -> None:
    control = configure(LogConfig(format=LogFormat.JSON, file=str(tmp_path / "log")))
    logging.getLogger("some.library").warning("watch %s", "out")
    logging.getLogger("some.library").info("not this")
    logging.getLogger("some.library").error("wrong %d", "number")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("some.library").exception("failed")
    control.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["watch out", "unreadable log record", "failed"]
    assert "RuntimeError: boom" in lines[2]["exception"]


@pytest.mark.usefixtures("root_logger")
def test_a_library_that_floods_the_log_is_bounded_and_the_next_line_says_so(tmp_path: Path) -> None:
    now_ns = 0
    config = LogConfig(format=LogFormat.JSON, file=str(tmp_path / "log"))
    control = configure(config, lambda: now_ns)
    for number in range(LIBRARY_LINES_PER_S + 7):
        logging.getLogger("some.library").error("again %d", number)
    now_ns = 1_000_000_000
    logging.getLogger("some.library").error("later")
    control.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        *(f"again {number}" for number in range(LIBRARY_LINES_PER_S)),
        "later",
    ]
    assert lines[-1]["lines_left_out"] == 7


def test_a_log_file_that_cannot_be_opened_is_the_operators(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"cannot be opened.*log\.file"):
        configure(LogConfig(file=str(tmp_path / "none" / "log")))


def test_nothing_raises_on_a_full_disk() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        control = LogControl(JSON, Sink(DescriptorTarget(full), 10), False, lambda: 0)
        for _ in range(100):
            control.event("x")
        control.close()
    finally:
        os.close(full)
    assert control.statistics().written == 0
    assert control.statistics().lost == 100


def test_the_log_loads_no_terminal_library() -> None:
    program = "import sys, appliance.telemetry.log; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
