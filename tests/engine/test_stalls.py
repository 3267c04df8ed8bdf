"""A lane of the front end is ended that makes no progress for longer than what runs there may take, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.domain.model import ModelVersion
from appliance.engine.environment import Pace
from appliance.engine.fastpath.direct import LeasingFrontEnd
from appliance.engine.fastpath.lanes import LOOK_NS, Stalls
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import VersionMeter
from tests.domain.sample import make_version
from tests.engine.silent_workers import SilentWorkers
from tests.engine.versions import make_served

NOW_NS = 1_000_000_000_000
S = 1_000_000_000


class Workers(SilentWorkers):
    """A model's runs may take as many seconds as its version says."""

    def __init__(self) -> None:
        super().__init__()
        self.killed: list[tuple[int, ExitCause]] = []

    def run_timeout_ns(self, version: ModelVersion) -> int:
        return version.version * S

    def kill(self, worker: int, cause: ExitCause) -> None:
        self.killed.append((worker, cause))


class Stage:
    """Lanes 1 and 2 of group 1, and lane 3 of group 2; ``since_ns`` is since when each makes no progress."""

    def __init__(self, **since_ns: int) -> None:
        self.since_ns = {int(lane[-1]): ns for lane, ns in since_ns.items()}
        self.workers = Workers()
        self.asked: list[int] = []
        self.looked: list[int] = []
        self.stalls = Stalls(self.workers, cast(Pace, SimpleNamespace(at=self.asked.append)))

    def load(self, lane: int) -> tuple[int, int, int]:
        self.looked.append(lane)
        since_ns = self.since_ns.get(lane, 0)
        return int(since_ns > 0), 0, since_ns

    def look(self, *taught: Served, now_ns: int = NOW_NS) -> list[int]:
        """Whom a look ends."""
        self.workers.killed.clear()
        self.stalls.look(cast(LeasingFrontEnd, self), {1: 1, 2: 1, 3: 2}, taught, now_ns)
        assert all(cause is ExitCause.HUNG for _, cause in self.workers.killed)
        return [worker for worker, _ in self.workers.killed]


def served(number: int, group: int, seconds: int) -> Served:
    made = make_served(
        id=number, model=make_version("m", seconds), fingerprint="", meter=VersionMeter("m", seconds)
    )
    made.placed.group = group
    return made


def test_what_was_taught_is_not_looked_at_while_nothing_is_in_flight() -> None:
    def looked_at(number: int) -> Served:
        raise AssertionError(f"somebody looks at {number}")

    stage = Stage()
    stage.stalls.look(cast(LeasingFrontEnd, stage), {1: 1, 3: 2}, map(looked_at, (1,)), NOW_NS)
    assert not stage.asked, "nobody has to be woken for it"


def test_each_lane_may_take_as_long_as_the_slowest_model_of_its_group() -> None:
    taught = served(1, 1, 2), served(2, 1, 5), served(3, 2, 3), served(1, 1, 2)
    stage = Stage(lane1=NOW_NS - 4 * S, lane2=NOW_NS - 6 * S, lane3=NOW_NS - 4 * S)
    assert stage.look(*taught) == [2, 3]
    assert stage.asked == [NOW_NS + LOOK_NS]
    assert stage.look(*taught, now_ns=NOW_NS + LOOK_NS - 1) == [], "it looks only now and then"
    ended = [stage.look(*taught, now_ns=NOW_NS + LOOK_NS * looks) for looks in range(1, 6)]
    assert ended == [*[[2, 3]] * 4, [1, 2, 3]]


def test_time_in_which_the_engine_stood_still_does_not_count() -> None:
    """The worker may have stood still as well, and what it answered is read by a thread that did."""
    stage, taught = Stage(lane1=NOW_NS - S, lane3=NOW_NS - S), (served(1, 1, 2), served(3, 2, 30))
    assert stage.look(*taught) == []
    stood = NOW_NS + LOOK_NS + 10 * S
    stage.since_ns[2] = stood - 3 * S  # in the midst of it
    assert stage.look(*taught, now_ns=stood) == []
    then = [stage.look(*taught, now_ns=stood + LOOK_NS * looks) for looks in range(1, 11)]
    assert then[:3] == [[]] * 3, "a second was over before, and a quarter of one was between two looks"
    assert then[3:8] == [[1]] * 5
    assert then[8:] == [[1, 2]] * 2


def test_nor_does_any_of_several_such_times() -> None:
    stage, taught = Stage(lane1=NOW_NS), (served(1, 1, 2),)
    assert stage.look(*taught) == []
    late = [stage.look(*taught, now_ns=NOW_NS + 4 * LOOK_NS * looks) for looks in range(1, 10)]
    assert late == [*[[]] * 8, [1]]


def test_a_first_look_for_long_tells_of_no_such_time() -> None:
    stage, taught = Stage(), (served(1, 1, 2),)
    assert stage.look(*taught) == []
    stage.since_ns[1] = NOW_NS + S
    assert stage.look(*taught, now_ns=NOW_NS + 4 * S) == [1], "nothing was in flight: no look was due"


@pytest.mark.parametrize(("pause_ns", "ended"), [(LOOK_NS, [1]), (LOOK_NS + 1, [])])
def test_a_tighter_bound_does_not_count_where_the_engine_looks_late_itself(
    pause_ns: int, ended: list[int]
) -> None:
    watched = served(1, 1, 9)
    watched.trial.fallback, watched.trial.run_limit_ns = served(2, 1, 9), S
    stage = Stage(lane1=NOW_NS - S // 2)
    assert stage.look(watched) == []
    stage.since_ns[1] = NOW_NS - 2 * S
    assert stage.look(watched, now_ns=NOW_NS + LOOK_NS + pause_ns) == ended


def test_while_nothing_is_in_flight_turns_look_only_now_and_then() -> None:
    stage = Stage()
    assert stage.look() == stage.asked == []
    stage.looked.clear()
    for _ in range(3):
        stage.look(now_ns=NOW_NS + 1)
    assert not stage.looked
    assert stage.asked == [NOW_NS + LOOK_NS], "what has begun since must not be missed"
    stage.look(now_ns=NOW_NS + LOOK_NS)
    assert stage.looked == [1, 2, 3]
    assert len(stage.asked) == 1, "and it comes to rest"
