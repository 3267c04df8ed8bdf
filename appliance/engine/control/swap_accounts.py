"""Counts what becomes of versions on their way to serving, and writes their history. Owner: the swaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from appliance.core.rollout.ledger import Change, Ending
from appliance.core.rollout.phase import Phase, stage_of
from appliance.engine.control.candidate import Candidate
from appliance.engine.versions.records import Records
from appliance.engine.versions.routes import Served
from appliance.engine.versions.wording import next_try
from appliance.telemetry.snapshot import SwapFigures

GIVEN_UP: Final = frozenset({Ending.GIVEN_UP, Ending.REFUSED, Ending.ROLLED_BACK, Ending.POSTPONED})
"""Endings by which a version does not serve."""


class SwapAccounts:
    """``wall_ms`` is the wall clock in milliseconds, for people."""

    def __init__(self, records: Records, wall_ms: Callable[[], int]) -> None:
        self._records = records
        self._wall_ms = wall_ms
        self._endings: Counter[str] = Counter()
        self._figures = SwapFigures()

    def note(
        self,
        served: Served,
        ending: Ending,
        reason: str,
        *,
        before: int = 0,
        serving: bool = False,
        stage: str = "",
        took_ms: int = 0,
    ) -> None:
        """A try of ``served`` came out so; ``before`` is the version that it replaces, and ``serving`` says that it
        has done so."""
        self._endings[ending.value] += 1
        version = served.model.version
        after = version if ending is Ending.LIVE else before
        until = version if serving else before
        self._happened(served, ending, reason, before=until, after=after, stage=stage, took_ms=took_ms)

    def came_out(self, candidate: Candidate, ending: Ending, was: Phase, reason: str, now_ns: int) -> None:
        """The try of a candidate came out so, as it ``was``."""
        began_ns = now_ns if candidate.began_ns is None else candidate.began_ns
        self.note(
            candidate.served,
            ending,
            reason,
            before=candidate.before.model.version if candidate.before is not None else 0,
            serving=was is Phase.WATCHED,
            stage=stage_of(was),
            took_ms=(now_ns - began_ns) // 1_000_000,
        )

    def found_given_up(self, served: Served, reason: str) -> None:
        """``served`` is not tried at all; its history says so once, also where it was the daemon's own end that used up
        its tries, which nobody could write down."""
        told = [change for change in self._records.history(served.model.name) if _is_of(change, served)]
        if not told or told[-1].ending not in GIVEN_UP:
            self.note(served, Ending.GIVEN_UP, reason)

    def _happened(self, served: Served, ending: Ending, reason: str, **more: Any) -> None:
        model = served.model
        self._records.happened(
            Change(
                at_ms=self._wall_ms(),
                name=model.name,
                version=model.version,
                identity=served.identity,
                artifact=served.artifact,
                ending=ending,
                reason=reason,
                **more,
            )
        )

    def postponed(self, served: Served, until_ms: int) -> None:
        """``served`` was given up, and is tried again at ``until_ms`` by the wall clock if nothing else serves then."""
        self._happened(served, Ending.POSTPONED, f"nothing else of the model serves; {next_try(until_ms)}")

    def withdrawn(self, served: Served) -> None:
        """``served`` served until now, and nothing of its model is wanted any more."""
        self._withdrawn(
            served.model.name,
            served.model.version,
            served.identity,
            "no version of the model is wanted any more",
        )

    def was_withdrawn(self, name: str) -> bool:
        """Whether that is the last that its history says of a model."""
        told = self._records.history(name)
        return bool(told) and told[-1].ending is Ending.WITHDRAWN

    def _withdrawn(self, name: str, version: int, identity: str, reason: str) -> None:
        self._records.happened(
            Change(
                at_ms=self._wall_ms(),
                name=name,
                version=version,
                identity=identity,
                ending=Ending.WITHDRAWN,
                before=version,
                reason=reason,
            )
        )

    def found_withdrawn(self, wanted: Collection[str]) -> None:
        """What served when the daemon ended, and is of no ``wanted`` model now, was withdrawn while nobody could write
        that down."""
        told = self._records.history("")
        identities = {(change.name, change.version): change.identity for change in told}
        last = {change.name: change for change in told}
        for change in last.values():
            if not change.after or change.name in wanted:
                continue
            reason = "no version of the model was wanted any more when the appliance started"
            identity = identities.get((change.name, change.after), "")
            self._withdrawn(change.name, change.after, identity, reason)

    def count(self, **more: int) -> None:
        """Add to figures, by their names."""
        figures = self._figures
        self._figures = figures._replace(
            **{key: getattr(figures, key) + value for key, value in more.items()}
        )

    def count_shadow(self, dropped: bool) -> None:
        """A request was to be run in the shadow; ``dropped``: there was no room."""
        self.count(shadow_requests=not dropped, shadow_dropped=dropped)

    def figures(self, canaries_now: int) -> SwapFigures:
        """All there is, with the requests of canaries that are under way."""
        figures = self._figures
        return figures._replace(
            endings=dict(self._endings), canary_requests=figures.canary_requests + canaries_now
        )


def _is_of(change: Change, served: Served) -> bool:
    return (change.identity, change.artifact) == (
        served.identity,
        served.artifact,
    ) and change.ending is not Ending.ABANDONED
