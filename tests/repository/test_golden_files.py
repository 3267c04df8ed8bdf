"""Golden sets in model directories: whose they are, and what is wrong with them is a problem of the model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.domain.golden import (
    GoldenCase,
    GoldenSet,
    TensorFile,
    Tolerance,
    VariantMark,
    encode_golden,
    misfits,
    write_golden,
)
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.repository.directory import RepositoryScan
from tests.repository.onnx_files import plain_model, write_version
from tests.repository.outcomes import only_problem, served
from tests.repository.scanning import scan


def _golden(output: str = "y", servable: bool = True) -> tuple[GoldenSet, bytes]:
    file = TensorFile()
    case = GoldenCase(
        name="one",
        inputs=(file.add("x", Datatype.FP32, (1, 4), bytes(16)),),
        outputs=(file.add(output, Datatype.FP32, (1, 4), bytes(16)),),
    )
    golden = GoldenSet(
        cases=(case,),
        tolerances={output: Tolerance(absolute=1e-6)},
        variant=VariantMark(of="m/1", method="fp16", servable=servable),
    )
    return golden, file.data()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A model with two versions."""
    write_version(tmp_path, "m", plain_model(), 2)
    directory = write_version(tmp_path, "m", plain_model())
    (directory / "config.pbtxt").write_text("version_policy { all { } }")
    return directory


def _scan(home: Path) -> RepositoryScan:
    return scan(home.parent, RepositoryConfig())


def _paths(home: Path) -> dict[int, str]:
    found = _scan(home)
    assert found.problems == ()
    return {
        each.model.version: os.path.relpath(each.model.golden, home) if each.model.golden else ""
        for each in found.servable
    }


def test_a_model_without_one_has_none(home: Path) -> None:
    (home / "golden").mkdir()
    (home / "golden" / "picture.png").touch()
    assert _paths(home) == {1: "", 2: ""}


def test_the_set_of_the_model_is_that_of_its_versions_without_their_own(home: Path) -> None:
    write_golden(str(home / "golden"), *_golden())
    write_golden(str(home / "2" / "golden"), *_golden())
    assert _paths(home) == {1: "golden/set.json", 2: "2/golden/set.json"}


def test_a_changed_set_changes_the_fingerprint_of_its_version_only(home: Path) -> None:
    for number in (1, 2):
        write_golden(str(home / str(number) / "golden"), *_golden())
    before = [each.fingerprint for each in _scan(home).servable]
    write_golden(str(home / "2" / "golden"), *_golden())
    after = [each.fingerprint for each in _scan(home).servable]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]


@pytest.mark.parametrize(
    ("golden", "text"),
    [(_golden("z"), "'z', which the model does not have"), (_golden(servable=False), "left its tolerances")],
)
def test_a_set_that_does_not_fit_breaks_its_version_only(
    home: Path, golden: tuple[GoldenSet, bytes], text: str
) -> None:
    write_golden(str(home / "2" / "golden"), *golden)
    found = _scan(home)
    assert [each.model.version for each in found.servable] == [1]
    (broken,) = found.broken
    assert broken.version == "2"
    assert all(problem.file == "m/2/golden/set.json" for problem in broken.problems)
    assert text in broken.reason


def test_a_torn_set_is_a_problem(tmp_path: Path) -> None:
    home = write_version(tmp_path, "m", plain_model())
    write_golden(str(home / "golden"), *_golden())
    (home / "golden" / "tensors.bin").write_bytes(b"")
    problem = only_problem(_scan(home))
    assert problem.file == "m/golden/tensors.bin"
    assert "has 0 bytes; m/golden/set.json says" in problem.text


def test_all_that_is_wrong_with_a_set_is_told(tmp_path: Path) -> None:
    home = write_version(tmp_path, "m", plain_model())
    golden, _ = _golden()
    document = json.loads(encode_golden(golden))
    del document["format"]
    document["surprise"] = 1
    (home / "golden").mkdir()
    (home / "golden" / "set.json").write_text(json.dumps(document))
    found = _scan(home)
    assert {problem.key for problem in found.problems} == {"format", "surprise"}
    assert {problem.file for problem in found.problems} == {"m/golden/set.json"}


@pytest.mark.parametrize("kind", ["link outside", "pipe", "dangling link"])
def test_a_set_that_is_no_file_of_the_model_is_refused(tmp_path: Path, kind: str) -> None:
    home = write_version(tmp_path / "models", "m", plain_model())
    write_golden(str(tmp_path / "elsewhere"), *_golden())
    (home / "golden").mkdir()
    place = home / "golden" / "set.json"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / "elsewhere" / ("set.json" if kind == "link outside" else "missing.json"))
    assert only_problem(_scan(home)).file == "m/golden/set.json"


def test_a_link_inside_the_model_is_followed(tmp_path: Path) -> None:
    home = write_version(tmp_path, "m", plain_model())
    write_golden(str(home / "kept"), *_golden())
    (home / "golden").symlink_to("kept")
    assert served(_scan(home)).golden == str(home / "golden" / "set.json")


def test_a_tolerance_that_is_larger_than_any_number_is_a_problem(home: Path) -> None:
    golden, tensors = _golden()
    write_golden(str(home / "1" / "golden"), golden, tensors)
    file = home / "1" / "golden" / "set.json"
    document = json.loads(file.read_text())
    document["tolerances"]["y"]["absolute"] = 10**310
    file.write_text(json.dumps(document))
    problems = _scan(home).problems
    assert [(each.key, each.text[:11]) for each in problems] == [("tolerances.y.absolute", "must be a n")]


def test_a_set_without_any_sense_is_told_in_part(home: Path) -> None:
    golden, tensors = _golden()
    write_golden(str(home / "1" / "golden"), golden, tensors)
    file = home / "1" / "golden" / "set.json"
    document = json.loads(file.read_text())
    document["tolerances"] = {f"t{number}": number % 2 for number in range(20_000)}
    file.write_text(json.dumps(document))
    assert len(_scan(home).problems) == 201, "each is no table"
    document["tolerances"] = {f"t{number}": {} for number in range(20_000)}
    file.write_text(json.dumps(document))
    assert len(_scan(home).problems) == 201, "each is of no output"


def test_of_a_set_that_fits_nowhere_the_first_reasons_are_given() -> None:
    golden, _ = _golden()
    inputs = [TensorSpec(name=f"i{number}", datatype=Datatype.FP32, shape=(1,)) for number in range(1_000)]
    found = misfits(golden, inputs, (), 0)
    assert found[0] == "case 'one' gives nothing for the input 'i0'"
    assert found[100:] == ("there is more that does not fit",)
