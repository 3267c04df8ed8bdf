"""How often versions were tried on this box, and whether and when one may be tried again.

A version that used up its tries is out. Where nothing else of its model serves it is tried once more after a pause that
grows with each such try: nobody may be on site to ask for it. The pause is kept across restarts by the wall clock,
which may jump: it is never longer than it should be, counted from the start. Owner: the swaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from appliance.core.rollout.ledger import Standing
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import OutOfTries, Refusal, Rejected
from appliance.domain.digest import is_digest
from appliance.engine.versions.records import Records

DOUBLINGS_MAX: Final = 30


class Tries:
    """Of versions, by their identity. ``wall_ms`` is the wall clock in milliseconds."""

    def __init__(self, records: Records, config: RolloutPolicy, wall_ms: Callable[[], int]) -> None:
        self._records = records
        self._config = config
        self.wall_ms = wall_ms

    def refusal(self, identity: str) -> Refusal | None:
        """Why a version is not tried; None when it may be."""
        standing = self._records.standing(identity)
        again = _again(identity)
        if standing.rejected:
            return Rejected(why=standing.rejected, again=again)
        if standing.tries >= self._config.tries:
            return OutOfTries(tries=standing.tries, again=again)
        return None

    def fallen(self, identity: str) -> bool:
        """Whether it was tried or given up since it was proven last, or not to be tried again."""
        standing = self._records.standing(identity)
        return bool(standing.at_ms or standing.rejected)

    def left(self, identity: str) -> int:
        """How often it may still be tried before it is given up."""
        standing = self._records.standing(identity)
        return 0 if standing.rejected else max(self._config.tries - standing.tries, 0)

    def pause_ms(self, identity: str) -> int | None:
        """How long from now it is to be left alone before it is tried once more because nothing else of its model
        serves; None: it is not."""
        standing = self._records.standing(identity)
        if standing.rejected or not self._config.retry_first_s:
            return None
        return pause_ms(standing, self._config, self.wall_ms())

    def count(self, identities: Sequence[str], done: Callable[[str], None], *, again: bool) -> None:
        """See Records."""
        self._records.count(identities, self.wall_ms(), done, again=again)

    def given_up(self, identity: str) -> None:
        """See Records."""
        self._records.given_up(identity, self.wall_ms())

    def reject(self, identity: str, reason: str) -> None:
        """See Records."""
        self._records.reject(identity, reason)

    def give_back(self, identity: str, *, again: bool) -> None:
        """See Records."""
        self._records.give_back(identity, again=again)

    def forgive(self, identity: str) -> None:
        """See Records."""
        self._records.forgive(identity)


def _again(identity: str) -> str:
    """What an operator can do about a version that is not tried any more."""
    key, _, what = identity.rpartition("@")
    if is_digest(what):
        return f"'appliance model want {key}' asks for it again"
    return f"change its files, or ask for it again: 'appliance model load {key.partition('/')[0]}', or SIGHUP"


def pause_ms(standing: Standing, config: RolloutPolicy, now_ms: int) -> int:
    """What is left at ``now_ms`` of the pause since ``standing`` was noted; all of it where that lies in the future."""
    doublings = min(standing.again, DOUBLINGS_MAX)
    longest_s = max(config.retry_max_s, config.retry_first_s)
    pause = int(min(config.retry_first_s * 2**doublings, longest_s) * 1_000)
    if not standing.at_ms:
        return pause
    return min(max(standing.at_ms + pause - now_ms, 0), pause)
