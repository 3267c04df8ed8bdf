"""What was changed by hand counts on top of what a source holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import InvalidRequest, NotReady
from appliance.repository.directory import RepositoryScan
from appliance.sources.directory import DirectorySource
from appliance.sources.overlay import Overlay, Selection, path_problems
from tests.repository.onnx_files import plain_model, write_version
from tests.repository.scanning import scan


def keys(found: RepositoryScan) -> list[str]:
    return [entry.model.key for entry in found.servable]


@pytest.fixture
def found(tmp_path: Path) -> RepositoryScan:
    for name in ("a", "b"):
        write_version(tmp_path, name, plain_model())
    (tmp_path / "broken" / "1").mkdir(parents=True)
    return scan(tmp_path, RepositoryConfig())


def test_models_that_were_put_aside_count_again_when_they_are_taken_back(found: RepositoryScan) -> None:
    selection = Selection()
    assert selection.over(found) is found
    selection.put_aside("a")
    selection.put_aside("broken")
    assert keys(selection.over(found)) == ["b/1"]
    assert not selection.over(found).broken
    assert selection.aside(found) == (("a", "1"), ("broken", "1"))
    selection.take_back("a")
    assert keys(selection.over(found)) == ["a/1", "b/1"]


def test_a_given_model_replaces_the_one_of_the_source(found: RepositoryScan, tmp_path: Path) -> None:
    write_version(tmp_path, "a", plain_model(), 4)
    given = DirectorySource(tmp_path, RepositoryConfig()).model("a")
    assert given is not None
    selection = Selection()
    selection.replace("a", given)
    assert keys(selection.over(found)) == ["b/1", "a/4"]
    assert (selection.given(found), selection.aside(found)) == ((("a", "1"),), ())
    assert [selection.is_given(name) for name in "ab"] == [True, False]
    selection.put_aside("a")
    assert keys(selection.over(found)) == ["b/1"]
    assert (selection.given(found), selection.aside(found)) == ((), (("a", "1"),))
    assert not selection.is_given("a")


GIVEN = {"1/model.onnx": b"one", "labels.txt": b"x"}


def test_given_files_lie_where_they_say_and_leave_with_the_overlay(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    first = overlay.put("m", GIVEN)
    overlay.keep(f"{first}/m/1/model.onnx")
    second = overlay.put("m", {"1/model.onnx": b"two"})
    assert (first / "m" / "1" / "model.onnx").read_bytes() == b"one", "a worker may still map it"
    assert (second / "m" / "1" / "model.onnx").read_bytes() == b"two"
    overlay.close()
    assert list(tmp_path.iterdir()) == []


def test_given_files_that_nobody_came_to_want_leave_with_the_next_ones(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    first = overlay.put("m", GIVEN)
    overlay.keep("/elsewhere/m/1/model.onnx")
    second = overlay.put("m", GIVEN)
    assert not first.exists()
    assert second.exists()
    overlay.close()


def test_given_files_leave_when_nothing_lies_in_them_that_is_needed(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    first = overlay.put("m", GIVEN)
    overlay.keep(f"{first}/m/1/model.onnx")
    second = overlay.put("m", GIVEN)
    overlay.keep(f"{second}/m/1/model.onnx")
    assert overlay.without([f"{first}/m/1/model.onnx", f"{second}/m/1/model.onnx"]) == frozenset()
    assert overlay.without([f"{second}/m/1/model.onnx", f"{first}0/m"]) == {str(first)}
    overlay.forget([str(first)])
    assert overlay.without([]) == {str(second)}
    overlay.drop([str(first)])
    assert [first.exists(), second.exists()] == [False, True]
    overlay.close()


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from appliance.sources.overlay import Overlay
Overlay(Path({str(tmp_path)!r})).put("m", {{"1/model.onnx": b"one"}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = tmp_path.iterdir()
    alive, looking = Overlay(tmp_path), Overlay(tmp_path)
    repository = alive.put("m", GIVEN)
    for name in ("appliance-given-unknown", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "appliance-given-link").symlink_to(tmp_path / "other")
    looking.drop_leftovers()
    alive.drop_leftovers()
    assert not left.exists()
    assert repository.exists()
    there = {"appliance-given-unknown", "other", "appliance-given-link", repository.parent.name}
    assert {entry.name for entry in tmp_path.iterdir()} == there
    alive.close()


def test_files_that_cannot_be_written_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="failed to load 'm': its files cannot be written: No such file"):
        Overlay(tmp_path / "gone").put("m", GIVEN)
    Overlay(tmp_path / "gone").drop_leftovers()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "1/../../x",
        "1//x",
        "./x",
        "1/.hidden",
        "a/b/c/d/e",
        "x\0y",
        "1/",
        "y" * 129,
    ],
)
def test_paths_that_lead_out_of_the_model_are_refused(path: str) -> None:
    assert path_problems(path)
    with pytest.raises(InvalidRequest):
        Overlay().put("m", {"1/model.onnx": b"", path: b""})


@pytest.mark.parametrize("name", ["", ".", "..", "../m", "a/b", "/tmp/m", "m\0", "..\0", ".m", "m" * 200])
def test_a_name_that_leads_out_of_its_repository_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path
) -> None:
    overlay = Overlay(tmp_path)
    with pytest.raises(InvalidRequest):
        overlay.put(name, {"1/model.onnx": b"x"})
    overlay.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
