"""Requests that the native front end serves by itself, and their workers: killed, stopped, hanging, crashing, lying."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from tests.conformance.grpc.stub import Stub, failure_of
from tests.conftest import Serve
from tests.faults.clients import Stream, ask, status_of
from tests.faults.fake_models import write_fake
from tests.faults.leased import NATIVE_FAKES, leased_of, message, teach, until_empty
from tests.faults.test_workers import version_in, worker_of
from tests.fronts import needs_native

pytestmark = needs_native
FRONT_END = NATIVE_FAKES
FORGIVING = {"restart": {"quarantine_after": 1000, "restart_delay_ms": 0}}


def test_a_worker_killed_under_full_load_costs_nobody_a_request(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "victim")
    write_fake(tmp_path, "neighbour")
    daemon = serve(tmp_path)
    teach(daemon, "victim", "neighbour")
    known = version_in(daemon.status(), "victim")["requests"]["success"]
    with (
        Stream(daemon.grpc, "victim", threads=16) as victim,
        Stream(daemon.grpc, "neighbour", threads=4) as neighbour,
    ):
        victim.wait_for(300)
        before = leased_of(daemon, "victim")
        os.kill(worker_of(daemon.status(), "victim/1")["pid"], signal.SIGKILL)
        victim.wait_for(300)
        neighbour.wait_for(100)
        daemon.until("grants again", lambda now: version_in(now, "victim")["leased"] > before + 100)
    assert set(victim.outcomes) == set(neighbour.outcomes) == {"OK"}
    assert victim.wrong == neighbour.wrong == 0
    document = until_empty(daemon)
    assert version_in(document, "victim")["requests"]["success"] == known + victim.outcomes["OK"]
    assert sum(version_in(document, "victim")["requests"].values()) == known + victim.outcomes["OK"]


@pytest.mark.timeout(120)
def test_workers_killed_again_and_again_lose_no_request_without_a_word(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", mode="delay", delay_ms=2)
    daemon = serve(tmp_path, FORGIVING)
    teach(daemon, "m")
    known = sum(version_in(daemon.status(), "m")["requests"].values())
    with Stream(daemon.grpc, "m", threads=16) as stream:
        for _ in range(6):
            stream.wait_for(30)
            os.kill(worker_of(daemon.until("a worker", _has_worker), "m/1")["pid"], signal.SIGKILL)
    assert set(stream.outcomes) <= {"OK", "UNAVAILABLE"}
    assert stream.wrong == 0
    requests = version_in(until_empty(daemon), "m")["requests"]
    assert requests["success"] == stream.outcomes["OK"] + known
    assert sum(requests.values()) == sum(stream.outcomes.values()) + known
    assert daemon.process.poll() is None


def _has_worker(document: dict[str, list[dict[str, object]]]) -> bool:
    return any(worker["pid"] and worker["models"] for worker in document["workers"])


def test_a_stopped_worker_is_ended_at_its_bound_and_its_requests_run_elsewhere(
    serve: Serve, tmp_path: Path
) -> None:
    write_fake(tmp_path, "m", run_timeout_ms=500)
    write_fake(tmp_path, "neighbour")
    daemon = serve(tmp_path)
    teach(daemon, "m", "neighbour")
    pid = worker_of(daemon.status(), "m/1")["pid"]
    with Stub(daemon.grpc) as stub, Stream(daemon.grpc, "neighbour", threads=1) as neighbour:
        os.kill(pid, signal.SIGSTOP)
        calls = [stub.begin("ModelInfer", message("m", request_id=str(index))) for index in range(20)]
        assert all(call.result() for call in calls), "they are retried"
        neighbour.wait_for(20)
    assert set(neighbour.outcomes) == {"OK"}
    assert worker_of(until_empty(daemon), "m/1")["pid"] != pid


def test_a_long_queue_that_moves_is_no_hang(serve: Serve, tmp_path: Path) -> None:
    """The last of them waits for five times as long as any run may take."""
    write_fake(tmp_path, "m", mode="delay", delay_ms=50, batched=False, run_timeout_ms=500)
    daemon = serve(tmp_path)
    teach(daemon, "m")
    before = daemon.status()
    with Stub(daemon.grpc) as stub:
        calls = [stub.begin("ModelInfer", message("m")) for _ in range(50)]
        assert all(call.result() for call in calls)
    assert worker_of(daemon.status(), "m/1")["pid"] == worker_of(before, "m/1")["pid"]
    assert leased_of(daemon, "m") > 50


def test_a_request_that_crashes_its_worker_under_a_lease_ends_alone(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "poisoned", mode="crash", magic=66)
    write_fake(tmp_path, "neighbour")
    daemon = serve(tmp_path)
    teach(daemon, "poisoned", "neighbour")
    with Stream(daemon.grpc, "neighbour", threads=2) as neighbour:
        with pytest.raises(InferenceServerException) as caught:
            ask(daemon.grpc, "poisoned", first=66)
        assert status_of(caught.value) == "UNAVAILABLE"
        assert "died with the request" in str(caught.value)
        neighbour.wait_for(20)
    assert set(neighbour.outcomes) == {"OK"}
    assert ask(daemon.grpc, "poisoned").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    assert version_in(until_empty(daemon), "poisoned")["requests"]["failed"] == 1


def test_who_was_in_the_ring_with_a_poisonous_request_is_answered(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", mode="crash", magic=66)
    daemon = serve(tmp_path, FORGIVING)
    teach(daemon, "m")
    firsts = range(63, 70)  # fewer than make a full batch, which would be sent after the poisonous one
    with Stub(daemon.grpc) as stub:
        calls = [stub.begin("ModelInfer", message("m", first=first)) for first in firsts]
        failures = [failure_of(call) for call in calls if call.exception() is not None]
    assert [failure.code for failure in failures] == ["UNAVAILABLE"]
    assert version_in(until_empty(daemon), "m")["requests"]["failed"] == 1


def test_a_model_that_fails_under_grants_fails_in_the_same_words(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", mode="fail", magic=66)
    daemon = serve(tmp_path)
    teach(daemon, "m")
    before = version_in(daemon.status(), "m")
    with Stub(daemon.grpc) as stub:
        failure = stub.refusal(message("m", first=66, request_id="f"))
        assert failure.code == "INTERNAL"
        assert failure.text == "[request id: f] model 'm' failed: told to fail"
        assert stub.infer(message("m"))
    after = version_in(until_empty(daemon), "m")
    assert after["requests"]["failed"] == before["requests"]["failed"] + 1
    assert after["requests"]["success"] == before["requests"]["success"] + 1


@pytest.mark.parametrize("what", ["count", "stranger", "older", "status", "twice", "noise"])
def test_a_worker_that_writes_rubbish_into_its_ring_harms_itself(
    serve: Serve, tmp_path: Path, what: str
) -> None:
    write_fake(tmp_path, "liar", mode="ring_fault", fault=what, magic=66, run_timeout_ms=500)
    write_fake(tmp_path, "neighbour")
    daemon = serve(tmp_path)
    teach(daemon, "liar", "neighbour")
    with pytest.raises(InferenceServerException) as caught:
        ask(daemon.grpc, "liar", first=66)
    assert status_of(caught.value) == "UNAVAILABLE"
    daemon.wait_log("answered nonsense")
    teach(daemon, "neighbour")  # anew: what the server offers has changed
    before = leased_of(daemon, "neighbour")
    # One at a time: who is alone in the front end is told by nobody else's completion.
    for _ in range(10):
        assert ask(daemon.grpc, "neighbour", timeout_s=10.0).as_numpy("y").tolist() == [[0, 1, 2, 3]]
    assert leased_of(daemon, "neighbour") == before + 10
    until_empty(daemon)


def test_a_worker_that_spoils_its_doorbell_harms_nobody_else(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "liar", mode="ring_fault", fault="doorbell", magic=66, run_timeout_ms=500)
    write_fake(tmp_path, "neighbour")
    daemon = serve(tmp_path)
    teach(daemon, "liar", "neighbour")
    ask(daemon.grpc, "liar", first=66)
    for _ in range(10):
        assert ask(daemon.grpc, "neighbour", timeout_s=10.0).as_numpy("y").tolist() == [[0, 1, 2, 3]]
    until_empty(daemon)
