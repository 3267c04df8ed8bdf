"""Encode a ModelInferResponse in pieces, so that each output is copied once, into the message.

Outputs always travel in raw_output_contents, one entry each: common clients read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.domain.inference import OutputTensor
from appliance.domain.model import ModelVersion
from appliance.domain.protocol import FINAL_RESPONSE, REGION, REGION_BYTES, REGION_OFFSET, RegionPart
from appliance.domain.varint import encode_varint
from appliance.engine.port import Buffer
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.regions.window import NO_PARTS

_ID_TAG = b"\x1a"
_RAW_TAG = b"\x32"
_INFER_RESPONSE_TAG = b"\x12"


def response_parts(
    request_id: bytes,
    model: ModelVersion,
    outputs: Sequence[OutputTensor],
    written: Mapping[str, RegionPart] = NO_PARTS,
) -> list[Buffer]:
    """The pieces of the serialised ModelInferResponse in order: name and version, the id if there is one, what
    describes the outputs, and of each output what stands before its tensor, and that. Tensors are not yet copied, so
    join the pieces before the answer is released. Outputs that were ``written`` to shared memory are described by where
    they are."""
    described = pb.ModelInferResponse()
    for output in outputs:
        described.outputs.add(name=output.name, datatype=output.datatype.wire, shape=output.shape)
    if written:
        _describe_parts(described, written)
    served = pb.ModelInferResponse(model_name=model.name, model_version=str(model.version))
    parts: list[Buffer] = [served.SerializeToString()]
    if request_id:
        parts += (_ID_TAG + encode_varint(len(request_id)), request_id)
    parts.append(described.SerializeToString())
    for output in outputs:
        parts += (_RAW_TAG + encode_varint(len(output.data)), output.data)
    return parts


def _describe_parts(described: pb.ModelInferResponse, written: Mapping[str, RegionPart]) -> None:
    for output in described.outputs:
        if output.name in written:
            part = written[output.name]
            output.parameters[REGION].string_param = part.region
            output.parameters[REGION_OFFSET].int64_param = part.offset
            output.parameters[REGION_BYTES].int64_param = part.nbytes


def stream_response(parts: list[Buffer], final: bool | None = None) -> bytes:
    """A ModelStreamInferResponse around a response; ``final`` is the value of its parameter that tells whether more
    responses to the same request follow (None: not told)."""
    if final is not None:
        parts = [*parts, closing(final)]
    return b"".join((_INFER_RESPONSE_TAG, encode_varint(sum(map(len, parts))), *parts))


def closing(final: bool) -> bytes:
    """The end of a serialised response that tells whether it is the last one to its request."""
    flagged = pb.ModelInferResponse()
    flagged.parameters[FINAL_RESPONSE].bool_param = final
    return flagged.SerializeToString()


def stream_error(request_id: str, text: str) -> bytes:
    """A ModelStreamInferResponse that tells what became of the request ``request_id``."""
    return pb.ModelStreamInferResponse(
        error_message=text, infer_response=pb.ModelInferResponse(id=request_id)
    ).SerializeToString()
