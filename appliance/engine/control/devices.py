"""The devices that versions run on: which one a version gets, and what becomes of it when that one has a fault.

A device with a fault takes no versions. What serves there is loaded for another device and takes its own place, so that
no request fails; where what the device held is gone with it, or there is no room in time, it leaves memory first, and
its next request brings it to the other one. What may run nowhere else is barred: it is UNAVAILABLE, and its requests
are refused with the fault, until that is gone. Everything is derived anew at each look. Owner: the model cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from appliance.core.memory.accountant import Accountant
from appliance.core.memory.budget import AbsentDevice, Budget, WaitsForDevice
from appliance.core.memory.events import BudgetSet
from appliance.core.memory.footprint import Residency
from appliance.core.memory.homes import Home, choose
from appliance.core.rollout.phase import ON_ITS_WAY, SERVING
from appliance.domain.device import DeviceName, DeviceState
from appliance.engine.control.rollouts import Rollouts
from appliance.engine.environment import Shell
from appliance.engine.versions.served import Served
from appliance.engine.versions.wording import absent_text, faults_text
from appliance.workers.port import ModelRefused

NOBODY: Final = -1
"""The worker that refuses a version whose device has a fault."""
PATIENCE_NS: Final = 60_000_000_000
"""So long a version that still answers waits on a faulty device for its copy on another one; loads of large models take
half a minute."""


class Devices:
    """What was told of each device. ``memory`` is to be asked only."""

    def __init__(self, memory: Accountant, states: Iterable[DeviceState]) -> None:
        self._memory = memory
        self._states = {state.device.called: state for state in states}

    def take(self, states: Iterable[DeviceState]) -> list[BudgetSet]:
        """This is how devices are now; gives what the accountant is to be told."""
        told: list[BudgetSet] = []
        for state in states:
            device = state.device.called
            self._states[device] = state
            home = self._memory.devices.get(device)
            if home is not None and home.books.budget.bytes != state.budget_bytes:
                told.append(BudgetSet(Budget(device, state.budget_bytes)))
        return told

    def fault(self, device: DeviceName) -> str:
        """Why it takes no versions; "" where it does."""
        state = self._states.get(device)
        return state.fault if state is not None else ""

    def watched(self, device: DeviceName) -> bool:
        """Whether its faults are told of."""
        return device in self._states

    def gone(self, device: DeviceName) -> bool:
        """Whether what it held is gone."""
        state = self._states.get(device)
        return state is not None and state.gone

    @property
    def faulty(self) -> list[DeviceName]:
        """Those that take no versions."""
        return [device for device in self._states if self.fault(device)]

    def room_bytes(self, device: DeviceName) -> int:
        """What of its budget nothing is in."""
        now = self._memory.statistics(device)
        return now.left_bytes - now.used_bytes

    def choose(self, served: Served, need_bytes: int) -> DeviceName | AbsentDevice | WaitsForDevice:
        """The device for a version."""
        homes = [
            Home(
                state.device,
                memory.books.budget.bytes,
                memory.books.budget.bytes - memory.books.promised_bytes,
                state.fault,
            )
            for device, state in self._states.items()
            if (memory := self._memory.devices.get(device)) is not None
        ]
        return choose(served.model.device, need_bytes, homes)


class Tenants(Protocol):
    """What looks after versions that serve, and has them change their devices."""

    def needs(self, served: Served) -> int:
        """What a version takes, or is expected to."""

    def take_out(self, versions: Sequence[Served], now_ns: int) -> None:
        """Have them leave memory and their workers, all at once, and look after them no more."""

    def settle(self, served: Served, device: DeviceName, now_ns: int) -> None:
        """Have a version that was taken out be at home on ``device``, out of memory, from now on."""

    def bar(self, served: Served, why: str) -> None:
        """Have the requests of a version that was taken out be refused from now on."""


class Drains:
    """Clears devices that have a fault."""

    def __init__(self, devices: Devices, rollouts: Rollouts, tenants: Tenants, shell: Shell) -> None:
        self._devices = devices
        self._rollouts = rollouts
        self._tenants = tenants
        self._shell = shell
        self._moving_since: dict[int, int] = {}

    def look(self, now_ns: int) -> None:
        """See what is where it should not be, and what can be again."""
        versions = self._rollouts.on_devices()
        known = {served.id for served in versions if self._devices.fault(served.memory.device)}
        self._moving_since = {model: at for model, at in self._moving_since.items() if model in known}
        self.clear(versions, now_ns)
        for served in versions:
            if served.barred:
                self._settle(served, now_ns)
        for device in self._devices.faulty:
            if self._devices.gone(device):
                self._rollouts.groups.end_left(device)

    def clear(self, versions: Sequence[Served], now_ns: int) -> None:
        """Have those of these leave their devices that can stay there no longer."""
        leaving = [served for served in versions if self._is_to_leave(served, now_ns)]
        if not leaving:
            return
        self._tenants.take_out(leaving, now_ns)
        for served in leaving:
            self._settle(served, now_ns)

    def _is_to_leave(self, served: Served, now_ns: int) -> bool:
        """Whether it is to leave its device now. One that is on its way to serving does not get there; one that serves
        stays for as long as a copy of it is on its way to another device."""
        device = served.memory.device
        fault = self._devices.fault(device)
        if not fault or served.barred:
            return False
        if served.phase in ON_ITS_WAY and served.placed.group >= 0:
            refused = ModelRefused(NOBODY, served.id, faults_text([(device, fault)]))
            self._rollouts.model_refused(refused, now_ns)
        if served.phase not in SERVING:
            return False
        there = served.memory.residency is Residency.RESIDENT and self._rollouts.groups.holders(served)
        if self._devices.gone(device) or not there:
            return True
        since_ns = self._moving_since.get(served.id)
        if since_ns is None and not self._has_room_elsewhere(served):
            return True
        since_ns = self._moving_since.setdefault(served.id, now_ns)
        return now_ns - since_ns >= PATIENCE_NS or not self._rollouts.move(served, now_ns)

    def _has_room_elsewhere(self, served: Served) -> bool:
        """Whether another device has room for it as it is, so that nobody has to leave that one."""
        need_bytes = self._tenants.needs(served)
        home = self._devices.choose(served, need_bytes)
        return isinstance(home, DeviceName) and self._devices.room_bytes(home) >= need_bytes

    def _settle(self, served: Served, now_ns: int) -> None:
        """Find another home for a version that was taken out, or its old one again."""
        was, home = served.memory.barred, self._devices.choose(served, self._tenants.needs(served))
        if isinstance(home, DeviceName):
            before = served.memory.device
            if home == before:
                self._say("model has its device again", served, device=str(home))
            else:
                self._say("model changes its device", served, device=str(before), to=str(home))
            self._tenants.settle(served, home, now_ns)
        elif was != (why := _why(home)):
            self._say("model has no device", served, reason=why)
            self._tenants.bar(served, why)

    def _say(self, what: str, served: Served, **fields: str) -> None:
        self._shell.log.event(what, model=served.key, **fields)


def _why(found: AbsentDevice | WaitsForDevice) -> str:
    return absent_text(found) if isinstance(found, AbsentDevice) else faults_text(found.faults)
