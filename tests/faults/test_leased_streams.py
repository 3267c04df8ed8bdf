"""Streams whose requests the native front end serves by itself: clients that vanish, flood or dawdle, workers that die,
models that change, a front end that stops. Nothing is lost without a word, nothing stays."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from appliance.frontend.grpc.services import INFER_STREAM
from appliance.frontend.native.package import RESETS_PER_10S
from native.tests.raw_client import CANCEL, DATA, ENHANCE_YOUR_CALM, RST_STREAM, RawClient, framed, request
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.streaming import Sending
from tests.conformance.grpc.stub import Stub, failure_of
from tests.conftest import Serve
from tests.faults.cut_proxy import CutProxy
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate
from tests.faults.leased import NATIVE_FAKES, leased_of, message, teach, until_empty
from tests.faults.stream_client import StreamClient
from tests.faults.test_workers import version_in, worker_of
from tests.fronts import needs_native

pytestmark = needs_native
FRONT_END = NATIVE_FAKES
WINDOW = 65_535
"""Of a connection in HTTP/2, before it is renewed."""
WIDE = 600 << 10
SLOT = 2 << 20
ROOMY = {
    "arena": {"classes": [[4096, 64], [SLOT, 256], [128 << 20, 2]]},
    "engine": {"lease_slots": [[4096, 16], [SLOT, 16]]},
}


def ended(daemon: ApplianceProcess, model: str) -> dict[str, int]:
    """How requests for ``model`` have ended so far, by outcome."""
    return {key: int(count) for key, count in version_in(daemon.status(), model)["requests"].items()}


def figure(daemon: ApplianceProcess, name: str) -> float:
    """A gauge or counter of /metrics that has no labels."""
    found = re.search(rf"^{name} (\S+)$", daemon.get("/metrics").decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def test_a_worker_killed_under_a_stream_costs_no_request(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "victim")
    daemon = serve(tmp_path)
    teach(daemon, "victim")
    known = ended(daemon, "victim")["success"]
    with StreamClient(daemon.grpc, "victim") as client:
        client.wait_for(500)
        before = leased_of(daemon, "victim")
        assert before > 100
        os.kill(worker_of(daemon.status(), "victim/1")["pid"], signal.SIGKILL)
        client.wait_for(500)
        daemon.until("grants again", lambda now: version_in(now, "victim")["leased"] > before + 100)
    assert (client.end, client.unanswered, client.wrong) == ("OK", 0, 0)
    assert set(client.outcomes) == {"OK"}
    requests = version_in(until_empty(daemon), "victim")["requests"]
    assert requests["success"] == sum(requests.values()) == known + client.outcomes["OK"]


def test_a_poisonous_request_fails_alone_on_its_stream(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", mode="crash", magic=66)
    daemon = serve(tmp_path, {"restart": {"quarantine_after": 1000, "restart_delay_ms": 0}})
    teach(daemon, "m")
    firsts = range(60, 72)
    with Stub(daemon.grpc) as stub:
        asked = [message("m", first=first, request_id=str(first)) for first in firsts]
        answers = {answer.infer_response.id: answer for answer in stub.stream(iter(asked))}
    assert set(answers) == {str(first) for first in firsts}
    assert [request_id for request_id, answer in answers.items() if answer.error_message] == ["66"]
    assert "died with the request" in answers["66"].error_message
    assert version_in(until_empty(daemon), "m")["requests"]["failed"] == 1


def test_a_model_that_fails_on_a_stream_fails_in_the_same_words(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", mode="fail", magic=66)
    daemon = serve(tmp_path)
    teach(daemon, "m")
    before = ended(daemon, "m")
    with Stub(daemon.grpc) as stub:
        asked = [message("m", first=first, request_id=str(first)) for first in (65, 66, 67)]
        answers = {answer.infer_response.id: answer.error_message for answer in stub.stream(iter(asked))}
    assert answers == {"65": "", "66": "[request id: 66] model 'm' failed: told to fail", "67": ""}
    until_empty(daemon)
    after = ended(daemon, "m")
    assert (after["failed"], after["success"]) == (before["failed"] + 1, before["success"] + 2)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_vanishes_within_its_stream_leaves_nothing_behind(
    serve: Serve, tmp_path: Path, reset: bool
) -> None:
    """Whatever it has under way: requests with the worker, one in the middle of its upload."""
    write_fake(tmp_path, "slow", mode="delay", delay_ms=200, batched=False)
    write_fake(tmp_path, "wide", width=WIDE)
    daemon = serve(tmp_path, ROOMY)
    teach(daemon, "slow")
    teach(daemon, "wide", width=WIDE)
    before = ended(daemon, "slow")
    with CutProxy(daemon.grpc, 2 * WIDE // 3, reset=reset, stall=True) as proxy:
        with Stub(proxy.address) as stub:
            sending = Sending(*[message("slow") for _ in range(3)], message("wide", width=WIDE))
            answers = stub.stream(sending)
            daemon.until("an upload", lambda now: any(slots["used"] for slots in now["slots"][1:]))
            taken = ended(daemon, "slow")
        answers.cancel()
    document = until_empty(daemon)
    after = version_in(document, "slow")["requests"]
    assert sum(after.values()) == sum(before.values()) + 3
    assert after["cancelled"] + after["success"] >= sum(taken.values())
    assert daemon.until("no stream", lambda _: figure(daemon, "appliance_front_end_open_calls") == 0)


def test_a_flood_of_reset_streams_ends_its_connection_and_nothing_else(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path)
    teach(daemon, "m")
    host, port = daemon.grpc.rsplit(":", 1)
    body = framed(message("m").SerializeToString()) * 3
    fit = (
        WINDOW // (len(body) + 1) * 2
    )  # of odd numbers: what is more is another breach, where the server is slow
    with StreamClient(daemon.grpc, "m", depth=4) as other:
        other.wait_for(50)
        with RawClient((host, int(port))) as raw:
            flood = b"".join(
                raw.head(stream, request(INFER_STREAM))
                + raw.frame(DATA, 0, stream, body if stream < fit else b"")
                + raw.frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4))
                for stream in range(1, 4 * RESETS_PER_10S, 2)
            )
            raw.socket.sendall(flood)
            assert raw.end() == ENHANCE_YOUR_CALM
        other.wait_for(50)
    assert (other.end, other.unanswered, other.wrong, set(other.outcomes)) == ("OK", 0, 0, {"OK"})
    until_empty(daemon)
    assert daemon.until("no call", lambda _: figure(daemon, "appliance_front_end_open_calls") == 0)


def test_a_client_that_takes_no_answers_is_held_back(serve: Serve, tmp_path: Path) -> None:
    """What it may leave untaken is bounded, others are served meanwhile, and it gets all of it in the end."""
    write_fake(tmp_path, "wide", width=WIDE)
    daemon = serve(tmp_path, {**ROOMY, "grpc": {"stream_window": 8}})
    teach(daemon, "wide", width=WIDE)
    count = 40
    with Stub(daemon.grpc) as slow, Stub(daemon.grpc) as quick:
        asked = [message("wide", width=WIDE, request_id=str(number)) for number in range(count)]
        answers = slow.stream(iter(asked))
        full = lambda _: figure(daemon, "appliance_front_end_answer_bytes") > 2 * WIDE  # noqa: E731
        daemon.until("answers that wait", full)
        for _ in range(5):
            assert quick.infer(message("wide", width=WIDE))
            assert figure(daemon, "appliance_front_end_answer_bytes") <= 9 * (WIDE + 1000)
        ids = [answer.infer_response.id for answer in answers]
    assert sorted(ids, key=int) == [str(number) for number in range(count)]
    until_empty(daemon)
    daemon.until("no answer that waits", lambda _: figure(daemon, "appliance_front_end_answer_bytes") == 0)


def test_models_change_under_a_stream_without_a_failed_request(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path)
    teach(daemon, "m")
    with StreamClient(daemon.grpc, "m", depth=8) as client:
        for version in range(2, 4):
            client.wait_for(100)
            write_fake(tmp_path, "m", versions=(version,))
            shutil.rmtree(tmp_path / "m" / str(version - 1))
            daemon.signal(signal.SIGHUP)
            daemon.until("the next version alone", lambda now, version=version: _served(now) == [version])
            daemon.until("it under a lease", lambda now, version=version: _leased(now, version) > 100)
    assert (client.end, client.unanswered, client.wrong, set(client.outcomes)) == ("OK", 0, 0, {"OK"})
    until_empty(daemon)


def _leased(document: Any, version: int) -> int:
    return int(version_in(document, "m", version)["leased"])


def _served(document: Any) -> list[int]:
    return [entry["version"] for entry in document["models"] if entry["name"] == "m"]


def test_a_front_end_that_stops_answers_what_is_under_way_and_says_why(serve: Serve, tmp_path: Path) -> None:
    models, gate = tmp_path / "models", Gate(tmp_path / "gate")
    write_fake(models, "slow", mode="delay", delay_ms=20, batched=False, gate=tmp_path / "gate")
    daemon = serve(models)
    teach(daemon, "slow")
    with Stub(daemon.grpc) as stub:
        with gate:
            answers = stub.stream(Sending(*[message("slow", request_id=str(number)) for number in range(5)]))
            daemon.until("all of them inside", lambda now: version_in(now, "slow")["running"] == 5)
            daemon.signal(signal.SIGTERM)
            daemon.wait_for("STOPPING=1")
        ids = [next(answers).infer_response.id for _ in range(5)]
        with pytest.raises(grpc.RpcError) as told:
            next(answers)
    assert sorted(ids) == ["0", "1", "2", "3", "4"]
    failure = failure_of(told.value)
    assert (failure.code, failure.text) == ("UNAVAILABLE", "Server is stopping")
    assert daemon.process.wait(20) == 0


@pytest.mark.parametrize("statuses", [False, True], ids=["in band", "as a status"])
def test_an_answer_that_comes_after_its_deadline_is_an_error_of_the_stream(
    serve: Serve, tmp_path: Path, statuses: bool
) -> None:
    """Nobody knew that the worker would be late: the deadline is the appliance's own, so that no client gives up."""
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, {"engine": {"default_deadline_ms": 300}})
    teach(daemon, "m")
    status = daemon.status()
    expired = version_in(status, "m")["requests"]["expired"]
    pid = worker_of(status, "m/1")["pid"]
    metadata = (("triton_grpc_error", "true"),) if statuses else ()
    with Stub(daemon.grpc) as stub:
        os.kill(pid, signal.SIGSTOP)
        try:
            answers = stub.stream(iter([message("m", request_id="late")]), metadata=metadata, timeout_s=None)
            began_ns = daemon.until("it with the worker", lambda now: now["running_requests"] == 1)["now_ns"]
            daemon.until("its deadline", lambda now: now["now_ns"] > began_ns + 400_000_000)
        finally:
            os.kill(pid, signal.SIGCONT)
        if statuses:
            with pytest.raises(grpc.RpcError) as told:
                next(answers)
            code, text, _ = failure_of(told.value)
            assert code == "DEADLINE_EXCEEDED"
        else:
            (answer,) = answers
            text = answer.error_message
            assert answer.infer_response.id == "late"
    assert text.startswith("[request id: late] Request timeout expired")
    assert version_in(until_empty(daemon), "m")["requests"]["expired"] == expired + 1
