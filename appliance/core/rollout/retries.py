"""What was given up and is to be tried once more, because nothing else of its model serves and no operator may be there
to ask. One version at a time, until it is proven or given up again: what takes the box down must not do so for several
at once. What was rejected (rolled back, or by an operator) is not among them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from appliance.core.rollout import actions as do
from appliance.core.rollout.catalog import CatalogVersion
from appliance.core.rollout.ledger import Ending, Ledger
from appliance.core.rollout.outcomes import Step, Steps
from appliance.core.rollout.phase import ON_ITS_WAY, SERVING, Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import NextTry
from appliance.core.rollout.registry import Registry
from appliance.core.rollout.standing import pause_ms
from appliance.core.rollout.version import Version

MS_NS: Final = 1_000_000


class Due(NamedTuple):
    """When a version is to be tried; ``at_ms`` is the same by the wall clock, for people."""

    at_ns: int
    at_ms: int
    entry: CatalogVersion


class Retries:
    """Of the versions that are ``wanted``, those that are due, by their identity, and the one that is tried now."""

    def __init__(self, config: RolloutPolicy, ledger: Ledger, registry: Registry) -> None:
        self._config = config
        self._ledger = ledger
        self._registry = registry
        self.wanted: tuple[CatalogVersion, ...] = ()
        self._due: dict[str, Due] = {}
        self._trying: CatalogVersion | None = None

    def next_try_ms(self, version: Version) -> int:
        """When a version is tried again at the earliest, by the wall clock; 0: it is not."""
        due = self._due.get(version.identity)
        return due.at_ms if due is not None and version.phase is Phase.FAILED else 0

    def plan(self, wall_ms: int, now_ns: int) -> Steps:
        """Names mean something else: see what is left to be tried, and when."""
        before, self._due = self._due, {}
        for entry in self.wanted:
            version = self._left_alone(entry)
            if version is None:
                continue
            due = before.get(entry.identity)
            if due is None:
                left_ms = pause_ms(self._ledger.standing(entry.identity), self._config, wall_ms)
                if left_ms is None:
                    continue
                due = Due(now_ns + left_ms * MS_NS, wall_ms + left_ms, entry)
                yield do.report("version will be tried again", version, in_s=left_ms // 1_000)
                yield do.note(version, Ending.POSTPONED, NextTry(at_ms=due.at_ms), counted=False)
            self._due[entry.identity] = due._replace(entry=entry)
        yield from self._wake()

    def _left_alone(self, entry: CatalogVersion) -> Version | None:
        """What stands for ``entry``, if it was given up and nothing else of its model serves or may."""
        version = self._registry.find((entry.model.name, entry.model.version))
        if version is None or version.phase is not Phase.FAILED:
            return None
        if entry.trial is not None and entry.trial.hold:
            return None
        others = self._registry.of(entry.model.name)
        return None if any(other.phase in ON_ITS_WAY | SERVING for other in others) else version

    def _wake(self) -> Steps:
        if self._due:
            yield do.WakeAt(min(due.at_ns for due in self._due.values()))

    def take(self, now_ns: int) -> Generator[Step, None, CatalogVersion | None]:
        """What is to be tried now: the next one, if it is time and no other is being tried."""
        if not self._due or self._is_trying:
            return None
        due = min(self._due.values(), key=lambda due: due.at_ns)
        if due.at_ns > now_ns:
            yield from self._wake()
            return None
        del self._due[due.entry.identity]
        self._trying = due.entry
        return due.entry

    @property
    def _is_trying(self) -> bool:
        trying = self._trying
        if trying is None:
            return False
        version = self._registry.find((trying.model.name, trying.model.version))
        if version is None or (version.phase in ON_ITS_WAY and version.waiting is not None):
            return False  # it waits for memory that may never come
        return version.phase in ON_ITS_WAY or version.phase is Phase.WATCHED
