"""How often versions were tried on this box, and whether one may be tried again. Owner: the swaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.engine.records import Records


class Tries:
    """Of unproven versions, by their identity; ``allowed`` are swap.tries."""

    def __init__(self, records: Records, allowed: int) -> None:
        self._records = records
        self._allowed = allowed

    def refusal(self, identity: str) -> str:
        """Why a version is not tried; "" when it may be."""
        tries, rejected = self._records.standing(identity)
        again = "change its files, or ask for it to be loaded"
        if rejected:
            return f"is not tried again: {rejected}; {again}"
        if tries >= self._allowed:
            return f"was tried {tries} times and did not prove itself; swap.tries allows no more; {again}"
        return ""

    def left(self, identity: str) -> int:
        """How often it may still be tried before it is given up."""
        tries, rejected = self._records.standing(identity)
        return 0 if rejected else max(self._allowed - tries, 0)

    def count(self, identities: Sequence[str], done: Callable[[str], None]) -> None:
        """See Records."""
        self._records.count(identities, done)

    def reject(self, identity: str, reason: str) -> None:
        """See Records."""
        self._records.reject(identity, reason)

    def forgive(self, identity: str) -> None:
        """See Records."""
        self._records.forgive(identity)
