"""Encode a ModelInferResponse by hand: pieces that are alike for every answer of a shape are made once by protobuf,
and each output is copied once, into the message.

Outputs always travel in raw_output_contents, one entry each: common clients read nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.domain.inference import Answer, OutputTensor, RequestPlan
from appliance.domain.protocol import FINAL_RESPONSE, classify
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb

_ID_TAG = b"\x1a"
_RAW_TAG = b"\x32"
_INFER_RESPONSE_TAG = b"\x12"
_SHAPES_MAX = 64


class _Pieces(NamedTuple):
    """Serialised model name and version, and what lies between the id and the bytes of the first output.
    ``first_size`` is the size that the latter announces."""

    opening: bytes
    described: bytes
    first_size: int


class ResponseForm:
    """Encodes the answers to one plan. Owned by the codec's cache entry of that plan."""

    __slots__ = ("_batched", "_classes", "_pieces")

    def __init__(self, plan: RequestPlan) -> None:
        classes = tuple(planned.classification for planned in plan.outputs)
        self._classes = classes if any(classes) else ()
        self._batched = plan.model.max_batch_size > 0
        self._pieces: dict[tuple[int, tuple[tuple[int, ...], ...], int], _Pieces] = {}

    def parts(self, request_id: bytes, answer: Answer) -> list[bytes | memoryview]:
        """The pieces of the serialised ModelInferResponse in order; tensors are not yet copied, so join the pieces
        before the answer is released."""
        outputs = self._classified(answer) if self._classes else answer.outputs
        first_size = len(outputs[0].data) if outputs else 0
        key = (answer.model.version, tuple([output.shape for output in outputs]), first_size)
        pieces = self._pieces.get(key)
        if pieces is None:
            pieces = self._make_pieces(key, answer, outputs)
        parts: list[bytes | memoryview] = [pieces.opening]
        if request_id:
            size = len(request_id)
            parts.append(_ID_TAG + (bytes((size,)) if size < 128 else varint(size)))
            parts.append(request_id)
        parts.append(pieces.described)
        if outputs:
            parts.append(outputs[0].data)
            for output in outputs[1:]:
                parts.append(_RAW_TAG + varint(len(output.data)))
                parts.append(output.data)
        return parts

    def _make_pieces(
        self,
        key: tuple[int, tuple[tuple[int, ...], ...], int],
        answer: Answer,
        outputs: tuple[OutputTensor, ...],
    ) -> _Pieces:
        described = pb.ModelInferResponse()
        for output in outputs:
            described.outputs.add(name=output.name, datatype=output.datatype.wire, shape=output.shape)
        serialised = described.SerializeToString()
        if outputs:
            serialised += _RAW_TAG + varint(key[2])
        pieces = _Pieces(opening(answer.model.name, answer.model.version), serialised, key[2])
        if len(self._pieces) >= _SHAPES_MAX:
            self._pieces.clear()
        self._pieces[key] = pieces
        return pieces

    def _classified(self, answer: Answer) -> tuple[OutputTensor, ...]:
        return tuple(
            classify(output, top, batched=self._batched, labels=answer.model.labels.get(output.name, ()))
            if top
            else output
            for output, top in zip(answer.outputs, self._classes, strict=True)
        )


def opening(model_name: str, version: int) -> bytes:
    """The serialised name and version that a response begins with."""
    return pb.ModelInferResponse(model_name=model_name, model_version=str(version)).SerializeToString()


def stream_response(parts: list[bytes | memoryview], final: bool | None = None) -> bytes:
    """A ModelStreamInferResponse around a response; ``final`` is the value of its parameter that tells whether more
    responses to the same request follow (None: not told)."""
    if final is not None:
        parts = [*parts, closing(final)]
    return b"".join((_INFER_RESPONSE_TAG, varint(sum(map(len, parts))), *parts))


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


def varint(value: int) -> bytes:
    """``value`` in protobuf's base-128 encoding."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)
