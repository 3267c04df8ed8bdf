"""Clients that vanish, cancel and crowd while the native front end serves by itself: nothing of theirs stays."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub, failure_of
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.cut_proxy import CutProxy
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate
from tests.faults.leased import NATIVE_FAKES, leased_of, message, teach, until_empty
from tests.faults.test_workers import version_in, worker_of
from tests.fronts import NATIVE, PYTHON, Sections, needs_native

FRONT_END = NATIVE_FAKES

LARGE = 600 << 10
SLOT = 2 << 20
EVERY_FRONT_END = [
    pytest.param(PYTHON, id="python"), pytest.param(NATIVE, id="native", marks=needs_native)
]  # fmt: skip


def cuts(length: int) -> list[int]:
    """Where a message of ``length`` bytes is cut: around everything that begins or ends there, and anywhere."""
    chosen = random.Random(11)
    edges = [1, 24, 25, 60, 120, 200, 300, 400, 1 << 14, 1 << 16, (1 << 16) + 200, length // 2]
    ends = [length - 65, length - 1, length, length + 100, length + 250, length + 400]
    return [*edges, *ends, *(chosen.randrange(100, length) for _ in range(14))]


@needs_native
@pytest.mark.timeout(120)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_uploads_that_break_off_anywhere_leave_nothing_behind(
    serve: Serve, tmp_path: Path, reset: bool
) -> None:
    """There is memory for few such messages and there are slots for two: what is lost would be missed at once."""
    write_fake(tmp_path, "wide", width=LARGE)
    bounds = {
        "grpc": {"max_message_bytes": 1 << 20, "max_messages_bytes": 3 << 20},
        "engine": {"lease_slots": [[4096, 4], [SLOT, 2]]},
    }
    daemon = serve(tmp_path, bounds)
    teach(daemon, "wide", width=LARGE)
    request = message("wide", width=LARGE).SerializeToString()
    for cut in cuts(len(request)):
        with CutProxy(daemon.grpc, cut, reset=reset) as proxy, Stub(proxy.address) as stub:
            call = stub.begin("ModelInfer", request)
            assert call.exception() is not None or len(call.result()) > LARGE
    document = until_empty(daemon)
    assert [slots["used"] for slots in document["slots"]] == [0, 0]
    before = leased_of(daemon, "wide")
    with Stub(daemon.grpc) as stub:
        for _ in range(2):
            calls = [stub.begin("ModelInfer", request) for _ in range(2)]
            assert all(len(call.result()) > LARGE for call in calls)
    assert leased_of(daemon, "wide") > before, "all slots are gone"


@needs_native
def test_uploads_that_stand_still_are_no_work(serve: Serve, tmp_path: Path) -> None:
    """The worker has nothing to do, however many clients have stopped in the middle of their tensors."""
    write_fake(tmp_path, "wide", width=LARGE, mode="delay", delay_ms=200, batched=False)
    room = {
        "arena": {"classes": [[4096, 64], [SLOT, 256], [128 << 20, 2]]},
        "engine": {"lease_slots": [[4096, 4], [SLOT, 36]]},
    }
    daemon = serve(tmp_path, room)
    teach(daemon, "wide", width=LARGE)
    request = message("wide", width=LARGE).SerializeToString()
    with ExitStack() as stack:
        held = []
        for _ in range(30):
            proxy = stack.enter_context(CutProxy(daemon.grpc, LARGE // 2, stall=True))
            held.append(stack.enter_context(Stub(proxy.address)).begin("ModelInfer", request))
        daemon.until("all of them under way", lambda now: now["slots"][1]["used"] == 30)
        with Stub(daemon.grpc) as stub:
            for _ in range(3):
                assert len(stub.call("ModelInfer", request, timeout_s=5.0)) > LARGE
        assert not any(call.done() for call in held)
    until_empty(daemon)


@needs_native
def test_slots_that_abandoned_requests_hold_come_back(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "slow", mode="delay", delay_ms=100, batched=False)
    daemon = serve(tmp_path, {"engine": {"lease_slots": [[4096, 4]]}})
    teach(daemon, "slow")
    with Stub(daemon.grpc) as stub:
        calls = [stub.begin("ModelInfer", message("slow")) for _ in range(4)]
        daemon.until("every slot in use", lambda now: now["slots"][0]["used"] == 4)
        for call in calls:
            call.cancel()
        hasty = [stub.begin("ModelInfer", message("slow"), timeout_s=0.05) for _ in range(20)]
        patient = [stub.begin("ModelInfer", message("slow")) for _ in range(3)]
        assert all(call.exception() is not None for call in hasty)
        assert {failure_of(call).code for call in hasty} <= {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
        assert all(call.result() for call in patient), "without a slot the engine serves"
    document = until_empty(daemon)
    assert document["slots"][0]["used"] == 0
    assert version_in(document, "slow")["requests"]["cancelled"] >= 4
    before = leased_of(daemon, "slow")
    with Stub(daemon.grpc) as stub:
        for _ in range(3):
            assert stub.infer(message("slow"))
    assert leased_of(daemon, "slow") == before + 3


@needs_native
def test_a_client_that_dies_with_requests_in_flight_has_cancelled_them(serve: Serve, tmp_path: Path) -> None:
    models, gate = tmp_path / "models", Gate(tmp_path / "gate")
    write_fake(models, "slow", batched=False, gate=tmp_path / "gate")
    daemon = serve(models)
    teach(daemon, "slow")
    before = version_in(daemon.status(), "slow")["requests"]
    request = message("slow").SerializeToString()
    with gate:
        with CutProxy(daemon.grpc, 1 << 20, reset=True) as proxy:
            with Stub(proxy.address) as stub:
                calls = [stub.begin("ModelInfer", request) for _ in range(3)]
                daemon.until("all of them inside", lambda now: version_in(now, "slow")["running"] == 3)
            assert not any(call.done() and call.code() is grpc.StatusCode.OK for call in calls)
        daemon.until("their end", lambda now: version_in(now, "slow")["requests"]["cancelled"] >= 3)
    document = until_empty(daemon)
    after = version_in(document, "slow")["requests"]
    assert after["cancelled"] == before["cancelled"] + 3
    assert sum(after.values()) == sum(before.values()) + 3


@needs_native
def test_what_is_cancelled_before_it_begins_does_not_run(serve: Serve, tmp_path: Path) -> None:
    models, gate = tmp_path / "models", Gate(tmp_path / "gate")
    write_fake(models, "slow", batched=False, gate=tmp_path / "gate")
    daemon = serve(models)
    teach(daemon, "slow")
    before = version_in(until_empty(daemon), "slow")
    request = message("slow").SerializeToString()
    with Stub(daemon.grpc) as stub:
        with gate:
            first = stub.begin("ModelInfer", request)
            gate.reached()
            calls = [stub.begin("ModelInfer", request) for _ in range(5)]
            daemon.until("all of them inside", lambda now: version_in(now, "slow")["running"] == 6)
            for call in calls:
                call.cancel()
            daemon.until("their end", lambda now: version_in(now, "slow")["requests"]["cancelled"] == 5)
        assert first.result()
        assert stub.infer(message("slow"))
    after = version_in(until_empty(daemon), "slow")
    assert after["executions"] == before["executions"] + 2
    assert after["leased"] == before["leased"] + 2
    assert after["requests"] == before["requests"] | {
        "cancelled": 5,
        "success": before["requests"]["success"] + 2,
    }


@pytest.mark.parametrize("sections", EVERY_FRONT_END)
def test_an_answer_that_comes_after_its_deadline_is_an_error(
    serve: Serve, tmp_path: Path, sections: Sections
) -> None:
    """Nobody knew that the worker would be late: the deadline is the appliance's own, so that no client gives up."""
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, {**sections, **FAKE_SECTIONS, "engine": {"default_deadline_ms": 300}})
    with Stub(daemon.grpc) as stub:
        for _ in range(3):
            stub.call("ModelInfer", message("m"), timeout_s=None)
        call, expired = _overtaken_by_its_deadline(daemon, stub)
        failure = failure_of(call)
    assert failure.code == "DEADLINE_EXCEEDED"
    assert failure.text.startswith("[request id: late] Request timeout expired")
    assert version_in(until_empty(daemon), "m")["requests"]["expired"] == expired + 1


def _overtaken_by_its_deadline(daemon: ApplianceProcess, stub: Stub) -> tuple[Any, int]:
    """A call whose worker stood still until its deadline had passed, and how many had expired before."""
    status = daemon.status()
    pid = worker_of(status, "m/1")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        call = stub.begin("ModelInfer", message("m", request_id="late"), timeout_s=None)
        began_ns = daemon.until("it with the worker", lambda now: now["running_requests"] == 1)["now_ns"]
        daemon.until("its deadline", lambda now: now["now_ns"] > began_ns + 400_000_000)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert call.exception(timeout=20) is not None, "it was answered"
    return call, int(version_in(status, "m")["requests"]["expired"])
