"""What each model version used of one device, from a counter of the whole device. Pure.

A window lasts from one look to the next one at least WINDOW_S later. What the device used in it above its idle power is
shared out by the time that batches of each version ran. Idle power is that of windows in which nothing ran; before one
was seen nothing is shared out, because it would count the box's rent as a model's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from appliance.domain.device_reading import VersionEnergy

METHOD: Final = "nvml"
WINDOW_S: Final = 10.0


class Work(NamedTuple):
    """What a version did since it began: how long its batches ran, the rows in them."""

    run_ns: int = 0
    inferences: int = 0


NO_WORK: Final = Work()


class EnergyAccount:
    """The account of one device."""

    def __init__(self) -> None:
        self.idle_w: float | None = None
        self._versions: dict[str, VersionEnergy] = {}
        self._at_s = 0.0
        self._joules: float | None = None
        self._work: Mapping[str, Work] = {}

    @property
    def versions(self) -> Mapping[str, VersionEnergy]:
        """By version; those that are gone are left out."""
        return dict(self._versions)

    def arrive(self, name: str, work: Work) -> None:
        """A version comes from another device, where it has done so much: that is not this one's."""
        self._work = {**self._work, name: work}

    def take(self, now_s: float, joules: float, work: Mapping[str, Work]) -> None:
        """Look: the device's counter, and what the versions that are on it have done."""
        if self._joules is not None and joules >= self._joules:
            window_s = now_s - self._at_s
            if window_s < WINDOW_S:
                return
            self._close(window_s, joules - self._joules, work)
        self.begin(now_s, joules, work)

    def begin(self, now_s: float, joules: float, work: Mapping[str, Work]) -> None:
        """Count from here: of what was before not enough is known."""
        self._at_s, self._joules, self._work = now_s, joules, dict(work)

    def _close(self, window_s: float, joules: float, work: Mapping[str, Work]) -> None:
        done = {name: _since(self._work.get(name, NO_WORK), now) for name, now in work.items()}
        ran_ns = sum(each.run_ns for each in done.values())
        if not ran_ns:
            self.idle_w = joules / window_s
        self._versions = {name: each for name, each in self._versions.items() if name in work}
        if self.idle_w is None or not ran_ns:
            return
        above = max(joules - self.idle_w * window_s, 0.0)
        for name, each in done.items():
            if each.run_ns:
                before = self._versions.get(name, VersionEnergy(joules=0.0, inferences=0, window_s=0.0))
                self._versions[name] = VersionEnergy(
                    joules=before.joules + above * each.run_ns / ran_ns,
                    inferences=before.inferences + each.inferences,
                    window_s=before.window_s + window_s,
                )


def _since(before: Work, now: Work) -> Work:
    """A version that was loaded anew counts from nothing."""
    if now.run_ns < before.run_ns or now.inferences < before.inferences:
        return now
    return Work(now.run_ns - before.run_ns, now.inferences - before.inferences)
