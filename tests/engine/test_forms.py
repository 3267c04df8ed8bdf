"""Which versions have their packed form built, and when once more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance.core.rollout.version import Artifact
from appliance.domain.model import WeightsFile
from appliance.engine.control.forms import FIRST_PAUSE_NS, Forms
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import FormBuilt, WorkerSettings
from tests.domain.sample import make_version
from tests.engine.silent_workers import SilentWorkers
from tests.engine.versions import make_served

DIGEST = "d" * 64
SETTINGS = WorkerSettings(1, (), 0)


class Rig:
    """Forms, and versions that are ``wanted`` or not."""

    def __init__(self) -> None:
        self.workers = SilentWorkers()
        self.wanted = True
        self.taken = 100
        self.asked_for: list[int] = []
        """Times at which it wants to be called."""
        self.said: list[str] = []
        self.forms = Forms(
            workers=self.workers,
            settings=lambda number: SETTINGS,
            take_id=self._take_id,
            wanted=lambda served: self.wanted,
            built=lambda served, now_ns: None,
            at=self.asked_for.append,
            report=lambda event, **more: self.said.append(event),
        )

    def _take_id(self) -> int:
        self.taken += 1
        return self.taken

    @property
    def builds(self) -> int:
        """How many were begun."""
        return self.workers.asked.count("build_form")

    def build(self, *, later: bool, now_ns: int) -> None:
        """Have one built, for which there is no room now or ``later`` would not help either."""
        self.forms.build()
        self.forms.ended(FormBuilt(self.taken - 1, self.taken, "", 0, 1, "none", later), now_ns)

    def consider_and_build(self, served: Served) -> None:
        self.forms.consider(served)
        if self.forms.waiting:
            self.forms.build()
            self.forms.ended(FormBuilt(self.taken - 1, self.taken, "form", 1, 1, ""), 0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def served() -> Served:
    weights = WeightsFile(path="w", size=1)
    model = replace(make_version("m", 1), forms="/nowhere", digest=DIGEST, weights=weights)
    return make_served(
        id=1, model=model, fingerprint="", identity=f"m/1@{DIGEST}", meter=VersionMeter("m", 1)
    )


def test_a_version_that_comes_again_after_it_was_gone_has_its_form_built_again(
    rig: Rig, served: Served
) -> None:
    for _ in range(2):
        rig.consider_and_build(served)
    assert rig.builds == 1, "once while it stays"
    rig.forms.forget(served.identity)
    rig.consider_and_build(served)
    assert rig.builds == 2


def test_a_form_that_a_version_ran_from_and_cannot_any_more_is_built_anew(rig: Rig, served: Served) -> None:
    rig.consider_and_build(served)
    for packed in (True, False, False):
        served.version.packed = packed
        rig.consider_and_build(served)
    assert rig.builds == 2, "once for each that it ran from"


def test_what_would_not_change_over_any_more_is_not_built_and_may_be_later(rig: Rig, served: Served) -> None:
    rig.wanted = False
    rig.forms.consider(served)
    rig.forms.build()
    assert rig.builds == 0
    assert not rig.forms.waiting
    rig.wanted = True
    rig.consider_and_build(served)
    assert rig.builds == 1


def test_a_form_that_has_no_room_is_tried_again_after_pauses_that_double(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.build(later=True, now_ns=5)
    assert rig.asked_for == [5 + FIRST_PAUSE_NS]
    waiting = []
    for now_ns in (4 + FIRST_PAUSE_NS, 5 + FIRST_PAUSE_NS):
        rig.forms.tick(now_ns)
        waiting.append(rig.forms.waiting)
    assert waiting == [False, True]
    rig.build(later=True, now_ns=10)
    assert rig.asked_for[1:] == [10 + 2 * FIRST_PAUSE_NS]
    rig.forms.tick(10 + 2 * FIRST_PAUSE_NS)
    rig.build(later=False, now_ns=20)
    assert (rig.builds, rig.asked_for[2:], rig.forms.waiting) == (3, [], False), "nothing helps that one"


def test_what_is_gone_is_not_tried_again(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.build(later=True, now_ns=5)
    rig.forms.forget(served.identity)
    rig.forms.tick(5 + FIRST_PAUSE_NS)
    assert not rig.forms.waiting


def test_a_builder_is_ended_with_the_daemon_whatever_it_has_not_built_yet(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.forms.build()
    rig.forms.stop()
    rig.forms.exited(rig.taken - 1, "killed: stopped")
    assert rig.workers.asked == ["start", "build_form", "kill"], "stop would wait for the form"
    assert rig.said == ["building the packed form", "the packed form is left unbuilt"]
    rig.forms.stop()
    assert rig.workers.asked.count("kill") == 1


def test_a_version_without_a_directory_of_forms_is_refused_without_an_error(
    rig: Rig, served: Served, tmp_path: Path
) -> None:
    served.model = replace(served.model, forms=str(tmp_path / "missing"))
    served.version.spec = replace(served.version.spec, artifact=Artifact.PACKED)
    rig.forms.refuse(served, "it crashed")
