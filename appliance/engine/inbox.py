"""The way to the scheduler: what it is to be told at its next step, in order. Owner: the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from appliance.core.scheduling.events import Event
from appliance.core.scheduling.scheduler import Scheduler


class Feed(Protocol):
    """What takes events for the scheduler."""

    def put(self, event: Event) -> None:
        """Add one event."""


class Inbox:
    """Events that wait for ``scheduler``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._events: list[Event] = []

    def __bool__(self) -> bool:
        return bool(self._events)

    def put(self, event: Event) -> None:
        """Add one event."""
        self._events.append(event)

    def extend(self, events: Iterable[Event]) -> None:
        """Add events, in their order."""
        self._events.extend(events)

    def take(self) -> list[Event]:
        """Give all that wait, which are the caller's to tell."""
        events, self._events = self._events, []
        return events
