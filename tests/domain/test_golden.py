"""Golden sets: what is written is read back, and what is wrong with one is told all at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.errors import ArtefactError, ModelInvalid
from appliance.domain.golden import (
    CASES_MAX,
    SET_BYTES_MAX,
    TENSORS_BYTES_MAX,
    GoldenCase,
    GoldenSet,
    TensorFile,
    Tolerance,
    VariantMark,
    decode_golden,
    encode_golden,
    holds_answers,
    misfits,
    read_golden,
    read_tensors,
    tensor_data,
    write_golden,
)
from appliance.domain.manifest import LatencyPromise
from appliance.domain.tensor import Datatype, TensorSpec, encode_bytes

X = TensorSpec(name="x", datatype=Datatype.FP32, shape=(2,))
S = TensorSpec(name="s", datatype=Datatype.BYTES, shape=(-1,), optional=True)
Y = TensorSpec(name="y", datatype=Datatype.INT64, shape=(1,))


def sample(rows: int = 1) -> tuple[GoldenSet, bytes]:
    """Two cases, one of them with texts."""
    file = TensorFile()
    cases = (
        GoldenCase(
            name="first",
            inputs=(file.add("x", Datatype.FP32, (rows, 2), bytes(8 * rows)),),
            outputs=(file.add("y", Datatype.INT64, (rows, 1), bytes(8 * rows)),),
        ),
        GoldenCase(
            name="second",
            inputs=(
                file.add("x", Datatype.FP32, (1, 2), b"\1" * 8),
                file.add("s", Datatype.BYTES, (1, 3), encode_bytes([b"a", b"", "ü".encode()])),
            ),
            outputs=(file.add("y", Datatype.INT64, (1, 1), b"\2" * 8),),
        ),
    )
    golden = GoldenSet(
        cases=cases,
        tolerances={"y": Tolerance(absolute=1e-5, relative=0.1)},
        promise=LatencyPromise(rows=2, p99_us=1500),
        variant=VariantMark(of="m/1", method="int8-dynamic", servable=True),
        note="made up",
    )
    return golden, file.data()


def document() -> dict[str, Any]:
    golden, tensors = sample()
    whole = GoldenSet(
        cases=golden.cases,
        tolerances=golden.tolerances,
        promise=golden.promise,
        tensors_bytes=len(tensors),
        tensors_digest="0" * 64,
    )
    found: dict[str, Any] = json.loads(encode_golden(whole))
    return found


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    golden, tensors = sample()
    written = write_golden(str(tmp_path / "golden"), golden, tensors)
    path = str(tmp_path / "golden" / "set.json")
    assert read_golden(path) == written
    view = read_tensors(path, written)
    assert bytes(tensor_data(view, written.cases[1].inputs[0])) == b"\1" * 8
    assert sorted(os.listdir(tmp_path / "golden")) == ["set.json", "tensors.bin"]


def test_what_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    golden, tensors = sample()
    write_golden(str(tmp_path), golden, tensors)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    for wrong, text in (
        (replace(golden, cases=golden.cases[:1] * (CASES_MAX + 1)), "cases: must be 1 to 1024"),
        (replace(golden, note="x" * SET_BYTES_MAX), f"at most {SET_BYTES_MAX} are read"),
    ):
        with pytest.raises(ModelInvalid, match=text):
            write_golden(str(tmp_path), wrong, tensors)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_a_tensor_file_ends_where_readers_do() -> None:
    file = TensorFile()
    file.add("x", Datatype.INT8, (1,), b"1")
    with pytest.raises(
        ArtefactError, match=r"at most 268,435,456 bytes of tensors; 'y' would make it 268,435,457"
    ):
        file.add("y", Datatype.INT8, (1,), bytes(TENSORS_BYTES_MAX - 63))
    assert file.data() == b"1"


def test_a_case_is_as_aligned_as_a_runtime_likes() -> None:
    golden, _ = sample()
    assert all(tensor.offset % 64 == 0 for case in golden.cases for tensor in (*case.inputs, *case.outputs))


def _set(*path: str | int) -> Callable[[dict[str, Any], object], None]:
    def change(found: Any, value: object) -> None:
        for step in path[:-1]:
            found = found[step]
        found[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("format",), 2, "format: must be one of 1"),
        (("cases",), [], "tolerances: has 'y', which is an output of no case"),
        (("cases",), 3, "cases: must be a list"),
        (("surprise",), 3, "surprise: is not a known key"),
        (("tensors_bytes",), -1, "at least 0"),
        (("tensors_bytes",), 1 << 40, "at most"),
        (("tensors_bytes",), 8, "the tensor file has 8 bytes"),
        (("tensors_digest",), "../../x", "64 lower-case hex digits"),
        (("tensors_digest",), "A" * 64, "64 lower-case hex digits"),
        (("cases", 0, "outputs"), [], "nothing could be compared"),
        (("cases", 0, "inputs", 0, "datatype"), "FP8", "datatype: must be one of"),
        (("cases", 0, "inputs", 0, "name"), "", "must have a name"),
        (("cases", 0, "inputs", 0, "name"), "n" * 1025, "must have a name"),
        (("cases", 0, "inputs", 0, "name"), "\ud800", "not a golden set"),
        (("cases", 0, "inputs", 0, "shape"), [1, -2], "at least 0"),
        (("cases", 0, "inputs", 0, "shape"), [1 << 40, 1 << 40], "more elements than can be addressed"),
        (("cases", 0, "inputs", 0, "shape"), [1] * 9, "rank 9"),
        (("cases", 0, "inputs", 0, "shape"), [1, 3], "has 8 bytes; FP32 [1, 3] has 12"),
        (("cases", 0, "inputs", 0, "offset"), 1 << 27, "the tensor file has"),
        (("cases", 0, "inputs", 0, "offset"), 0.5, "an integer"),
        (("cases", 0, "inputs", 0, "offset"), True, "an integer"),
        (("cases", 1, "inputs", 1, "name"), "x", "name a tensor twice"),
        (("tolerances", "z"), {}, "'z', which is an output of no case"),
        (("tolerances", "y", "absolute"), -1e-9, "at least 0"),
        (("tolerances", "y", "absolute"), "1e-3", "a number"),
        (("promise", "rows"), 0, "promise.rows: must be 1 to"),
        (("promise", "p99_us"), 0, "promise.p99_us: must be 1 to"),
    ],
)
def test_what_is_wrong_is_said(path: tuple[str | int, ...], value: object, text: str) -> None:
    found = document()
    _set(*path)(found, value)
    with pytest.raises(ModelInvalid) as caught:
        decode_golden(json.dumps(found).encode(), "m/golden/set.json")
    assert text in str(caught.value)
    assert all(problem.file == "m/golden/set.json" for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a golden set"),
        (b"[]", "one JSON object"),
        (b"\xff", "not a golden set"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"format": 1, "format": 1}', "appears twice"),
        (b'{"format": NaN}', "NaN is not a number"),
        (b'{"format": ' + b"9" * 5000 + b"}", "not a golden set"),
        (b" " * (SET_BYTES_MAX + 1), "at most"),
    ],
)
def test_bytes_that_are_no_set(data: bytes, text: str) -> None:
    with pytest.raises(ModelInvalid, match=text):
        decode_golden(data)


def test_an_endless_tolerance_is_refused() -> None:
    data = json.dumps(document()).replace('"absolute": 1e-05', '"absolute": 1e999').encode()
    assert b"1e999" in data
    with pytest.raises(ModelInvalid, match="finite"):
        decode_golden(data)


def test_all_problems_come_at_once() -> None:
    found = document()
    found["cases"][0]["inputs"][0]["name"] = ""
    found["cases"][1]["outputs"] = []
    found["tensors_digest"] = ""
    with pytest.raises(ModelInvalid) as caught:
        decode_golden(json.dumps(found).encode())
    assert len(caught.value.problems) == 3


@given(st.binary(max_size=200))
def test_no_bytes_make_it_stumble(data: bytes) -> None:
    with pytest.raises(ModelInvalid):
        decode_golden(data)


@given(st.data())
def test_no_changed_document_makes_it_stumble(data: st.DataObject) -> None:
    raw = bytearray(json.dumps(document()).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(32, 126))
    try:
        golden = decode_golden(bytes(raw))
    except ModelInvalid:
        return
    assert decode_golden(encode_golden(golden)) == golden


@pytest.mark.parametrize("change", ["shorter", "longer", "other", "missing", "pipe", "folder"])
def test_tensors_of_another_set_are_refused(tmp_path: Path, change: str) -> None:
    golden, tensors = sample()
    written = write_golden(str(tmp_path), golden, tensors)
    file = tmp_path / "tensors.bin"
    if change in ("missing", "pipe", "folder"):
        file.unlink()
    if change == "pipe":
        os.mkfifo(file)
    elif change == "folder":
        file.mkdir()
    elif change != "missing":
        file.write_bytes(
            {"shorter": tensors[:-1], "longer": tensors + b"\0", "other": b"\7" + tensors[1:]}[change]
        )
    with pytest.raises(ArtefactError, match=r"golden/tensors\.bin"):
        read_tensors(str(tmp_path / "set.json"), written)


def test_strings_that_are_not_as_many_as_they_should_be(tmp_path: Path) -> None:
    file = TensorFile()
    case = GoldenCase(
        name="one", inputs=(), outputs=(file.add("s", Datatype.BYTES, (2,), encode_bytes([b"only one"])),)
    )
    written = write_golden(str(tmp_path), GoldenSet(cases=(case,), tolerances={}), file.data())
    with pytest.raises(ArtefactError, match="has 1 strings"):
        read_tensors(str(tmp_path / "set.json"), written)


def test_a_fitting_set_fits() -> None:
    golden, _ = sample(rows=3)
    assert misfits(golden, (X, S), (Y,), 4) == ()


@pytest.mark.parametrize(
    ("inputs", "outputs", "largest", "texts"),
    [
        ((X, S), (Y,), 2, ["in shape [3, 2]; the model's is [-1, 2], at most 2 rows", "'y' in shape [3, 1]"]),
        ((X, S), (Y,), 1, ["the promise is for 2 rows; the model takes 1"]),
        ((X,), (Y,), 4, ["'s', which the model does not have"]),
        ((X, S), (), 4, ["'y', which the model does not have", "a tolerance for the output 'y'"]),
        ((X, S, TensorSpec(name="z", datatype=Datatype.BOOL, shape=())), (Y,), 4, ["nothing for the input 'z'"]),
        ((X, S), (TensorSpec(name="y", datatype=Datatype.FP64, shape=(1,)),), 4, ["as INT64; the model's is FP64"]),
        ((X, S), (Y,), 0, ["in shape [3, 2]; the model's is [2]"]),
    ],
)  # fmt: skip
def test_a_set_of_another_model_says_why(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], largest: int, texts: list[str]
) -> None:
    golden, _ = sample(rows=3)
    found = "; ".join(misfits(golden, inputs, outputs, largest))
    assert all(text in found for text in texts), found


def test_what_does_not_fit_in_many_cases_is_told_once() -> None:
    golden, _ = sample(rows=3)
    cases = tuple(replace(golden.cases[0], name=f"c{number}") for number in range(3))
    found = misfits(replace(golden, cases=cases), (S,), (Y,), 4)
    assert "case 'c0' has the input 'x', which the model does not have (2 more cases alike)" in found
    assert not any("'c1'" in text or "'c2'" in text for text in found)


def test_a_promise_alone_is_a_set_and_nothing_is_none(tmp_path: Path) -> None:
    alone = GoldenSet(cases=(), tolerances={}, promise=LatencyPromise(rows=2, p99_us=5))
    written = write_golden(str(tmp_path), alone, b"")
    assert read_golden(str(tmp_path / "set.json")) == written
    assert bytes(read_tensors(str(tmp_path / "set.json"), written)) == b""
    with pytest.raises(ModelInvalid, match="cases: must be 1 to 1024, or none beside a promise, got 0"):
        decode_golden(encode_golden(replace(written, promise=None)))


def test_a_promise_alone_is_for_what_can_be_measured() -> None:
    alone = GoldenSet(cases=(), tolerances={}, promise=LatencyPromise(rows=2, p99_us=5))
    assert misfits(alone, (X,), (Y,), 2) == ()
    free = TensorSpec(name="f", datatype=Datatype.FP32, shape=(-1, 2))
    (told,) = misfits(alone, (X, free), (Y,), 2)
    assert "the input 'f' has free dimensions" in told
    assert misfits(alone, (X, replace(free, optional=True)), (Y,), 2) == ()


def test_a_variant_that_left_its_tolerances_does_not_fit() -> None:
    golden, _ = sample()
    mark = VariantMark(of="m/1", method="fp16", servable=False)
    marked = GoldenSet(cases=golden.cases, tolerances=golden.tolerances, variant=mark)
    assert ["left its tolerances" in text for text in misfits(marked, (X, S), (Y,), 4)] == [True]


@pytest.mark.parametrize(
    ("files", "holds"),
    [
        ([("3/golden/set.json", 9), ("3/golden/tensors.bin", 4)], True),
        ([("m/golden/tensors.bin", 4)], True),
        ([("golden/tensors.bin", 4)], True),
        ([("3/golden/set.json", 9), ("3/golden/tensors.bin", 0)], False),
        ([("3/golden/set.json", 9)], False),
        ([("3/tensors.bin", 4), ("3/notgolden/tensors.bin", 4)], False),
        ([], False),
    ],
)
def test_a_set_holds_answers_where_it_has_tensors(files: list[tuple[str, int]], holds: bool) -> None:
    assert holds_answers(files) is holds
