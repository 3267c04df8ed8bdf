"""The units: systemd reads them without a word, and they leave no more open than was decided.

What they do when they run, `make units-test` shows, with a systemd of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

UNITS = sorted((ROOT / "systemd").glob("*.service"))
EXPOSURE_MAX = {"appliance": 1.3, "appliance-sync": 1.0, "appliance-controller": 1.0}

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here"
)


def analyze(*words: str | Path) -> str:
    """What systemd-analyze prints; it has to succeed."""
    done = subprocess.run(
        ["systemd-analyze", *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def exposure(unit: Path) -> float:
    """How much of the machine a unit can reach, from 0 to 10."""
    found = re.search(r"exposure level for \S+: (\d+\.\d+)", analyze("security", "--offline=yes", unit))
    assert found
    return float(found[1])


def test_each_unit_has_its_bound() -> None:
    assert {unit.stem for unit in UNITS} == set(EXPOSURE_MAX)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_reaches_no_more_than_was_decided(unit: Path) -> None:
    assert exposure(unit) <= EXPOSURE_MAX[unit.stem]


def test_with_a_gpu_a_little_more_is_open(tmp_path: Path) -> None:
    unit = tmp_path / "appliance.service"
    parts = [
        (ROOT / "systemd" / name).read_text() for name in ("appliance.service", "gpu/appliance-gpu.conf")
    ]
    unit.write_text("\n".join(parts))
    assert EXPOSURE_MAX["appliance"] < exposure(unit) <= 1.5


def test_systemd_has_nothing_to_say_of_them(tmp_path: Path) -> None:
    for unit in (*UNITS, ROOT / "systemd/appliance.slice"):
        text = unit.read_text().replace(
            "/usr/bin/appliance", "/bin/true"
        )  # the command is installed elsewhere
        (tmp_path / unit.name).write_text(re.sub(r"^Documentation=.*$", "", text, flags=re.MULTILINE))
    said = analyze("verify", *sorted(tmp_path.iterdir()))
    known = re.compile(r"Unknown key.* 'ImportCredential'")  # to systemd 254, which is older than Debian 13's
    assert not [line for line in said.splitlines() if "appliance" in line and not known.search(line)]
