"""Requests that the native front end serves by itself, for fault tests: made, counted, and over."""

from __future__ import annotations

from typing import Any

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.test_workers import version_in
from tests.fronts import NATIVE, with_front_end

NATIVE_FAKES = with_front_end(NATIVE, FAKE_SECTIONS)
ATTEMPTS = 50


def message(model: str, *, first: int = 0, width: int = 4, request_id: str = "") -> pb.ModelInferRequest:
    """A request for a fake model whose input begins with ``first``."""
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="x", datatype="UINT8", shape=[1, width])
    request.raw_input_contents.append(bytes((first, 1, 2, 3)) + bytes(width - 4))
    return request


def leased_of(daemon: ApplianceProcess, model: str) -> int:
    """How many answers of ``model`` came without the engine."""
    return int(version_in(daemon.status(), model)["leased"])


def teach(daemon: ApplianceProcess, *models: str, width: int = 4) -> None:
    """Ask until the front end serves these models by itself; fails when it does not."""
    with Stub(daemon.grpc) as stub:
        for model in models:
            before = leased_of(daemon, model)
            for _ in range(ATTEMPTS):
                stub.infer(message(model, width=width))
                if leased_of(daemon, model) > before:
                    break
            else:
                raise AssertionError(
                    f"the front end never serves '{model}' by itself; its log:\n{daemon.log()}"
                )


def until_empty(daemon: ApplianceProcess) -> Any:
    """Wait until no request holds anything any more; gives the status."""
    return daemon.until("an empty house", is_empty)


def is_empty(now: Any) -> bool:
    """Whether a status knows of no request that holds anything."""
    held = [now["running_requests"], now["queued_requests"], now["arena_used_bytes"]]
    return not any(held) and not any(slots["used"] for slots in now["slots"])
