"""Who takes over the name of whom, and when it does so out of memory."""

from __future__ import annotations

import pytest

from appliance.engine.census import Census
from appliance.engine.lodging import THERE
from appliance.engine.placement import PlacementConfig
from appliance.engine.routes import Routes, Served
from appliance.engine.succession import Succession
from appliance.engine.swaps import default_terms
from appliance.model import VersionState
from appliance.scheduling.residency_port import Form
from appliance.telemetry.meter import Result, VersionMeter
from appliance.workers.port import WorkerSettings
from tests.engine.silent_workers import SilentWorkers
from tests.words.sample import make_version


class Rig:
    """A succession that nobody has asked for anything."""

    def __init__(self) -> None:
        self.census = Census()
        self.routes = Routes(lambda moved: None)
        self.succession = Succession(
            census=self.census,
            routes=self.routes,
            workers=SilentWorkers(),
            placement=PlacementConfig(),
            swap=default_terms(),
            settings=lambda number: WorkerSettings(1, (), 0),
            feed=lambda event: None,
            idle=lambda model: True,
            soon=lambda: None,
            at=lambda at_ns: None,
            report=lambda *words, **more: None,
            wall_ms=lambda: 0,
            room=lambda served, before, now_ns: THERE,
            rests=lambda served: False,
            closed=lambda group: None,
        )

    def version(self, number: int, files: str, state: VersionState) -> Served:
        model = make_version("m", number)
        served = Served(
            id=self.census.take_id(),
            model=model,
            fingerprint=files,
            identity=f"m/{number}@{files}",
            meter=VersionMeter("m", number),
            state=state,
        )
        self.census.served[served.id] = served
        return served


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_other_files_of_a_version_that_begin_out_of_memory_take_its_place(rig: Rig) -> None:
    old, new = rig.version(1, "a", VersionState.READY), rig.version(1, "b", VersionState.LOADING)
    old.meter.ended(Result.REFUSED, 1)
    rig.routes.put(old)
    rig.census.incoming["m", 1] = new
    new.form = Form.COLD
    rig.succession.rest([new], 0)
    assert rig.routes.find("m", 1) is new
    assert (new.state, old.state) == (VersionState.READY, VersionState.UNLOADING)
    assert not rig.census.incoming
    assert new.meter is old.meter, "what was counted of the version goes on"
    rig.succession.let_go(1)
    assert list(rig.census.served.values()) == [new]


def test_a_version_that_is_alone_with_its_name_rests_where_it_stands(rig: Rig) -> None:
    served = rig.version(1, "a", VersionState.LOADING)
    rig.routes.put(served)
    rig.succession.rest([served], 0)
    assert rig.routes.find("m", 1) is served
    assert served.state is VersionState.READY
    assert not rig.census.leaving
