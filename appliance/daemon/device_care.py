"""Tells the engine how devices are: what versions may take of each, and which have a fault.

What other processes have of a device's memory is no version's. It is told where it changes by more than allocators move
it by themselves; where the driver cannot say whose memory is whose, what it was before counts. Owner: the event loop's
thread, on which nothing here waits for a driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, Protocol

from appliance.core.memory.homes import STEP_BYTES, gpu_budget
from appliance.core.memory.unsaid import Unsaid
from appliance.devices.health import others_bytes
from appliance.devices.lookout import LOOK_S
from appliance.devices.throttling import Throttling
from appliance.devices.watch import DeviceWatch
from appliance.domain.device import Device, DeviceName, neighbours, visible
from appliance.domain.device_reading import DeviceFigures, DeviceState, Reading, faults, is_gone
from appliance.telemetry.device_work import count_energy, device_figures
from appliance.telemetry.snapshot import EngineStatus

UNBOUNDED_BYTES: Final = 1 << 62
"""The budget of a device whose driver does not tell of its memory."""


class DevicesOfEngine(Protocol):
    """What is told of devices."""

    def devices_told(self, states: tuple[DeviceState, ...]) -> None:
        """This is how all devices are now."""

    def worker_pids(self) -> Mapping[DeviceName, Mapping[int, int | None]]:
        """The processes that run versions or build their forms, by their device; for each what its versions say that
        they take of that (None: it changes now, or is not said)."""


class DeviceCare:
    """``event`` writes a line of the log; ``changed`` is called when the driver was changed under this process."""

    def __init__(
        self, watch: DeviceWatch, event: Callable[..., None], changed: Callable[[], None] = lambda: None
    ) -> None:
        self._watch = watch
        self._event = event
        self._changed = changed
        self._others: dict[DeviceName, int] = {}
        self._owners: dict[DeviceName, tuple[frozenset[int], frozenset[int]]] = {}
        """Of each device the processes that were the appliance's own at the last two looks that found another
        reading."""
        self._unsaid: dict[DeviceName, Unsaid] = {}
        self._throttling: dict[DeviceName, Throttling] = {}
        self._looked_s: dict[DeviceName, float] = {}
        self._told: dict[DeviceName, DeviceState] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._take({})

    @property
    def states(self) -> tuple[DeviceState, ...]:
        """How devices were when they were looked at last."""
        return tuple(self._told.values())

    @property
    def visible(self) -> Mapping[DeviceName, str]:
        """The UUIDs of devices by which their workers are told of them."""
        return visible([device for device, _ in self._watch.looks()])

    def neighbours(self, allowed: Collection[int]) -> Mapping[DeviceName, tuple[int, ...]]:
        """See ``domain.device``."""
        return neighbours([device for device, _ in self._watch.looks()], allowed)

    @property
    def problem(self) -> str:
        """Why no device is told of; "" where one is."""
        return self._watch.problem

    def start(self, loop: asyncio.AbstractEventLoop, engine: DevicesOfEngine) -> None:
        """Look, and tell ``engine``, from now on."""
        if self._told:
            self._watch.start()
            self._timer = loop.call_later(LOOK_S, self._again, loop, engine)

    def close(self) -> None:
        """Look no more."""
        self._watch.close()
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, loop: asyncio.AbstractEventLoop, engine: DevicesOfEngine) -> None:
        self._timer = loop.call_later(LOOK_S, self._again, loop, engine)
        self.look(engine)

    def look(self, engine: DevicesOfEngine) -> None:
        """See how devices are, and tell what has changed; what ails them is told again and again, as what that leads to
        is derived from what is so."""
        before, pids = self.states, engine.worker_pids()
        self._watch.busy = any(not device.is_cpu for device in pids)
        self._take(pids)
        if self.states != before or any(state.fault or state.slow for state in self.states):
            engine.devices_told(self.states)

    def _take(self, pids: Mapping[DeviceName, Mapping[int, int | None]]) -> None:
        for device, look in self._watch.looks():
            own = pids.get(device.called, {})
            throttling = self._throttling.setdefault(device.called, Throttling())
            if self._looked_s.get(device.called) != look.at_s:  # else it is the reading that was seen before
                self._looked_s[device.called] = look.at_s
                _, last = self._owners.get(device.called, (frozenset(), frozenset()))
                self._owners[device.called] = last, frozenset(own)
                self._hold_to_account(device, look.reading, own)
                throttling.take(look.at_s, look.reading.throttle)
                if look.reading.driver_changed:
                    self._changed()
            # one that has ended since was there when the driver was asked
            self._count(device, look.reading, frozenset(own).union(*self._owners[device.called]))
            state = DeviceState(
                device=device,
                budget_bytes=self._budget(device),
                fault="; ".join(faults(look.reading)),
                gone=is_gone(look.reading),
                slow=throttling.slow,
            )
            self._say_what_ails(device, state)
            self._told[device.called] = state

    def _count(self, device: Device, reading: Reading, own: Collection[int]) -> None:
        others, before = others_bytes(reading, own), self._others.get(device.called)
        if others is None or (before is not None and abs(others - before) < STEP_BYTES):
            return
        self._others[device.called] = others
        if before is not None:
            self._event(
                "others hold memory of a device",
                device=str(device.called),
                others_bytes=others,
                before_bytes=before,
                models_bytes=self._budget(device),
            )

    def _hold_to_account(self, device: Device, reading: Reading, own: Mapping[int, int | None]) -> None:
        unsaid = self._unsaid.setdefault(device.called, Unsaid())
        for found in unsaid.take(reading.processes or {}, own):
            self._event(
                "a worker has more memory of a device than its models say",
                device=str(device.called),
                pid=found.pid,
                said_bytes=found.said_bytes,
                unsaid_bytes=found.unsaid_bytes,
                models_bytes=self._budget(device),
            )

    def _budget(self, device: Device) -> int:
        if device.memory_bytes is None:
            return UNBOUNDED_BYTES
        unsaid = self._unsaid.get(device.called)
        unsaid_bytes = unsaid.bytes if unsaid is not None else 0
        return gpu_budget(device.memory_bytes, self._others.get(device.called, 0), unsaid_bytes)

    def _say_what_ails(self, device: Device, state: DeviceState) -> None:
        before = self._told.get(device.called)
        fields = {"device": str(device.called), "name": device.name, "uuid": device.uuid}
        if state.fault != (before.fault if before is not None else ""):
            if state.fault:
                self._event("a device has a fault and takes no models", **fields, reason=state.fault)
            else:
                self._event("a device has no fault any more", **fields)
        if state.slow != (before.slow if before is not None else ""):
            if state.slow:
                self._event(
                    "a device is slowed: its models move where others have room", **fields, reason=state.slow
                )
            else:
                self._event("a device is not slowed any more", **fields)

    def count(self, status: EngineStatus) -> None:
        """Enter into the accounts of energy what was used until now. To be called now and then, as who asks for figures
        seldom would find none."""
        count_energy(self._watch, status)

    def figures(self, status: EngineStatus) -> tuple[DeviceFigures, ...]:
        """Devices for people, with what their models used."""
        return tuple(
            replace(
                each,
                budget_bytes=self._told[each.device.called].budget_bytes
                if each.device.memory_bytes is not None
                else None,
                others_bytes=self._others.get(each.device.called),
                unsaid_bytes=self._unsaid[each.device.called].bytes,
                slow=self._told[each.device.called].slow,
            )
            for each in device_figures(self._watch, status)
        )
