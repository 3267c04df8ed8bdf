"""An ONNX file without its large weights: the same model, whose initialisers say where in the file their bytes are.

So a model of any size is worked on in the memory that its graph takes: the weights inside the file become external
data of the file itself (``SELF``), and are treated like those that were in other files before. Only the raw bytes of
the main graph's initialisers are left out; what is in subgraphs, constants and typed fields stays. Reads; never writes.
"""

from __future__ import annotations

import os
from typing import Final

from appliance.domain.errors import ArtefactError
from appliance.domain.varint import encode_varint
from appliance.repository.onnx.foreign import HEAD_BYTES
from appliance.repository.onnx.graph import check_head
from appliance.repository.onnx.protobuf import (
    FileSource,
    Malformed,
    Source,
    Span,
    Walk,
    length_key,
    varint_key,
)

SELF: Final = "/the/file/itself"
"""The location that stands for the file: no model may name an absolute path, so it stands for nothing else."""

SKELETON_BYTES_MAX: Final = (1 << 31) - 1
FIELDS_MAX: Final = 4_000_000

_MODEL_GRAPH: Final = length_key(7)
_GRAPH_INITIALIZER: Final = length_key(5)
_TENSOR_RAW: Final = length_key(9)
_TENSOR_EXTERNAL: Final = length_key(13)
_TENSOR_LOCATION: Final = varint_key(14)
_ENTRY_KEY: Final = length_key(1)
_ENTRY_VALUE: Final = length_key(2)


def read_skeleton(descriptor: int, least_bytes: int) -> bytes:
    """The model open at ``descriptor`` (left open) with initialisers of at least ``least_bytes`` left where they are.
    Raises ArtefactError."""
    try:
        size = os.fstat(descriptor).st_size
        check_head(os.pread(descriptor, HEAD_BYTES, 0))
        skeleton = _Skeleton(FileSource(descriptor, size), least_bytes)
        return skeleton.model(size)
    except Malformed as error:
        raise ArtefactError(f"is a damaged or truncated ONNX model: {error}") from error
    except OSError as error:
        raise ArtefactError(f"cannot be read: {error.strerror}") from error


class _Skeleton:
    """Copies messages, but for what is left out."""

    def __init__(self, source: Source, least_bytes: int) -> None:
        self._source = source
        self._least_bytes = least_bytes
        self._walk = Walk(FIELDS_MAX)
        self._taken = 0

    def model(self, size: int) -> bytes:
        parts: list[bytes] = []
        begin = 0
        for key, value, end in self._walk.fields(Span(self._source, 0, size)):
            if key == _MODEL_GRAPH:
                parts.append(_message(key, self._graph(value, end)))
            else:
                parts.append(self._copy(begin, end))
            begin = end
        return b"".join(parts)

    def _graph(self, start: int, stop: int) -> bytes:
        parts: list[bytes] = []
        begin = start
        for key, value, end in self._walk.fields(Span(self._source, start, stop)):
            tensor = self._tensor(value, end) if key == _GRAPH_INITIALIZER else None
            parts.append(self._copy(begin, end) if tensor is None else _message(key, tensor))
            begin = end
        return b"".join(parts)

    def _tensor(self, start: int, stop: int) -> bytes | None:
        """The tensor with a reference in the place of its bytes; None when it stays as it is."""
        if stop - start < self._least_bytes:
            return None
        parts: list[bytes] = []
        raw: list[tuple[int, int]] = []
        begin = start
        for key, value, end in self._walk.fields(Span(self._source, start, stop)):
            if key in (_TENSOR_EXTERNAL, _TENSOR_LOCATION):
                return None
            if key == _TENSOR_RAW:
                raw.append((value, end))
            else:
                parts.append(self._copy(begin, end))
            begin = end
        if len(raw) != 1 or raw[0][1] - raw[0][0] < self._least_bytes:
            return None
        offset, end = raw[0]
        said = (("location", SELF), ("offset", str(offset)), ("length", str(end - offset)))
        parts += [_message(_TENSOR_EXTERNAL, _entry(key, text)) for key, text in said]
        parts.append(encode_varint(_TENSOR_LOCATION) + encode_varint(1))
        return b"".join(parts)

    def _copy(self, start: int, end: int) -> bytes:
        self._taken += end - start
        if self._taken > SKELETON_BYTES_MAX:
            raise ArtefactError(
                "holds more than 2 GiB besides the initialisers of its main graph; "
                "let the exporter put weights into initialisers instead of constants"
            )
        return self._source.read(start, end)


def _entry(key: str, text: str) -> bytes:
    return _message(_ENTRY_KEY, key.encode()) + _message(_ENTRY_VALUE, text.encode())


def _message(key: int, content: bytes) -> bytes:
    return encode_varint(key) + encode_varint(len(content)) + content
