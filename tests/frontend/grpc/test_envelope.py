"""Taking messages apart: agrees with protobuf on what is a message and on every byte of it."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.domain.errors import InvalidRequest
from appliance.frontend.grpc.envelope import Envelope, EnvelopeLimits, request_id_text, scan
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.frontend.grpc.messages import infer_request

LIMITS = EnvelopeLimits()
UNKNOWN_FIELDS = {
    "varint": b"\x40\x96\x01",
    "fixed64": b"\x41" + bytes(8),
    "bytes": b"\x42\x03abc",
    "fixed32": b"\x45" + bytes(4),
    "group": b"\x43\x40\x01\x44",
    "nested groups": b"\x43\x4b\x40\x01\x4c\x44",
    "far field number": b"\xf8\xff\xff\xff\x0f\x01",
    "raw with another wire type": b"\x38\x05",
    "id with another wire type": b"\x18\x05",
}
BROKEN = {
    "ends inside a tag": b"\x80",
    "ends inside a length": b"\x3a\x80",
    "ends inside a tensor": b"\x3a\x05abc",
    "ends inside the id": b"\x1a\x05abc",
    "ends inside a varint": b"\x40\xff",
    "overlong varint": b"\x40" + b"\xff" * 10 + b"\x01",
    "field zero": b"\x02\x00",
    "wire type six": b"\x0e",
    "wire type seven": b"\x0f",
    "tag above 32 bits": b"\xff" * 5 + b"\x7f\x00",
    "group never ends": b"\x43\x40\x01",
    "group ends unbegun": b"\x44",
    "group ends as another": b"\x43\x4c",
    "length above 31 bits": b"\x3a\xff\xff\xff\xff\x0f",
    "fixed64 cut short": b"\x41\x00",
    "groups nested too deep": b"\x43" * 200 + b"\x44" * 200,
}

texts = st.text(max_size=12)
shapes = st.lists(st.integers(0, 1 << 40), max_size=4)
tensors = st.binary(max_size=300)


@st.composite
def requests(draw: st.DrawFn) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(
        model_name=draw(texts), model_version=draw(st.sampled_from(["", "1", "12"])), id=draw(texts)
    )
    for name in draw(st.lists(texts, max_size=3)):
        request.inputs.add(name=name, datatype=draw(st.sampled_from(["FP32", "BYTES"])), shape=draw(shapes))
    for name in draw(st.lists(texts, max_size=2)):
        request.outputs.add(name=name).parameters["classification"].int64_param = 3
    if draw(st.booleans()):
        request.parameters["priority"].uint64_param = draw(st.integers(0, 9))
    request.raw_input_contents.extend(draw(st.lists(tensors, max_size=4)))
    return request


def together(envelope: Envelope) -> pb.ModelInferRequest:
    """The message an envelope stands for."""
    request = pb.ModelInferRequest.FromString(envelope.head)
    request.id = request_id_text(envelope.request_id)
    request.raw_input_contents.extend(bytes(tensor) for tensor in envelope.raw)
    return request


@given(requests())
def test_scan_keeps_every_field(request: pb.ModelInferRequest) -> None:
    assert together(scan(request.SerializeToString(), LIMITS)) == request


@given(st.lists(requests(), min_size=1, max_size=3))
def test_concatenated_messages_merge_as_protobuf_merges_them(several: list[pb.ModelInferRequest]) -> None:
    message = b"".join(request.SerializeToString() for request in several)
    assert together(scan(message, LIMITS)) == pb.ModelInferRequest.FromString(message)


@given(st.lists(st.one_of(requests(), st.binary(max_size=40)), max_size=2), st.binary(max_size=60))
@settings(max_examples=300)
def test_scan_accepts_what_protobuf_accepts(several: list[pb.ModelInferRequest | bytes], tail: bytes) -> None:
    pieces = [each if isinstance(each, bytes) else each.SerializeToString() for each in several]
    message = b"".join([*pieces, tail])
    try:
        expected = pb.ModelInferRequest.FromString(message)
    except DecodeError:
        with pytest.raises((InvalidRequest, DecodeError)):
            together(scan(message, LIMITS))
    else:
        assert together(scan(message, LIMITS)).SerializeToString(deterministic=True) == _sorted(expected)


@pytest.mark.parametrize("field", UNKNOWN_FIELDS.values(), ids=UNKNOWN_FIELDS.keys())
def test_unknown_fields_are_passed_over(field: bytes) -> None:
    request = infer_request(request_id="a")
    message = request.SerializeToString()
    for changed in (field + message, message + field, message[:3] + field + message[3:]):
        envelope = scan(changed, LIMITS)
        assert envelope.request_id == b"a"
        assert [bytes(tensor) for tensor in envelope.raw] == list(request.raw_input_contents)
        assert pb.ModelInferRequest.FromString(envelope.head).model_name == "m"


@pytest.mark.parametrize("garbage", BROKEN.values(), ids=BROKEN.keys())
def test_broken_messages_are_refused(garbage: bytes) -> None:
    with pytest.raises(DecodeError):
        pb.ModelInferRequest.FromString(garbage)
    for message in (garbage, infer_request().SerializeToString() + garbage):
        with pytest.raises(InvalidRequest, match="is not a ModelInferRequest"):
            scan(message, LIMITS)


def test_tensors_are_views_of_the_message() -> None:
    message = infer_request().SerializeToString()
    (tensor,) = scan(message, LIMITS).raw
    assert tensor.obj is message


def test_the_last_of_several_ids_counts() -> None:
    assert scan(b"\x1a\x01a\x1a\x01b", LIMITS).request_id == b"b"


def test_every_id_must_be_text() -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        scan(b"\x1a\x01\xff\x1a\x01b", LIMITS)
    with pytest.raises(InvalidRequest, match="UTF-8"):
        request_id_text(b"\xff")


def test_an_empty_message_is_an_empty_request() -> None:
    assert scan(b"", LIMITS) == (b"", b"", ())


def test_work_is_bounded_by_fields_tensors_and_head() -> None:
    limits = EnvelopeLimits(tensors_max=10, head_bytes_max=100)
    with pytest.raises(InvalidRequest, match="more than 1054 fields"):
        scan(b"\x1a\x00" * 2000, limits)
    with pytest.raises(InvalidRequest, match="11 raw tensors; at most 10"):
        scan(b"\x3a\x00" * 11, limits)
    with pytest.raises(InvalidRequest, match="send large tensors raw"):
        scan(b"\x0a\x65" + b"m" * 101, limits)
    with pytest.raises(InvalidRequest, match="too long"):
        scan(b"\x43" + b"\x40\x01" * 2000 + b"\x44", limits)


def test_ten_thousand_inputs_are_refused_at_once() -> None:
    request = pb.ModelInferRequest(model_name="m")
    for index in range(10_000):
        request.inputs.add(name=f"i{index}", datatype="FP32", shape=[1])
    with pytest.raises(InvalidRequest, match="more than 4096 fields"):
        scan(request.SerializeToString(), LIMITS)


def _sorted(request: pb.ModelInferRequest) -> bytes:
    return request.SerializeToString(deterministic=True)
