"""The service manager hears from a daemon whose event loop turns and that has models answer, and from no other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from appliance.daemon.watchdog import Watchdog
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate

PING = "WATCHDOG=1"
WITHIN = {"WATCHDOG_USEC": "50000"}
HANG = """
import signal
def hang(number, frame):
    with open({path!r}) as gate:
        gate.read()
signal.signal(signal.SIGUSR1, hang)
"""


@contextmanager
def stopped(daemon: ApplianceProcess, gate: Gate) -> Iterator[None]:
    """All of the process stands."""
    daemon.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, daemon.pid, os.WSTOPPED)
    try:
        yield
    finally:
        daemon.signal(signal.SIGCONT)


@contextmanager
def hanging(daemon: ApplianceProcess, gate: Gate) -> Iterator[None]:
    """The loop stands in one turn; other threads go on."""
    with gate:
        daemon.signal(signal.SIGUSR1)
        gate.reached()
        yield


@pytest.mark.every_front_end
@pytest.mark.parametrize("silenced", [stopped, hanging])
def test_a_loop_that_does_not_turn_is_not_heard_of(
    serve: Serve, tmp_path: Path, silenced: Callable[..., AbstractContextManager[None]]
) -> None:
    write_fake(tmp_path / "models", "m")
    gate = Gate(tmp_path / "gate")
    before = HANG.format(path=str(tmp_path / "gate"))
    daemon = serve(tmp_path / "models", FAKE_SECTIONS, environment=WITHIN, before=before)
    assert daemon.next_message() == PING
    with silenced(daemon, gate):
        daemon.drop_messages()
        assert daemon.next_message(timeout_s=1.0) == ""
    assert daemon.next_message() == PING


@pytest.mark.every_front_end
def test_a_daemon_whose_model_answers_nothing_is_not_heard_of(serve: Serve, tmp_path: Path) -> None:
    """The loop turns all the while."""
    write_fake(tmp_path / "models", "m", gate=tmp_path / "gate")
    sections = {**FAKE_SECTIONS, "workers": {"run_timeout_ms": 600_000}}
    daemon = serve(tmp_path / "models", sections, environment=WITHIN)
    assert daemon.next_message() == PING
    with Gate(tmp_path / "gate") as gate:
        gate.reached()  # no client asks for anything: that is the daemon's own request
        daemon.drop_messages()
        assert daemon.next_message(timeout_s=1.0) == ""
        assert daemon.get("/v2/health/live")
    assert daemon.next_message() == PING


def test_a_start_that_takes_long_has_its_time_extended(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path / "models", "m", mode="hang_at_load")
    daemon = serve(tmp_path / "models", FAKE_SECTIONS, environment=WITHIN, ready=False)
    for _ in range(3):
        assert daemon.wait_for("EXTEND_TIMEOUT_USEC") == f"{PING}\nEXTEND_TIMEOUT_USEC=100000"


def test_a_model_that_takes_no_zeros_is_no_reason_to_end(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path / "models", "m", mode="fail")
    daemon = serve(tmp_path / "models", FAKE_SECTIONS, environment=WITHIN)
    for _ in range(3):
        assert daemon.next_message() == PING


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getppid())}],
)
def test_nothing_is_said_to_who_did_not_ask(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loop:
        call_later = None

    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    watchdog = Watchdog(Loop())  # type: ignore[arg-type]
    watchdog.start()
    watchdog.stop()
