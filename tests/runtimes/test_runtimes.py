"""Every runtime through the conformance suite, and how runtimes are found by name."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.errors import ConfigInvalid
from appliance.runtimes import runtime as registry
from appliance.runtimes.onnx import OnnxRuntime
from appliance.tools.conformance.cases import Rig
from appliance.tools.conformance.identity import INPUTS, OUTPUTS, identity_version
from models.generators.graph import model_bytes, node, tensor_port
from tests.runtimes.fake import FakeRuntime
from tests.runtimes.runtime_conformance import RuntimeConformance
from tests.workers.bench import version_of


class TestFake(RuntimeConformance):
    left_out = ("weights",)

    @pytest.fixture
    def rig(self) -> Rig:
        version = identity_version("fake", "")
        return Rig(FakeRuntime(), version, replace(version, parameters={"mode": "fail_at_load"}))


class TestFakeWithWeights(RuntimeConformance):
    @pytest.fixture
    def rig(self) -> Rig:
        version = replace(identity_version("fake", ""), parameters={"evictable_bytes": "1"})
        return Rig(FakeRuntime(), version, replace(version, parameters={"mode": "fail_at_load"}))


class TestOnnx(RuntimeConformance):
    left_out = ("weights",)

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Rig:
        version = version_of(write_identity(tmp_path), INPUTS, OUTPUTS)
        return Rig(OnnxRuntime(), version, replace(version, path=str(tmp_path / "nosuch.onnx")))


def write_identity(home: Path) -> Path:
    """The suite's identity model as a file; gives its path."""
    model = model_bytes(
        "two",
        [node("Identity", ["a"], ["p"]), node("Identity", ["b"], ["q"])],
        inputs=[tensor_port(name, "FP32", [f"{name}0", f"{name}1"]) for name in "ab"],
        outputs=[tensor_port(name, "FP32", [f"{name}0", f"{name}1"]) for name in "pq"],
    )
    path = home / "model.onnx"
    path.write_bytes(model)
    return path


def test_unknown_runtimes_are_named_all_at_once() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        registry.open_runtimes(("fake", "nosuch", "neither"))
    assert [problem.key for problem in caught.value.problems] == ["repository.runtimes"] * 2
    assert "runtime 'nosuch' is not available" in str(caught.value)
    assert "known here: fake, hostile, onnx, pretended_cuda, simulated_tensorrt, tensorrt" in str(
        caught.value
    )


def test_third_parties_offer_runtimes_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint(
        "theirs", "tests.runtimes.fake:FakeRuntime", registry.ENTRY_POINT_GROUP
    )

    def find(*, group: str, name: str | None = None) -> list[importlib.metadata.EntryPoint]:
        assert group == registry.ENTRY_POINT_GROUP
        return [point] if name in (None, point.name) else []

    monkeypatch.setattr(importlib.metadata, "entry_points", find)
    assert isinstance(registry.open_runtimes(("theirs",))["theirs"], FakeRuntime)
    assert registry.known_runtimes() == ("onnx", "tensorrt", "theirs")


def test_devices_lie_where_devices_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.extra_devices(OnnxRuntime()) == ()
    assert registry.extra_devices(registry.open_runtimes(("fake",))["fake"]) == ("/dev/full",)
    monkeypatch.setattr(FakeRuntime, "devices", ("/dev/accel*", "/etc", "/dev/../etc"))
    with pytest.raises(ConfigInvalid, match=r"its devices /etc, /dev/\.\./etc are not below /dev/"):
        registry.open_runtimes(("fake",))


def test_the_port_needs_no_vendor() -> None:
    code = (
        "import sys, appliance.runtimes.runtime as r, tests.runtimes.fake; r.open_runtimes(('fake',)); "
        "print([name for name in ('numpy', 'onnxruntime') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_missing_is_what_is_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT's models are served beside ONNX Runtime's, which may be what is not there."""

    def without(name: str) -> object:
        raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)

    monkeypatch.setattr(registry, "_factory", without)
    for missing, needed in (("onnxruntime", "onnxruntime, or onnxruntime-gpu"), ("tensorrt", "TensorRT 11")):
        with pytest.raises(ConfigInvalid) as failure:
            registry.open_runtimes(["tensorrt"])
        assert f"No module named '{missing}'; install {needed}" in str(failure.value)
