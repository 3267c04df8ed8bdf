"""A world of orders in which nobody says ``--force``: what has served once leaves something that serves.

Versions fail before they serve or not at all, files stay whole, and a daemon that is killed has written what it had to.
Then, as long as anything of the model is wanted, something serves whenever nothing more is to come: also where the
version that is wanted fails, others are uninstalled, and the daemon starts anew.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from appliance.cli.model import retention
from tests.simulation.order_world import NAME, OrderWorld, play
from tests.simulation.rollout_world import CRASHES, REFUSED, SOUND


class CarefulWorld(OrderWorld):
    """One history without force. ``spared`` counts the refusals to uninstall what served last."""

    may_be: Sequence[str] = (SOUND, SOUND, REFUSED, CRASHES)
    has_served = False
    spared = 0

    def uninstall(self, number: int) -> None:
        if self.alive:
            self.write()
        said = len(self.log)
        if self.command(retention.UNINSTALL.run, f"{NAME}/{number}") is not None:
            assert self.book.may_uninstall(number), f"uninstall of {number}"
            self.book.uninstall(number)
            return
        refused = any("is the last version of" in line for line in self.log[said:])
        assert refused or not self.book.may_uninstall(number), f"{number} could be uninstalled"
        self.spared += refused

    def damage(self, number: int) -> None:
        """Files stay whole here."""

    def kill(self) -> None:
        self.write()
        super().kill()

    def order(self) -> None:
        super().order()
        if not self.book.wanted:
            self.has_served = False

    def settle(self) -> None:
        super().settle()
        assert self.serving or not self.has_served, f"nothing serves, and {self.book.wanted} is wanted"
        self.has_served = self.has_served or bool(self.serving)


def main() -> None:
    """Replay a seed and print what happened."""
    print("\n".join(play(int(sys.argv[1]), CarefulWorld).log))


if __name__ == "__main__":
    main()
