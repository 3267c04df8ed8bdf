"""What each model version on the processor used, from the counters of its packages (RAPL).

The method is that of energy.py, with the counters of all packages added up. Those count all that runs on the machine:
what other programs use above the last quiet window is shared out with the rest. A window in which versions ran on
another device is left out, as what the processor does for these cannot be told from what it does for its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from appliance.devices.energy import WINDOW_S, EnergyAccount, Work
from appliance.devices.rapl import POWERCAP, PackageCounters, Rapl, used_joules
from appliance.domain.energy import ProcessorEnergy

WINDOW_S_MAX: Final = 120.0
"""In a longer one a counter may have begun anew more than once, which does not show."""


class ProcessorAccount:
    """The account of the packages below ``root``. Looks at them as often as it is asked, but not within a window."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._rapl = Rapl(root)
        self._account = EnergyAccount()
        self._counters: PackageCounters = {}
        self._joules = 0.0
        self._elsewhere_ns = 0
        self._at_s: float | None = None

    def take(self, now_s: float, work: Mapping[str, Work], elsewhere_ns: int) -> ProcessorEnergy | None:
        """What was used until now, where ``work`` is what versions on the processor did and ``elsewhere_ns`` how long
        batches ran on other devices. None: no counter can be read."""
        if self._at_s is None or now_s - self._at_s >= WINDOW_S:
            self._look(now_s, work, elsewhere_ns)
        if not self._counters:
            return None
        return ProcessorEnergy(idle_w=self._account.idle_w, versions=self._account.versions)

    def _look(self, now_s: float, work: Mapping[str, Work], elsewhere_ns: int) -> None:
        before, counters = self._counters, self._rapl.read()
        known = self._at_s is not None and now_s - self._at_s <= WINDOW_S_MAX
        if known and before.keys() == counters.keys() and elsewhere_ns == self._elsewhere_ns:
            self._joules += sum(joules for _, joules in used_joules(before, counters))
            self._account.take(now_s, self._joules, work)
        else:
            self._account.begin(now_s, self._joules, work)
        self._counters, self._elsewhere_ns, self._at_s = counters, elsewhere_ns, now_s
