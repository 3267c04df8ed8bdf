"""What a trial comes to, as a port: whoever keeps versions and their workers does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.core.rollout.reasons import WaitReason
from appliance.engine.control.candidate import Candidate
from appliance.engine.versions.routes import Served


class Board(Protocol):
    """Who does what a trial comes to."""

    def start(self, fresh: Sequence[Served], now_ns: int, *, alone: bool) -> None:
        """Give them workers and load them."""

    def waits(self, candidate: Candidate, reason: WaitReason | None) -> None:
        """It waits for what may never come, or no more."""

    def loading_aside(self) -> set[int]:
        """The ids of versions that load in the background, whether or not anybody waits for them any more."""

    def flip(self, candidate: Candidate, now_ns: int) -> None:
        """From the next request on it serves."""

    def rest(self, resting: Sequence[Served], now_ns: int) -> None:
        """They serve from the next request on, out of memory."""

    def reject(self, candidate: Candidate, reason: str, now_ns: int) -> None:
        """It will not serve; what served goes on."""

    def roll_back(self, candidate: Candidate, reason: str, now_ns: int) -> None:
        """It serves no more, and what served before does again."""

    def spare(self, before: Served, now_ns: int) -> None:
        """Nobody will go back to it."""

    def proven(self, served: Served) -> None:
        """Its trial is over, and it serves."""

    def diverted(self) -> None:
        """Which requests go where has changed."""

    def current(self, name: str) -> Served | None:
        """What serves ``name`` now."""
