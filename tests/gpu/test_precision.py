"""Precisions of the digits on a real GPU, with what it draws and holds. Skipped where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import onnxruntime
import pytest

from appliance.cli.main import main
from appliance.devices.nvml import Nvml
from tests.devices.absent import absent

DIGITS = Path(__file__).parents[2] / "models" / "digits"


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_precisions_on_the_device(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        nvml = Nvml()
    except OSError as problem:
        absent(f"no GPU: {problem}")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        absent("the installed onnxruntime has no CUDA; put onnxruntime-gpu in its place")
    counts = nvml.read(nvml.devices[0]).energy_j is not None
    nvml.close()
    words = ["--variants", "fp32,fp16,int8", "--device", device, "--rows", "1,32", "--budget-ms", "1000"]
    assert main(["model", "bench", str(DIGITS), *words, "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == device
    for each in found["variants"]:
        print(json.dumps(each))  # the figures are what whoever runs this wants to see
        assert each["verdict"] != "no figures", each["problem"]
        assert each["device_bytes"] > 0
        assert not counts or each["energy_method"] == "nvml"
        assert not counts or any(batch.get("joules_per_row", 0) > 0 for batch in each["batches"])
    assert found["variants"][0]["verdict"] == "holds"
