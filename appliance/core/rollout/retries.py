"""Whether and when a version may be tried again, by what is remembered of its attempts.

A version that used up its tries is out. Where nothing else of its model serves it is tried once more after a pause that
grows with each such try: an operator may not be on site to ask for it. The pause is kept across restarts by the wall
clock, which may jump: it is never longer than it should be, counted from the start. One version at a time is tried so,
until it is proven or given up again: what takes the box down must not do so for several at once. What was rejected
(rolled back, or by an operator) is not among them, nor what would come to the same (``Failed.lasting``).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from appliance.core.rollout import actions as do
from appliance.core.rollout.attempt import Step, Steps
from appliance.core.rollout.catalog import CatalogVersion, is_on_trial
from appliance.core.rollout.phase import ON_ITS_WAY, SERVING, Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import AskAgain, Failed, NextTry, OutOfTries, Rejected, Setback
from appliance.core.rollout.records import Ending, RecordsPort, Standing
from appliance.core.rollout.registry import Registry
from appliance.core.rollout.version import Version
from appliance.domain.model import ModelVersion

MS_NS: Final = 1_000_000
DOUBLINGS_MAX: Final = 30


class Due(NamedTuple):
    """When a version is to be tried; ``at_ms`` is the same by the wall clock, for people."""

    at_ns: int
    at_ms: int
    entry: CatalogVersion


class Retries:
    """Of the versions that are ``wanted``, those that are due, by their identity, and the one that is tried now."""

    def __init__(self, config: RolloutPolicy, records: RecordsPort, registry: Registry) -> None:
        self._config = config
        self._records = records
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
                left_ms = pause_ms(self._records.standing(entry.identity), self._config, wall_ms)
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
        if is_on_trial(entry) or (isinstance(version.setback, Failed) and version.setback.lasting):
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


def setback_of(standing: Standing, config: RolloutPolicy, model: ModelVersion) -> Setback | None:
    """Why a version is not tried; None when it may be."""
    again = AskAgain(key=model.key, packaged=bool(model.digest))
    if standing.rejected is not None:
        return Rejected(why=standing.rejected, again=again)
    if standing.tries >= config.tries:
        return OutOfTries(tries=standing.tries, again=again)
    return None


def has_fallen(standing: Standing) -> bool:
    """Whether a version was tried or given up since it was proven last, or is not to be tried again."""
    return bool(standing.at_ms) or standing.rejected is not None


def tries_left(standing: Standing, config: RolloutPolicy) -> int:
    """How often a version may still be tried before it is given up."""
    return 0 if standing.rejected is not None else max(config.tries - standing.tries, 0)


def pause_ms(standing: Standing, config: RolloutPolicy, now_ms: int) -> int | None:
    """How long from now a version is to be left alone before it is tried once more because nothing else of its model
    serves: all of the pause where it began in the future; None: it is not tried."""
    if standing.rejected is not None or not config.retry_first_s:
        return None
    doublings = min(standing.again, DOUBLINGS_MAX)
    longest_s = max(config.retry_max_s, config.retry_first_s)
    pause = int(min(config.retry_first_s * 2**doublings, longest_s) * 1_000)
    if not standing.at_ms:
        return pause
    return min(max(standing.at_ms + pause - now_ms, 0), pause)
