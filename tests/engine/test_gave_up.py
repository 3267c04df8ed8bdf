"""A worker says itself that it gave up, and may lie: what that excuses is bounded."""

from __future__ import annotations

from dataclasses import replace

from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.errors import WorkerDied
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion, VersionState
from appliance.workers import port
from tests.engine.test_crashes import Rig, model

DEATHS = 6


class Shared(Rig):
    """One worker that serves ``m``, and with each load of ``hostile`` ends by its own doing while ``m`` runs."""

    def __init__(self, neighbour: ModelVersion) -> None:
        self.workers: list[int] = []
        self.loads: list[tuple[int, int, ModelVersion]] = []
        super().__init__(neighbour)
        hostile = replace(neighbour, name="hostile")
        entries = [CatalogVersion(model=each, fingerprint="") for each in (neighbour, hostile)]
        self.engine.apply(Catalog(versions=tuple(entries)))
        self.turns()

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        if version.name != "hostile":
            super().load(worker, model, version, wish)
        self.loads.append((worker, model, version))

    def gives_up(self) -> bool:
        """The load of ``hostile`` ends its worker; whether it was loaded at all."""
        loading = [each for each in self.loads if each[2].name == "hostile"]
        if not loading:
            return False
        worker, hostile, _ = loading[-1]
        self.loads.clear()
        self.ask("lawful", "lawful")
        self.turns()
        batches = [run.batch for each, run in self.lanes if each == worker]
        assert batches, "they share it"
        self.lanes = [(each, run) for each, run in self.lanes if each != worker]
        self.engine.pool_event(port.WorkerExited(worker, ExitCause.GAVE_UP, tuple(batches), hostile, "75"))
        self.turns()
        self.turns()
        while self.lanes:
            self.answer()
        return True


def test_a_worker_for_processors_cannot_give_up() -> None:
    rig = Rig(model())
    rig.ends("one", "a", ExitCause.GAVE_UP)
    assert isinstance(rig.ended["one"], WorkerDied), "nothing is captured there: it died of what it ran"


def test_a_load_that_has_its_worker_say_that_it_gave_up_is_to_blame_in_the_end() -> None:
    rig = Shared(replace(model(), device=ON_CUDA))
    deaths = 0
    while rig.gives_up():
        deaths += 1
        assert deaths < DEATHS, "it may go on for ever"
    rig.release()
    states = {entry.name: entry.state for entry in rig.engine.index(ready_only=False)}
    assert states == {"m": VersionState.READY, "hostile": VersionState.UNAVAILABLE}
