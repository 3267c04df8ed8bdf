"""From bytes to a checked plan with its tensors: what is refused, and in which words."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from appliance.domain.errors import InvalidRequest, UnknownModel, Unsupported
from appliance.domain.tensor import Datatype, encode_bytes
from appliance.frontend.grpc.envelope import EnvelopeLimits, scan
from appliance.frontend.grpc.request import Intake, take_in
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble, bytes_of
from tests.frontend.grpc.messages import ROW, infer_request, one_input, two_inputs
from tests.steps import finished

TYPED: dict[Datatype, tuple[str, list[Any], bytes]] = {
    Datatype.BOOL: ("bool_contents", [True, False], b"\x01\x00"),
    Datatype.INT8: ("int_contents", [-128, 127], b"\x80\x7f"),
    Datatype.INT16: ("int_contents", [-2, 300], struct.pack("<2h", -2, 300)),
    Datatype.INT32: ("int_contents", [-2, 1 << 30], struct.pack("<2i", -2, 1 << 30)),
    Datatype.INT64: ("int64_contents", [-2, 1 << 60], struct.pack("<2q", -2, 1 << 60)),
    Datatype.UINT8: ("uint_contents", [0, 255], b"\x00\xff"),
    Datatype.UINT16: ("uint_contents", [0, 65535], b"\x00\x00\xff\xff"),
    Datatype.UINT32: ("uint_contents", [0, 1 << 31], struct.pack("<2I", 0, 1 << 31)),
    Datatype.UINT64: ("uint64_contents", [0, 1 << 63], struct.pack("<2Q", 0, 1 << 63)),
    Datatype.FP32: ("fp32_contents", [0.5, -2.0], struct.pack("<2f", 0.5, -2.0)),
    Datatype.FP64: ("fp64_contents", [0.1, -2.0], struct.pack("<2d", 0.1, -2.0)),
    Datatype.BYTES: ("bytes_contents", [b"", b"\xff\x00"], encode_bytes([b"", b"\xff\x00"])),
}


@pytest.fixture
def engine() -> EngineDouble:
    return EngineDouble(make_version(), two_inputs())


def take(engine: EngineDouble, request: pb.ModelInferRequest | bytes) -> Intake:
    message = request if isinstance(request, bytes) else request.SerializeToString()
    limits = EnvelopeLimits(tensors_max=16)
    return finished(take_in(scan(message, limits), engine, limits))


def typed_request(
    datatype: Datatype, field: str, values: list[Any], shape: list[int]
) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="typed")
    tensor = request.inputs.add(name="x", datatype=datatype.wire, shape=shape)
    getattr(tensor.contents, field).extend(values)
    return request


def test_what_may_come_again_is_told_with_the_generation_it_was_planned_in(engine: EngineDouble) -> None:
    first, second = take(engine, infer_request(request_id="a")), take(engine, infer_request(raw=bytes(16)))
    assert first.head == second.head == infer_request(raw=None).SerializeToString()
    assert first.generation == engine.generation
    assert [bytes_of(tensor) for tensor in first.tensors] == [ROW]
    long = infer_request()
    long.parameters["mine"].string_param = "x" * 5000
    assert not take(engine, long).head


def test_tensors_are_checked_against_what_was_announced(engine: EngineDouble) -> None:
    with pytest.raises(
        InvalidRequest, match=r"input byte size mismatch for input 'x' for model 'm'. Expected 16, got 15"
    ):
        take(engine, infer_request(raw=ROW[:-1]))
    with pytest.raises(InvalidRequest, match="Expected 16, got 17"):
        take(engine, infer_request(raw=ROW + b"\0"))
    with pytest.raises(InvalidRequest, match="unable to find data for input tensor 'x' for model 'm'"):
        take(engine, infer_request(raw=None))


def test_bytes_elements_are_counted(engine: EngineDouble) -> None:
    request = pb.ModelInferRequest(model_name="two")
    request.inputs.add(name="s", datatype="BYTES", shape=[1, 1])
    request.inputs.add(name="a", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.extend([encode_bytes([b"text"]), bytes(8)])
    assert [bytes_of(tensor) for tensor in take(engine, request).tensors] == list(request.raw_input_contents)
    request.raw_input_contents[0] = encode_bytes([b"text", b"more"])
    with pytest.raises(InvalidRequest, match="unexpected number of string elements 2"):
        take(engine, request)
    request.raw_input_contents[0] = b"\xff\xff\xff\xff"
    with pytest.raises(InvalidRequest, match="incomplete string data"):
        take(engine, request)


def test_the_number_of_raw_tensors_must_be_that_of_the_inputs(engine: EngineDouble) -> None:
    request = infer_request()
    request.raw_input_contents.append(ROW)
    with pytest.raises(InvalidRequest, match="1 inputs, but 2 raw_input_contents"):
        take(engine, request)


@pytest.mark.parametrize("datatype", TYPED, ids=lambda datatype: datatype.wire)
def test_typed_contents_become_raw_bytes(datatype: Datatype) -> None:
    field, values, raw = TYPED[datatype]
    engine = EngineDouble(one_input(datatype))
    assert take(engine, typed_request(datatype, field, values, [1, 2])).tensors == (raw,)


def test_typed_floats_keep_every_bit_whatever_else_the_message_holds() -> None:
    values = struct.pack("<3I", 0x7F800001, 0xFFC00001, 0x80000000)
    packed = b"\x32\x0c" + values
    unknown = b"\xfa\x01\x03abc"
    tensor = b"\x0a\x01x\x12\x04FP32\x1a\x02\x01\x03"
    engine = EngineDouble(one_input(Datatype.FP32))
    for contents in (packed, unknown + packed, packed + unknown):
        body = tensor + b"\x2a" + bytes((len(contents),)) + contents
        message = b"\x0a\x05typed" + b"\x2a" + bytes((len(body),)) + body
        assert take(engine, message).tensors == (values,)


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        (Datatype.INT8, 128),
        (Datatype.INT8, -129),
        (Datatype.INT16, 1 << 15),
        (Datatype.UINT8, 256),
        (Datatype.UINT16, 1 << 16),
    ],
)
def test_typed_values_must_fit_their_datatype(datatype: Datatype, value: int) -> None:
    engine = EngineDouble(one_input(datatype))
    with pytest.raises(InvalidRequest, match=f"value outside of {datatype.wire}"):
        take(engine, typed_request(datatype, TYPED[datatype][0], [value], [1, 1]))


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16])
def test_half_floats_have_no_typed_form(datatype: Datatype) -> None:
    engine = EngineDouble(one_input(datatype))
    with pytest.raises(InvalidRequest, match="only in raw_input_contents"):
        take(engine, typed_request(datatype, "fp32_contents", [1.0], [1, 1]))


def test_typed_contents_in_another_field_are_refused() -> None:
    engine = EngineDouble(one_input(Datatype.FP32))
    with pytest.raises(
        InvalidRequest, match=r"unexpected int_contents for input 'x'.*travels in fp32_contents"
    ):
        take(engine, typed_request(Datatype.FP32, "int_contents", [1], [1, 1]))


@pytest.mark.parametrize(
    ("datatype", "text"),
    [(Datatype.FP32, "Expected 12, got 8"), (Datatype.BYTES, "expected 3 string elements .* got 2")],
)
def test_typed_contents_must_have_as_many_elements_as_the_shape(datatype: Datatype, text: str) -> None:
    field, values, _ = TYPED[datatype]
    engine = EngineDouble(one_input(datatype))
    with pytest.raises(InvalidRequest, match=text):
        take(engine, typed_request(datatype, field, values, [1, 3]))


def test_empty_typed_tensors_need_no_contents() -> None:
    engine = EngineDouble(one_input(Datatype.FP32))
    assert take(engine, typed_request(Datatype.FP32, "fp32_contents", [], [1, 0])).tensors == (b"",)


def test_both_kinds_of_contents_are_refused(engine: EngineDouble) -> None:
    request = infer_request()
    request.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    with pytest.raises(
        InvalidRequest, match="contents field must not be specified when using raw_input_contents"
    ):
        take(engine, request)


def test_empty_contents_beside_raw_ones_are_harmless(engine: EngineDouble) -> None:
    request = infer_request()
    request.inputs[0].contents.SetInParent()
    assert [bytes_of(tensor) for tensor in take(engine, request).tensors] == [ROW]


def test_heads_with_typed_contents_do_not_come_again() -> None:
    engine = EngineDouble(one_input(Datatype.FP32))
    assert not take(engine, typed_request(Datatype.FP32, "fp32_contents", [1.0], [1, 1])).head


@pytest.mark.parametrize("key", ["shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"])
def test_shared_memory_is_not_offered(engine: EngineDouble, key: str) -> None:
    request = infer_request()
    request.inputs[0].parameters[key].string_param = "r"
    with pytest.raises(Unsupported, match="client shared memory"):
        take(engine, request)
    request = infer_request()
    request.outputs.add(name="y").parameters[key].string_param = "r"
    with pytest.raises(Unsupported, match="output 'y' asks for client shared memory"):
        take(engine, request)


def test_priority_and_timeout_reach_the_plan(engine: EngineDouble) -> None:
    request = infer_request()
    request.parameters["priority"].uint64_param = 2
    request.parameters["timeout"].int64_param = 5000
    request.parameters["mine"].double_param = 0.5
    head = take(engine, request).plan.head
    assert (head.priority, head.timeout_us, head.parameters["mine"]) == (2, 5000, 0.5)


def test_a_parameter_without_a_value_is_refused(engine: EngineDouble) -> None:
    request = infer_request()
    request.parameters["mine"].SetInParent()
    with pytest.raises(InvalidRequest, match="parameter 'mine' of the request has no value"):
        take(engine, request)


def test_parameters_inputs_outputs_and_ranks_are_bounded(engine: EngineDouble) -> None:
    request = infer_request()
    for index in range(300):
        request.parameters[f"p{index}"].bool_param = True
    with pytest.raises(InvalidRequest, match="300 parameters; at most 256"):
        take(engine, request)
    request = infer_request(shape=(1,) * 9)
    with pytest.raises(InvalidRequest, match="rank 9; at most 8"):
        take(engine, request)
    request = infer_request()
    for index in range(17):
        request.outputs.add(name=f"o{index}")
    with pytest.raises(InvalidRequest, match="17 outputs; at most 16"):
        take(engine, request)


def test_a_head_that_protobuf_cannot_read_is_refused(engine: EngineDouble) -> None:
    with pytest.raises(InvalidRequest, match="is not a ModelInferRequest"):
        take(engine, b"\x0a\x01\xff\x3a\x00")


def test_unknown_models_are_told_before_contents_are_looked_at(engine: EngineDouble) -> None:
    request = typed_request(Datatype.FP16, "fp32_contents", [1.0], [1, 1])
    with pytest.raises(UnknownModel, match="Request for unknown model: 'typed' is not found"):
        take(engine, request)
