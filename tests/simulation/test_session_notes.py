"""What a runtime has people know of how a version runs, from its worker to the log and the status, by the real engine
with simulated workers; no GPU is here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.workers import port
from tests.simulation.device_world import MB, DeviceWorld, GpuWorkers
from tests.simulation.engine_world import SilentLog

NOTE = "3 of 120 nodes run on the processor: NonZero"
SAYS = "model is not all on its device"


class NotingWorkers(GpuWorkers):
    """``notes`` is what sessions have people know, by model."""

    notes: dict[str, str]

    def _said(self, event: port.PoolEvent) -> port.PoolEvent:
        if isinstance(event, port.ModelLoaded):
            event = event._replace(note=self.notes.get(self._holds[event.worker][event.model].name, ""))
        return super()._said(event)


class NotingWorld(DeviceWorld):
    """Two models on one GPU, one of which is not all there."""

    workers_type = NotingWorkers
    workers: NotingWorkers

    def __init__(self, seed: int) -> None:
        NotingWorkers.notes = {"m0": NOTE}
        super().__init__(seed, [(0,), (0,)], (100 * MB,))

    @property
    def noted(self) -> dict[str, tuple[str, ...]]:
        """By model, in the status."""
        return {each.name: each.notes for each in self.engine.status().versions}


def test_it_is_in_the_notes_and_once_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(SilentLog, "event", lambda log, what, **fields: lines.append((what, fields)))
    world = NotingWorld(1)
    world.start()
    said = [fields for what, fields in lines if what == SAYS]
    assert said == [{"model": "m0/1", "reason": NOTE}]
    assert world.noted == {"m0": (NOTE,), "m1": ()}
    (worker,) = world.workers.devices
    world.workers._exit(worker, ExitCause.DIED, -1)
    world.looks(6_000)
    assert len(world.workers.devices) == 2, "it was loaded again"
    assert [fields for what, fields in lines if what == SAYS] == said, "which is nothing new"
    world.settle()


def test_it_is_gone_with_a_load_that_says_nothing() -> None:
    world = NotingWorld(2)
    world.start()
    world.workers.notes.clear()
    (worker,) = world.workers.devices
    world.workers._exit(worker, ExitCause.DIED, -1)
    world.looks(6_000)
    assert world.noted == {"m0": (), "m1": ()}
    world.settle()


class EngineWorkers(NotingWorkers):
    """Sessions of engines."""

    def _said(self, event: port.PoolEvent) -> port.PoolEvent:
        event = super()._said(event)
        return event._replace(packed=True) if isinstance(event, port.ModelLoaded) else event


class EngineNotingWorld(NotingWorld):
    workers_type = EngineWorkers


@pytest.mark.parametrize(
    ("runtime", "what"), [("tensorrt", "model is not all in its engine"), ("onnx", SAYS)]
)
def test_what_an_engine_says_is_not_taken_for_what_runs_elsewhere(
    monkeypatch: pytest.MonkeyPatch, runtime: str, what: str
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(SilentLog, "event", lambda log, what, **fields: lines.append(what))
    world = EngineNotingWorld(3)
    world.wanted["m0"] = replace(world.wanted["m0"], runtime=runtime)
    world.start()
    assert [line for line in lines if "is not all" in line] == [what]
