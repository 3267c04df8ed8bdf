"""What ``make`` says where it cannot do what it is asked for: a sentence, and no traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADVICE = "docs/GPU.md says what it takes"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Stands in for a Python of which nothing is known but what it says of GPUs: a file of that."""
    path = tmp_path / "python"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] || exec echo "runs $*"\ncat {tmp_path}/told >&2\n[ ! -e {tmp_path}/none ]\n'
    )
    path.chmod(0o755)
    return path


def made(python: Path, variable: str = "GPU_PYTHON") -> subprocess.CompletedProcess[str]:
    """``make test-gpu``, which is no part of the ``make`` that may have started these tests."""
    words = ["make", "--no-print-directory", "test-gpu", f"{variable}={python}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_a_gpu_the_reason_stands_in_the_sentence(python: Path) -> None:
    error = "OSError: NVML Shared Library Not Found"
    python.with_name("told").write_text(f'Traceback (most recent call last):\n  File "<string>"\n{error}\n')
    python.with_name("none").touch()
    found = made(python)
    assert found.returncode == 2
    first, *_ = found.stderr.splitlines()
    assert first == f"make: nothing tells of a GPU here ({error}); {ADVICE}"
    assert "Traceback" not in found.stderr + found.stdout
    assert "runs" not in found.stdout


def test_nothing_is_fetched_where_there_is_no_driver(python: Path) -> None:
    error = "OSError: libnvidia-ml.so.1: cannot open shared object file"
    python.with_name("told").write_text(f"Traceback (most recent call last):\n{error}\n")
    python.with_name("none").touch()
    found = made(python, "PYTHON")
    assert found.returncode == 2
    assert found.stderr.splitlines()[0] == f"make: there is no driver of NVIDIA's here ({error}); {ADVICE}"
    assert "installing" not in found.stdout


def test_with_a_gpu_it_is_named_and_the_tests_run(python: Path) -> None:
    python.with_name("told").write_text("cuda:0\n")
    found = made(python)
    assert found.returncode == 0
    assert found.stdout.splitlines()[0] == "cuda:0"
    assert any(line.startswith("runs -m pytest") for line in found.stdout.splitlines())
