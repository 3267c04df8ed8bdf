"""Who takes over the name of whom, and when it does so out of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.config.placement import PlacementConfig
from appliance.core.memory.actions import GrantReservation
from appliance.core.memory.footprint import Residency
from appliance.core.rollout.ledger import Ending
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.version import Artifact
from appliance.domain.model import WeightsFile
from appliance.engine.control.census import Census
from appliance.engine.control.succession import Succession
from appliance.engine.control.swaps import default_terms
from appliance.engine.versions.routes import Routes, Served
from appliance.engine.versions.wording import Said
from appliance.telemetry.meter import Result, VersionMeter
from appliance.workers.port import FormBuilt, WorkerSettings
from tests.domain.sample import make_version
from tests.engine.silent_workers import SilentWorkers

DIGEST = "d" * 64


class Rig:
    """A succession that nobody has asked for anything."""

    def __init__(self) -> None:
        self.census = Census()
        self.terms = default_terms()
        self.routes = Routes(lambda moved: None)
        self.workers = SilentWorkers()
        self.succession = Succession(
            census=self.census,
            routes=self.routes,
            workers=self.workers,
            placement=PlacementConfig(),
            swap=self.terms,
            settings=lambda number: WorkerSettings(1, (), 0),
            feed=lambda event: None,
            idle=lambda model: True,
            soon=lambda: None,
            at=lambda at_ns: None,
            report=lambda *words, **more: None,
            wall_ms=lambda: 0,
            room=lambda served, before, now_ns: GrantReservation(served.id),
            rests=lambda served: False,
            closed=lambda group: None,
        )

    def version(self, number: int, files: str, phase: Phase) -> Served:
        model = make_version("m", number)
        served = Served(
            id=self.census.take_id(),
            model=model,
            fingerprint=files,
            identity=f"m/{number}@{files}",
            meter=VersionMeter("m", number),
            phase=phase,
        )
        self.census.served[served.id] = served
        return served


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_other_files_of_a_version_that_begin_out_of_memory_take_its_place(rig: Rig) -> None:
    old, new = rig.version(1, "a", Phase.LIVE), rig.version(1, "b", Phase.QUEUED)
    old.meter.ended(Result.REFUSED, 1)
    rig.routes.put(old)
    rig.census.incoming["m", 1] = new
    new.residency = Residency.COLD
    new.enter(Phase.LIVE)
    rig.succession.rest([new], 0)
    assert rig.routes.find("m", 1) is new
    assert (new.phase, old.phase) == (Phase.LIVE, Phase.DRAINING)
    assert not rig.census.incoming
    assert new.meter is old.meter, "what was counted of the version goes on"
    rig.succession.let_go(1)
    assert list(rig.census.served.values()) == [new]


def test_a_version_that_is_alone_with_its_name_rests_where_it_stands(rig: Rig) -> None:
    served = rig.version(1, "a", Phase.QUEUED)
    rig.routes.put(served)
    served.enter(Phase.LIVE)
    rig.succession.rest([served], 0)
    assert rig.routes.find("m", 1) is served
    assert served.phase is Phase.LIVE
    assert not rig.census.leaving


@pytest.mark.parametrize(
    ("state", "other", "told"),
    [
        (Phase.LIVE, None, [(Ending.WITHDRAWN, 1, 0)]),
        (Phase.FAILED, None, []),
        (Phase.LIVE, Phase.LIVE, []),
    ],
    ids=["the_last_that_served", "none_served", "another_serves"],
)
def test_a_model_that_is_not_wanted_any_more_has_that_in_its_history(
    rig: Rig, state: Phase, other: Phase | None, told: list[tuple[Ending, int, int]]
) -> None:
    unwanted = rig.version(1, "a", state)
    unwanted.retiring = True
    rig.routes.put(unwanted)
    if other is not None:
        rig.routes.put(rig.version(2, "b", other))
    rig.succession.retire(0)
    rig.succession.retire(0)
    assert rig.routes.find("m", 1) is None
    history = rig.terms.records.history("m")
    assert [(change.ending, change.before, change.after) for change in history] == told


@pytest.fixture
def formed(rig: Rig, tmp_path: Path) -> Served:
    """A version that serves, for which there may be a form."""
    served = rig.version(1, "a", Phase.LIVE)
    weights = WeightsFile(path="w", size=1)
    served.model = replace(served.model, forms=str(tmp_path), digest=DIGEST, weights=weights)
    rig.routes.put(served)
    return served


@pytest.mark.parametrize("quick", [False, True])
def test_a_version_that_is_given_up_costs_its_form_unless_it_ran_from_none(
    rig: Rig, formed: Served, tmp_path: Path, quick: bool
) -> None:
    form = tmp_path / f"{DIGEST}-box"
    form.mkdir()
    formed.artifact = Artifact.PACKED
    formed.quick = quick
    rig.succession.give_up(formed, "it crashed", 0)
    assert [each.name for each in form.iterdir()] == ([] if quick else ["refused"])


def test_a_form_that_fails_is_no_trouble_of_the_version_that_serves_without_it(
    rig: Rig, formed: Served
) -> None:
    packed = rig.version(1, "a", Phase.QUEUED)
    packed.artifact = Artifact.PACKED
    rig.census.incoming["m", 1] = packed
    assert rig.census.said_of(formed) == Said()
    rig.succession.give_up(packed, "it answers wrongly", 0)
    assert rig.census.said_of(formed) == Said()


@pytest.mark.parametrize(("packed", "crashed"), [(False, False), (True, False), (False, True)])
def test_a_try_that_came_to_no_load_does_not_cost_the_form(
    rig: Rig, formed: Served, tmp_path: Path, packed: bool, crashed: bool
) -> None:
    form = tmp_path / f"{DIGEST}-box"
    form.mkdir()
    formed.artifact = Artifact.PACKED
    formed.packed = packed
    candidate: Any = SimpleNamespace(served=formed, crashed=crashed)
    rig.succession.reject(candidate, "its try cannot be counted: the disk is full", 0)
    assert [each.name for each in form.iterdir()] == (["refused"] if packed or crashed else [])


def build(rig: Rig, served: Served) -> None:
    """Have a form of it built, if that is wanted."""
    rig.succession.forms.consider(served)
    if rig.succession.forms.waiting:
        rig.succession.forms.build()
        last = rig.census.take_id() - 1
        rig.succession.forms.ended(FormBuilt(last - 1, last, "form", 1, 1, ""), 0)


@pytest.mark.parametrize("packed", [False, True])
def test_who_runs_from_a_form_already_does_not_change_over_to_it(
    rig: Rig, formed: Served, packed: bool
) -> None:
    rig.succession.forms.consider(formed)
    rig.succession.forms.build()
    formed.packed = packed
    last = rig.census.take_id() - 1
    rig.succession.forms.ended(FormBuilt(last - 1, last, "form", 1, 1, ""), 0)
    assert len(rig.census.incoming) == (not packed)


def test_a_form_is_built_again_when_all_of_its_version_was_gone_meanwhile(rig: Rig, formed: Served) -> None:
    build(rig, formed)
    packed = rig.census.incoming.pop(("m", 1))
    rig.succession.place_route(packed, 0)
    rig.succession.let_go(0)
    build(rig, packed)
    assert rig.workers.asked.count("build_form") == 1, "it is still here, from its form"
    rig.succession.leave(packed, 1)
    rig.succession.let_go(1)
    again = rig.version(1, "a", Phase.LIVE)
    again.model = formed.model
    rig.routes.put(again)
    build(rig, again)
    assert rig.workers.asked.count("build_form") == 2
