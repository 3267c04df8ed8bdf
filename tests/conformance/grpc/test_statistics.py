"""After the same requests both front ends show the same figures, however they came about."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate
from tests.faults.leased import message, until_empty
from tests.faults.test_workers import version_in
from tests.fronts import FRONT_ENDS, Sections, needs_native

SERIES = re.compile(r"^(?P<name>\w+)(?P<labels>\{.*\})? (?P<value>\S+)$")
TIMED = re.compile(
    r"(_sum|_bucket|_created|_seconds|_seconds_total|_ns|_us|_duration_us|_duration_us_total|residency_used_bytes|version_memory_bytes)$"
)
OTHERS = re.compile(r"^(python|process|appliance_(http|quota|front_end))_|leased|asked|slots|worker")
"""Figures of processes, of HTTP, and of what only the native front end does."""


@pytest.fixture
def front_end() -> Sections:
    """In the place of every front end, because each test takes all of them."""
    return {}


def success(daemon: ApplianceProcess, stub: Stub, gate: Gate) -> None:
    for index in range(5):
        stub.infer(message("m", request_id=str(index)))
    stub.infer(_rows("m", 3))
    stub.infer(_rows("m", 3))


def invalid(daemon: ApplianceProcess, stub: Stub, gate: Gate) -> None:
    for _ in range(3):
        stub.infer(message("m"))
        request = message("m")
        request.raw_input_contents[0] += b"x"
        assert stub.refusal(request).code == "INVALID_ARGUMENT"


def failed(daemon: ApplianceProcess, stub: Stub, gate: Gate) -> None:
    for _ in range(3):
        stub.infer(message("failing"))
    assert stub.refusal(message("failing", first=66)).code == "INTERNAL"
    stub.infer(message("failing"))


def refused(daemon: ApplianceProcess, stub: Stub, gate: Gate) -> None:
    for _ in range(3):
        stub.infer(message("slow"))
    with gate:
        running = stub.begin("ModelInfer", message("slow"))
        gate.reached()
        for _ in range(4):
            assert stub.refusal(message("slow"), timeout_s=0.25).code == "RESOURCE_EXHAUSTED"
    assert running.result()


def cancelled(daemon: ApplianceProcess, stub: Stub, gate: Gate) -> None:
    for _ in range(3):
        stub.infer(message("slow"))
    with gate:
        running = stub.begin("ModelInfer", message("slow"))
        gate.reached()
        running.cancel()
        stub.infer(message("m"))  # behind it on the same connection
    until_empty(daemon)


def batches(daemon: ApplianceProcess, stub: Stub, gate: Gate) -> None:
    """One runs alone, and those that came meanwhile together."""
    for _ in range(3):
        stub.infer(message("slow"))
    with gate:
        first = stub.begin("ModelInfer", message("slow"))
        gate.reached()
        others = [stub.begin("ModelInfer", message("slow", first=index)) for index in range(4)]
        _wait(daemon, "slow", 5)
    assert all(call.result() for call in (first, *others))


@needs_native
@pytest.mark.parametrize("play", [success, invalid, failed, refused, cancelled, batches])
def test_both_front_ends_count_alike(
    serve: Serve, tmp_path: Path, play: Callable[[ApplianceProcess, Stub, Gate], None]
) -> None:
    models, gate = tmp_path / "models", tmp_path / "gate"
    write_fake(models, "m")
    write_fake(models, "slow", mode="delay", delay_ms=300, gate=gate)
    write_fake(models, "failing", mode="fail", magic=66)
    told: list[tuple[Any, Any, Any, Any]] = []
    leased = []
    for sections in FRONT_ENDS.values():
        daemon = serve(models, {**sections, **FAKE_SECTIONS, "metrics": {"triton_names": True}})
        with Stub(daemon.grpc) as stub:
            play(daemon, stub, Gate(gate))
            document = until_empty(daemon)
            names, values = metrics(daemon)
            told.append((statistics(stub), requests(document), names, values))
        leased.append(sum(entry["leased"] for entry in document["models"]))
    for of_grpcio, of_native in zip(*told, strict=True):
        assert of_native == of_grpcio
    assert leased[0] == 0
    assert leased[1] > 0, "nothing went the way that this is about"


def statistics(stub: Stub) -> Any:
    """What ModelStatistics says, without times."""
    answer = pb.ModelStatisticsResponse.FromString(stub.call("ModelStatistics"))
    return _untimed(MessageToDict(answer))


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(each) for key, each in value.items() if key not in ("ns", "lastInference")}
    return [_untimed(each) for each in value] if isinstance(value, list) else value


def requests(document: Any) -> Any:
    """How requests ended, by model, and how many there are of what is counted once for each."""
    return {
        entry["name"]: (
            entry["requests"],
            entry["inferences"],
            entry["executions"],
            entry["executed_rows"],
            {stage: histogram["count"] for stage, histogram in entry["stages"].items()},
        )
        for entry in document["models"]
    }


def metrics(daemon: ApplianceProcess) -> tuple[set[str], dict[str, str]]:
    """Names of all series, and the values of those that tell neither time nor memory."""
    found = [SERIES.match(line) for line in daemon.get("/metrics").decode().splitlines()]
    series = [match for match in found if match is not None]
    plain = [match for match in series if not (TIMED.search(match["name"]) or OTHERS.search(match["name"]))]
    values = {match["name"] + (match["labels"] or ""): match["value"] for match in plain}
    assert len(values) > 20
    return {match["name"] for match in series if not OTHERS.search(match["name"])}, values


def _rows(model: str, rows: int) -> pb.ModelInferRequest:
    request = message(model)
    request.inputs[0].shape[0] = rows
    request.raw_input_contents[0] *= rows
    return request


def _wait(daemon: ApplianceProcess, model: str, count: int) -> None:
    daemon.until(f"{count} of '{model}' inside", lambda now: _inside(now, model) == count)


def _inside(document: Any, model: str) -> int:
    entry = version_in(document, model)
    return int(entry["queued"] + entry["running"])
