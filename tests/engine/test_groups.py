"""Groups of worker processes: when a replacement is expected to serve."""

from __future__ import annotations

import itertools
from dataclasses import replace

from appliance.engine.groups import Groups
from appliance.engine.placement import PlacementConfig
from appliance.engine.routes import Served
from appliance.scheduling.events import Event, LaneClosed
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import LoadWish, ModelLoaded, WorkerSettings
from tests.engine.silent_workers import SilentWorkers
from tests.words.sample import make_version

MS = 1_000_000
HOUR_NS = 3_600_000 * MS
WORKER = 1001
"""Ids are taken in order: the group's is 1000."""


def version(number: int) -> Served:
    model = replace(make_version(f"m{number}", 1), file_bytes=1)
    return Served(id=number, model=model, fingerprint="", meter=VersionMeter(model.name, 1))


def test_a_replacement_takes_as_long_as_the_loads_it_begins_with() -> None:
    told: list[Event] = []
    opened: list[Served] = []

    def can_open(served: Served, now_ns: int) -> None:
        served.opened = True
        opened.append(served)

    groups = Groups(
        workers=SilentWorkers(),
        placement=PlacementConfig(max_processes=1),
        settings=lambda number: WorkerSettings(1, (), 0),
        feed=told.append,
        at=lambda at_ns: None,
        take_id=itertools.count(1000).__next__,
        wish=lambda served: LoadWish(),
        can_open=can_open,
        closed=lambda group: None,
    )
    first, second, late = version(1), version(2), version(3)
    groups.place([first, second], 0)
    groups.loaded(ModelLoaded(WORKER, 1, (), 1, 1), first, 5 * MS)
    groups.loaded(ModelLoaded(WORKER, 2, (), 1, 1), second, 9 * MS)
    groups.place([late], HOUR_NS)
    groups.loaded(ModelLoaded(WORKER, 3, (), 1, 1), late, HOUR_NS + MS)
    assert opened == [first, second, late], "they share one process"
    known = groups.exited(WORKER)
    assert known is not None
    groups.lost(*known, 2 * HOUR_NS)
    assert told[-1] == LaneClosed(WORKER, 2 * HOUR_NS + 9 * MS + 1)
