"""What became of boxes' requests, counted since the controller started. Owner: the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ANSWERED: Final = "answered"
TAKEN: Final = "taken"
REFUSED: Final = "refused"


class Traffic:
    """See the module. ``requests`` are by what was asked and how that went: ``ANSWERED``, or the code of a refusal;
    ``telemetry`` is records by what became of them."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter({("poll", ANSWERED): 0, ("telemetry", ANSWERED): 0})
        self.telemetry: Counter[str] = Counter({TAKEN: 0, REFUSED: 0})

    def count(self, kind: str, outcome: str) -> None:
        """One request of that kind."""
        self.requests[kind, outcome] += 1

    @contextmanager
    def records(self, number: int) -> Iterator[None]:
        """So many records are being taken in the block; where it fails they are refused."""
        try:
            yield
        except Exception:
            self.telemetry[REFUSED] += number
            raise
        self.telemetry[TAKEN] += number
