"""Which versions have their packed form built, one after the other, and when once more. Pure.

The form of a version that stays is built once in the life of the process, and anew where the version ran from it and
cannot any more. One for which there is no room on the disk is tried again after a pause that doubles.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, Protocol, TypeVar

FIRST_PAUSE_NS: Final = 60_000_000_000
"""The forms of what a version replaced leave with the next look at the store, which is not long in coming."""
LONGEST_PAUSE_NS: Final = 24 * 3600 * 1_000_000_000


class Packable(Protocol):
    """A version of which a form can be made."""

    @property
    def identity(self) -> str:
        """What it is, whatever it runs from."""

    @property
    def packed(self) -> bool:
        """Whether it runs from a form."""


V = TypeVar("V", bound=Packable)


class FormQueue(Generic[V]):
    """Owner: the forms."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        """Identities of what was queued, and has not gone since."""
        self._queue: deque[V] = deque()
        self._later: list[tuple[int, V]] = []
        """What had no room, or is not known well enough, and when to try again."""
        self._pauses_ns: dict[str, int] = {}

    def consider(self, version: V) -> None:
        """Queue a version, unless it runs from a form; where it was queued before, it takes that place."""
        if version.packed:
            self._known.discard(version.identity)  # should it be lost, it may be built anew
        elif version.identity not in self._known:
            self._known.add(version.identity)
            self._queue.append(version)
        else:  # it may be the same on another device now, and what is queued be about to go
            same = version.identity
            self._queue = deque(version if each.identity == same else each for each in self._queue)
            self._later = [(at, version if each.identity == same else each) for at, each in self._later]

    def waits(self, identity: str) -> bool:
        """Whether a version is queued."""
        return any(each.identity == identity for each in self._queue)

    def forget(self, identity: str) -> None:
        """The version is gone, and its form may be, or it has no use for one now: if it comes again, so may a form."""
        self._known.discard(identity)
        self._pauses_ns.pop(identity, None)
        self._later = [(at, each) for at, each in self._later if each.identity != identity]

    def tick(self, now_ns: int) -> None:
        """Time passed: what had no room may have it now."""
        due = [version for at, version in self._later if at <= now_ns]
        if due:
            self._later = [(at, version) for at, version in self._later if at > now_ns]
            self._queue.extend(due)

    @property
    def first(self) -> V | None:
        """The version whose form is built next; None: none is queued."""
        return self._queue[0] if self._queue else None

    def take(self) -> V:
        """Give the first one, which is queued no more; there must be one."""
        return self._queue.popleft()

    def put_off(self, version: V, now_ns: int) -> int:
        """There was no room for its form: when it is queued again."""
        pause_ns = self._pauses_ns.get(version.identity, FIRST_PAUSE_NS)
        self._pauses_ns[version.identity] = min(2 * pause_ns, LONGEST_PAUSE_NS)
        return self.wait(version, now_ns + pause_ns)

    def wait(self, version: V, at_ns: int) -> int:
        """What it is to be built for is known then at the earliest: when it is queued again."""
        self._later.append((at_ns, version))
        return at_ns

    def clear(self) -> None:
        """Nothing is built any more."""
        self._queue.clear()
        self._later.clear()
