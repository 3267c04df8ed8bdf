"""Requests that wait at the native front end: more than is leased or than Python has time for."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.faults.fake_models import write_fake
from tests.faults.leased import NATIVE_FAKES, leased_of, message, teach, until_empty
from tests.faults.stream_client import StreamClient
from tests.faults.test_workers import version_in, worker_of
from tests.fronts import needs_native

pytestmark = needs_native
FRONT_END = NATIVE_FAKES
GRANT = 512
WAIT = 100
STREAM = 300
LIMIT = 16


@pytest.fixture
def daemon(serve: Serve, tmp_path: Path) -> ApplianceProcess:
    """Serves a model ``m`` under a lease."""
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, {"restart": {"quarantine_after": 1000, "restart_delay_ms": 0}})
    teach(daemon, "m")
    return daemon


def queued(now: Any) -> int:
    """How many requests of the model wait."""
    return int(version_in(now, "m")["queued"])


def stop_and_fill(daemon: ApplianceProcess, stub: Stub) -> tuple[int, list[Any]]:
    """Stops the worker, and gives it more than is leased; its process, and the calls."""
    pid = int(worker_of(daemon.status(), "m/1")["pid"])
    os.kill(pid, signal.SIGSTOP)
    calls = [stub.begin("ModelInfer", message("m", request_id=str(n))) for n in range(GRANT + WAIT)]
    daemon.until("as many wait as are not leased", lambda now: queued(now) == WAIT)
    return pid, calls


def test_what_finds_a_leased_lane_full_waits_and_goes_down_it(daemon: ApplianceProcess) -> None:
    known = leased_of(daemon, "m")
    with Stub(daemon.grpc) as stub:
        pid, calls = stop_and_fill(daemon, stub)
        os.kill(pid, signal.SIGCONT)
        assert all(call.result() for call in calls)
        assert leased_of(daemon, "m") == known + GRANT + WAIT, "none was the engine's, and the lease lasts"
    assert queued(until_empty(daemon)) == 0


def test_who_waits_can_go_or_expire(daemon: ApplianceProcess) -> None:
    known = version_in(daemon.status(), "m")["requests"]
    with Stub(daemon.grpc) as stub:
        pid, calls = stop_and_fill(daemon, stub)
        assert calls.pop().cancel()
        daemon.until("it has gone", lambda now: queued(now) == WAIT - 1)
        late = stub.begin("ModelInfer", message("m"), timeout_s=0.5)
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        daemon.until("it has expired", lambda now: queued(now) == WAIT - 1)
        os.kill(pid, signal.SIGCONT)
        assert all(call.result() for call in calls)
    requests = version_in(until_empty(daemon), "m")["requests"]
    assert requests["success"] == known["success"] + GRANT + WAIT - 1
    assert sum(requests.values()) == sum(known.values()) + GRANT + WAIT + 1


def test_who_waits_is_answered_before_the_daemon_ends(daemon: ApplianceProcess) -> None:
    with Stub(daemon.grpc) as stub:
        pid, calls = stop_and_fill(daemon, stub)
        daemon.process.send_signal(signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        assert all(call.result() for call in calls)
    assert daemon.process.wait(20) == 0


def test_who_waits_when_the_worker_dies_is_answered_and_grants_come_again(daemon: ApplianceProcess) -> None:
    known = version_in(daemon.status(), "m")["requests"]["success"]
    with Stub(daemon.grpc) as stub:
        pid, calls = stop_and_fill(daemon, stub)
        os.kill(pid, signal.SIGKILL)
        calls += [stub.begin("ModelInfer", message("m")) for _ in range(GRANT)]
        assert all(call.result() for call in calls)
        assert version_in(daemon.status(), "m")["requests"]["success"] == known + len(calls)
        teach(daemon, "m")
    until_empty(daemon)


def test_who_waits_is_answered_while_a_stream_is_kept_full(serve: Serve, tmp_path: Path) -> None:
    """The model is slower than what comes, so that Python's queue is never empty and no lease ends the wait. Nobody has
    a deadline: one would come before another."""
    write_fake(tmp_path, "m", mode="delay", delay_ms=20)
    daemon = serve(tmp_path, {"engine": {"lease_limit": LIMIT}})
    teach(daemon, "m")
    with StreamClient(daemon.grpc, "m", depth=STREAM, timeout_s=None) as client, Stub(daemon.grpc) as stub:
        daemon.until("a full stream", lambda now: queued(now) > STREAM // 2)
        calls = [stub.begin("ModelInfer", message("m"), timeout_s=None) for _ in range(4 * LIMIT)]
        assert all(call.result(timeout=20) for call in calls)
        client.wait_for(1)
    assert (client.end, client.unanswered, client.wrong, set(client.outcomes)) == ("OK", 0, 0, {"OK"})
    until_empty(daemon)
