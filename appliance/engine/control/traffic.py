"""Which requests concern versions on trial, as the rollout wants it, and what these did. Owner: the rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.attempt import Attempt
from appliance.core.rollout.events import Figures
from appliance.core.rollout.phase import TRIED, stage_of
from appliance.domain import histogram
from appliance.engine.control.recorder import Recorder
from appliance.engine.versions.served import Served, TrafficSplit
from appliance.telemetry.meter import Result, Stage, VersionMeter
from appliance.telemetry.snapshot import TrialStatus

NOTHING: Final = Figures(0, 0, (0,) * (len(histogram.BOUNDS_NS) + 1))


class Traffic:
    """``served`` are the versions that are here, by their ids."""

    def __init__(self, served: Mapping[int, Served], recorder: Recorder) -> None:
        self._served = served
        self._recorder = recorder
        self._mirrored: dict[int, VersionMeter] = {}
        """What versions on trial did for mirrored requests."""

    def perform(self, action: do.Split | do.Resplit | do.Unsplit | do.FallBack | do.LimitRuns) -> None:
        """Which requests go where."""
        served = self._served[action.version]
        match action:
            case do.Split():
                unseen = self._mirrored.setdefault(served.id, VersionMeter(*served.version.slot))
                self._served[action.before].trial.split = TrafficSplit(
                    served, action.wish, action.percent, shadow=action.mirrored, unseen=unseen
                )
            case do.Resplit():
                split = self._served[action.before].trial.split
                assert split is not None, "it is on trial"
                split.renew(action.wish, action.percent)
            case do.Unsplit():
                before = self._served[action.before]
                if before.trial.split is not None and not before.trial.split.shadow:
                    self._recorder.count(canary_requests=before.trial.split.taken)
                before.trial.split = None
            case do.FallBack():
                served.trial.fallback = self._served[action.to] if action.to is not None else None
            case do.LimitRuns():
                served.trial.run_limit_ns = action.limit_ns

    def figures(self, action: do.ReadFigures) -> told.FiguresRead:
        """What a version did, and the version before it."""
        served = self._served[action.version]
        before = self._served.get(action.before) if action.before is not None else None
        mirrored = self._mirrored.get(action.version)
        return told.FiguresRead(
            action.version,
            new=_figures_of(served.meter, served.requests.failures),
            mirrored=_figures_of(mirrored) if mirrored is not None else NOTHING,
            old=_figures_of(before.meter, before.requests.failures) if before is not None else NOTHING,
            reference=action.reference,
        )

    def forget(self, version: int) -> None:
        """It has gone."""
        self._mirrored.pop(version, None)

    # --- what others ask

    def headers(self, splits: Iterable[int]) -> tuple[str, ...]:
        """Headers by whose values requests are led to versions on trial; ``splits`` are those that they leave."""
        splits_now = [self._served[before].trial.split for before in splits]
        return tuple(sorted({each.header for each in splits_now if each is not None and each.header}))

    def taken(self, splits: Iterable[int]) -> int:
        """Requests of versions on trial that are under way."""
        splits_now = [self._served[before].trial.split for before in splits]
        return sum(each.taken for each in splits_now if each is not None and not each.shadow)

    def status(self, attempt: Attempt | None) -> TrialStatus | None:
        """How far an attempt has come; None where there is none."""
        if attempt is None:
            return None
        figures, before, trial = NOTHING, attempt.before, attempt.trial
        if attempt.phase in TRIED:
            read = do.ReadFigures(attempt.version.id, before.id if before is not None else None)
            figures = attempt.seen(self.figures(read)).new
        return TrialStatus(
            stage=stage_of(attempt.phase),
            before=before.model.version if before is not None else 0,
            percent=trial.share_percent,
            header=trial.header,
            answered=figures.answered,
            failed=figures.failed,
            compared=trial.compared,
            differing=trial.differing,
            wanted=trial.goes_on_after,
        )


def _figures_of(meter: VersionMeter, failures: int = 0) -> Figures:
    """What a meter has counted; ``failures`` are the version's besides."""
    frozen = meter.frozen()
    failed = frozen.results[Result.FAILED] + failures
    batches = tuple((each.rows, each.count) for each in frozen.batches)
    return Figures(frozen.results[Result.SUCCESS], failed, frozen.stages[Stage.RUN].counts, batches)
