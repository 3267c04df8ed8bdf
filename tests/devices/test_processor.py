"""Energy of the processor shared out among the versions that ran on it; its counters are a directory laid out as the
kernel does."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.devices.energy import Work
from appliance.devices.processor import WINDOW_S_MAX, ProcessorAccount
from appliance.domain.device_reading import VersionEnergy

SECOND = 1_000_000_000
RANGE_J = 1_000.0


class Packages:
    """Two packages of a made-up machine, an account of them, and what versions have done."""

    def __init__(self, root: Path) -> None:
        self._zones = [root / f"intel-rapl:{number}" for number in range(2)]
        self._hidden = set[int]()
        self._joules = [990.0, 5.0]  # the first is about to begin anew
        for zone in self._zones:
            zone.mkdir()
            (zone / "name").write_text(f"package-{zone.name[-1]}\n")
            (zone / "max_energy_range_uj").write_text(f"{round(RANGE_J * 1e6)}\n")
        self.use(0.0)
        self.account = ProcessorAccount(root)
        self.work = {"a/1": Work(), "b/1": Work()}
        self.now_s = 0.0
        self.elsewhere_ns = 0

    def use(self, joules: float) -> None:
        """Half of it each."""
        for number, zone in enumerate(self._zones):
            self._joules[number] = (self._joules[number] + joules / 2) % RANGE_J
            if number not in self._hidden:
                (zone / "energy_uj").write_text(f"{round(self._joules[number] * 1e6)}\n")

    def hide(self, number: int) -> None:
        """One of them can be read no more."""
        (self._zones[number] / "energy_uj").unlink()
        self._hidden.add(number)

    def after(self, seconds: float, joules: float, **ran: Work) -> None:
        """Time passes, in which so much was used and versions did so much more."""
        self.now_s += seconds
        self.use(joules)
        for name, more in ran.items():
            before = self.work[f"{name}/1"]
            self.work[f"{name}/1"] = Work(before.run_ns + more.run_ns, before.inferences + more.inferences)
        self.told = self.account.take(self.now_s, self.work, self.elsewhere_ns)


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    """At the first look."""
    packages = Packages(tmp_path)
    packages.after(0.0, 0.0)
    return packages


def test_all_packages_count_less_idle_power_and_time_shares(packages: Packages) -> None:
    packages.after(10.0, 400.0)
    assert packages.told is not None
    assert (packages.told.idle_w, packages.told.versions) == (40.0, {})
    packages.after(20.0, 1_200.0, a=Work(3 * SECOND, 100), b=Work(SECOND, 10))
    assert packages.told is not None
    assert packages.told.versions == {
        "a/1": VersionEnergy(joules=300.0, inferences=100, window_s=20.0),
        "b/1": VersionEnergy(joules=100.0, inferences=10, window_s=20.0),
    }


def test_a_window_is_ten_seconds_at_least(packages: Packages) -> None:
    for _ in range(9):
        packages.after(1.0, 40.0)
        assert packages.told is not None
        assert packages.told.idle_w is None
    packages.after(1.0, 40.0)
    assert packages.told is not None
    assert packages.told.idle_w == 40.0


def test_windows_of_which_too_little_is_known_are_left_out(packages: Packages) -> None:
    packages.after(10.0, 400.0)
    packages.elsewhere_ns += SECOND
    packages.after(10.0, 900.0, a=Work(SECOND, 1))
    packages.after(WINDOW_S_MAX + 1, 900.0, a=Work(SECOND, 1))
    packages.hide(1)
    packages.after(10.0, 900.0, a=Work(SECOND, 1))
    assert packages.told is not None
    assert (packages.told.idle_w, packages.told.versions) == (40.0, {})
    packages.after(10.0, 900.0, a=Work(SECOND, 1))
    assert packages.told is not None
    assert packages.told.versions == {"a/1": VersionEnergy(joules=50.0, inferences=1, window_s=10.0)}


def test_no_counter_is_nothing_known(packages: Packages, tmp_path: Path) -> None:
    assert ProcessorAccount(tmp_path / "none").take(0.0, {}, 0) is None
    packages.hide(0)
    packages.hide(1)
    packages.after(10.0, 400.0)
    assert packages.told is None
