"""A package is not made of a model that boxes would refuse, as it does not answer as its own golden set says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.domain.golden import GoldenSet, encode_golden, read_golden, read_tensors, write_golden
from appliance.domain.manifest import LatencyPromise
from tests.package.onnx_models import layers, model
from tests.tools.models import tiled_model, write

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, capsys: Capture) -> Path:
    """A model with a golden set of two cases, where a command is given."""
    home = tmp_path / "m"
    (home / "1").mkdir(parents=True)
    onnx.save(layers(2), home / "1" / "model.onnx")
    assert main(["model", "golden", str(home), "--random", "2"]) == Exit.OK
    capsys.readouterr()
    return home


def pack(folder: Path, *words: str) -> int:
    return main(["model", "pack", str(folder), "-o", str(folder.parent / "m.model"), "--force", *words])


def told(capsys: Capture) -> Any:
    return json.loads(capsys.readouterr().out)


def other_weights(folder: Path) -> None:
    onnx.save(layers(3), folder / "1" / "model.onnx")


def test_a_model_that_holds_its_golden_set_is_packed_and_says_so(folder: Path, capsys: Capture) -> None:
    assert pack(folder) == Exit.OK
    assert "boxes hold its answers to its golden set; 2 cases of it held here" in capsys.readouterr().out
    assert pack(folder, "--json") == Exit.OK
    found = told(capsys)
    assert (found["golden"], found["proven_cases"], found["unproven"]) == (True, 2, "")


def test_a_model_that_fails_its_golden_set_is_not_packed(folder: Path, capsys: Capture) -> None:
    other_weights(folder)
    assert pack(folder) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "1/model.onnx: a box would refuse it: golden case 'random-1': output 'y' has " in said
    assert " values outside its tolerance; the worst is value " in said
    assert "; the largest difference of 'y' over all cases is " in said
    assert ", where its tolerance allows 1e-05 + 0.001 x |right|" in said
    assert said.endswith(
        "; if these answers are right, make the set anew ('appliance model golden SOURCE --force' with --case or "
        "--random) or allow more (--force --tolerance y=ABSOLUTE,RELATIVE); else mend the model\n"
    )
    assert not (folder.parent / "m.model").exists()


def test_what_is_allowed_is_what_the_set_says(folder: Path, capsys: Capture) -> None:
    other_weights(folder)
    assert main(["model", "golden", str(folder), "--force", "--tolerance", "y=1e9,0"]) == Exit.OK
    capsys.readouterr()
    assert pack(folder, "--json") == Exit.OK
    assert told(capsys)["proven_cases"] == 2


def test_a_set_for_all_versions_holds_each_of_them(folder: Path, capsys: Capture) -> None:
    shutil.move(folder / "1" / "golden", folder / "golden")
    assert pack(folder, "--json") == Exit.OK
    assert told(capsys)["proven_cases"] == 2
    other_weights(folder)
    assert pack(folder) == Exit.REFUSED
    assert "a box would refuse it: golden case " in capsys.readouterr().err


def test_without_a_proof_nothing_is_held_and_that_is_said(folder: Path, capsys: Capture) -> None:
    other_weights(folder)
    assert pack(folder, "--no-proof") == Exit.OK
    assert (
        "boxes hold its answers to its golden set, which was not tried here: not asked for"
        in capsys.readouterr().out
    )
    assert pack(folder, "--no-proof", "--json") == Exit.OK
    assert told(capsys)["proven_cases"] == 0


def test_a_difference_without_bound_is_told_as_that(folder: Path, capsys: Capture) -> None:
    place = folder / "1" / "golden" / "set.json"
    golden = read_golden(str(place))
    data = bytearray(read_tensors(str(place), golden))
    right = golden.cases[0].outputs[0]
    data[right.offset : right.offset + 4] = b"\x00\x00\xc0\x7f"  # not a number
    write_golden(str(place.parent), golden, bytes(data))
    assert pack(folder) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "instead of nan" in said
    assert "; the largest difference of 'y' over all cases is without bound, where " in said


def test_a_model_that_takes_no_random_request_is_proven_on_its_golden_set(
    tmp_path: Path, capsys: Capture
) -> None:
    """As detectors do that want whole tiles, and models that go by a sample rate."""
    home = tmp_path / "m"
    (home / "1").mkdir(parents=True)
    write(home / "1" / "model.onnx", tiled_model())
    assert pack(home) == Exit.OK
    said = capsys.readouterr().out
    assert "proof      none: the source answers no random request: " in said
    assert "a golden set of requests that it does answer is asked as well" in said
    assert main(["model", "golden", str(home), "--input", "[1, 2, 3, 4, 5]"]) == Exit.OK
    capsys.readouterr()
    assert pack(home) == Exit.OK
    said = capsys.readouterr().out
    assert "proof      1 golden request answered alike, bit for bit" in said
    assert "1 case of it held here" in said


def test_what_must_be_equal_has_no_difference(tmp_path: Path, capsys: Capture) -> None:
    best = helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=1)
    row = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    place = [helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 1])]
    made = helper.make_model(
        helper.make_graph([best], "best", row, place), opset_imports=[helper.make_opsetid("", 17)]
    )
    made.ir_version = 8
    home = tmp_path / "m"
    (home / "1").mkdir(parents=True)
    onnx.save(made, home / "1" / "model.onnx")
    assert main(["model", "golden", str(home), "--random", "2"]) == Exit.OK
    made.graph.node[0].op_type = "ArgMin"
    onnx.save(made, home / "1" / "model.onnx")
    capsys.readouterr()
    assert pack(home) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "output 'y' has 1 of 1 values outside its tolerance; the worst is value 0: " in said
    assert "; if these answers are right, make the set anew" in said
    assert "largest difference" not in said


def test_a_set_that_only_promises_holds_no_answers(folder: Path, capsys: Capture) -> None:
    place = folder / "1" / "golden"
    promise = LatencyPromise(rows=1, p99_us=5_000_000)
    write_golden(str(place), GoldenSet(cases=(), tolerances={}, promise=promise), b"")
    other_weights(folder)
    assert pack(folder, "--json") == Exit.OK
    found = told(capsys)
    assert (found["golden"], found["proven_cases"], found["proven_requests"]) == (False, 0, 3)


def alone(folder: Path, name: str, inputs: int = 2) -> Path:
    """An ONNX file without a model's directory."""
    path = folder / name
    onnx.save(layers(inputs), path)
    return path


