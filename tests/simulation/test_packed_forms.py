"""A packed form whose workers die costs the form, which is dropped and marked, and not the version."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.footprint import PROCESS_BYTES
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome, RequestHead, TensorHead
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.domain.validation import plan_request
from appliance.engine.port import Submission
from tests.engine.memory_terms import terms_of
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import FatedWorkers, SwapWorld

DIGEST = "d" * 64


class FormedWorkers(FatedWorkers):
    """Workers that take a version's form where one lies that was not refused, and die of it: at load or at work."""

    when = "at load"
    quick = 0

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        self.packs = self.built = _has_form(version)
        self.quick += wish.quick
        fatal = wish.quick if self.when == "at quick load" else self.packs and self.when == "at load"
        if fatal:
            self._later(worker, MS, lambda: self._exit(worker, ExitCause.DIED, model))
        else:
            super().load(worker, model, version, wish)

    def _begin(self, worker: int) -> None:
        version = self._holds[worker][self._queues[worker][0].model]
        if _has_form(version) and self.when == "at work":
            self._later(worker, MS, lambda: self._exit(worker, ExitCause.DIED, -1))
        else:
            super()._begin(worker)


class FormedWorld(SwapWorld):
    """A world of one model that has a form."""

    workers_type = FormedWorkers
    workers: FormedWorkers


class LosingWorld(FormedWorld):
    """One in which a version that served may be given up."""

    def check(self) -> None:
        self.scheduler.check_integrity()


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
    world = FormedWorld(8, names=1, swap=RolloutPolicy(watch_s=0.1, packed_forms=False))
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
    assert version.tries_left == RolloutPolicy().tries
    world.settle()


def test_a_quick_load_that_dies_costs_the_version_and_not_the_form_it_does_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FormedWorkers, "when", "at quick load")
    form = tmp_path / f"{DIGEST}-box"
    form.mkdir()
    terms = terms_of(ResidencyPolicy(early_bytes=1), PROCESS_BYTES + 6_000)
    world = LosingWorld(
        8, names=2, swap=RolloutPolicy(watch_s=0.1, packed_forms=False, retry_first_s=0.0), residency=terms
    )
    weights = WeightsFile(path="w", size=1000)
    world.wanted["m0"] = model = replace(
        world.wanted["m0"], forms=str(tmp_path), digest=DIGEST, weights=weights
    )
    world.start()
    world.world.run(world.world.now + 10_000 * MS)
    for name in ("m1", "m0"):
        ask(world, world.wanted[name])
        world.world.run(world.world.now + 20_000 * MS)
    (reason,) = [entry.reason for entry in world.engine.index(ready_only=False) if entry.name == "m0"]
    assert "quarantined" in reason
    assert world.workers.quick >= 2
    assert not os.listdir(form), model.key


def test_a_form_that_cannot_be_marked_does_not_shield_its_version_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.workers.forms.refuse_form", lambda path, reason: False)
    (tmp_path / f"{DIGEST}-box").mkdir()
    world = FormedWorld(8, names=1, swap=RolloutPolicy(packed_forms=False))
    world.wanted["m0"] = replace(world.wanted["m0"], forms=str(tmp_path), digest=DIGEST)
    world.start()
    (version,) = world.engine.status().versions
    assert "quarantined" in version.reason


def _forgotten(outcome: Outcome) -> None:
    if isinstance(outcome, Answer):
        outcome.release()


def ask(world: SwapWorld, model: ModelVersion) -> None:
    """A request whose outcome does not matter."""
    head = RequestHead(model_name=model.name, model_version="", inputs=(TensorHead("x", "FP32", (1, 2)),))
    world.engine.submit(
        Submission(
            plan_request(model, head),
            request_id="",
            arrived_ns=world.world.now,
            deadline_ns=NO_DEADLINE,
            on_done=_forgotten,
        ),
        [b"\x01" * 8],
    )
