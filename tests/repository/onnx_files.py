"""ONNX models for the tests: built with the onnx package, read with our own reader."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from appliance.repository.onnx.graph import read_graph
from appliance.repository.onnx.summary import GraphSummary

Dims = Sequence[int | str | None]


def port(name: str, dims: Dims | None, element: int = TensorProto.FLOAT) -> ValueInfoProto:
    """A tensor; ``dims`` None: of unknown rank."""
    return helper.make_tensor_value_info(name, element, dims)


def copying(source: str, result: str) -> NodeProto:
    """A node that copies."""
    return helper.make_node("Identity", [source], [result])


def graph_of(
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    nodes: Sequence[NodeProto] | None = None,
    tensors: Sequence[TensorProto] = (),
) -> GraphProto:
    """A graph; without ``nodes``, one that copies its first input to every output."""
    if nodes is None:
        nodes = [copying(inputs[0].name, output.name) for output in outputs]
    return helper.make_graph(list(nodes), "test", list(inputs), list(outputs), list(tensors))


def model_of(
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    nodes: Sequence[NodeProto] | None = None,
    tensors: Sequence[TensorProto] = (),
    ir_version: int = 8,
) -> ModelProto:
    """A whole model around ``graph_of``."""
    model: ModelProto = helper.make_model(
        graph_of(inputs, outputs, nodes, tensors), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = ir_version
    return model


def plain_model(dims: Dims = ("batch", 4), element: int = TensorProto.FLOAT) -> ModelProto:
    """y = x."""
    return model_of([port("x", dims, element)], [port("y", dims, element)])


def external_tensor(name: str, location: str, **pieces: int) -> TensorProto:
    """Numbers whose bytes are said to lie elsewhere: one, or as many as ``length`` holds."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[pieces.get("length", 4) // 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), *((key, str(value)) for key, value in pieces.items())):
        tensor.external_data.add(key=key, value=value)
    return tensor


def tensors_of(message: Message) -> Iterator[TensorProto]:
    """Every tensor anywhere in a message, found by looking into every field that there is."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from tensors_of(inner)


def part(number: int, body: bytes) -> bytes:
    """A length-delimited protobuf field."""
    header = bytearray()
    for value in (number << 3 | 2, len(body)):
        while value > 0x7F:
            header.append(value & 0x7F | 0x80)
            value >>= 7
        header.append(value)
    return bytes(header) + body


def summary(data: bytes) -> GraphSummary:
    """What our reader makes of a file with these bytes."""
    descriptor = os.memfd_create("model")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        return read_graph(descriptor)
    finally:
        os.close(descriptor)


def write_version(root: Path, name: str, data: bytes | ModelProto, version: int | str = 1) -> Path:
    """Write ``root/name/version/model.onnx``; returns the directory of the model."""
    directory = root / name / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    content = data.SerializeToString() if isinstance(data, onnx.ModelProto) else data
    (directory / "model.onnx").write_bytes(content)
    return root / name
