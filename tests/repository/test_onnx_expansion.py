"""Small files that a runtime would make large: sparse tensors made dense, functions copied at each of their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

from appliance.config.repository import RepositoryConfig
from appliance.repository.onnx.firewall import GraphLimits, graph_flaws, graph_size
from tests.repository.onnx_files import copying, model_of, part, plain_model, port, summary, write_version
from tests.repository.outcomes import served
from tests.repository.scanning import scan

CONFIG = GraphLimits()
HUGE = 60_000_000_000
MANY_BYTES = "bytes more than its files hold"


def flaws(model: ModelProto | bytes, config: GraphLimits = CONFIG) -> list[str]:
    """What the firewall says of a graph, files aside."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return [str(flaw) for flaw in graph_flaws(summary(data), config)]


# --- sparse tensors


def _sparse(dims: Sequence[int], element: int = TensorProto.FLOAT) -> SparseTensorProto:
    """One value and its place."""
    value = np.array(["a"], object) if element == TensorProto.STRING else np.ones(1, np.float64)
    kind = helper.tensor_dtype_to_np_dtype(element)
    values = numpy_helper.from_array(value.astype(kind), "w")
    return SparseTensorProto(values=values, indices=helper.make_tensor("at", 7, [1], [0]), dims=dims)


def _as_initializer(model: ModelProto, sparse: SparseTensorProto) -> None:
    model.graph.sparse_initializer.append(sparse)


def _as_attribute(model: ModelProto, sparse: SparseTensorProto) -> None:
    node = model.graph.node.add(op_type="Constant", output=["c"])
    node.attribute.append(helper.make_attribute("sparse_value", sparse))


def _in_list(model: ModelProto, sparse: SparseTensorProto) -> None:
    model.graph.node[0].attribute.add(name="all").sparse_tensors.append(sparse)


def _in_function(model: ModelProto, sparse: SparseTensorProto) -> None:
    node = model.functions.add(name="f", domain="d").node.add(op_type="Constant", output=["c"])
    node.attribute.append(helper.make_attribute("sparse_value", sparse))
    model.graph.node.add(op_type="f", domain="d", output=["z"])


PLACES = [_as_initializer, _as_attribute, _in_list, _in_function]
Put = Callable[[ModelProto, SparseTensorProto], None]


@pytest.mark.parametrize("put", PLACES)
def test_a_sparse_tensor_counts_as_what_it_is_when_dense(put: Put) -> None:
    """Some hundred bytes of file, 240 GB in the runtime."""
    model = plain_model()
    put(model, _sparse([HUGE]))
    (text,) = flaws(model)
    assert MANY_BYTES in text
    assert "repository.firewall.max_expanded_bytes" in text
    small = plain_model()
    put(small, _sparse([1000]))
    assert flaws(small) == []


@pytest.mark.parametrize("put", PLACES)
@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ([4, -1], "tensor 'w' has, dense, the negative dimension -1"),
        ([1 << 40, 1 << 40], "tensor 'w' has, dense, more elements than can be addressed"),
        ([1] * 33, "tensor 'w' has, dense, more than 32 dimensions"),
    ],
)
def test_dense_shapes_that_no_tensor_has_are_refused(put: Put, dims: list[int], text: str) -> None:
    model = plain_model()
    put(model, _sparse(dims))
    found = flaws(model)
    assert any(each.startswith(text) for each in found)


@pytest.mark.parametrize(
    ("element", "size"), [(TensorProto.FLOAT, 4), (TensorProto.DOUBLE, 8), (TensorProto.STRING, 32)]
)
@pytest.mark.parametrize("over", [False, True])
def test_dense_bytes_are_those_of_the_values(element: int, size: int, over: bool) -> None:
    """Of the bytes in the file the index and the value are not counted again."""
    model = plain_model()
    sparse = _sparse([10, 100], element)
    model.graph.sparse_initializer.append(sparse)
    held = sum(each.inline_bytes for each in summary(model.SerializeToString()).tensors)
    needed = 1000 * size + 8  # with the index
    config = GraphLimits(max_expanded_bytes=needed - held - over)
    assert bool(flaws(model, config)) == over
    assert bool(flaws(model, GraphLimits(max_weight_bytes=needed - over))) == over


@pytest.mark.parametrize("packed", [False, True])
def test_the_dense_shape_is_read_however_it_is_written(packed: bool) -> None:
    values = part(1, TensorProto(name="w", data_type=1, dims=[1], raw_data=bytes(4)).SerializeToString())
    number = b"\x80\xb0\x9d\xc2\xdf\x01"
    dims = part(3, number) if packed else b"\x18" + number
    data = plain_model().SerializeToString() + part(7, part(15, values + dims))
    assert list(ModelProto.FromString(data).graph.sparse_initializer[0].dims) == [HUGE]
    (text,) = flaws(data)
    assert MANY_BYTES in text


def test_a_dense_shape_in_pieces_is_one() -> None:
    """As protobuf merges an attribute's tensor that is given twice."""
    first = part(22, _sparse([1 << 15]).SerializeToString())
    second = part(22, SparseTensorProto(dims=[1 << 15]).SerializeToString())
    node = part(4, b"Constant") + part(2, b"c") + part(5, part(1, b"sparse_value") + first + second)
    data = plain_model().SerializeToString() + part(7, part(1, node))
    merged = ModelProto.FromString(data).graph.node[1].attribute[0].sparse_tensor
    assert list(merged.dims) == [1 << 15, 1 << 15]
    (text,) = flaws(data)
    assert MANY_BYTES in text


def test_a_tensor_that_holds_less_than_its_shape_says_counts_in_full() -> None:
    model = plain_model()
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[HUGE], float_data=[1.0]))
    (text,) = flaws(model)
    assert MANY_BYTES in text


