"""Counters of the processor's packages, from a directory laid out as the kernel lays out powercap."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.devices.rapl import PackageCounter, Rapl, used_joules

RANGE_UJ = 262_143_328_850


def zone(root: Path, path: str, name: str, energy_uj: int) -> Path:
    """A zone as powercap has it: real ones lie with their device, links to them in the class."""
    real = root / "devices" / "virtual" / "powercap" / "intel-rapl" / path
    (real / "power").mkdir(parents=True)
    for file, text in {
        "name": name,
        "energy_uj": str(energy_uj),
        "max_energy_range_uj": str(RANGE_UJ),
        "enabled": "1",
        "constraint_0_name": "long_term",
        "constraint_0_power_limit_uw": "205000000",
    }.items():
        (real / file).write_text(f"{text}\n")
    link = root / "class" / "powercap" / real.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(real)
    return real


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages, the first with its cores and its memory, once more by way of memory-mapped registers."""
    control = tmp_path / "devices" / "virtual" / "powercap" / "intel-rapl"
    control.mkdir(parents=True)
    (tmp_path / "class" / "powercap").mkdir(parents=True)
    (tmp_path / "class" / "powercap" / "intel-rapl").symlink_to(control)
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0/intel-rapl:0:0", "core", 600_000)
    zone(tmp_path, "intel-rapl:0/intel-rapl:0:1", "dram", 100_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000)
    return tmp_path / "class" / "powercap"


def test_packages_are_read_and_their_parts_are_not_counted_again(powercap: Path) -> None:
    assert Rapl(powercap).read() == {
        "intel-rapl:0": PackageCounter("package-0", 1_000_000, RANGE_UJ),
        "intel-rapl:1": PackageCounter("package-1", 5_000_000, RANGE_UJ),
    }


def test_joules_between_two_readings(powercap: Path) -> None:
    rapl = Rapl(powercap)
    before = rapl.read()
    (powercap / "intel-rapl:0" / "energy_uj").write_text("3500000\n")
    (powercap / "intel-rapl:1" / "energy_uj").write_text("1000000\n")  # it began anew
    first, second = used_joules(before, rapl.read())
    assert first == ("package-0", 2.5)
    assert second == ("package-1", (RANGE_UJ - 4_000_000) / 1e6)


@pytest.mark.parametrize("damage", ["gone", "no number", "no name"])
def test_what_cannot_be_read_is_absent_and_not_zero(powercap: Path, damage: str) -> None:
    rapl = Rapl(powercap)
    before = rapl.read()
    energy = powercap / "intel-rapl:0" / "energy_uj"
    if damage == "gone":
        energy.unlink()
    elif damage == "no number":
        energy.write_text("\n")
    else:
        (powercap / "intel-rapl:0" / "name").unlink()
    assert list(rapl.read()) == ["intel-rapl:1"]
    assert used_joules(before, rapl.read()) == (("package-1", 0.0),)
    assert used_joules({}, before) == ()


def test_a_counter_that_only_root_may_read_is_absent(powercap: Path) -> None:
    energy = powercap / "intel-rapl:0" / "energy_uj"
    energy.unlink()
    energy.mkdir()  # fails to be read for everyone, root included
    assert list(Rapl(powercap).read()) == ["intel-rapl:1"]


def test_a_machine_without_counters_has_none(tmp_path: Path) -> None:
    assert Rapl(tmp_path / "none").read() == {}
    (tmp_path / "intel-rapl").mkdir()
    assert Rapl(tmp_path).read() == {}
