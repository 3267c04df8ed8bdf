"""Writes down what the rollout wants remembered, tells it what is known, and counts what becomes of versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from appliance import __version__
from appliance.core.rollout import actions as do
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.records import Change, Proof, Standing
from appliance.core.rollout.version import Version
from appliance.domain.model import ModelVersion
from appliance.engine.versions.records import MemoryRecords, Records
from appliance.engine.versions.wording import remark_text
from appliance.telemetry.meter import VersionMeter
from appliance.telemetry.snapshot import SwapFigures
from appliance.workers.port import ModelLoaded


class SwapTerms(NamedTuple):
    """What rollouts go by; ``box`` says on what a version's proof depends."""

    config: RolloutPolicy
    records: Records
    box: Callable[[ModelVersion], str]


def default_terms() -> SwapTerms:
    """The defaults, and remembered for as long as the process lives."""
    return SwapTerms(RolloutPolicy(), MemoryRecords(), lambda model: "")


Remembered = do.Forgive | do.GiveBack | do.Reject | do.GiveUp | do.Prove | do.Seat | do.Note | do.Retried


class Recorder:
    """Implements RecordsPort. ``wall_ms`` is the wall clock in milliseconds."""

    def __init__(self, terms: SwapTerms, wall_ms: Callable[[], int]) -> None:
        _, self._records, self._box = terms
        self._wall_ms = wall_ms
        self._endings: Counter[str] = Counter()
        self._figures = SwapFigures()

    # --- RecordsPort

    def standing(self, key: str) -> Standing:
        """See RecordsPort."""
        return self._records.standing(key)

    def proof(self, key: str, model: ModelVersion) -> Proof | None:
        """See RecordsPort."""
        return self._records.proof(key, self._box(model))

    def history(self, name: str) -> tuple[Change, ...]:
        """See RecordsPort."""
        return self._records.history(name)

    # --- what is wanted remembered

    def record_attempts(self, action: do.RecordAttempts, done: Callable[[str | None], None]) -> None:
        """Count them on the disk; then ``done`` is called with None, or with why they could not be."""
        self._records.count(action.keys, self._wall_ms(), done, again=action.again)

    def perform(self, action: Remembered) -> None:
        """Remember it."""
        match action:
            case do.Forgive():
                self._records.forgive(action.key)
            case do.GiveBack():
                self._records.give_back(action.key, again=action.again)
            case do.Reject():
                self._records.reject(action.key, remark_text(action.reason))
            case do.GiveUp():
                self._records.given_up(action.key, self._wall_ms())
            case do.Prove():
                self._records.prove(action.key, self._box(action.model), action.proof)
            case do.Seat():
                self._records.seat(action.name, action.identity)
            case do.Retried():
                self.count(retries=1)
            case do.Note():
                self._note(action)

    def _note(self, note: do.Note) -> None:
        change = note.change
        if note.counted:
            self._endings[change.ending.value] += 1
        if note.remark is not None:
            change = replace(change, reason=remark_text(note.remark))
        self._records.happened(replace(change, at_ms=self._wall_ms()))

    def meter_of(self, version: Version) -> VersionMeter:
        """A new meter of it: it has counted nothing yet, but it is known when it was asked last."""
        meter = VersionMeter(*version.slot)
        meter.last_inference_ms = self._records.last_request(version.model.key)
        return meter

    def rows_mix(self, version: Version) -> bool | None:
        """Whether its rows change one another's answers, as a worker of this release saw; None: none has looked."""
        return self._records.rows_mix(version.identity, self._box_of_rows(version.model))

    def _box_of_rows(self, model: ModelVersion) -> str:
        """On what that depends: another release may try rows otherwise."""
        return f"{self._box(model)}, {__version__}"

    # --- what is counted

    def loaded(self, event: ModelLoaded, version: Version) -> None:
        """A worker has loaded a version. Rows that one saw to mix are held to, whatever others see."""
        if event.mixes is not None:
            mix = event.mixes or bool(self.rows_mix(version))
            self._records.rows_tried(version.identity, self._box_of_rows(version.model), mix=mix)
        self.count(loads=1, load_ns=event.load_ns)
        if event.assessment is not None:
            self.count(assessments=1, assessments_failed=event.assessment.is_broken)

    def count(self, **more: int) -> None:
        """Add to figures, by their names."""
        figures = self._figures
        self._figures = figures._replace(
            **{key: getattr(figures, key) + value for key, value in more.items()}
        )

    def figures(self, splits_now: int) -> SwapFigures:
        """All there is, with the requests of versions on trial that are under way."""
        figures = self._figures
        return figures._replace(
            endings=dict(self._endings), canary_requests=figures.canary_requests + splits_now
        )
