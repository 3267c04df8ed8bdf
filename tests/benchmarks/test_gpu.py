"""What measures a GPU, as far as it needs none."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from appliance.runtimes import onnx
from benchmarks import gpu


def test_each_part_alone_finds_cuda_where_packages_put_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = list[str]()
    device = SimpleNamespace(name="NVIDIA", driver="580")
    monkeypatch.setattr(gpu, "Nvml", lambda: SimpleNamespace(devices=(device,)))
    monkeypatch.setattr(onnx, "bring_libraries", lambda: done.append("brought"))
    monkeypatch.setitem(gpu.PARTS, "weights", lambda result: done.append("measured"))
    monkeypatch.setattr(sys, "argv", ["gpu", "weights", "--json"])
    gpu.main()
    assert done == ["brought", "measured"]
    assert json.loads(capsys.readouterr().out)["device"] == "NVIDIA"
