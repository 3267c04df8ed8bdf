"""What a worker's death means for a version: when to start it again, and when to give it up. Pure.

A version is quarantined when it took ``quarantine_after`` workers down within ``crash_window_s``: while it was loading,
or with requests that another version answered. What other files of its number did, or a packed form of it, is not
counted with that, nor what it did before it was admitted anew. A worker that died of a request is replaced at once, and
``blame`` says who pays for it; any other death delays the restart.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from appliance.config.workers import RestartConfig
from appliance.domain.exit_cause import ExitCause

SECOND_NS = 1_000_000_000


def load_is_to_blame(cause: ExitCause, *, running: bool, loads_new: bool) -> bool:
    """Whether what a worker was loading, if anything, ended it. ``running``: it had a batch, which is to blame unless
    what it loaded has not been open yet (``loads_new``), for what ran has run before. It gives up with what it runs
    alone, which it has tried for longer than a load runs anything."""
    loads_new = loads_new and cause is not ExitCause.GAVE_UP
    return cause is not ExitCause.ZYGOTE and (loads_new or not running)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy(RestartConfig):
    """The ``[restart]`` section with constants of its own."""

    crash_window_s: int = 600
    """Crashes older than this are forgiven: two in ten minutes have one cause, two in a week need not."""
    restart_delay_max_ms: int = 30_000
    """The longest wait before a restart: a box that mended itself serves within half a minute."""
    hold_ms: int = 1_000
    """How long a client is held that cost a version a second worker; doubles with each more."""
    stable_after_s: int = 10
    """A worker that lived this long restarts at once: what ends it then is not how it starts."""


class Restarts:
    """Crash records per model id and restart delays per group. Owner: the rollouts."""

    def __init__(self, config: RestartPolicy) -> None:
        self._config = config
        self._crashes: dict[int, deque[int]] = {}
        self._row: dict[int, int] = {}

    def crashed(self, model: int, now_ns: int) -> bool:
        """Blame the version with id ``model`` for a crash; True when it is to be quarantined."""
        since_ns = now_ns - self._config.crash_window_s * SECOND_NS
        self._crashes = {each: crashes for each, crashes in self._crashes.items() if crashes[-1] >= since_ns}
        crashes = self._crashes.setdefault(model, deque())
        crashes.append(now_ns)
        while crashes[0] < since_ns:
            crashes.popleft()
        return len(crashes) >= self._config.quarantine_after

    def forgive(self, model: int) -> None:
        """Forget its crashes: it was not to blame for them."""
        self._crashes.pop(model, None)

    def restart_delay_ns(self, group: int, lived_ns: int) -> int:
        """How long to wait before the next worker of ``group``, whose last one lived ``lived_ns``."""
        if lived_ns >= self._config.stable_after_s * SECOND_NS:
            self._row[group] = 0
        row = self._row.get(group, 0)
        self._row[group] = row + 1
        if row == 0:
            return 0
        delay_ms = min(self._config.restart_delay_ms << min(row - 1, 20), self._config.restart_delay_max_ms)
        return delay_ms * 1_000_000

    def group_closed(self, group: int) -> None:
        """The group is gone."""
        self._row.pop(group, None)
