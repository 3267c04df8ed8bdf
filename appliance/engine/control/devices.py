"""The devices that versions run on: which one a version gets, and what becomes of it when that one has a fault.

A device with a fault takes no versions. What serves there is loaded for another device and takes its own place, so that
no request fails; where what the device held is gone with it, or there is no room in time, it leaves memory first, and
its next request brings it to the other one. What may run nowhere else is barred: it is UNAVAILABLE, and its requests
are refused with the fault, until that is gone. Everything is derived anew at each look. Owner: the model cache.

A device that its hardware has slowed takes versions only where none of the others has room. What serves there is loaded
elsewhere, one after the other, where it fits beside what is there; what does not stays, as slow is better than gone.
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
from appliance.core.rollout.registry import Slot
from appliance.domain.device import DeviceName
from appliance.domain.device_reading import DeviceState
from appliance.domain.device_wish import absence
from appliance.engine.control.rollouts import Rollouts
from appliance.engine.environment import Shell
from appliance.engine.versions.served import Served
from appliance.engine.versions.wording import faults_text
from appliance.workers.port import ModelRefused

NOBODY: Final = -1
"""The worker that refuses a version whose device has a fault."""
PATIENCE_NS: Final = 60_000_000_000
"""So long a version that still answers waits on a faulty device for its copy on another one; loads of large models take
half a minute."""
STAYS_NS: Final = 3_600_000_000_000
"""So long a version that left a slowed device leaves none for that again: two that heat each other would pass it to and
fro."""


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

    def slow(self, device: DeviceName) -> str:
        """Why others are better for versions; "" where they are not."""
        state = self._states.get(device)
        return state.slow if state is not None else ""

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
            self._home(state) for device, state in self._states.items() if device in self._memory.devices
        ]
        return choose(served.model.device, need_bytes, homes)

    def quicker(self, served: Served, need_bytes: int) -> DeviceName | None:
        """A device that is not slowed and has room for a version as it is, so that nobody has to leave that one."""
        found = self.choose(served, need_bytes)
        state = self._states.get(found) if isinstance(found, DeviceName) else None
        if state is None or state.device.called not in self._memory.devices:
            return None
        quick = self._home(state).is_quick(need_bytes) and self.room_bytes(state.device.called) >= need_bytes
        return state.device.called if quick else None

    def _home(self, state: DeviceState) -> Home:
        books = self._memory.devices[state.device.called].books
        free_bytes = books.budget.bytes - books.promised_bytes
        return Home(state.device, books.budget.bytes, free_bytes, state.fault, state.slow)


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
    """Clears devices that have a fault, and relieves those that are slowed."""

    def __init__(self, devices: Devices, rollouts: Rollouts, tenants: Tenants, shell: Shell) -> None:
        self._devices = devices
        self._rollouts = rollouts
        self._tenants = tenants
        self._shell = shell
        self._moving_since: dict[int, int] = {}
        self._relieved_ns: dict[Slot, int] = {}
        """When versions were to leave a slowed device last."""

    def look(self, now_ns: int) -> None:
        """See what is where it should not be, and what can be again."""
        versions = self._rollouts.on_devices()
        known = {served.id for served in versions if self._devices.fault(served.memory.device)}
        self._moving_since = {model: at for model, at in self._moving_since.items() if model in known}
        self.clear(versions, now_ns)
        for served in versions:
            if served.barred:
                self._settle(served, now_ns)
        self._relieve(versions, now_ns)
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
        if served.barred:
            return False
        if not fault:
            return self._rests_slowly(served)
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

    def _rests_slowly(self, served: Served) -> bool:
        """Whether it is out of memory, and would come back to a slowed device although another one has room."""
        out = served.memory.residency is Residency.COLD and not served.memory.returning
        slow = served.phase in SERVING and out and self._devices.slow(served.memory.device)
        return bool(slow) and self._devices.quicker(served, self._tenants.needs(served)) is not None

    def _relieve(self, versions: Sequence[Served], now_ns: int) -> None:
        """Have one of those that serve on a slowed device be loaded for a better one. One after the other, for what
        loads there takes from what serves there."""
        self._relieved_ns = {
            slot: at_ns for slot, at_ns in self._relieved_ns.items() if now_ns - at_ns < STAYS_NS
        }
        if self._rollouts.moving:
            return
        for served in versions:
            device = served.memory.device
            to = (
                self._devices.quicker(served, self._tenants.needs(served))
                if self._is_slowed(served)
                else None
            )
            if to is not None and self._rollouts.move(served, now_ns):
                self._relieved_ns[served.version.slot] = now_ns
                reason = self._devices.slow(device)
                self._say(
                    "model leaves a slowed device", served, device=str(device), to=str(to), reason=reason
                )
                return

    def _is_slowed(self, served: Served) -> bool:
        """Whether it serves from a slowed device, and may be moved: not while another version is on trial beside it,
        which is compared with it."""
        device = served.memory.device
        if not self._devices.slow(device) or self._devices.fault(device) or served.barred:
            return False
        there = served.memory.residency is Residency.RESIDENT and self._rollouts.groups.holders(served)
        free = served.trial.split is None and served.version.slot not in self._relieved_ns
        return served.phase in SERVING and bool(there) and free

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
    return absence(found.wish, found.there) if isinstance(found, AbsentDevice) else faults_text(found.faults)
