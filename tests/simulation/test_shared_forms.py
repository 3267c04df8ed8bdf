"""A worker of several versions that ends while it opens the packed form of one, by the real engine with simulated
workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.engine.control.instance_group import Worker
from tests.simulation.device_world import MB, DeviceWorld, GpuWorkers
from tests.simulation.scripted_workers import MS
from tests.simulation.test_own_worker import holders

DIGEST = "d" * 64
MARKS = ("refused", "dropped")


class OpeningWorkers(GpuWorkers):
    """A worker that opens a form ends."""

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        form = Path(version.forms) / f"{DIGEST}-box"
        if version.forms and not any((form / mark).exists() for mark in MARKS):
            self._later(worker, MS, lambda: self._exit(worker, ExitCause.DIED, model))
        else:
            super().load(worker, model, version, wish)


class OpeningWorld(DeviceWorld):
    """Two models on one GPU, of which the second has a form."""

    workers_type = OpeningWorkers

    def __init__(self, seed: int, forms: Path) -> None:
        super().__init__(seed, [(0,), (0,)], (4_000 * MB,))
        self.form = forms / f"{DIGEST}-box"
        self.form.mkdir()
        (self.form / "weights.bin").write_bytes(b"x")
        self.late = replace(self.wanted.pop("m1"), forms=str(forms), digest=DIGEST)
        self.names.remove("m1")

    def come(self) -> None:
        """The second model comes."""
        self.names.append("m1")
        self.wanted["m1"] = self.late
        self.apply()
        self.looks(20_000)

    @property
    def marks(self) -> list[str]:
        """What is left of the form."""
        return sorted(each.name for each in self.form.iterdir())


def test_a_form_is_not_refused_for_what_another_model_may_have_done(tmp_path: Path) -> None:
    world = OpeningWorld(1, tmp_path)
    world.start()
    world.come()
    assert world.marks == ["dropped"], "it may be built anew"
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    assert holders(world)["m0"] == holders(world)["m1"]
    world.settle()


def test_it_is_refused_where_the_worker_had_nothing_else_yet(tmp_path: Path) -> None:
    world = OpeningWorld(2, tmp_path)
    world.names.clear()
    world.wanted.clear()
    world.come()
    assert world.marks == ["refused"]
    assert world.reason_of("m1") == ("READY", "")
    world.settle()


def test_it_is_refused_in_a_worker_of_its_own_and_others_go_on(tmp_path: Path) -> None:
    world = OpeningWorld(3, tmp_path)
    world.late = replace(world.late, parameters={**world.late.parameters, "own_worker": "true"})
    world.start()
    before = holders(world)["m0"]
    world.come()
    assert world.marks == ["refused"]
    assert holders(world)["m0"] == before
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    world.settle()


def test_a_worker_is_known_to_have_done_one_thing_only_if_it_had_and_has_no_other() -> None:
    wish, aside = LoadWish(), LoadWish(background=True)
    worker = Worker(id=1, group=1, number=0, started_ns=0, loading={7: wish, 8: wish})
    assert worker.did_only(7), "loads in one line come one after the other"
    worker.loading[9] = aside
    assert not worker.did_only(7)
    del worker.loading[9]
    worker.had |= {7}
    assert worker.did_only(7), "it may load it once more"
    worker.had |= {8}
    assert not worker.did_only(7)
