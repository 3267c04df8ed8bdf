"""Instance groups of worker processes: when a replacement is expected to serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from appliance.config.workers import PlacementConfig
from appliance.core.processes.restart import RestartPolicy, Restarts
from appliance.core.scheduling.events import Event, LaneClosed
from appliance.domain.exit_cause import ExitCause
from appliance.engine.control.instance_group import NAMED_MAX, Here
from appliance.engine.control.instance_groups import InstanceGroups
from appliance.engine.environment import Pace
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import ModelLoaded
from appliance.workers.settings import WorkerTerms
from tests.domain.sample import make_version
from tests.engine.silent_workers import SilentWorkers
from tests.engine.versions import make_served

MS = 1_000_000
HOUR_NS = 3_600_000 * MS
WORKER = 1001
"""Ids are taken in order: the group's is 1000."""


def version(number: int) -> Served:
    model = replace(make_version(f"m{number}", 1), file_bytes=1)
    return make_served(id=number, model=model, fingerprint="", meter=VersionMeter(model.name, 1))


class Rig:
    """Instance groups whose versions open as soon as they can; all share one process."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.opened: list[Served] = []
        self.taken = 999
        self.groups = InstanceGroups(
            workers=SilentWorkers(),
            placement=PlacementConfig(max_processes=1),
            processes=WorkerTerms(),
            feed=self,
            pace=cast(Pace, SimpleNamespace(at=lambda at_ns: None)),
            ids=self,
            here=Here({}, {}),
            restarts=Restarts(RestartPolicy()),
        )

    def put(self, event: Event) -> None:
        self.told.append(event)

    def take_id(self) -> int:
        self.taken += 1
        return self.taken

    def open(self, there: Sequence[Served]) -> None:
        for served in there:
            served.opened = True
            self.opened.append(served)

    def loaded(self, served: Served, now_ns: int) -> None:
        self.open(self.groups.loaded(ModelLoaded(WORKER, served.id, (), 1, 1), served, now_ns))


def test_of_a_process_it_is_known_whether_it_has_held_one_version_alone() -> None:
    rig = Rig()
    first, second = version(1), version(2)
    rig.groups.place([first, second], 0)
    assert not rig.groups.did_only(WORKER + 1, first.id), "nobody knows that process"
    rig.loaded(first, 0)
    assert rig.groups.did_only(WORKER, first.id)
    assert not rig.groups.did_only(WORKER, second.id)


def test_a_replacement_takes_as_long_as_the_loads_it_begins_with() -> None:
    rig = Rig()
    first, second, late = version(1), version(2), version(3)
    rig.groups.place([first, second], 0)
    rig.loaded(first, 5 * MS)
    rig.loaded(second, 9 * MS)
    rig.groups.place([late], HOUR_NS)
    rig.loaded(late, HOUR_NS + MS)
    assert rig.opened == [first, second, late], "they share one process"
    known = rig.groups.exited(WORKER)
    assert known is not None
    rig.groups.lost(*known, ExitCause.HUNG, 2 * HOUR_NS, final=False)
    assert [each.placed.restarts for each in (first, late)] == [{ExitCause.HUNG: 1}] * 2, "both were in it"
    assert rig.told[-1] == LaneClosed(WORKER, 2 * HOUR_NS + 9 * MS + 1)


def test_a_worker_is_told_of_by_what_it_holds_and_loads_and_never_by_all_of_very_many() -> None:
    rig = Rig()
    held, loads, gone = version(1), version(2), version(3)
    rig.groups.place([held, loads, gone], 0)
    rig.loaded(held, MS)
    rig.groups.drop(gone)
    worker, group = next(iter(rig.groups.workers()))
    assert group.names(worker) == [held.key, loads.key]
    rig.groups.place([version(number) for number in range(4, 4 + NAMED_MAX)], 2 * MS)
    assert group.names(worker) == [*(f"m{number}/1" for number in (1, 2, *range(4, 2 + NAMED_MAX))), "..."]


def test_a_load_that_ends_after_its_version_was_taken_out_does_not_open_it_when_it_comes_back() -> None:
    rig = Rig()
    stays, back = version(1), version(2)
    rig.groups.place([stays, back], 0)
    rig.loaded(stays, MS)
    rig.open(rig.groups.drop(back))
    rig.loaded(back, 3 * MS)
    assert rig.groups.holders(back) == ()
    rig.groups.place([back], 4 * MS)
    rig.open(rig.groups.resume(next(iter(rig.groups._groups.values())), 5 * MS))
    assert rig.opened == [stays]
    rig.loaded(back, 6 * MS)
    assert rig.opened == [stays, back]


def test_a_worker_that_serves_another_version_is_not_ended_for_what_was_given_up() -> None:
    rig = Rig()
    given_up, serves = version(1), version(2)
    rig.groups.place([given_up, serves], 0)
    rig.loaded(given_up, MS)
    rig.loaded(serves, MS)
    assert not rig.groups.is_alone(WORKER, given_up)
    rig.groups.drop(given_up)
    assert not rig.groups.is_alone(WORKER, given_up), "the other one is there still"
    assert rig.groups.is_alone(WORKER, serves)
    rig.groups.drop(serves)
    assert rig.groups.is_alone(WORKER, given_up), "nobody is served by it any more"
