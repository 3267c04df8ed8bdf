"""A world of GPUs that get faults and lose them: models are swapped among them under load; all follows from a seed.

Beside what holds in the world of swaps:

* nothing is loaded on a device that has a fault; one that is slowed is as good as any where no other has room;
* a request fails only where none of the devices that its model may run on is without one, or, for once, where all
  memory of those is taken by models on their way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import cast

from appliance.config.engine import ResidencyConfig
from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.binding import extended
from appliance.domain.device import Device, DeviceKind, DeviceName, cuda
from appliance.domain.device_reading import DeviceState
from appliance.domain.device_wish import DeviceWish
from appliance.domain.errors import ModelAway, NotReady
from appliance.domain.inference import Outcome
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.engine.control.model_cache import HOST, ResidencyTerms
from appliance.workers import port
from appliance.workers.arena import Arena
from appliance.workers.settings import WorkerSettings, WorkerTerms
from tests.simulation.scripted_workers import MS, World
from tests.simulation.swap_world import SOUND, FatedWorkers, SwapWorld

MB = 1_000_000
ROOMY = 1_000 * MB
LOST = "is lost: the driver cannot reach it any more"
ECC = "had 3 uncorrected memory errors"
HOT = "has been slowed by its hardware for 30 s (hardware thermal slowdown)"
CAPABILITIES = ((7, 5), (8, 9), (9, 0))


def gpu(index: int) -> Device:
    """What the driver tells of a GPU; the later ones can do more."""
    return Device(
        kind=DeviceKind.CUDA,
        index=index,
        uuid=f"GPU-{index}f",
        name=f"simulated {index}",
        driver="1",
        capability=CAPABILITIES[index % len(CAPABILITIES)],
    )


class GpuWorkers(FatedWorkers):
    """Workers that know their device; ``faulty`` are those on which nothing may be loaded, on ``refusing`` ones no load
    comes to anything, nor on ``full`` ones, which have no memory for a moment."""

    def __init__(self, world: World, arena: Arena, emit: object) -> None:
        tell = cast(Callable[[port.PoolEvent], None], emit)
        super().__init__(world, arena, lambda event: tell(self._said(event)))
        self.says: dict[str, int] = {}
        """By model, what its sessions say that they have of a device; nothing, where it is not among these."""
        self.devices: dict[int, DeviceName] = {}
        self.faulty: set[DeviceName] = set()
        self.refusing: set[DeviceName] = set()
        self.full: set[DeviceName] = set()
        self.loaded_on: list[tuple[str, DeviceName]] = []
        self.visible: dict[DeviceName, str] = {}

    def _said(self, event: port.PoolEvent) -> port.PoolEvent:
        if isinstance(event, port.ModelLoaded):
            name = self._holds[event.worker][event.model].name
            return event._replace(device_bytes=self.says.get(name, 0))
        if isinstance(event, port.ModelRefused) and self.devices[event.worker] in self.full:
            return event._replace(full=True)
        return event

    def start(self, worker: int, group: int, settings: WorkerSettings) -> None:
        self.devices[worker] = settings.device
        self.visible[settings.device] = settings.visible
        super().start(worker, group, settings)

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        device = self.devices[worker]
        assert device.is_cpu == version.on_cpu, f"{version.key} does not ask for {device}"
        assert device.is_cpu or version.device.allows(gpu(device.index)), f"nor for {device}"
        assert device not in self.faulty, f"{version.key} is loaded on {device}, which has a fault"
        self.loaded_on.append((version.key, device))
        if device in self.refusing | self.full:
            version = replace(version, parameters={**version.parameters, "fate": "refused"})
        super().load(worker, model, version, wish)


class DeviceWorld(SwapWorld):
    """``gpus`` by model are those that it names, or what else it asks for; ``budgets`` are those of the GPUs in order,
    ``visible`` what workers are told of them."""

    workers_type = GpuWorkers
    workers: GpuWorkers

    def __init__(
        self,
        seed: int,
        gpus: Sequence[tuple[int, ...] | DeviceWish],
        budgets: Sequence[int],
        file_bytes: int = MB,
        visible: Mapping[DeviceName, str] = MappingProxyType({}),
        watch_s: float = 0.1,
    ) -> None:
        self.worker_terms = WorkerTerms(visible=visible)
        self.states = {
            cuda(index): DeviceState(device=gpu(index), budget_bytes=size)
            for index, size in enumerate(budgets)
        }
        terms = ResidencyTerms(
            extended(ResidencyPolicy, ResidencyConfig()),
            (Budget(HOST, ROOMY),),
            devices=tuple(self.states.values()),
        )
        self.tight = sum(budgets) < len(gpus) * file_bytes
        self.refused: list[str] = []
        self.full = 0
        super().__init__(seed, names=len(gpus), swap=RolloutPolicy(watch_s=watch_s), residency=terms)
        for name, asked in zip(self.names, gpus, strict=True):
            wish = asked if isinstance(asked, DeviceWish) else DeviceWish(DeviceKind.CUDA, asked)
            self.wanted[name] = replace(self.wanted[name], device=wish, file_bytes=file_bytes)

    # --- what happens

    def tell(
        self,
        index: int,
        fault: str = "",
        *,
        gone: bool = False,
        slow: str = "",
        budget_bytes: int | None = None,
    ) -> None:
        """The device is so from now on."""
        before = self.states[cuda(index)]
        size = before.budget_bytes if budget_bytes is None else budget_bytes
        self.states[cuda(index)] = DeviceState(
            device=gpu(index), budget_bytes=size, fault=fault, gone=gone, slow=slow
        )
        self.look()

    def look(self) -> None:
        """Somebody looks at all devices."""
        self.devices_told(tuple(self.states.values()))

    def devices_told(self, states: tuple[DeviceState, ...]) -> None:
        """Tell the engine, and remember what it was told."""
        self.states |= {state.device.called: state for state in states}
        self.workers.faulty = {each.device.called for each in self.states.values() if each.fault}
        self.engine.devices_told(states)

    def worker_pids(self) -> dict[DeviceName, dict[int, int | None]]:
        """The engine's."""
        return self.engine.worker_pids()

    def looks(self, duration_ms: int) -> None:
        """Time passes, and devices are looked at each second, as the daemon does."""
        for at_ms in range(0, duration_ms, 1_000):
            self.world.after(at_ms * MS, self.look)
        self.world.run(self.world.now + duration_ms * MS)

    def sound(self, name: str) -> bool:
        """Whether one of the devices that a model may run on has no fault."""
        wish = self.wanted[name].device
        return any(wish.allows(each.device) and not each.fault for each in self.states.values())

    def load_of(self, duration_ms: int, requests: int) -> None:
        """Requests for all models, at random times; one for a model without a device is refused at once."""
        rand = self.world.random
        for _ in range(requests):
            self.world.after(rand.randrange(duration_ms) * MS, partial(self.ask, rand.choice(self.names)))

    def ask(self, name: str) -> None:
        """One request."""
        before = set(self.pending)
        try:
            self.client(name)
        except NotReady:
            pass
        except ModelAway:
            assert self.tight, "there is room for all"
            self.full += 1
            self.pending = before
            return
        else:
            return
        assert not self.sound(name), f"{name} has a device, and is refused"
        self.refused.append(name)

    def _done(self, tag: int, outcome: Outcome) -> None:
        if isinstance(outcome, ModelAway) and self.tight:
            self.pending.remove(tag)
            self.full += 1
            return
        if isinstance(outcome, NotReady):  # it came before the fault was known
            name, _ = outcome.model
            assert not self.sound(name), f"{name} has a device, and a request of it ended with {outcome}"
            self.pending.remove(tag)
            self.refused.append(str(outcome))
            return
        super()._done(tag, outcome)

    def check(self) -> None:
        """The invariants that hold after every turn."""
        self.scheduler.check_integrity()
        self.engine._cache._memory.check_integrity()

    def device_of(self, name: str) -> str:
        """Where it is, or is to be."""
        (found,) = [each for each in self.engine.status().versions if each.name == name]
        return str(found.device)

    def reason_of(self, name: str) -> tuple[str, str]:
        """Its state and why."""
        (found,) = [each for each in self.engine.status().versions if each.name == name]
        return found.state.value, found.reason

    # --- the run

    def play_faults(self, duration_ms: int = 8_000, requests: int = 600) -> None:
        """Devices get faults and lose them under load; at the end all are well, and all models serve."""
        rand = self.world.random
        self.start()
        self.load_of(duration_ms, requests)
        for at_ms in range(500, duration_ms, 700):
            index = rand.randrange(len(self.states))
            fault, gone, slow = rand.choice(
                (("", False, ""), (ECC, False, ""), (LOST, True, ""), ("", False, HOT))
            )
            self.world.after(at_ms * MS, partial(self.tell, index, fault, gone=gone, slow=slow))
        self.looks(duration_ms)
        for index in range(len(self.states)):
            self.tell(index)
        self.looks(3_000)
        for name in self.names:
            self.ask(name)
        self.looks(3_000)
        assert not self.pending, "requests without an outcome"
        for name in self.names:
            assert self.reason_of(name)[0] == "READY"
        self.settle()


def main() -> None:
    """Replay one seed."""
    world = DeviceWorld(int(sys.argv[1]), [(), (), (0,), (1,)], (ROOMY, ROOMY))
    world.play_faults()
    print(dict(world.answers), len(world.refused), world.workers.loaded_on, SOUND)


if __name__ == "__main__":
    main()
