"""Batches that a simulated device runs by itself, served by the native front end: one is gathered and begun while
another runs, and each request has the answer to what it asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.faults.fake_models import write_fake
from tests.faults.leased import NATIVE_FAKES, leased_of, message, teach, until_empty
from tests.fronts import needs_native

FRONT_END = NATIVE_FAKES

REQUESTS = 320
AT_ONCE = 40


def batches(daemon: ApplianceProcess, model: str) -> dict[int, int]:
    """How many batches ran, by their rows."""
    told = json.loads(daemon.get(f"/v2/models/{model}/stats"))["model_stats"][0]["batch_stats"]
    return {int(each["batch_size"]): int(each["compute_infer"]["count"]) for each in told}


def answered(call: Any) -> bytes:
    """The output of a call that was begun."""
    return pb.ModelInferResponse.FromString(call.result()).raw_output_contents[0]


@needs_native
@pytest.mark.timeout(120)
@pytest.mark.parametrize("width", [4, 40_000], ids=["narrow", "wide"])
def test_each_request_has_its_own_answer_while_batches_overlap(
    serve: Serve, tmp_path: Path, width: int
) -> None:
    write_fake(tmp_path, "device", mode="device", run_ms=3, width=width)
    daemon = serve(tmp_path, {})
    teach(daemon, "device", width=width)
    before = leased_of(daemon, "device")
    asked = [message("device", first=number % 251, width=width) for number in range(REQUESTS)]
    with Stub(daemon.grpc) as stub:
        calls: list[Any] = []
        answers: list[bytes] = []
        for request in asked:
            calls.append(stub.begin("ModelInfer", request))
            if len(calls) == AT_ONCE:
                answers += map(answered, calls)
                calls.clear()
        answers += map(answered, calls)
    given = [answer[:4] for answer in answers]
    assert given == [request.raw_input_contents[0][:4] for request in asked]
    assert leased_of(daemon, "device") - before == REQUESTS
    assert max(batches(daemon, "device")) == 8, "batches were filled"
    until_empty(daemon)


@needs_native
@pytest.mark.timeout(120)
def test_what_the_engine_sends_runs_between_batches_that_overlap(serve: Serve, tmp_path: Path) -> None:
    """Requests of two rows each, whose template the front end does not have, beside those that it serves by itself."""
    write_fake(tmp_path, "device", mode="device", run_ms=3)
    daemon = serve(tmp_path, {})
    teach(daemon, "device")
    with Stub(daemon.grpc) as stub:
        for start in range(0, 160, 20):
            calls = []
            for number in range(start, start + 20):
                request = message("device", first=number)
                if number % 5 == 0:
                    request.inputs[0].shape[0] = 2
                    request.raw_input_contents[0] += bytes((number + 1, 1, 2, 3))
                calls.append((request, stub.begin("ModelInfer", request)))
            for request, call in calls:
                assert answered(call) == request.raw_input_contents[0]
    until_empty(daemon)
