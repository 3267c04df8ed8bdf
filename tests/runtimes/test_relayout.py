"""The graph is copied faithfully, the tensors' places are made anew, and nothing that is not understood passes."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from appliance.domain.errors import LoadFailed
from appliance.runtimes.relayout import LARGE_ALIGNMENT, LARGE_BYTES, Layout, Piece, relay, rewrite

RAW = 100
LARGE = LARGE_BYTES + 7


def external(name: str, **entries: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_of(*tensors: TensorProto) -> onnx.ModelProto:
    """Tensors in every place where one can be: initializers, attributes, bodies of control flow, functions."""
    body = helper.make_graph([], "body", [], [], initializer=tensors[1:2])
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(helper.make_attribute("value", tensors[2]))
    branch = helper.make_node("If", ["c"], ["d"], then_branch=body)
    graph = helper.make_graph([constant, branch], "g", [], [], initializer=tensors[:1], doc_string="ä" * 300)
    model = helper.make_model(graph, producer_name="test")
    model.functions.append(helper.make_function("d", "F", [], [], [constant], []))
    return model


def entries_of(tensor: TensorProto) -> dict[str, str]:
    return {each.key: each.value for each in tensor.external_data}


def test_a_copy_without_changes_says_the_same() -> None:
    model = model_of(*(external(name, location="w", offset="0", length="4") for name in "abc"))
    copy = rewrite(model.SerializeToString(), lambda entries: entries)
    assert onnx.ModelProto.FromString(copy) == model


def test_every_tensor_is_reached() -> None:
    model = model_of(*(external(name, location=name) for name in "abc"))
    seen = []

    def note(entries: dict[str, str]) -> dict[str, str]:
        seen.append(entries["location"])
        return {"location": "new", "offset": "5"}

    copy = onnx.ModelProto.FromString(rewrite(model.SerializeToString(), note))
    assert sorted(seen) == ["a", "b", "c", "c"], "the constant is in the graph and in the function"
    assert entries_of(copy.graph.initializer[0]) == {"location": "new", "offset": "5"}
    body = copy.graph.node[1].attribute[0].g
    assert entries_of(body.initializer[0]) == {"location": "new", "offset": "5"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A graph as a runtime saves it: raw and packed bytes of one tensor beside each other, another that is not packed,
    a large one."""
    weights = bytes(range(256)) * 600
    (tmp_path / "saved.bin").write_bytes(weights)
    model = model_of(
        external("packed", location="saved.bin", offset="0", length="100", prepacked_0="k|128;60;0|192;30;0"),
        external("plain", location="saved.bin", offset="300", length="50"),
        external("large", location="saved.bin", offset="400", length=str(LARGE)),
    )
    (tmp_path / "saved.onnx").write_bytes(model.SerializeToString())
    return tmp_path


