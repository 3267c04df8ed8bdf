"""Typed tensor contents of a request as the raw bytes the engine takes.

FP16 and BF16 have no typed form on the wire. Each datatype has one field it may travel in; a value that does not fit
the datatype, or data in another field, is an InvalidRequest.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from appliance.domain.errors import InvalidRequest
from appliance.domain.tensor import Datatype, element_count, encode_bytes, parse_datatype
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb

_FIELDS = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}

# What protobuf writes for a packed field of these is the raw tensor: no value passes through Python, and every bit of
# a NaN stays.
_PACKED_AS_RAW = frozenset({Datatype.BOOL, Datatype.FP32, Datatype.FP64})


def contents_to_raw(model_name: str, tensor: pb.ModelInferRequest.InferInputTensor) -> bytes:
    """Raw little-endian bytes of ``tensor.contents``; raises InvalidRequest when they are not what its datatype and
    shape say."""
    datatype = parse_datatype(tensor.datatype)
    field = _FIELDS.get(datatype)
    if field is None:
        raise InvalidRequest(
            f"input '{tensor.name}' for model '{model_name}' has datatype {datatype.wire}, which travels only in "
            "raw_input_contents"
        )
    strange = sorted(found.name for found, _ in tensor.contents.ListFields() if found.name != field)
    if strange:
        raise InvalidRequest(
            f"unexpected {strange[0]} for input '{tensor.name}' for model '{model_name}': "
            f"datatype {datatype.wire} travels in {field}"
        )
    values: Sequence[int | float | bytes] = getattr(tensor.contents, field)
    expected = element_count(tensor.shape)
    if len(values) != expected:
        raise InvalidRequest(_count_text(model_name, tensor.name, datatype, len(values), expected))
    if datatype in _PACKED_AS_RAW and values:
        tensor.contents.DiscardUnknownFields()
        return tensor.contents.SerializeToString()[-expected * datatype.size :]
    return _pack(model_name, tensor.name, datatype, values)


def _count_text(model_name: str, name: str, datatype: Datatype, found: int, expected: int) -> str:
    if found == 0:
        return f"unable to find data for input tensor '{name}' for model '{model_name}' in request."
    if datatype is Datatype.BYTES:
        return (
            f"unexpected number of string elements {found} for inference input '{name}' for model '{model_name}', "
            f"expecting {expected}"
        )
    return (
        f"input byte size mismatch for input '{name}' for model '{model_name}'. "
        f"Expected {expected * datatype.size}, got {found * datatype.size}"
    )


def _pack(model_name: str, name: str, datatype: Datatype, values: Sequence[int | float | bytes]) -> bytes:
    if datatype is Datatype.BYTES:
        return encode_bytes(value for value in values if isinstance(value, bytes))
    try:
        return struct.pack(f"<{len(values)}{datatype.code}", *values)
    except struct.error as error:
        raise InvalidRequest(
            f"input '{name}' for model '{model_name}' has a value outside of {datatype.wire}: {error}"
        ) from error