@pytest.fixture
def pair(tmp_path: Path, capsys: Capture) -> tuple[Path, Path]:
    """Two files of the same interface in one folder, of which the first has a golden set."""
    files = alone(tmp_path, "a.onnx"), alone(tmp_path, "b.onnx", 3)
    assert main(["model", "golden", str(files[0]), "--random", "2"]) == Exit.OK
    capsys.readouterr()
    return files


def test_a_golden_set_is_of_the_file_that_it_was_made_of(pair: tuple[Path, Path], capsys: Capture) -> None:
    first, other = pair
    assert pack(first, "--json") == Exit.OK
    streams = capsys.readouterr()
    assert (json.loads(streams.out)["golden"], streams.err) == (True, "")
    assert pack(other, "--json") == Exit.OK
    streams = capsys.readouterr()
    assert json.loads(streams.out)["golden"] is False
    assert streams.err == LEFT
    assert bench(other) == Exit.OK
    streams = capsys.readouterr()
    assert (json.loads(streams.out)["inputs"], streams.err) == ("random values", LEFT)
    assert bench(first) == Exit.OK
    assert json.loads(capsys.readouterr().out)["inputs"] == "golden case 'random-1'"


LEFT = (
    "golden/set.json beside 'b.onnx' was made of 'a.onnx' and is not taken; move 'b.onnx' into a directory of its own "
    "to make one of it\n"
)


def bench(path: Path) -> int:
    return main(["model", "bench", str(path), "--json", "--budget-ms", "1", "--rows", "1"])


