"""ONNX files through the reader, the firewall and what compares them with their configuration."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from appliance.repository.model_directory import read_model_directory
from models.generate import MODELS
from tests.fuzz.boundary import Boundary, Judge
from tests.fuzz.model_configurations import SETTINGS, judge_scan
from tests.fuzz.mutations import NUMBERS, TEXTS, changed_bytes
from tests.repository.onnx_files import external_tensor, plain_model

SOURCES = ("add_sub", "endless", "external", "map_out", "optional_type", "odd_names")
NESTED_MAX = 60


def _handmade() -> bytes:
    model = plain_model(["batch", 4, None])
    model.graph.node[0].attribute.add(name="a").tensors.append(external_tensor("w", "w.bin", offset=1))
    model.functions.add(name="f").node.add(op_type="Constant").attribute.add(name="c").floats.extend(
        [1.0] * 20
    )
    model.graph.sparse_initializer.add().values.dims.append(3)
    model.metadata_props.add(key="a", value="b")
    data: bytes = model.SerializeToString()
    return data


SEEDS = [_handmade(), *(MODELS[name].build().model for name in SOURCES)]


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type:
            for each in value if field.is_repeated else (value,):
                yield from _messages(each)


def _odd(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw(st.sampled_from(TEXTS)).encode(errors="replace")
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return draw(st.sampled_from(TEXTS)).encode(errors="replace").decode()
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return 0.5
    bits = 31 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM) else 63
    least = 0 if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64) else -(1 << bits)
    return max(min(int(draw(st.sampled_from(INTEGERS))), (1 << bits) - 1), least)


INTEGERS = [number for number in NUMBERS if isinstance(number, int)]


@st.composite
def graphs(draw: st.DrawFn) -> bytes:
    """A model with some of its fields at odd values, left out, doubled, or within themselves many times."""
    model = onnx.ModelProto.FromString(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.sampled_from((1, 1, 2, 4)))):
        found = draw(st.sampled_from(list(_messages(model))))
        fields: list[Any] = list(found.DESCRIPTOR.fields)
        field = draw(st.sampled_from(fields))
        if draw(st.integers(0, 4)) == 0:
            found.ClearField(field.name)
        elif field.message_type:
            inner = getattr(found, field.name)
            if field.is_repeated:
                copies = draw(st.sampled_from((1, 1, 3, 300)))
                source = inner[0] if len(inner) else inner.add()
                inner.extend([source] * copies)
            else:
                inner.SetInParent()
        elif field.is_repeated:
            getattr(found, field.name).extend([_odd(draw, field)] * draw(st.sampled_from((1, 3, 300))))
        else:
            try:
                setattr(found, field.name, _odd(draw, field))
            except ValueError:
                continue  # no member of a closed enumeration
    data: bytes = model.SerializeToString()
    return data


@st.composite
def nested(draw: st.DrawFn) -> bytes:
    """Graphs within attributes within nodes, as deep as somebody likes."""
    graph = onnx.GraphProto(name="g")
    for _ in range(draw(st.integers(1, NESTED_MAX))):
        outer = onnx.GraphProto(name="g")
        outer.node.add(op_type="If").attribute.add(name="then_branch").g.CopyFrom(graph)
        graph = outer
    model = plain_model()
    model.graph.node.extend(graph.node)
    data: bytes = model.SerializeToString()
    return data


CASES = st.one_of(graphs(), graphs(), nested(), changed_bytes(SEEDS))


@contextmanager
def opened() -> Iterator[Judge]:
    """A judge of ONNX files as the only version of a model."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        root = Path(folder).resolve()
        file = root / "m" / "1" / "model.onnx"
        file.parent.mkdir(parents=True)

        def judge(case: bytes) -> None:
            file.write_bytes(case)
            judge_scan(read_model_directory(str(root), "m", SETTINGS))

        yield judge


BOUNDARY = Boundary(kept="onnx_files", cases=CASES, opened=opened, examples=600)
