"""When what was given up is tried once more, because nothing else of its model serves and nobody may be there to ask.

One version at a time, until it is proven or given up again: what takes the box down must not do so for several at once.
What was rejected (rolled back, or by an operator) is not among them. Owner: the roster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from appliance.core.rollout.catalog import CatalogVersion
from appliance.core.rollout.phase import ON_ITS_WAY, SERVING, Phase
from appliance.engine.control.swaps import Swaps
from appliance.engine.versions.routes import Routes, Served

MS_NS: Final = 1_000_000


class _Due(NamedTuple):
    """When a version is to be tried; ``at_ms`` is the same by the wall clock, for people."""

    at_ns: int
    at_ms: int
    entry: CatalogVersion


class Retries:
    """``admit`` tries a version; ``at`` asks for ``tick`` at a time; ``report`` writes a log line."""

    def __init__(
        self,
        *,
        routes: Routes,
        swaps: Swaps,
        admit: Callable[[CatalogVersion, int], None],
        at: Callable[[int], None],
        report: Callable[..., None],
    ) -> None:
        self._routes = routes
        self._swaps = swaps
        self._admit = admit
        self._at = at
        self._report = report
        self._wanted: tuple[CatalogVersion, ...] = ()
        self._due: dict[str, _Due] = {}
        self._trying: CatalogVersion | None = None

    def want(self, entries: Iterable[CatalogVersion]) -> None:
        """These are wanted from now on."""
        self._wanted = tuple(entries)

    def plan(self, now_ns: int) -> None:
        """The routes have changed: see what is left to be tried, and when."""
        before, self._due = self._due, {}
        for entry in self._wanted:
            served = self._given_up(entry)
            if served is None:
                continue
            due = before.get(entry.identity) or self._first(entry, served, now_ns)
            if due is not None:
                self._due[entry.identity] = due._replace(entry=entry)
        self._wake()

    def _given_up(self, entry: CatalogVersion) -> Served | None:
        """What stands in the routes for ``entry``, if it was given up and nothing else of its model serves or may."""
        name = entry.model.name
        served = self._routes.find(name, entry.model.version)
        if served is None or served.phase is not Phase.FAILED:
            return None
        if entry.trial is not None and entry.trial.hold:
            return None
        others = self._routes.of(name)
        return None if any(other.phase in ON_ITS_WAY | SERVING for other in others) else served

    def _first(self, entry: CatalogVersion, served: Served, now_ns: int) -> _Due | None:
        pause_ms = self._swaps.tries.pause_ms(entry.identity)
        if pause_ms is None:
            return None
        at_ms = self._swaps.tries.wall_ms() + pause_ms
        self._report("version will be tried again", model=served.key, in_s=pause_ms // 1_000)
        self._swaps.accounts.postponed(served, at_ms)
        return _Due(now_ns + pause_ms * MS_NS, at_ms, entry)

    def _wake(self) -> None:
        if self._due:
            self._at(min(due.at_ns for due in self._due.values()))

    def tick(self, now_ns: int) -> None:
        """Time passed: try the next one, if it is time and no other is being tried."""
        if not self._due or self._busy:
            return
        due = min(self._due.values(), key=lambda due: due.at_ns)
        if due.at_ns > now_ns:
            self._wake()
            return
        del self._due[due.entry.identity]
        self._trying = due.entry
        self._report("version is tried again, for nothing else serves", model=due.entry.model.key)
        self._swaps.accounts.count(retries=1)
        self._admit(due.entry, now_ns)

    @property
    def _busy(self) -> bool:
        trying = self._trying
        if trying is None:
            return False
        served = self._routes.find(trying.model.name, trying.model.version)
        if served is None or (served.phase in ON_ITS_WAY and served.waiting is not None):
            return False  # it waits for memory that may never come
        return self._swaps.status(served) is not None

    def next_try_ms(self, served: Served) -> int:
        """When ``served`` is tried again at the earliest, by the wall clock; 0: it is not."""
        due = self._due.get(served.identity)
        return due.at_ms if due is not None and served.phase is Phase.FAILED else 0
