"""What was changed by hand counts on top of what a source holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import InvalidRequest
from appliance.repository.directory import RepositoryConfig, RepositoryScan, scan
from appliance.sources.directory import DirectorySource
from appliance.sources.overlay import Overlay, path_problems
from appliance.sources.selection import Selection
from tests.repository.onnx_files import plain_model, write_version


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
    selection.put_aside("a")
    assert keys(selection.over(found)) == ["b/1"]


def test_given_files_lie_where_they_say_and_leave_with_the_overlay() -> None:
    overlay = Overlay()
    first = overlay.put("m", {"1/model.onnx": b"one", "labels.txt": b"x"})
    second = overlay.put("m", {"1/model.onnx": b"two"})
    assert (first / "m" / "1" / "model.onnx").read_bytes() == b"one", "a worker may still map it"
    assert (second / "m" / "1" / "model.onnx").read_bytes() == b"two"
    overlay.close()
    assert not first.exists()
    assert not second.exists()


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
