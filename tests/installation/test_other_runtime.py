"""`make install RUNTIME=...` in a clone, with a Python that only notes what it is to install."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
FILES = ("Makefile", "pyproject.toml", "requirements.lock", "requirements-gpu.lock", "requirements-test.lock")
PYTHON = """#!/bin/sh
packages=.venv/lib/python3.11/site-packages
while [ "$1" != install ] && [ "$1" != uninstall ] && [ "$1" != show ]; do
    [ $# -gt 0 ] || exit 0
    shift
done
case "$*" in
    "show onnxruntime") [ -d $packages/onnxruntime-1.dist-info ] ;;
    "show onnxruntime-gpu") [ -d $packages/onnxruntime_gpu-1.dist-info ] ;;
    uninstall*) rm -rf $packages/onnxruntime* ;;
    *requirements.lock) [ ! -e broken ] && mkdir -p $packages/onnxruntime-1.dist-info ;;
    *requirements-gpu.lock) [ ! -e broken ] && mkdir -p $packages/onnxruntime_gpu-1.dist-info ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in FILES:
        shutil.copy(HOME / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def installed(clone: Path, *words: str, target: str = "install") -> tuple[int, list[str]]:
    """The exit status of `make`, and which runtimes are there then."""
    environment = {key: value for key, value in os.environ.items() if key not in ("RUNTIME", "MAKEFLAGS")}
    done = subprocess.run(
        ["make", target, *words], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    found = (clone / ".venv" / "lib" / "python3.11" / "site-packages").glob("onnxruntime*")
    return done.returncode, sorted(path.name.split("-")[0] for path in found)


def test_each_takes_the_others_place_and_stays(clone: Path) -> None:
    assert installed(clone) == (0, ["onnxruntime"])
    for runtime, there in (("gpu", "onnxruntime_gpu"), ("cpu", "onnxruntime"), ("gpu", "onnxruntime_gpu")):
        assert installed(clone, f"RUNTIME={runtime}") == (0, [there])
        assert installed(clone) == (0, [there])
    assert installed(clone, "RUNTIME=tpu")[0] != 0


@pytest.mark.parametrize(("first", "second"), [("cpu", "gpu"), ("gpu", "cpu")])
def test_an_exchange_that_is_broken_off_is_not_taken_for_done(clone: Path, first: str, second: str) -> None:
    names = {"cpu": "onnxruntime", "gpu": "onnxruntime_gpu"}
    assert installed(clone, f"RUNTIME={first}") == (0, [names[first]])
    (clone / "broken").touch()
    status, there = installed(clone, f"RUNTIME={second}")
    assert (status != 0, there) == (True, [])
    (clone / "broken").unlink()
    assert installed(clone, f"RUNTIME={first}") == (0, [names[first]]), "back again"
    (clone / "broken").touch()
    installed(clone, f"RUNTIME={second}")
    (clone / "broken").unlink()
    assert installed(clone)[1] != [], "or whichever"


def test_two_at_once_become_the_one(clone: Path) -> None:
    installed(clone)
    other = clone / ".venv" / "lib" / "python3.11" / "site-packages" / "onnxruntime_gpu-1.dist-info"
    other.mkdir()
    assert installed(clone, "RUNTIME=gpu") == (0, ["onnxruntime_gpu"])


def test_the_tests_of_a_gpu_install_what_they_need(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the Python that only notes it, and no compiler of Rust that could build anything."""
    for name in ("cargo", "python"):
        (clone / name).write_text(f"#!/bin/sh\n[ {name} = python ]\n")
        (clone / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{clone}:{os.environ['PATH']}")
    assert installed(clone, "RUNTIME=cpu") == (0, ["onnxruntime"])
    assert installed(clone, f"PYTHON={clone / 'python'}", target="test-gpu") == (0, ["onnxruntime_gpu"])
