"""What a line of ``appliance status`` and ``top`` says of a device."""

from __future__ import annotations

from dataclasses import replace

from appliance.cli.activity_view import _device
from appliance.cli.snapshot import DeviceSnapshot

GIB = 1 << 30
SOUND = DeviceSnapshot(
    kind="cuda", index=1, name="made up", uuid="GPU-1", memory_bytes=80 * GIB, budget_bytes=79 * GIB
)


def test_a_device_says_what_it_has_for_models() -> None:
    assert _device(SOUND, ()) == "cuda:1 made up (GPU-1), 79.0 GiB for models, 0 versions"


def test_one_with_a_fault_has_nothing_for_models_and_says_why() -> None:
    faulty = replace(SOUND, fault="3 memory errors", troubles=("had 3 uncorrected memory errors",))
    assert _device(faulty, ()) == "cuda:1 made up (GPU-1), takes no models (3 memory errors), 0 versions"
