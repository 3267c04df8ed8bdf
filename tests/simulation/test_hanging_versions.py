"""A version on trial whose runs hang is given up while its next worker is there already: what went to that one as well
does not hang in it for as long as any run may take."""

from __future__ import annotations

import pytest

from appliance.core.rollout.policy import RolloutPolicy
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import SOUND, FatedWorkers, SwapWorld, fate_of

HANGS = "hangs"
SOON_MS = 10_000
"""Nothing ends a run that hangs here but the engine, which gives such a version a second or two."""


class HangingWorkers(FatedWorkers):
    """The first version answers so slowly that there is another worker of the second before it is known what its first
    one hung of."""

    def _begin(self, worker: int) -> None:
        run = self._queues[worker][0]
        hangs = fate_of(self._holds[worker][run.model]) == HANGS
        if not hangs:
            self._later(worker, self._world.random.randrange(1, 200) * MS, lambda: self._end(worker, run))


class HangingWorld(SwapWorld):
    """A world of one model."""

    workers_type = HangingWorkers


@pytest.mark.parametrize("canary", [0.0, 50.0])
@pytest.mark.parametrize("seed", range(20))
def test_no_request_hangs_with_a_version_that_is_given_up(seed: int, canary: float) -> None:
    swap = RolloutPolicy(watch_s=60.0, canary_percent=canary, trial_requests=10_000, error_percent=0.0)
    world = HangingWorld(seed, names=1, swap=swap)
    world.start()
    world.wanted["m0"] = world.next_version("m0", HANGS)
    world.apply()
    world.world.run(world.world.now + 300 * MS)
    for _ in range(60):
        world.world.after(world.world.random.randrange(2_000) * MS, lambda: world.client("m0"))
    world.world.run(world.world.now + 2_000 * MS)
    world.world.run_while(lambda: bool(world.pending), world.world.now + SOON_MS * MS)
    assert not world.pending
    assert {fate for _, _, fate in world.answers} == {SOUND}
    world.settle()
