"""Turns of an engine in a simulated world: one in the same instant, after what is going on, or one at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod

from appliance.engine.engine import Engine
from tests.simulation.scripted_workers import World


class EngineTurns(ABC):
    """What of a Pace is the same in every world; ``check`` holds after each turn."""

    world: World
    engine: Engine
    _turn_asked = False

    @abstractmethod
    def check(self) -> None:
        """Assert what must always hold."""

    def broken(self, error: BaseException) -> None:
        """It must not be."""
        raise AssertionError("the engine broke") from error

    def at(self, at_ns: int) -> None:
        """A turn at this time."""
        self.world.at(at_ns, self.soon)

    def soon(self) -> None:
        """A turn in the same instant, after what is going on."""
        if not self._turn_asked:
            self._turn_asked = True
            self.world.after(0, self._run_turn)

    def _run_turn(self) -> None:
        self._turn_asked = False
        self.engine.turn()
        self.check()
        self.engine.hand_out()
