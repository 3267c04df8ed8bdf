"""Answers that clients have yet to take: how many bytes there may be of them all together.

An answer counts from before its tensors are copied until its connection has written it or is gone. One alone may be
larger than the bound: the engine's memory bounds it, and refused it would be for ever.
"""

from __future__ import annotations

from typing import Final

from appliance.domain.errors import AnswersFull

BACK_AFTER_NS: Final = 1_000_000_000
"""When to come back: clients that are slow with their answers take seconds."""


class UnreadAnswers:
    """Owns the count of bytes in answers, bounded by ``bound``, and that of refusals. Owner: the loop's thread."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.held_bytes = 0
        """Bytes of all answers in memory now."""
        self.refused = 0
        """Requests that were refused for want of room."""

    def check(self) -> None:
        """Raise AnswersFull when there is no room at all: before any work is done for an answer."""
        if self.held_bytes >= self._bound:
            raise self._full()

    def resize(self, before: int, nbytes: int) -> int:
        """An answer that counted ``before`` bytes counts ``nbytes``, which it gives. Raises AnswersFull, and goes on
        counting what it did, when it would grow and there is no room for it."""
        others = self.held_bytes - before
        if nbytes > before and others and others + nbytes > self._bound:
            raise self._full()
        self.held_bytes = others + nbytes
        return nbytes

    def _full(self) -> AnswersFull:
        self.refused += 1
        return AnswersFull(
            "there is no memory for this answer now: answers that clients have not taken yet hold "
            f"{self.held_bytes} of {self._bound} bytes; read answers sooner, or raise http.max_bodies_bytes",
            BACK_AFTER_NS,
        )
