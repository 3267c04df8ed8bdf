"""Every row of the protocol's table of errors: the status and the words that clients match on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Failure, Stub, failure_of
from tests.fronts import EVERY_WAY

ROW = struct.pack("<64f", *[0.5] * 64)
MEBIBYTE = 1 << 20

pytestmark = pytest.mark.parametrize("way", EVERY_WAY, indirect=True)


def mlp(**changes: Any) -> pb.ModelInferRequest:
    """A good request for the small MLP, but for ``changes`` to its one input."""
    return request_of("mlp", {"name": "x", "datatype": "FP32", "shape": [1, 64], "raw": ROW, **changes})


def request_of(
    model: str, *inputs: dict[str, Any], version: str = "", request_id: str = ""
) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    for each in inputs:
        fields = dict(each)
        raw = fields.pop("raw")
        request.inputs.add(**fields)
        if raw is not None:
            request.raw_input_contents.append(raw)
    return request


def fake(model: str, *, request_id: str = "") -> pb.ModelInferRequest:
    """A request for one of the fake models."""
    tensor = {"name": "x", "datatype": "UINT8", "shape": [1, 4], "raw": b"\1\2\3\4"}
    return request_of(model, tensor, request_id=request_id)


def with_parameter(request: pb.ModelInferRequest, key: str, **value: Any) -> pb.ModelInferRequest:
    request.parameters[key].CopyFrom(pb.InferParameter(**value))
    return request


def with_output(
    request: pb.ModelInferRequest, name: str, key: str = "", **value: Any
) -> pb.ModelInferRequest:
    output = request.outputs.add(name=name)
    if key:
        output.parameters[key].CopyFrom(pb.InferParameter(**value))
    return request


def both_contents() -> pb.ModelInferRequest:
    request = mlp()
    request.inputs[0].contents.fp32_contents.extend([0.5] * 64)
    return request


def typed(datatype: str, field: str, values: list[Any], shape: list[int]) -> pb.ModelInferRequest:
    request = request_of(
        f"identity_{datatype.lower()}", {"name": "x", "datatype": datatype, "shape": shape, "raw": None}
    )
    getattr(request.inputs[0].contents, field).extend(values)
    return request


def many_inputs() -> pb.ModelInferRequest:
    return request_of(
        "mlp",
        *[{"name": f"i{index}", "datatype": "FP32", "shape": [1], "raw": None} for index in range(10_000)],
    )


def shared_memory() -> pb.ModelInferRequest:
    request = mlp()
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    return request


STRINGS = {"datatype": "BYTES", "shape": [1, 2]}
A = {**STRINGS, "name": "a", "raw": b"\1\0\0\0a\0\0\0\0"}
ADDEND = {"datatype": "INT32", "shape": [1, 16], "raw": bytes(64)}
MISSING = (
    "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing required "
    "input(s) ['INPUT1']. Please provide all required input(s)."
)

INVALID: dict[str, tuple[Callable[[], Any], str]] = {
    "bad version": (
        lambda: request_of("mlp", version="one"),
        "failed to get model version from specified version string",
    ),
    "datatype": (
        lambda: mlp(datatype="INT32"),
        "inference input 'x' data-type is 'INT32', but model 'mlp' expects 'FP32'",
    ),
    "datatype that is none": (
        lambda: mlp(datatype="FP99"),
        "data-type is 'FP99', but model 'mlp' expects 'FP32'",
    ),
    "shape": (
        lambda: mlp(shape=[1, 65]),
        "unexpected shape for input 'x' for model 'mlp'. Expected [-1,64], got [1,65]",
    ),
    "rank": (lambda: mlp(shape=[64]), "unexpected shape for input 'x' for model 'mlp'"),
    "rank 0": (lambda: mlp(shape=[], raw=b"\0\0\0\0"), "unexpected shape for input 'x' for model 'mlp'"),
    "rank 9": (lambda: mlp(shape=[1] * 9), "at most 8 dimensions"),
    "negative dimension": (lambda: mlp(shape=[1, -64]), "negative dimension"),
    "overflowing shape": (lambda: mlp(shape=[1 << 62, 64]), "more elements than can be addressed"),
    "overflow to zero": (lambda: mlp(shape=[1 << 32, 1 << 32]), "more elements than can be addressed"),
    "batch": (lambda: mlp(shape=[1000, 64]), "inference request batch-size must be <= "),
    "one byte short": (
        lambda: mlp(raw=ROW[:-1]),
        "input byte size mismatch for input 'x' for model 'mlp'. Expected 256, got 255",
    ),
    "one byte long": (lambda: mlp(raw=ROW + b"\0"), "Expected 256, got 257"),
    "no data": (lambda: mlp(raw=None), "unable to find data for input tensor 'x' for model 'mlp' in request"),
    "missing inputs": (
        lambda: request_of("add_sub", {**ADDEND, "name": "INPUT0"}),
        MISSING,
    ),
    "unexpected input": (lambda: mlp(name="z"), "unexpected inference input 'z' for model 'mlp'"),
    "input twice": (
        lambda: request_of("add_sub", {**ADDEND, "name": "INPUT0"}, {**ADDEND, "name": "INPUT0"}),
        "input 'INPUT0' already exists in request",
    ),
    "unexpected output": (lambda: with_output(mlp(), "z"), "unexpected inference output 'z' for model 'mlp'"),
    "fewer strings": (
        lambda: request_of("string_concat", A, {**A, "name": "b", "raw": b"\0\0\0\0"}),
        "expected 2 string elements for inference input 'b' for model 'string_concat', got 1",
    ),
    "more strings": (
        lambda: request_of("string_concat", A, {**A, "name": "b", "raw": bytes(12)}),
        "unexpected number of string elements 3 for inference input 'b' for model 'string_concat', expecting 2",
    ),
    "string cut short": (
        lambda: request_of("string_concat", A, {**A, "name": "b", "raw": b"\x09\0\0\0ab"}),
        "incomplete string data",
    ),
    "string length cut short": (
        lambda: request_of("string_concat", A, {**A, "name": "b", "raw": b"\0\0"}),
        "incomplete string length",
    ),
    "both contents": (both_contents, "contents field must not be specified when using raw_input_contents"),
    "typed FP16": (lambda: typed("FP16", "fp32_contents", [1.0], [1, 1]), "only in raw_input_contents"),
    "typed BF16": (lambda: typed("BF16", "fp32_contents", [1.0], [1, 1]), "only in raw_input_contents"),
    "typed out of range": (lambda: typed("INT8", "int_contents", [200], [1, 1]), "value outside of INT8"),
    "typed count": (lambda: typed("INT32", "int_contents", [1, 2], [1, 3]), "Expected 12, got 8"),
    "fewer typed strings": (
        lambda: typed("BYTES", "bytes_contents", [b"a"], [1, 2]),
        "expected 2 string elements for inference input 'x' for model 'identity_bytes', got 1",
    ),
    "more typed strings": (
        lambda: typed("BYTES", "bytes_contents", [b"a", b"b", b"c"], [1, 2]),
        "unexpected number of string elements 3 for inference input 'x' for model 'identity_bytes', expecting 2",
    ),
    "typed field": (lambda: typed("INT32", "fp32_contents", [1.0], [1, 1]), "unexpected fp32_contents"),
    "more raw tensors": (
        lambda: mlp().SerializeToString() + b"\x3a\x00",
        "1 inputs, but 2 raw_input_contents",
    ),
    "reserved parameter": (
        lambda: with_parameter(mlp(), "triton_mystery", bool_param=True),
        "'triton_mystery' is not known",
    ),
    "sequence": (lambda: with_parameter(mlp(), "sequence_id", int64_param=7), "sequence_id 7 is given"),
    "negative timeout": (
        lambda: with_parameter(mlp(), "timeout", int64_param=-1),
        "'timeout' must not be negative",
    ),
    "priority level": (
        lambda: with_parameter(fake("levels"), "priority", uint64_param=3),
        "priority 3 is above the 2 priority levels",
    ),
    "classification": (
        lambda: with_output(mlp(), "y", "classification", int64_param=0),
        "'classification' of output 'y' must be at least 1",
    ),
    "10,000 inputs": (many_inputs, "request has more than"),
    "garbage": (lambda: b"\xff\xff\xff", "the message is not a ModelInferRequest"),
    "cut short": (lambda: mlp().SerializeToString()[:-1], "the message is not a ModelInferRequest"),
}


@pytest.mark.parametrize(("make", "words"), INVALID.values(), ids=INVALID.keys())
def test_wrong_requests(stub: Stub, make: Callable[[], Any], words: str) -> None:
    failure = stub.refusal(make())
    assert failure.code == "INVALID_ARGUMENT"
    assert words in failure.text
    assert failure.text.startswith("[request id: <id_unknown>] ")


@pytest.mark.parametrize(
    ("model", "version", "code", "words"),
    [
        ("nobody", "", "NOT_FOUND", "'nobody' is not found"),
        ("mlp", "9", "NOT_FOUND", "'mlp' version 9 is not found"),
        ("pair", "2", "NOT_FOUND", "'pair' version 2 is not found"),
        ("not_onnx", "", "UNAVAILABLE", "'not_onnx' has no available versions"),
        ("not_onnx", "1", "UNAVAILABLE", "'not_onnx' version 1 is not at ready state"),
    ],
)
def test_models_and_versions_that_cannot_answer(
    stub: Stub, model: str, version: str, code: str, words: str
) -> None:
    failure = stub.refusal(request_of(model, version=version, request_id="7"))
    assert failure.code == code
    assert failure.text.startswith(f"Request for unknown model: {words}")


def test_shared_memory_on_a_tensor(stub: Stub) -> None:
    failure = stub.refusal(shared_memory())
    assert failure.code == "UNIMPLEMENTED"
    assert "client shared memory" in failure.text


@pytest.mark.parametrize("rpc", ["RepositoryModelLoad", "RepositoryModelUnload"])
@pytest.mark.parametrize("request_bytes", [b"\x0a\x03mlp", b"\x12\x03mlp"], ids=["field 1", "field 2"])
def test_loading_over_the_network(stub: Stub, rpc: str, request_bytes: bytes) -> None:
    failure = stub.refusal(request_bytes, rpc)
    assert failure.code == "PERMISSION_DENIED"
    assert "loading model 'mlp' over the network is turned off" in failure.text


def test_a_model_that_fails(stub: Stub) -> None:
    failure = stub.refusal(fake("failing", request_id="f"))
    assert failure.code == "INTERNAL"
    assert failure.text.startswith("[request id: f] model 'failing' failed")


def test_a_full_queue_says_when_to_come_back(stub: Stub) -> None:
    calls = [stub.begin("ModelInfer", fake("narrow")) for _ in range(6)]
    failures = [failure_of(call) for call in calls if call.exception() is not None]
    assert failures
    assert len(failures) < len(calls)
    for failure in failures:
        assert failure.code == "RESOURCE_EXHAUSTED"
        assert "Exceeds maximum queue size" in failure.text
        assert int(failure.trailers["grpc-retry-pushback-ms"]) >= 1


def test_a_deadline_that_cannot_be_met_is_refused(stub: Stub) -> None:
    for _ in range(4):
        stub.infer(fake("slow"))
    failure = _refused_in_time(stub, fake("slow"), timeout_s=0.12)
    assert failure.code == "RESOURCE_EXHAUSTED"
    assert "cannot be served before its deadline" in failure.text
    assert "grpc-retry-pushback-ms" in failure.trailers


def test_a_timeout_parameter_is_a_deadline_too(stub: Stub) -> None:
    for _ in range(4):
        stub.infer(fake("slow"))
    failure = stub.refusal(with_parameter(fake("slow"), "timeout", int64_param=100_000))
    assert failure.code == "RESOURCE_EXHAUSTED"
    assert "cannot be served before its deadline" in failure.text


def test_a_message_over_the_limit_harms_nobody(stub: Stub) -> None:
    failure = stub.refusal(mlp(raw=bytes(70 * MEBIBYTE)))
    assert failure.code == "RESOURCE_EXHAUSTED"
    assert stub.infer(mlp()).model_name == "mlp"


def test_a_message_under_the_limit_is_read(stub: Stub) -> None:
    failure = stub.refusal(mlp(raw=bytes(60 * MEBIBYTE)))
    assert failure.code == "INVALID_ARGUMENT"
    assert f"Expected 256, got {60 * MEBIBYTE}" in failure.text


def test_texts_are_cut_before_clients_refuse_them(stub: Stub) -> None:
    failure = stub.refusal(request_of("\u00e9" * 100_000, request_id="i" * 100_000))
    assert failure.code == "NOT_FOUND"
    assert failure.text.endswith("is not found")


def test_rpcs_that_are_none(stub: Stub) -> None:
    assert stub.refusal(b"", "ModelDance").code == "UNIMPLEMENTED"


@pytest.mark.parametrize("rpc", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
def test_unknown_models_elsewhere(stub: Stub, rpc: str) -> None:
    failure = stub.refusal(pb.ModelMetadataRequest(name="nobody"), rpc)
    assert failure.code == "NOT_FOUND"
    assert "Request for unknown model: 'nobody' is not found" in failure.text
    assert stub.refusal(b"\x0a\xff", rpc).code == "INVALID_ARGUMENT"


def test_a_cancelled_request_leaves_the_queue(stub: Stub, server: ApplianceProcess) -> None:
    idle = server.until("nobody else's requests", lambda now: _inside(now, "snail") == 0)
    before = _cancelled(idle, "snail")
    first = stub.begin("ModelInfer", fake("snail"))
    server.until("the first inside", lambda now: _inside(now, "snail") == 1)
    second = stub.begin("ModelInfer", fake("snail"))
    server.until("the second behind it", lambda now: _inside(now, "snail") == 2)
    second.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        second.result()
    server.until("one cancelled", lambda now: _cancelled(now, "snail") == before + 1)
    assert pb.ModelInferResponse.FromString(first.result()).model_name == "snail"


def test_a_deadline_that_passes_in_the_queue(server: ApplianceProcess, stub: Stub) -> None:
    running = stub.begin("ModelInfer", fake("stuck"))
    server.until("the worker busy", lambda now: _running(now, "stuck") == 1)
    # Once: the longer the worker is busy, the longer it is expected to be, and who comes later is refused for that.
    waiting = stub.begin(
        "ModelInfer", with_parameter(fake("stuck", request_id="7"), "timeout", int64_param=1_000_000)
    )
    failure = failure_of(waiting.exception())
    assert (failure.code, failure.text) == ("DEADLINE_EXCEEDED", "[request id: 7] Request timeout expired")
    running.cancel()


def _refused_in_time(stub: Stub, request: Any, timeout_s: float) -> Failure:
    """How it is refused by a server that is in time to say so: under load a client's own clock may be first."""
    for _ in range(20):
        failure = failure_of(stub.begin("ModelInfer", request, timeout_s).exception())
        if failure.code != "DEADLINE_EXCEEDED":
            break
    return failure


def _inside(document: Any, name: str) -> int:
    """Requests that wait or run; one that the front end gave a worker by itself counts as running."""
    entries = [entry for entry in document["models"] if entry["name"] == name]
    return sum(entry["queued"] + entry["running"] for entry in entries)


def _running(document: Any, name: str) -> int:
    return next(int(model["running"]) for model in document["models"] if model["name"] == name)


def _cancelled(document: Any, name: str) -> int:
    return next(int(model["requests"]["cancelled"]) for model in document["models"] if model["name"] == name)
