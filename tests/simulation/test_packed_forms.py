"""A packed form whose workers die costs the form, which is dropped and marked, and not the version."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.engine.swap_settings import SwapConfig
from appliance.inference import NO_DEADLINE, Answer, Outcome, RequestHead, TensorHead
from appliance.model import ModelVersion
from appliance.validation import plan_request
from appliance.workers import port
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import FatedWorkers, SwapWorld

DIGEST = "d" * 64


class FormedWorkers(FatedWorkers):
    """Workers that take a version's form where one lies that was not refused, and die of it: at load or at work."""

    when = "at load"

    def load(
        self, worker: int, model: int, version: ModelVersion, wish: port.LoadWish = port.PLAIN_LOAD
    ) -> None:
        self.packs = self.built = _has_form(version)
        if self.packs and self.when == "at load":
            self._later(worker, MS, lambda: self._exit(worker, port.ExitCause.DIED, model))
        else:
            super().load(worker, model, version, wish)

    def _begin(self, worker: int) -> None:
        version = self._holds[worker][self._queues[worker][0].model]
        if _has_form(version) and self.when == "at work":
            self._later(worker, MS, lambda: self._exit(worker, port.ExitCause.DIED, -1))
        else:
            super()._begin(worker)


class FormedWorld(SwapWorld):
    """A world of one model that has a form."""

    workers_type = FormedWorkers


def _has_form(version: ModelVersion) -> bool:
    forms = Path(version.forms)
    return any(not (form / "refused").exists() for form in forms.iterdir() if form.name.startswith(DIGEST))


@pytest.mark.parametrize("when", ["at load", "at work"])
def test_what_a_packed_form_does_costs_the_form_and_not_the_version(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FormedWorkers, "when", when)
    form = tmp_path / f"{DIGEST}-box"
    form.mkdir()
    (form / "weights.bin").write_bytes(b"x")
    world = FormedWorld(8, names=1, swap=SwapConfig(watch_s=0.1, packed_forms=False))
    world.wanted["m0"] = model = replace(world.wanted["m0"], forms=str(tmp_path), digest=DIGEST)
    world.start()
    for _ in range(2):
        ask(world, model)
    world.world.run(world.world.now + 5_000 * MS)
    for _ in range(20):
        world.client("m0")
    entries = world.engine.index(ready_only=False)
    assert [(entry.state.value, entry.reason) for entry in entries] == [("READY", "")]
    assert os.listdir(form) == ["refused"]
    (version,) = world.engine.status().versions
    assert version.tries_left == SwapConfig().tries
    world.settle()


def test_a_form_that_cannot_be_marked_does_not_shield_its_version_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.workers.forms.refuse_form", lambda path, reason: False)
    (tmp_path / f"{DIGEST}-box").mkdir()
    world = FormedWorld(8, names=1, swap=SwapConfig(packed_forms=False))
    world.wanted["m0"] = replace(world.wanted["m0"], forms=str(tmp_path), digest=DIGEST)
    world.start()
    (version,) = world.engine.status().versions
    assert "quarantined" in version.reason


def _forgotten(outcome: Outcome) -> None:
    if isinstance(outcome, Answer):
        outcome.release()


def ask(world: SwapWorld, model: ModelVersion) -> None:
    """A request whose outcome does not matter."""
    head = RequestHead(model_name="m0", model_version="", inputs=(TensorHead("x", "FP32", (1, 2)),))
    world.engine.submit(
        plan_request(model, head), [bytes(8)], request_id="", arrived_ns=world.world.now,
        deadline_ns=NO_DEADLINE, on_done=_forgotten,
    )  # fmt: skip
