"""Answers as bytes: what protobuf reads back is what the engine gave."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.classification import asked_outputs
from appliance.domain.inference import Answer, OutputHead, OutputTensor, RequestHead, RequestPlan, TensorHead
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec, split_bytes
from appliance.domain.validation import plan_request
from appliance.domain.varint import encode_varint
from appliance.engine.port import Buffer
from appliance.frontend.grpc.response import response_parts, stream_error, stream_response
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.domain.sample import make_version
from tests.steps import finished


def model_of(*outputs: TensorSpec) -> ModelVersion:
    return make_version(outputs=outputs)


def plan_of(model: ModelVersion, *outputs: OutputHead) -> RequestPlan:
    head = RequestHead(
        model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 4)),), outputs=outputs
    )
    return plan_request(model, head)


def answer_of(model: ModelVersion, *outputs: OutputTensor) -> Answer:
    return Answer(model=model, outputs=outputs, release=lambda: None)


def parts_of(plan: RequestPlan, request_id: bytes, answer: Answer) -> list[Buffer]:
    return response_parts(request_id, answer.model, finished(asked_outputs(answer, plan.head)))


def read(plan: RequestPlan, request_id: bytes, answer: Answer) -> pb.ModelInferResponse:
    return pb.ModelInferResponse.FromString(b"".join(parts_of(plan, request_id, answer)))


@given(
    st.text(max_size=300),
    st.lists(
        st.tuples(st.text(max_size=9), st.lists(st.integers(0, 300), max_size=3), st.binary(max_size=400)),
        max_size=4,
    ),
)
def test_every_field_reads_back(request_id: str, outputs: list[tuple[str, list[int], bytes]]) -> None:
    model = model_of(*(TensorSpec(name=name, datatype=Datatype.UINT8, shape=()) for name, _, _ in outputs))
    plan = plan_of(model_of())
    answer = answer_of(
        model,
        *(
            OutputTensor(name, Datatype.UINT8, tuple(shape), memoryview(data))
            for name, shape, data in outputs
        ),
    )
    for _ in range(2):
        response = read(plan, request_id.encode(), answer)
        assert (response.model_name, response.model_version, response.id) == ("m", "1", request_id)
        assert [(output.name, list(output.shape)) for output in response.outputs] == [
            (name, shape) for name, shape, _ in outputs
        ]
        assert list(response.raw_output_contents) == [data for _, _, data in outputs]
        assert not any(output.HasField("contents") for output in response.outputs)


def test_the_version_that_served_is_told_even_when_it_is_not_the_planned_one() -> None:
    plan = plan_of(make_version(version=3))
    tensor = OutputTensor("y", Datatype.FP32, (1, 2), bytes(8))
    assert read(plan, b"", answer_of(make_version(version=3), tensor)).model_version == "3"
    assert read(plan, b"", answer_of(make_version(version=2), tensor)).model_version == "2"


def test_sizes_of_one_shape_may_differ() -> None:
    spec = TensorSpec(name="s", datatype=Datatype.BYTES, shape=(1,))
    model = model_of(spec)
    plan = plan_of(model)
    for data in (b"\x01\x00\x00\x00a", b"\x02\x00\x00\x00ab", b"\xc8\x00\x00\x00" + bytes(200)):
        response = read(plan, b"", answer_of(model, OutputTensor("s", Datatype.BYTES, (1, 1), data)))
        assert list(response.raw_output_contents) == [data]


def test_classified_outputs_travel_beside_plain_ones() -> None:
    model = model_of(
        TensorSpec(name="y", datatype=Datatype.FP32, shape=(3,)),
        TensorSpec(name="z", datatype=Datatype.FP32, shape=(1,)),
    )
    plan = plan_of(model, OutputHead("y", 2), OutputHead("z"))
    scores = OutputTensor("y", Datatype.FP32, (1, 3), struct.pack("<3f", 0.25, 1.5, -2))
    plain = OutputTensor("z", Datatype.FP32, (1, 1), bytes(4))
    response = read(plan, b"", answer_of(model, scores, plain))
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("BYTES", [1, 2])
    words = [bytes(word) for word in split_bytes(memoryview(response.raw_output_contents[0]))]
    assert words == [b"1.500000:1", b"0.250000:0"]
    assert response.raw_output_contents[1] == bytes(4)


def test_stream_responses_wrap_a_response_and_may_tell_that_it_is_the_last() -> None:
    model = make_version()
    plan = plan_of(model)
    parts = parts_of(plan, b"7", answer_of(model, OutputTensor("y", Datatype.FP32, (100, 2), bytes(800))))
    plain = pb.ModelStreamInferResponse.FromString(stream_response(parts))
    assert plain.infer_response == pb.ModelInferResponse.FromString(b"".join(parts))
    assert not plain.infer_response.parameters
    final = pb.ModelStreamInferResponse.FromString(stream_response(parts, True))
    assert final.infer_response.parameters["triton_final_response"].bool_param is True
    assert final.infer_response.raw_output_contents == plain.infer_response.raw_output_contents


def test_stream_errors_name_their_request() -> None:
    message = pb.ModelStreamInferResponse.FromString(stream_error("7", "no"))
    assert (message.error_message, message.infer_response.id) == ("no", "7")


@given(st.integers(0, (1 << 63) - 1))
def test_varints_are_protobufs(value: int) -> None:
    assert pb.StatisticDuration.FromString(b"\x08" + encode_varint(value)).count == value
