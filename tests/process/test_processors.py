"""What processors are called: x86's say it, ARM's tell numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.process.processors import processor_name, this_processor
from appliance.telemetry.inventory import inventory
from appliance.tools.evaluation.cost_file import place_text

XEON = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)\n\nprocessor\t: 1\n"
PI = "Hardware\t: BCM2835\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n"


def core(implementer: str, part: str) -> str:
    """A processor as an ARM kernel tells of it."""
    features = "BogoMIPS\t: 50.00\nFeatures\t: fp asimd\n"
    numbers = (
        f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: {part}\n"
    )
    return f"processor\t: 0\n{features}{numbers}CPU revision\t: 1\n\n"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (XEON, "Intel(R) Xeon(R)"),
        (core("0x41", "0xd0c") * 2, "Neoverse-N1"),
        (core("0x41", "0xd42"), "Cortex-A78AE"),
        ("model name\t: ARMv8 Processor rev 1 (v8l)\n" + core("0x41", "0xd42"), "Cortex-A78AE"),
        (core("0x4e", "0x004"), "NVIDIA Carmel"),
        (core("0xc0", "0xac3"), "AmpereOne"),
        (core("0x41", "0xd05") * 4 + core("0x41", "0xd0b") * 4, "Cortex-A55, Cortex-A76"),
        (core("0x41", "0xd0b") * 4 + PI, "Raspberry Pi 5 Model B Rev 1.0, Cortex-A76"),
        (core("0x41", "0xfff"), "ARM part 0xfff"),
        (core("0x99", "0xd0c"), "implementer 0x99 part 0xd0c"),
        (core("0x41", "0xd0c").replace("CPU part", "CPU past"), ""),
        (core("forty", "one"), "implementer forty part one"),
        ("", ""),
    ],
)
def test_a_processor_is_called_by_a_name_that_people_know_else_by_its_numbers(told: str, name: str) -> None:
    assert processor_name(told) == name


def test_facts_and_measurements_tell_it(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(core("0x41", "0xd08"))
    assert inventory(tmp_path)["processor"] == this_processor(tmp_path) == "Cortex-A72"
    assert this_processor(tmp_path / "none") == ""
    assert place_text(1).startswith(this_processor())
