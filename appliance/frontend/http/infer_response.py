"""The answer to an inference request as the v2 REST protocol words it: JSON, then binary tensors.

Each output is copied exactly once out of the engine's memory, so that the answer can be released before any
of it is turned into text or sent. Text of large tensors is made piece by piece, with a turn of the loop
between pieces, and sent so; it is bounded as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted  # json.dumps takes ten times as long for a string
from typing import Final

from appliance.domain.classification import asked_outputs
from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import Answer, OutputTensor, RequestHead
from appliance.domain.model import ModelVersion
from appliance.domain.protocol import RegionPart
from appliance.domain.steps import Steps
from appliance.domain.tensor import Datatype
from appliance.frontend.http.json_tensor import json_pieces, longest_text
from appliance.frontend.regions.window import NO_PARTS
from appliance.frontend.turns import Turns

PART_CHARACTERS: Final = 256 * 1024
"""Text that is joined at once: well under a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResponse:
    """What to send: ``head_bytes`` of JSON, then binary tensors; ``parts`` are both in order."""

    head_bytes: int
    parts: list[bytes]
    binary: bool

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self.parts))


def copied_outputs(answer: Answer, head: RequestHead) -> Steps[tuple[OutputTensor, ...]]:
    """The outputs of ``answer`` in memory of their own; as classes where ``head`` asks for them."""
    outputs = yield from asked_outputs(answer, head)
    return tuple(output._replace(data=bytes(output.data)) for output in outputs)


def expected_bytes(outputs: Sequence[OutputTensor], binary: Mapping[str, bool], binary_default: bool) -> int:
    """The memory that encoding ``outputs`` takes: what there is of them, and the text of those that become JSON."""
    return sum(
        len(output.data)
        + (0 if binary.get(output.name, binary_default) else longest_text(output.datatype, len(output.data)))
        for output in outputs
    )


async def encode(
    outputs: Sequence[OutputTensor],
    model: ModelVersion,
    request_id: str,
    binary: Mapping[str, bool],
    binary_default: bool,
    max_json_bytes: int,
    turns: Turns,
    written: Mapping[str, RegionPart] = NO_PARTS,
) -> InferResponse:
    """Encode ``outputs`` of ``model``, each as binary data or JSON, a piece of that in each of ``turns``, but for those
    ``written`` elsewhere; raises InvalidRequest for one that was asked for as JSON and has no JSON form, and where that
    would be more than ``max_json_bytes`` of it: numbers by their datatype and shape, before any text is made."""
    if written:
        binary = {**binary, **dict.fromkeys(written, True)}
    spoken = [output for output in outputs if not binary.get(output.name, binary_default)]
    longest = sum(longest_text(output.datatype, len(output.data)) for output in spoken)
    if longest > max_json_bytes:
        raise _too_long(f"{longest} bytes", max_json_bytes)
    pieces = iter(frame(outputs, binary, binary_default, written))
    text = _Text(opening(model) + identity(request_id))
    text.put(next(pieces))
    for output in spoken:
        for index, piece in enumerate(json_pieces(output.datatype, bytes(output.data), output.name)):
            if index:
                text.put(",")
                await turns.next()
            text.put(piece)
            if text.size > max_json_bytes and output.datatype is Datatype.BYTES:
                raise _too_long("more", max_json_bytes)
        text.put(next(pieces))
    text.end()
    tensors = [
        bytes(output.data)
        for output in outputs
        if binary.get(output.name, binary_default) and output.name not in written
    ]
    return InferResponse(head_bytes=text.size, parts=[*text.parts, *tensors], binary=bool(tensors))


def _too_long(size: str, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"the outputs as JSON may take {size}, and http.max_json_answer_bytes allows {limit} bytes; ask for "
        "binary tensor data ('binary_data' of the outputs, or 'binary_data_output' of the request)"
    )


class _Text:
    """JSON of ASCII letters in the making. What it becomes is parts of bounded size: one whole would hold the loop."""

    def __init__(self, begun: bytes) -> None:
        self.parts: list[bytes] = []
        self.size = len(begun)
        self._open = [begun.decode()]
        self._room = PART_CHARACTERS - len(begun)

    def put(self, piece: str) -> None:
        """Append ``piece``."""
        self.size += len(piece)
        self._room -= len(piece)
        self._open.append(piece)
        if self._room < 0:
            self.end()

    def end(self) -> None:
        """Make a part of what is not one yet."""
        if self._open:
            self.parts.append("".join(self._open).encode())
            self._open.clear()
        self._room = PART_CHARACTERS


def frame(
    outputs: Sequence[OutputTensor],
    binary: Mapping[str, bool],
    binary_default: bool,
    written: Mapping[str, RegionPart] = NO_PARTS,
) -> list[str]:
    """What follows the id in an answer, in pieces: the elements of the outputs that are JSON belong between them. Those
    ``written`` elsewhere count as binary."""
    pieces = ['"outputs":[']
    for index, output in enumerate(outputs):
        shape = ",".join(map(str, output.shape))
        pieces[-1] += "," if index else ""
        pieces[-1] += f'{{"name":{quoted(output.name)},"datatype":"{output.datatype.wire}","shape":[{shape}],'
        if output.name in written:
            pieces[-1] += f'"parameters":{json.dumps(written[output.name].parameters())}}}'
        elif binary.get(output.name, binary_default):
            pieces[-1] += f'"parameters":{{"binary_data_size":{len(output.data)}}}}}'
        else:
            pieces[-1] += '"data":['
            pieces.append("]}")
    pieces[-1] += "]}"
    return pieces


def opening(model: ModelVersion) -> bytes:
    """What every answer of ``model`` begins with."""
    return f'{{"model_name":{quoted(model.name)},"model_version":"{model.version}",'.encode()


def identity(request_id: str) -> bytes:
    """What follows that: the id, where there is one."""
    return f'"id":{quoted(request_id)},'.encode() if request_id else b""
