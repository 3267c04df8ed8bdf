"""The accountant for memory: a pure state machine from what happens to what is to be done, for all devices.

Each device has a budget of its own, and nothing else tells one from another: a second one is one more ``Budget``. What
the machine has left comes in as an event, as does which models are in use; every reason it gives is a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from appliance.core.memory import events
from appliance.core.memory.actions import Action, WakeAt
from appliance.core.memory.books import MemoryStatistics
from appliance.core.memory.budget import Budget, Limit, NeverFits, ResidencyPolicy
from appliance.core.memory.device import DeviceMemory
from appliance.core.memory.events import Event
from appliance.core.memory.model import Model
from appliance.domain.device import DeviceName

NEVER_NS: Final = 1 << 62


class Accountant:
    """The memory of all devices that ``budgets`` name. ``step`` is its only way in."""

    def __init__(self, policy: ResidencyPolicy, budgets: Iterable[Budget]) -> None:
        self._devices = {budget.device: DeviceMemory(policy, budget) for budget in budgets}
        self.due_ns = NEVER_NS
        """When Settle is to be told at the latest."""

    def step(self, event: Event, now_ns: int) -> list[Action]:
        """What is to be done now."""
        if type(event) is events.Settle:
            self.due_ns = NEVER_NS
        decided = self._decide(event, now_ns)
        self.due_ns = min((self.due_ns, *(each.at_ns for each in decided if type(each) is WakeAt)))
        return decided

    def _decide(self, event: Event, now_ns: int) -> list[Action]:
        match event:
            case events.Settle():
                return self._advance(self._devices.values(), now_ns)
            case events.UseChecked():
                return self._devices[event.device].advance(now_ns, event.idle)
            case events.Used():
                return self._home(event.model).take(event, now_ns)
            case events.Asked() | events.Withdrawn() | events.Done() | events.Declined() | events.Failed():
                home = self._home(event.model)
                return home.take(event, now_ns) + home.advance(now_ns)
            case events.ReservationWanted() | events.ColdStartOffered() | events.FreeMeasured():
                return self._consider(self._devices[event.device], event, now_ns)
            case events.Changed():
                return self._advance(self._tell(event.news), now_ns)
            case _:
                return self._advance(self._tell((event,)), now_ns)

    def _home(self, number: int) -> DeviceMemory:
        home = self._find(number)
        assert home is not None, f"model {number} is not known"
        return home

    def _find(self, number: int) -> DeviceMemory | None:
        return next((device for device in self._devices.values() if device.knows(number)), None)

    def _consider(self, device: DeviceMemory, event: events.OfCandidate, now_ns: int) -> list[Action]:
        left_bytes = device.books.left_bytes
        actions = device.consider(event, now_ns)
        return actions if device.books.left_bytes == left_bytes else actions + device.advance(now_ns)

    def _tell(self, news: Iterable[events.Told]) -> list[DeviceMemory]:
        touched: dict[int, DeviceMemory] = {}
        for each in news:
            if isinstance(each, events.BudgetSet):
                device: DeviceMemory | None = self._devices[each.budget.device]
            elif isinstance(each, events.Added):
                device = self._devices[each.device]
            else:
                device = self._find(each.model)
            if device is not None:  # else it took nothing
                device.tell(each)
                touched[id(device)] = device
        return list(touched.values())

    def _advance(self, devices: Iterable[DeviceMemory], now_ns: int) -> list[Action]:
        return [action for device in devices for action in device.advance(now_ns)]

    # --- what others ask

    @property
    def devices(self) -> Mapping[DeviceName, DeviceMemory]:
        """To be looked at only."""
        return self._devices

    def models(self) -> Iterator[Model]:
        """All models that serve, to be looked at only."""
        return (model for device in self._devices.values() for model in device.books.table)

    def model(self, number: int) -> Model | None:
        """The model with that number, if it serves; to be looked at only."""
        home = self._find(number)
        return home.books.table.models.get(number) if home is not None else None

    def home(self, number: int) -> DeviceName | None:
        """The device on which a version takes memory, or asked for some."""
        home = self._find(number)
        return home.books.budget.device if home is not None else None

    def outside(self) -> set[int]:
        """Versions that take memory or asked for some, and do not serve."""
        return {each for device in self._devices.values() for each in device.books.reservations.outside()}

    def leaving(self) -> set[int]:
        """Versions that serve no more and still take memory."""
        return {each for device in self._devices.values() for each in device.books.reservations.leaving}

    def unfit(self) -> dict[int, NeverFits]:
        """Versions that can never fit, as long as nothing else is configured."""
        unfit: dict[int, NeverFits] = {}
        for device in self._devices.values():
            unfit |= device.books.reservations.unfit
        return unfit

    def limit(self, device: DeviceName) -> Limit:
        """What there is of a device."""
        return self._devices[device].books.reservations.limit(0)

    def limit_beside(self, device: DeviceName, model: int) -> Limit:
        """What there is of a device, and what cannot be taken of it from other models than this."""
        books = self._devices[device].books
        return books.reservations.limit(books.table.retained_beside(model))

    def free_beside(self, device: DeviceName, model: int) -> int:
        """What of a device's budget no version but this one has, or is promised."""
        return self._devices[device].books.free_beside(model)

    def statistics(self, device: DeviceName) -> MemoryStatistics:
        """Sums of a device as of now."""
        return self._devices[device].books.statistics()

    def check_integrity(self) -> None:
        """Raise AssertionError where the books contradict themselves."""
        for device in self._devices.values():
            device.books.check_integrity()
        known = [number for device in self._devices.values() for number in device.books.numbers()]
        assert len(known) == len(set(known)), "a version is on two devices"
