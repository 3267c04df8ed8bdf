"""Runs that do not end are told from a machine that stood still, and from what workers do beside runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from appliance.core.rollout.attempt import Attempt
from appliance.core.rollout.events import Figures
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.trial import Seen
from appliance.domain import histogram
from appliance.domain.assessment import Assessment
from appliance.domain.exit_cause import ExitCause
from appliance.engine.control.hangs import LOOK_NS, LOOKS_MIN, Hangs
from appliance.telemetry.meter import VersionMeter
from tests.domain.sample import make_version
from tests.engine.versions import make_served

BOUND_NS = 10 * LOOK_NS
MS = 1_000_000


class Rig:
    """A worker that has a batch of a version that may run for BOUND_NS."""

    def __init__(self, bound_ns: int = BOUND_NS) -> None:
        self.killed: list[tuple[int, ExitCause]] = []
        self.alone = True
        self.batch = 5
        served = SimpleNamespace(run_bound_ns=bound_ns)
        batches: Any = SimpleNamespace(oldest=lambda: [(3, self.batch, served)])
        groups: Any = SimpleNamespace(is_alone=lambda worker, served: self.alone)
        pool: Any = SimpleNamespace(kill=lambda *what: self.killed.append(what))
        self.asked: list[int] = []
        pace: Any = SimpleNamespace(at=self.asked.append)
        self.hangs = Hangs(batches, groups, pool, pace)

    def looks(self, count: int, start_ns: int, step_ns: int = LOOK_NS) -> int:
        for number in range(count):
            self.hangs.look(start_ns + number * step_ns)
        return start_ns + count * step_ns


def test_the_same_batch_at_every_look_for_too_long_ends_its_worker() -> None:
    rig = Rig()
    then = rig.looks(11, 1)
    assert not rig.killed
    rig.looks(1, then)
    assert rig.killed == [(3, ExitCause.HUNG)]
    assert rig.asked == [1 + LOOK_NS * number for number in range(1, 13)], (
        "whether others have it take turns or not"
    )


@pytest.mark.parametrize("why", ["no bound", "another batch", "a load goes on"])
def test_what_is_no_hang_is_left_alone(why: str) -> None:
    rig = Rig(0 if why == "no bound" else BOUND_NS)
    rig.alone = why != "a load goes on"
    then = 1
    for number in range(30):
        rig.batch = number if why == "another batch" else 5
        then = rig.looks(1, then)
    assert not rig.killed


def test_a_machine_that_stood_still_is_looked_at_again_first() -> None:
    rig = Rig()
    rig.looks(LOOKS_MIN, 1, 100 * BOUND_NS)
    assert not rig.killed


def test_only_a_version_with_another_behind_it_and_with_all_its_weights_is_bound() -> None:
    one, other = (
        make_served(id=n, model=make_version("m", n), fingerprint="", meter=VersionMeter("m", n))
        for n in (1, 2)
    )
    one.trial.run_limit_ns = 7
    assert one.run_bound_ns == 0
    one.trial.fallback = other
    assert one.run_bound_ns == 7
    one.memory.quick = True
    assert one.run_bound_ns == 0, "its runs wait for weights that are still read"
    one.memory.quick, one.trial.fallback = False, None
    assert one.run_bound_ns == 0, "it serves alone"
    one.version.phase = Phase.DRAINING
    assert one.run_bound_ns == 7, "it was rolled back, and another answers for it"
    one.version.phase = Phase.FAILED
    assert one.run_bound_ns == 7, "it was given up"


def runs(count: int, bucket: int) -> tuple[int, ...]:
    return tuple(count if number == bucket else 0 for number in range(len(histogram.BOUNDS_NS) + 1))


def bound_ms(p99_ns: int, rows: int, seen: tuple[int, ...], factor: float = 10.0) -> float:
    proof = Assessment(0, (), rows, 100, p99_ns, p99_ns, 0) if p99_ns else None
    version = SimpleNamespace(assessment=proof, model=SimpleNamespace(max_batch_size=8))
    attempt: Any = SimpleNamespace(version=version)
    figures = Seen(Figures(0, 0, runs(0, 0)), Figures(0, 0, seen))
    config = RolloutPolicy(hang_factor=factor, hang_slack_ms=100)
    return Attempt.longest_run_ns(attempt, figures, config) / MS


def test_what_a_run_may_take_goes_by_its_proof_and_by_what_was_seen() -> None:
    assert bound_ms(2 * MS, 8, runs(0, 0)) == 120
    assert bound_ms(2 * MS, 2, runs(0, 0)) == 180, "a batch may be larger than the one that was measured"
    slowest = next(number for number, ns in enumerate(histogram.BOUNDS_NS) if ns >= 50 * MS)
    assert bound_ms(2 * MS, 8, runs(1, slowest)) == 100 + 10 * histogram.BOUNDS_NS[slowest] / MS
    assert bound_ms(0, 8, runs(19, 0)) == 0, "too little is known"
    assert bound_ms(0, 8, runs(20, 0)) > 100
    assert bound_ms(2 * MS, 8, runs(0, 0), factor=0.0) == 0
