"""What ``serve`` tells its fleet: a look at the figures each minute, events as they come, the history of models.

The look is taken on the event loop's thread, as a scrape takes it; encoding and the disk are a thread's own, and no
request ever waits for it. What could not be written is told with the next look, so a full or failing disk makes windows
longer and loses no count. Where the box belongs to no fleet nothing is looked at and nothing written.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from appliance.core.rollout.records import Change
from appliance.domain.errors import ApplianceError
from appliance.fleet.membership import MEMBERSHIP_BYTES_MAX, Membership, MembershipUnreadable, decode
from appliance.fleet.records import Event
from appliance.store.full_disk import reason_of
from appliance.store.layout import ENROLLED
from appliance.telemetry.figures import Figures
from appliance.telemetry.outboxes import Outboxes
from appliance.telemetry.snapshot import Snapshot

PERIOD_S: Final = 60.0
LOOK_S: Final = 10.0
"""How long the event loop may take to be looked at; longer than that the minute is told with the next one."""
CLOSE_S: Final = 5.0
EVENTS_MAX: Final = 1_000
"""Events that wait for the next look; further ones are counted."""
NAME_CHARACTERS: Final = 256
FIELD_CHARACTERS: Final = 1_000


class Look(NamedTuple):
    """What is seen in one moment on the event loop's thread."""

    snapshot: Snapshot
    changes: Sequence[Change]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How an outlet looks: ``read`` and ``history`` on the event loop's thread, to which ``post`` brings a call;
    ``wall_ms`` is the wall clock, ``event`` writes a line of the log, on that thread, too."""

    read: Callable[[], Snapshot]
    history: Callable[[str], Sequence[Change]]
    post: Callable[[Callable[[], None]], object]
    wall_ms: Callable[[], int]
    event: Callable[..., None]


class Outlet:
    """See the module. ``state`` is the state directory, ``limit_bytes`` bounds what may wait there to be sent.
    ``membership`` is who the box was in its fleet at the last look; None: it belonged to none, or that could not be
    read."""

    def __init__(self, state: Path, limit_bytes: int, sight: Sight, period_s: float = PERIOD_S) -> None:
        self.membership: Membership | None = None
        self._state = state
        self._limit = limit_bytes
        self._sight = sight
        self._period_s = period_s
        self._events: deque[Event] = deque()
        self._missed = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlet", daemon=True)
        self._outboxes: Outboxes | None = None
        self._figures = Figures()
        self._said = ""

    def start(self) -> None:
        """Look from now on, until ``close``."""
        self._thread.start()

    def heard(self, what: str, fields: Mapping[str, object], trouble: bool) -> None:
        """An event of the box, to be told. Cheap; by any thread."""
        if len(self._events) >= EVENTS_MAX:
            self._missed += 1
            return
        told = {_text(name)[:NAME_CHARACTERS]: _text(value) for name, value in fields.items()}
        self._events.append(
            Event(at_ms=self._sight.wall_ms(), what=_text(what), trouble=trouble, fields=told)
        )

    async def close(self) -> None:
        """Tell what is left, within CLOSE_S seconds."""
        self._end.set()
        if self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, CLOSE_S)

    # --- the outlet's thread

    def _run(self) -> None:
        ended = False
        self.membership = _membership(self._state)
        while not ended:
            ended = self._end.wait(self._period_s)
            self._complain(self._attempt())
        if self._outboxes is not None:
            self._outboxes.close()

    def _attempt(self) -> str:
        """Tell what there is, where there is somebody to tell it; gives why that cannot be, "" where it could."""
        self.membership = _membership(self._state)
        try:
            if (self._state / ENROLLED).exists():
                self._tell()
            else:
                self._events.clear()
        except OSError as error:  # a time-out is one, too
            return reason_of(error) if error.errno else "the event loop did not answer in time"
        except (ApplianceError, RuntimeError, ValueError) as error:
            return str(error)
        return ""

    def _complain(self, problem: str) -> None:
        """Put it into the log, once as long as it is the same."""
        if problem and problem != self._said:
            with suppress(RuntimeError):  # the event loop is gone
                self._sight.post(lambda: self._sight.event("telemetry cannot be kept", error=problem))
        self._said = problem

    def _tell(self) -> None:
        """Take a look and keep what is seen. Raises OSError, ApplianceError, and RuntimeError where the event loop is
        gone."""
        look = self._look()
        if self._outboxes is not None and not self._outboxes.is_in_place():
            outboxes, self._outboxes = self._outboxes, None
            outboxes.close()
        if self._outboxes is None:
            self._outboxes = Outboxes(self._state, self._limit)
        events, missed = list(self._events), self._missed
        count = {"events": str(missed)}
        left_out = Event(at_ms=self._sight.wall_ms(), what="events were left out", trouble=True, fields=count)
        told = [*events, left_out] if missed else events
        self._outboxes.figures([*told, *self._figures.take(look.snapshot)])
        self._figures.settled(look.snapshot)
        for _ in events:
            self._events.popleft()
        self._missed -= missed
        self._outboxes.history(look.changes)

    def _look(self) -> Look:
        found: Future[Look] = Future()

        def look() -> None:
            try:
                found.set_result(Look(self._sight.read(), self._sight.history("")))
            except Exception as error:  # noqa: BLE001  whatever it is, the thread has to hear of it
                found.set_exception(RuntimeError(f"no look could be taken: {error}"))

        self._sight.post(look)
        return found.result(LOOK_S)


def _text(value: object) -> str:
    """As text that can be sent, not too long of it: names of files may hold what is none."""
    return str(value)[:FIELD_CHARACTERS].encode("utf-8", "replace").decode()


def _membership(state: Path) -> Membership | None:
    try:
        with (state / ENROLLED).open("rb") as file:
            return decode(file.read(MEMBERSHIP_BYTES_MAX))
    except (OSError, MembershipUnreadable):
        return None