# --- functions


def _constant(size: int, name: str) -> TensorProto:
    tensor: TensorProto = numpy_helper.from_array(np.zeros(size, np.uint8), name)
    return tensor


def _calling(times: int, levels: int = 1, size: int = 1 << 10) -> ModelProto:
    """Functions f0 to the last, each called ``times`` times by the one before it; the last holds a constant."""
    model = model_of([port("x", [1])], [port("y", [1])], [copying("x", "y")])
    model.graph.node.extend([helper.make_node("f0", ["x"], ["z"], domain="d")] * times)
    for level in range(levels):
        body = model.functions.add(name=f"f{level}", domain="d")
        if level < levels - 1:
            body.node.extend([helper.make_node(f"f{level + 1}", ["x"], ["z"], domain="d")] * times)
        else:
            body.node.add(op_type="Constant").attribute.append(
                helper.make_attribute("value", _constant(size, "c"))
            )
    return model


@pytest.mark.parametrize(("times", "levels"), [(4_000, 1), (60, 2)])
def test_what_a_function_holds_counts_once_for_each_call(times: int, levels: int) -> None:
    """A megabyte of file, gigabytes in a runtime that copies a function to each of its calls."""
    (text,) = flaws(_calling(times, levels, 1 << 20))
    assert MANY_BYTES in text
    assert flaws(_calling(2, levels, 1 << 20)) == []


def test_the_tensors_of_functions_count_once_for_each_call() -> None:
    model = _calling(10, 2)
    assert flaws(model, GraphLimits(max_tensors=100)) == []
    (text,) = flaws(model, GraphLimits(max_tensors=99))
    assert text.startswith("has more than 99 tensors with its functions expanded")
    assert "repository.firewall.max_tensors" in text


@pytest.mark.parametrize("over", [False, True])
def test_copies_count_against_both_caps_on_bytes(over: bool) -> None:
    model = _calling(10, 2)
    held = 1 << 10
    needed = 100 * held
    assert bool(flaws(model, GraphLimits(max_weight_bytes=needed - over))) == over
    assert bool(flaws(model, GraphLimits(max_expanded_bytes=needed - held - over))) == over
    assert flaws(model, GraphLimits(max_weight_bytes=held)), "the file itself is as large as it may be"


def test_defaults_of_a_function_and_subgraphs_in_it_are_copied_with_it() -> None:
    model = _calling(100)
    body = model.functions[0]
    body.attribute_proto.append(helper.make_attribute("default", _constant(1 << 10, "a")))
    inner = helper.make_graph([], "inner", [], [], [_constant(1 << 10, "i")])
    body.node.add(op_type="If").attribute.append(helper.make_attribute("then_branch", inner))
    needed = 300 << 10
    assert flaws(model, GraphLimits(max_weight_bytes=needed)) == []
    (text,) = flaws(model, GraphLimits(max_weight_bytes=needed - 1))
    assert f"more than {needed - 1} bytes of tensors" in text


def test_a_function_that_nobody_calls_is_not_copied() -> None:
    model = _calling(1)
    model.functions.add(name="idle", domain="d").node.add(op_type="Constant").attribute.append(
        helper.make_attribute("value", _constant(1 << 10, "c"))
    )
    assert flaws(model, GraphLimits(max_expanded_bytes=0, max_tensors=2)) == []


def test_what_nobody_calls_gives_no_room_to_what_is_copied() -> None:
    model = _calling(100)
    assert flaws(model, GraphLimits(max_expanded_bytes=99 << 10)) == []
    idle = model.functions.add(name="idle", domain="d")
    idle.node.add(op_type="Constant").attribute.append(
        helper.make_attribute("value", _constant(1 << 20, "c"))
    )
    assert flaws(model, GraphLimits(max_expanded_bytes=99 << 10)) == []
    (text,) = flaws(model, GraphLimits(max_expanded_bytes=(99 << 10) - 1))
    assert MANY_BYTES in text


# --- what a runtime makes of a graph


def test_whole_numbers_that_are_written_in_a_byte_take_eight_in_memory() -> None:
    model = plain_model()
    before = graph_size(summary(model.SerializeToString()))
    model.graph.initializer.append(
        TensorProto(name="i", data_type=7, dims=[512, 512], int64_data=[1] * 512**2)
    )
    data = model.SerializeToString()
    assert len(data) < 2 * 512**2
    assert graph_size(summary(data)).tensor_bytes == before.tensor_bytes + 8 * 512**2


@pytest.mark.parametrize("put", PLACES)
def test_sparse_tensors_take_what_they_do_when_they_are_dense(put: Put) -> None:
    model = plain_model()
    put(model, _sparse([1000]))
    assert 4_000 <= graph_size(summary(model.SerializeToString())).tensor_bytes < 4_100


def test_nodes_are_counted_with_functions_expanded() -> None:
    model = plain_model()
    nodes = len(model.graph.node)
    function = model.functions.add(name="f", domain="d")
    for number in range(3):
        function.node.add(op_type="Relu", input=[f"t{number}"], output=[f"t{number + 1}"])
    for number in range(5):
        model.graph.node.add(op_type="f", domain="d", output=[f"z{number}"])
    found = graph_size(summary(model.SerializeToString())).nodes
    assert nodes + 5 * 3 <= found <= nodes + 5 * 4


def test_a_version_says_what_its_graph_comes_to(tmp_path: Path) -> None:
    model = plain_model()
    _as_initializer(model, _sparse([1000]))
    write_version(tmp_path, "m", model)
    version = served(scan(tmp_path, RepositoryConfig()))
    assert version.graph == graph_size(summary(model.SerializeToString()))
    assert version.weight_bytes == version.graph.tensor_bytes > 4_000
