"""A runtime that is installed as two distributions in one place is found at the start, and explained; one that another
hides, which lies earlier on Python's path, is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from appliance.runtimes.distributions import DEBIAN_HOME, clash, cuda_problem, cuda_remedy, installed
from packages import tree
from tests.appliance_process import ApplianceProcess
from tests.architecture.sources import ROOT

HERE = version("onnxruntime")
CPU, GPU = "onnxruntime", "onnxruntime-gpu"
FOUND = """
import json
import onnxruntime
from appliance.runtimes.distributions import clash, cuda_problem, installed
print(json.dumps([onnxruntime.MADE_BY, installed("onnx"), clash("onnx"), cuda_problem()]))
"""


def lay_papers(folder: Path, name: str) -> None:
    """What tells Python that a distribution is installed in a folder."""
    (place := folder / f"{name.replace('-', '_')}-1.2.3.dist-info").mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")


def lay(folder: Path, *names: str) -> Path:
    """What installing these distributions leaves for Python to see in a folder: papers, and the last one's module."""
    for name in names:
        lay_papers(folder, name)
        (folder / "onnxruntime").mkdir(exist_ok=True)
        (folder / "onnxruntime/__init__.py").write_text(f"MADE_BY = {name!r}\n")
    return folder


def seen_on(*folders: Path) -> tuple[str, dict[str, str], str, str]:
    """Which distribution made what a process imports whose path begins with these folders, and what is said of it."""
    path = os.pathsep.join(map(str, (*folders, ROOT)))
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", FOUND], env={**os.environ, "PYTHONPATH": path}, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    made_by, found, told, problem = json.loads(done.stdout)
    return made_by, found, told, problem


def test_one_is_as_it_should_be() -> None:
    assert installed("onnx") == {CPU: HERE}
    assert clash("onnx") == ""
    assert installed("of-nobody") == {}
    assert cuda_problem() == "onnxruntime-gpu is not installed"


def test_how_a_runtime_for_cuda_is_had_is_said_by_where_the_product_runs(tmp_path: Path) -> None:
    home, papers = "/usr/lib/edge-appliance", tmp_path / "edge-appliance.list"
    assert "install onnxruntime-gpu in its place" in cuda_remedy("/srv/appliance/.venv", papers)
    assert "the variant gpu of the image" in cuda_remedy(home, papers)
    papers.touch()
    assert cuda_remedy(home, papers).startswith("'apt install edge-appliance-cuda' brings one")
    assert "install onnxruntime-gpu in its place" in cuda_remedy("/srv/appliance/.venv", papers)


def test_it_is_where_the_package_of_debian_has_it() -> None:
    assert f"/{tree.HOME}" == DEBIAN_HOME


def test_two_in_one_folder_are_named_with_what_to_do(tmp_path: Path) -> None:
    folder = lay(tmp_path / "both", CPU, GPU)
    _, found, told, problem = seen_on(folder)
    assert found == {CPU: "1.2.3", GPU: "1.2.3"}
    assert f"{CPU} 1.2.3 and {GPU} 1.2.3 are both installed" in told
    assert f"pip uninstall -y {CPU} {GPU}" in told
    assert problem == told


@pytest.mark.parametrize(("first", "other"), [(CPU, GPU), (GPU, CPU)])
def test_the_one_in_the_earlier_folder_is_what_is_imported(tmp_path: Path, first: str, other: str) -> None:
    made_by, found, told, problem = seen_on(lay(tmp_path / "a", first), lay(tmp_path / "b", other))
    assert made_by == first
    assert found == {first: "1.2.3"}
    assert told == ""
    assert problem == ("" if first == GPU else "onnxruntime-gpu is not installed")


def test_one_hides_a_folder_that_has_both(tmp_path: Path) -> None:
    hidden = lay(tmp_path / "both", GPU, CPU)
    assert seen_on(lay(tmp_path / "first", GPU), hidden) == (GPU, {GPU: "1.2.3"}, "", "")


def test_a_folder_that_has_none_hides_nothing(tmp_path: Path) -> None:
    (empty := tmp_path / "empty").mkdir()
    absent = tmp_path / "absent"
    assert seen_on(absent, empty, lay(tmp_path / "b", GPU)) == (GPU, {GPU: "1.2.3"}, "", "")


@pytest.mark.parametrize("names", [(CPU, GPU), (GPU,), ()], ids=["both", "one that hides another", "none"])
def test_a_daemon_tells_it_when_it_starts(tmp_path: Path, names: tuple[str, ...]) -> None:
    (models := tmp_path / "models").mkdir()
    folder = tmp_path / "beside"
    for name in names:
        lay_papers(folder, name)
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with ApplianceProcess(models, environment={"PYTHONPATH": path}) as daemon:
        daemon.wait_ready()
        assert ("a runtime is installed twice" in daemon.log()) == (len(names) == 2)
