"""A world of power cuts: versions that take the box down soon after they go live, some of them for ever.

Everything follows from a seed: which versions do so and how often, when the power fails, how long the box is dark, and
where its wall clock stands then. What was counted is on the disk; all else of a daemon goes with it. After every turn:

* at most one version that had been given up is being tried, and nothing else of its model serves;
* it was left alone for as long as its pause says, unless the wall clock has jumped meanwhile.

At the end every version serves that stopped taking the box down, and the others were tried seldom.
"""

from __future__ import annotations

import random
import sys
from functools import partial

from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.records import Standing
from appliance.core.rollout.retries import pause_ms
from appliance.domain.model import VersionState
from tests.simulation.scripted_workers import MS, World
from tests.simulation.swap_world import SwapWorld, fate_of, version_of

SECOND = 1_000 * MS
DAY = 24 * 3600 * SECOND
DAYS = 6
ROT = "refused"


class PowerCutWorld(SwapWorld):
    """One run of DAYS days. ``jumps``: the wall clock is lost with the power now and then."""

    def __init__(self, seed: int, *, names: int = 4, jumps: bool = False) -> None:
        self._offset_ms = 0
        self._jumps = jumps
        self._cut_at = 0
        self._counted: dict[str, tuple[int, Standing]] = {}
        self.cuts = 0
        fates = random.Random(seed)
        self.lethal = {f"m{number}": fates.choice((0, 2, 4, 7, 10_000)) for number in range(names)}
        super().__init__(seed, names=names, swap=RolloutPolicy(loads=4, tries=3, watch_s=30.0))
        self.rotten = fates.choice(self.names)
        self.wanted[self.rotten] = version_of(self.rotten, 1, ROT)
        self.lethal[self.rotten] = 0

    def wall_ms(self) -> int:
        return self._offset_ms + super().wall_ms()

    def check(self) -> None:
        self.scheduler.check_integrity()
        served = [each for each in self.engine._routes.all() if each.state is VersionState.READY]
        attempts = self.engine._rollouts._core.trials.attempts
        again = [each for each in attempts.values() if each.contender.again]
        assert len(again) <= 1, "several risky tries at once"
        for candidate in again:
            others = [each for each in served if each.model.name == candidate.version.model.name]
            assert [each.version for each in others] in ([], [candidate.version]), "something else serves"
        self._check_pauses()
        lethal = [each for each in served if self.lethal[each.model.name] and each.id in attempts]
        if lethal and not self._cut_at:
            self._cut_at = self.world.now + self.world.random.randrange(25) * SECOND
            self.world.at(self._cut_at, self.cut)

    def _check_pauses(self) -> None:
        for identity, standing in self.records.standings.items():
            at, before = self._counted.get(identity, (0, Standing()))
            if standing == before:
                continue
            if standing.again > before.again and not self._jumps:
                pause = (pause_ms(before, self.config, before.at_ms) or 0) * MS
                assert self.world.now - at >= pause, f"{identity} had {self.world.now - at} ns of {pause}"
            self._counted[identity] = (self.world.now, standing)
        for identity in self._counted.keys() - self.records.standings.keys():
            del self._counted[identity]

    def cut(self) -> None:
        """The power fails, and comes back."""
        for served in self.engine._routes.all():
            name = served.model.name
            self.lethal[name] -= served.state is VersionState.READY and self.lethal[name] > 0
        self.cuts += 1
        self._cut_at = 0
        rand = self.world.random
        if self._jumps and rand.random() < 0.5:
            self._offset_ms = rand.choice((-1, 1, 400)) * rand.randrange(DAY // MS)
        self.reboot(rand.randrange(20, 90) * SECOND)

    def live(self, days: int = DAYS) -> None:
        """Let the days pass, and see what came of the versions."""
        end = self.world.now + days * DAY
        self.apply()
        while self.world.now < end:
            world = self.world
            world.run_while(partial(self._is_at, world), end)
        for name in self.names:
            self._check_name(name)
        self.engine.stop_workers()
        self.arena.close()

    def _is_at(self, world: World) -> bool:
        """Whether the power has not failed since."""
        return self.world is world

    def _check_name(self, name: str) -> None:
        standing = self.records.standing(f"{name}/1@first")
        current = self.engine._routes.current(name)
        if name == self.rotten or self.lethal[name] > 1_000:
            assert (
                self.config.tries
                <= standing.tries
                <= self.config.tries + 9 + DAYS * (5 if self._jumps else 1)
            )
            assert name != self.rotten or current is None
        else:
            assert current is not None, f"{name} is sound and does not serve: {standing}"
            assert fate_of(current.model) != ROT


def main() -> None:
    """Replay one seed and print its history."""
    world = PowerCutWorld(int(sys.argv[1]), jumps=len(sys.argv) > 2)
    world.live()
    for change in world.records.history(""):
        print(change.at_ms, f"{change.name}/{change.version}", change.ending.value, change.reason)
    print(world.cuts, "power cuts")


if __name__ == "__main__":
    main()