def test_a_set_of_another_file_is_replaced_only_by_cases_that_are_said(
    pair: tuple[Path, Path], capsys: Capture
) -> None:
    first, other = pair
    assert main(["model", "golden", str(other)]) == Exit.USAGE
    assert "has a golden set, of 'a.onnx'" in capsys.readouterr().err
    assert main(["model", "golden", str(other), "--force", "--absolute", "1"]) == Exit.USAGE
    assert "is of 'a.onnx', whose cases are not kept for 'b.onnx'" in capsys.readouterr().err
    assert main(["model", "golden", str(other), "--force", "--random", "1"]) == Exit.OK
    assert pack(other, "--json") == Exit.OK
    streams = capsys.readouterr()
    assert '"golden": true' in streams.out
    assert pack(first) == Exit.OK
    assert "beside 'a.onnx' was made of 'b.onnx'" in capsys.readouterr().err


def test_a_set_that_names_no_file_is_of_any(pair: tuple[Path, Path], capsys: Capture) -> None:
    first, other = pair
    there = other.parent / "golden" / "set.json"
    document = json.loads(there.read_text())
    assert document.pop("file") == "a.onnx"
    there.write_text(json.dumps(document))
    assert pack(other) == Exit.REFUSED
    assert "golden case 'random-1': output 'y' has " in capsys.readouterr().err
    assert pack(first) == Exit.OK


def test_a_set_in_a_package_or_the_directory_of_a_version_names_no_file(
    pair: tuple[Path, Path], folder: Path, tmp_path: Path
) -> None:
    assert pack(pair[0]) == Exit.OK
    packed = (tmp_path / "m.model").read_bytes()
    assert b'"tensors_digest"' in packed
    assert b"a.onnx" not in packed
    assert read_golden(str(folder / "1" / "golden" / "set.json")).file == ""


def test_a_set_of_an_older_making_that_does_not_fit_is_told_where_it_is(
    pair: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    there = tmp_path / "golden" / "set.json"
    golden = read_golden(str(there))
    narrow = tuple(
        replace(case, inputs=tuple(replace(each, name="z") for each in case.inputs)) for case in golden.cases
    )
    there.write_bytes(encode_golden(replace(golden, cases=narrow, file="")))
    for command, place in ((pack, str(there)), (bench, "golden/set.json")):
        assert command(pair[0]) == Exit.REFUSED
        said = capsys.readouterr().err
        lines = [line.strip() for line in said.splitlines() if "set.json" in line]
        assert len(lines) == 2, said
        assert all(line.startswith(f"{place}: case 'random-1' ") for line in lines), said
        assert all(line.endswith(" (1 more case alike)") for line in lines), said


def test_rows_that_change_one_another_are_told_before_a_box_sees_them(
    tmp_path: Path, capsys: Capture
) -> None:
    """A box does not merge their requests; who packs it can say whether the first dimension is a batch."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    apart, together = (helper.make_node("Softmax", ["x"], ["y"], axis=axis) for axis in (1, 0))
    what = "its requests are not merged: rows that run together"
    for node, told_of in ((apart, False), (together, True)):
        onnx.save(model([node], []), tmp_path / "m" / "1" / "model.onnx")
        assert pack(tmp_path / "m") == Exit.OK
        assert (what in capsys.readouterr().out) is told_of
        assert pack(tmp_path / "m", "--json") == Exit.OK
        assert told(capsys)["rows_mix"] is told_of
        assert main(["model", "bench", str(tmp_path / "m"), "--rows", "1,8", "--budget-ms", "1"]) == Exit.OK
        assert (what in " ".join(capsys.readouterr().out.split())) is told_of
        assert bench(tmp_path / "m") == Exit.OK
        measured = capsys.readouterr().out
        assert json.loads(measured).get("rows_mix", False) is told_of
        (tmp_path / "measured.json").write_text(measured)
        assert pack(tmp_path / "m", "--measured", str(tmp_path / "measured.json")) == Exit.OK
        capsys.readouterr()
