"""The wheels, installed as people do into an environment that has nothing else, for each Python that is here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from appliance.runtimes.distributions import DISTRIBUTIONS
from tests.appliance_process import ApplianceProcess
from tests.architecture.sources import ROOT
from tests.frontend.grpc.certificate_files import make_authority, make_signed

PYTHONS = ("3.11", "3.12", "3.13")
NOTHING_ELSE = {"PYTHONPATH": ""}
"""The environment of processes that are to find what is installed alone: tests have theirs on that path."""
PICTURE = ROOT / "models" / "digits" / "golden" / "3-0539.png"


def interpreter(version: str) -> str:
    """The Python of this ``version`` on the PATH; skips where there is none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"there is no python{version} here")
    return found


def run(*command: str | Path) -> str:
    """What a command prints; it has to succeed."""
    environment = {**os.environ, **NOTHING_ELSE}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def native() -> Path:
    """The native front end's wheel, as `make native` or `make wheels` made it."""
    for folder in ("dist", "build/native"):
        for found in (ROOT / folder).glob(f"edge_appliance_native-*{os.uname().machine}.whl"):
            return found
    pytest.skip("no wheel of the native front end was built: no cargo")


@pytest.fixture(scope="module")
def wheels(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels, made from what stands here."""
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    shutil.copy(native, folder)
    return folder


@pytest.fixture(params=PYTHONS)
def clean(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The Python of an environment with what the lock names, and no more; skips where that cannot be fetched."""
    run(interpreter(request.param), "-m", "venv", tmp_path / "clean")
    python = tmp_path / "clean" / "bin" / "python"
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    locked = ("install", "--no-compile", "--require-hashes", "-r", ROOT / "requirements.lock")
    fetched = subprocess.run(
        [python, *pip, *locked], capture_output=True, text=True, timeout=240, check=False
    )
    if fetched.returncode != 0:
        pytest.skip(f"what is needed cannot be fetched: {fetched.stderr.strip()[-200:]}")
    return python


@pytest.mark.parametrize(
    ("extra", "runtime"), [("", set()), ("cpu", {"onnxruntime"}), ("gpu", {"onnxruntime-gpu"})]
)
def test_an_extra_brings_the_runtime_of_its_device_and_no_other(
    wheels: Path, extra: str, runtime: set[str]
) -> None:
    (wheel,) = wheels.glob("edge_appliance-*.whl")
    (papers,) = distributions(path=[str(wheel)])
    wanted = {each for each in map(Requirement, papers.requires or ()) if applies(each, extra)}
    assert {each.name for each in wanted} & set(DISTRIBUTIONS["onnx"]) == runtime
    if extra == "gpu":
        (found,) = (each for each in wanted if each.name == "onnxruntime-gpu")
        assert found.extras == {"cuda", "cudnn"}
        assert {"nvidia-cublas", "nvidia-ml-py"} <= {each.name for each in wanted}


def applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


@pytest.mark.download
@pytest.mark.timeout(600)
def test_two_wheels_serve_over_tls_at_full_speed(clean: Path, wheels: Path, tmp_path: Path) -> None:
    run(clean, "-m", "pip", "install", "--no-index", "--find-links", wheels, "edge-appliance[cpu,native]")
    run(clean, "-m", "pip", "check")
    authority = make_authority(tmp_path, "authority")
    pair = make_signed(tmp_path, "server", authority)
    files = {"tls_certificate": str(pair.certificate), "tls_key": str(pair.key)}
    sections: dict[str, dict[str, Any]] = {
        "grpc": {"addresses": ["127.0.0.1:0"], **files},
        "frontend": {"kind": "native"},
    }
    with ApplianceProcess(ROOT / "models", sections, python=clean) as server:
        server.wait_ready()
        appliance = clean.parent / "appliance"
        ask = ("infer", "digits", "--input", f"image=@{PICTURE}", "--json", "--timeout-ms", "20000")
        said = run(appliance, *ask, "--url", server.grpc, "--ca", authority.certificate)
        assert "three" in said
        module = run(clean, "-P", "-c", "import appliance; print(appliance.__file__)").strip()
        assert Path(module).is_relative_to(tmp_path), "what is served is what was installed"