def test_what_runs_touch_comes_first_and_every_byte_is_where_the_graph_says(saved: Path) -> None:
    relay(*(str(saved / name) for name in ("saved.onnx", "saved.bin", "graph.onnx", "weights.bin")))
    old, new = (saved / "saved.bin").read_bytes(), (saved / "weights.bin").read_bytes()
    copy = onnx.load(saved / "graph.onnx", load_external_data=False)
    packed = entries_of(copy.graph.initializer[0])
    large = entries_of(copy.graph.node[0].attribute[0].t)
    plain = entries_of(copy.graph.node[1].attribute[0].g.initializer[0])
    assert {each["location"] for each in (packed, large, plain)} == {"weights.bin"}
    name, first, second = packed["prepacked_0"].split("|")
    assert (name, first.split(";")[1:], second.split(";")[1:]) == ("k", ["60", "0"], ["30", "0"])

    def there(offset: str, length: int) -> bytes:
        return new[int(offset) : int(offset) + length]

    assert there(first.split(";")[0], 60) == old[128:188]
    assert there(second.split(";")[0], 30) == old[192:222]
    assert there(plain["offset"], 50) == old[300:350]
    assert there(large["offset"], LARGE) == old[400 : 400 + LARGE]
    assert there(packed["offset"], RAW) == old[:RAW]
    assert int(packed["offset"]) > max(int(large["offset"]), int(plain["offset"])), (
        "what is not touched is last"
    )
    assert int(large["offset"]) % LARGE_ALIGNMENT == len(new) % LARGE_ALIGNMENT == 0


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "0", "length": "-1"},
        {"offset": "x", "length": "1"},
        {"offset": "0"},
        {"offset": "153600", "length": "1"},
        {"offset": "0", "length": "4", "prepacked_0": "k|1;x;0"},
        {"offset": "0", "length": "4", "prepacked_0": "k|153599;2;0"},
        {"offset": "0", "length": "4", "prepacked_0": "k|7"},
    ],
)
def test_places_that_cannot_be_are_refused(saved: Path, entries: dict[str, str]) -> None:
    model = model_of(*(external(name, location="saved.bin", **entries) for name in "abc"))
    (saved / "saved.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(LoadFailed, match="the packed graph"):
        relay(*(str(saved / name) for name in ("saved.onnx", "saved.bin", "graph.onnx", "weights.bin")))
    assert sorted(os.listdir(saved)) == ["saved.bin", "saved.onnx"]


def test_a_graph_that_is_nested_without_end_is_refused() -> None:
    graph = helper.make_graph([], "g", [], [])
    for _ in range(25):
        graph = helper.make_graph([helper.make_node("If", [], [], then_branch=graph)], "g", [], [])
    with pytest.raises(LoadFailed, match="nested deeper"):
        rewrite(helper.make_model(graph).SerializeToString(), lambda entries: entries)


@given(st.binary(max_size=60))
def test_any_bytes_are_copied_or_refused(data: bytes) -> None:
    try:
        rewrite(data, lambda entries: entries)
    except LoadFailed:
        return


MIB = 1 << 20
PIECES = st.lists(st.builds(Piece, st.integers(0, 4 * MIB), st.integers(0, 5 * MIB)), max_size=30)


@given(PIECES, PIECES)
def test_places_do_not_overlap_and_what_runs_touch_is_first(hot: list[Piece], rest: list[Piece]) -> None:
    layout = Layout(hot, rest)
    end = 0
    for piece, place in layout.pieces():
        assert place >= end
        end = place + piece.length
    assert end == layout.size
    assert {piece for piece, _ in layout.pieces()} == {*hot, *rest}
    touched = [place + piece.length for piece, place in layout.pieces() if piece in hot]
    others = [place for piece, place in layout.pieces() if piece not in hot]
    assert max(touched, default=0) <= min(others, default=layout.size)
    holes = layout.size - sum(piece.length for piece, _ in layout.pieces())
    assert holes <= layout.size / 8 + LARGE_ALIGNMENT * len([*hot, *rest]), (
        "gaps are small beside what they are for"
    )


def places_of(*lengths: int) -> list[int]:
    """Where hot pieces of these lengths go."""
    pieces = [Piece(number * 64 * MIB, length) for number, length in enumerate(lengths)]
    layout = Layout(pieces, [])
    return [layout.place(piece) for piece in pieces]


def test_large_pieces_lie_on_large_pages_and_small_ones_between_them() -> None:
    small, odd = MIB // 2, 5 * MIB // 2
    assert places_of(100, 4 * MIB, small, 2 * MIB) == [6 * MIB, 0, 6 * MIB + 4096, 4 * MIB]
    assert places_of(odd, 100, odd, small, small, small, 4 * MIB) == [
        *(4 * MIB, 10 * MIB + small, 8 * MIB),  # no room for the hundred bytes
        *(6 * MIB + small, 7 * MIB, 7 * MIB + small, 0),
    ]
    assert places_of(100, small, 200) == [0, 4096, 4096 + small], "the rest is in its order"


def test_a_gap_that_would_be_too_large_is_not_left() -> None:
    quarter = 9 * MIB // 4
    assert places_of(quarter, quarter) == [0, quarter], "a gap of 1.75 MiB would be left otherwise"
    assert places_of(9 * MIB, 9 * MIB) == [0, 10 * MIB], "a ninth"
