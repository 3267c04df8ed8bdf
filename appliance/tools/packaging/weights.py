"""Split an ONNX model into a graph without weights and one file of weights, in the order in which inference uses them.

Every initialiser of at least LEAST_BYTES goes to the weights' file: first those of the first node, and so on through
the graph; large ones begin at a page, so that they can be read past the page cache and straight into a device, the
file ends at one. Tensors with equal bytes share a place. What stays in the graph file: small tensors, texts, sparse
tensors, and of tensors in different subgraphs that have one name all but the first. Bytes are copied from file to file
and never held whole.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Final

import onnx.numpy_helper
from google.protobuf.message import DecodeError, EncodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from appliance.domain.digest import Digester
from appliance.domain.errors import ArtefactError
from appliance.domain.manifest import ELEMENT_BITS, TensorEntry
from appliance.package.conformity import WEIGHTS_FILE
from appliance.repository.model_files import ModelFile, ModelHome
from appliance.tools.packaging.skeleton import SELF, read_skeleton

LEAST_BYTES: Final = 1024
PAGE_BYTES: Final = 4096
LARGE_BYTES: Final = 64 << 10
SMALL_ALIGNMENT: Final = 64
INLINE_BYTES_MAX: Final = 64 << 20
CHUNK_BYTES: Final = 4 << 20
CONSTANTS_ARE_INITIALIZERS_FROM: Final = 4  # ir_version

_DATA_FIELDS: Final = (
    "raw_data",
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
    "external_data",
)

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    """Where the bytes of a tensor are: in a file, or in memory (``data``)."""

    file: ModelFile | None
    offset: int
    length: int
    data: bytes = b""

    def chunks(self) -> Iterator[bytes]:
        if self.file is None:
            yield self.data
            return
        with self.file.open() as descriptor:
            for start in range(self.offset, self.offset + self.length, CHUNK_BYTES):
                size = min(CHUNK_BYTES, self.offset + self.length - start)
                data = os.pread(descriptor, size, start)
                if len(data) != size:
                    raise ArtefactError("changed while it was read; put files in place by renaming them")
                yield data


def split_model(
    file: ModelFile,
    home: ModelHome,
    start: PurePosixPath,
    graph_out: BinaryIO,
    weights_out: BinaryIO,
    progress: Progress,
) -> tuple[TensorEntry, ...]:
    """Write both files and give the tensors of the second, which is empty when there are none. External data of the
    model is looked for from ``start`` in ``home``. ``progress`` is told of bytes as they are written. Raises
    ArtefactError."""
    with file.open() as descriptor:
        skeleton = read_skeleton(descriptor, LEAST_BYTES)
    model = ModelProto()
    try:
        model.ParseFromString(skeleton)
    except DecodeError as error:
        raise ArtefactError(f"is not an ONNX model: {error}") from error
    del skeleton
    if model.training_info:
        raise ArtefactError("holds training graphs; export the model for inference")
    if model.ir_version >= CONSTANTS_ARE_INITIALIZERS_FROM:
        _lift_constants(model.graph)
    places = _Places(file, home, start)
    _refuse_sparse(model.graph)
    writer = _WeightsWriter(weights_out, progress)
    for tensor in _in_order_of_use(model.graph):
        writer.place(tensor, places.bytes_of(tensor))
    for tensor in _other_tensors(model):
        _bring_in(tensor, places.bytes_of(tensor))
    writer.finish()
    try:
        graph_out.write(model.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as error:
        raise ArtefactError(f"has a graph of more than 2 GiB even without its weights: {error}") from error
    return writer.entries()


def _lift_constants(graph: GraphProto) -> None:
    """Large constants of the main graph become initialisers, which is what runtimes make of them anyway."""
    outputs = {output.name for output in graph.output}
    kept: list[NodeProto] = []
    for node in graph.node:
        value = _constant(node)
        if value is None or not _is_large(value) or node.output[0] in outputs:
            kept.append(node)
            continue
        lifted = graph.initializer.add()
        lifted.CopyFrom(value)
        lifted.name = node.output[0]
    if len(kept) != len(graph.node):
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(nodes)


def _is_large(tensor: TensorProto) -> bool:
    bits = ELEMENT_BITS.get(_type_name(tensor))
    return bits is not None and _length(tensor, bits) >= LEAST_BYTES


def _constant(node: NodeProto) -> TensorProto | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    if len(node.attribute) != 1 or len(node.output) != 1 or not isinstance(node.output[0], str):
        return None
    attribute = node.attribute[0]
    return attribute.t if attribute.name == "value" and attribute.type == AttributeProto.TENSOR else None


def _in_order_of_use(graph: GraphProto) -> Sequence[TensorProto]:
    """All initialisers of the graph and of its subgraphs: as its nodes use them, then those that no node uses."""
    ordered: list[TensorProto] = []
    own = _initialisers(graph)
    _visit(graph, [own], ordered)
    return [*ordered, *own.values()]


def _visit(graph: GraphProto, scopes: list[dict[str, TensorProto]], ordered: list[TensorProto]) -> None:
    """Move what the nodes use from the ``scopes``, the innermost one last, to ``ordered``."""
    for node in graph.node:
        for name in node.input:
            scope = next((scope for scope in reversed(scopes) if name in scope), None)
            if scope is not None:
                ordered.append(scope.pop(name))
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                own = _initialisers(inner)
                _visit(inner, [*scopes, own], ordered)
                ordered += own.values()


def _initialisers(graph: GraphProto) -> dict[str, TensorProto]:
    found = {tensor.name: tensor for tensor in graph.initializer}
    if len(found) != len(graph.initializer):
        raise ArtefactError("has a graph that gives two initialisers one name")
    if not all(isinstance(name, str) for name in found):  # the library gives bytes where it is not UTF-8
        raise ArtefactError("has an initialiser whose name is not UTF-8")
    return found


def _graphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _other_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """The tensors in attributes, wherever they are."""
    for node in (*_nodes(model.graph), *(inner for each in model.functions for inner in each.node)):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                yield from _nodes(inner)


def _refuse_sparse(graph: GraphProto) -> None:
    """Sparse initialisers stay in the graph file, so their bytes must be there."""
    graphs = [graph, *(inner for node in _nodes(graph) for each in node.attribute for inner in _graphs(each))]
    for sparse in (sparse for each in graphs for sparse in each.sparse_initializer):
        if TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
            raise ArtefactError(
                f"has the sparse initialiser '{sparse.values.name}' in another file, which is not offered; "
                "save it inside the model"
            )


class _Places:
    """Finds the bytes of tensors; each file beside the model is found once."""

    def __init__(self, file: ModelFile, home: ModelHome, start: PurePosixPath) -> None:
        self._home = home
        self._start = start
        self._files: dict[str, ModelFile] = {SELF: file}

    def bytes_of(self, tensor: TensorProto) -> _Bytes | None:
        """Where the bytes are; None for a tensor that can only stay as it is."""
        outside = tensor.data_location == TensorProto.EXTERNAL
        bits = ELEMENT_BITS.get(_type_name(tensor))
        if bits is None:
            if outside:
                raise ArtefactError(f"tensor '{tensor.name}' cannot have its data in another file")
            return None
        found = self._outside(tensor, _length(tensor, bits)) if outside else _inside(tensor)
        if found.length != _length(tensor, bits):
            raise ArtefactError(
                f"tensor '{tensor.name}' has {found.length} bytes; its shape needs {_length(tensor, bits)}"
            )
        return found

    def _outside(self, tensor: TensorProto, length: int) -> _Bytes:
        said = {entry.key: entry.value for entry in tensor.external_data}
        if not all(isinstance(value, str) for value in said.values()):
            raise ArtefactError(f"tensor '{tensor.name}' says in other than UTF-8 where its data lie")
        location = said.get("location", "")
        try:
            file = self._files.get(location) or self._home.file(PurePosixPath(location), start=self._start)
            offset, length = int(said.get("offset", "0")), int(said.get("length", str(length)))
        except ArtefactError as error:
            raise ArtefactError(
                f"tensor '{tensor.name}' has its data in '{location}', which {error}"
            ) from None
        except ValueError:
            raise ArtefactError(f"tensor '{tensor.name}' does not say where its data lie") from None
        self._files[location] = file
        if offset < 0 or length < 0 or offset + length > file.size:
            raise ArtefactError(
                f"tensor '{tensor.name}' lies outside '{location}', which has {file.size} bytes"
            )
        return _Bytes(file=file, offset=offset, length=length)


def _type_name(tensor: TensorProto) -> str:
    try:
        return TensorProto.DataType.Name(tensor.data_type)
    except ValueError:
        raise ArtefactError(f"tensor '{tensor.name}' is of the unknown type {tensor.data_type}") from None


def _length(tensor: TensorProto, bits: int) -> int:
    if any(dimension < 0 for dimension in tensor.dims):
        raise ArtefactError(f"tensor '{tensor.name}' has a negative dimension")
    return -(-math.prod(tensor.dims) * bits // 8)


def _inside(tensor: TensorProto) -> _Bytes:
    data = tensor.raw_data
    if not data:
        try:
            array = onnx.numpy_helper.to_array(tensor)
            data = onnx.numpy_helper.from_array(array).raw_data
        except (ValueError, TypeError) as error:
            raise ArtefactError(f"tensor '{tensor.name}' cannot be read: {error}") from error
    return _Bytes(file=None, offset=0, length=len(data), data=data)


def _bring_in(tensor: TensorProto, place: _Bytes | None) -> None:
    """Put the bytes of a tensor that were elsewhere into the graph file."""
    if place is None or tensor.data_location != TensorProto.EXTERNAL:
        return
    if place.length > INLINE_BYTES_MAX:
        raise ArtefactError(
            f"tensor '{tensor.name}' of {place.length} bytes can only be inside the graph file, "
            f"where at most {INLINE_BYTES_MAX} are taken"
        )
    data = b"".join(place.chunks())
    _clear(tensor)
    tensor.ClearField("data_location")
    tensor.raw_data = data


def _clear(tensor: TensorProto) -> None:
    for field in _DATA_FIELDS:
        tensor.ClearField(field)


class _WeightsWriter:
    """The file of weights while it is written. One owner: ``split_model``."""

    def __init__(self, out: BinaryIO, progress: Progress) -> None:
        self._out = out
        self._progress = progress
        self._end = 0
        self._entries: dict[str, TensorEntry] = {}
        self._known: dict[str, int] = {}

    def place(self, tensor: TensorProto, source: _Bytes | None) -> None:
        """Write the tensor's bytes and make it refer to them, or leave it in the graph file."""
        if source is None or source.length < LEAST_BYTES or not tensor.name:
            _bring_in(tensor, source)
            return
        before = self._entries.get(tensor.name)
        offset, digest = self._write(source)
        if before is not None and (before.digest, before.length) != (digest, source.length):
            _bring_in(tensor, source)
            return
        entry = TensorEntry(
            name=tensor.name,
            datatype=_type_name(tensor),
            shape=tuple(tensor.dims),
            file=WEIGHTS_FILE,
            offset=offset,
            length=source.length,
            digest=digest,
        )
        self._entries.setdefault(tensor.name, entry)
        self._known.setdefault(digest, offset)
        self._end = max(self._end, offset + source.length)
        _refer(tensor, entry)

    def finish(self) -> None:
        """End the file at a page."""
        self._out.truncate(self._end + -self._end % PAGE_BYTES)

    def entries(self) -> tuple[TensorEntry, ...]:
        """The tensors in the order of the file."""
        return tuple(sorted(self._entries.values(), key=lambda entry: (entry.offset, entry.name)))

    def _write(self, source: _Bytes) -> tuple[int, str]:
        """Offset and digest. Bytes that are there already are taken back."""
        alignment = PAGE_BYTES if source.length >= LARGE_BYTES else SMALL_ALIGNMENT
        offset = self._end + -self._end % alignment
        self._out.seek(offset)
        digester = Digester(pieces=False)
        for chunk in source.chunks():
            digester.update(chunk)
            self._out.write(chunk)
            self._progress(len(chunk))
        digest = digester.finish().digest
        if digest in self._known:
            self._out.truncate(self._end)
        return self._known.get(digest, offset), digest


def _refer(tensor: TensorProto, entry: TensorEntry) -> None:
    _clear(tensor)
    tensor.data_location = TensorProto.EXTERNAL
    said = (("location", entry.file), ("offset", str(entry.offset)), ("length", str(entry.length)))
    for key, value in said:
        tensor.external_data.add(key=key, value=value)
