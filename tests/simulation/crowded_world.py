"""A world of swaps in too little memory: versions move in and out of it while others take their names, and come back.

As the world of swaps, by seed; some processes take their time to end, runs make models take more memory, and half of
the wishes are for the one before.
A request may be refused for want of memory, or fail with its version where no other can be asked, being out of memory;
none ends because its version was replaced. Where models share a process, one of them may die with it, twice.

* What serves is looked after, and is as open as it is known to be: after every turn. What is cold is never open.
* What is sound and wanted serves at the end, and whatever serves answers.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from functools import partial

from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.footprint import PROCESS_BYTES, Residency
from appliance.core.memory.model import Move
from appliance.core.rollout.phase import SERVING
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.errors import InvalidRequest, ModelAway, RunFailed, WorkerDied
from appliance.domain.inference import Answer, Outcome
from appliance.domain.model import ModelVersion
from tests.engine.memory_terms import terms_of
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import NEVER_SERVES, REFUSED_TWICE, SOUND, FatedWorkers, SwapWorld, fate_of

MODEL_BYTES = 3 * PROCESS_BYTES + 3000
CROWDED_FATES = (SOUND, SOUND, SOUND, SOUND, *NEVER_SERVES, "failing", REFUSED_TWICE)


class LingeringWorkers(FatedWorkers):
    """Some take up to ``linger_ms`` to end when they are told to."""

    linger_ms = 80
    evictable_bytes = 2 * PROCESS_BYTES
    growth = 0.3

    def stop(self, worker: int) -> None:
        self._stopping.add(worker)
        lingers = self._world.random.random() < 0.3
        wait = self._world.random.randrange(self.linger_ms) * MS if lingers else 0
        self._later(worker, wait, partial(super().stop, worker))


class CrowdedWorld(SwapWorld):
    """One run. ``models`` is how many there is room for."""

    workers_type = LingeringWorkers

    def __init__(self, seed: int, *, names: int = 4) -> None:
        rand = random.Random(seed)
        budget_bytes = int(rand.choice((1.5, 2.5, 3.5)) * MODEL_BYTES)
        swap = RolloutPolicy(
            loads=rand.choice((1, 2)),
            canary_percent=rand.choice((0.0, 50.0)),
            trial_requests=5,
            stage_s=0.02,
            patience_s=0.2,
            watch_s=rand.choice((0.2, 1.0)),
        )
        residency = terms_of(ResidencyPolicy(retry_ns=20 * MS), budget_bytes, 1 << 40)
        super().__init__(seed, names=names, swap=swap, residency=residency)
        self._wished: dict[str, list[ModelVersion]] = {name: [model] for name, model in self.wanted.items()}

    def change(self, name: str) -> None:
        """Another version, or the one before."""
        wished = self._wished[name]
        if len(wished) > 1 and self.world.random.random() < 0.5:
            wished.append(wished[-2])
            self.wanted[name] = wished[-1]
            self.apply()
        else:
            wished.append(self.wish(name, self.world.random.choice(CROWDED_FATES)))

    def client(self, name: str) -> None:
        tags = set(self.pending)
        with suppress(ModelAway):
            super().client(name)
            return
        self.pending &= tags

    def _done(self, tag: int, outcome: Outcome) -> None:
        if isinstance(outcome, Answer):
            super()._done(tag, outcome)
            return
        self.pending.remove(tag)
        neighbour = isinstance(outcome, WorkerDied) and self.max_processes == 2  # which loaded, twice
        assert neighbour or isinstance(outcome, ModelAway | RunFailed | InvalidRequest), (
            f"a request ended with {outcome!r}"
        )

    def check(self) -> None:
        super().check()
        memory = self.engine._cache._memory
        memory.check_integrity()
        models = {model.model: model for model in memory.models()}
        for served in self.engine._routes.all():
            assert served.memory.residency is not Residency.COLD or not served.opened, served
            if served.phase in SERVING:
                model = models[served.id]
                assert model.move is not Move.NONE or model.residency is served.memory.residency, served
                assert model.move is not Move.NONE or served.opened is (
                    served.memory.residency is Residency.RESIDENT
                ), served
                assert model.move is not Move.NONE or not served.memory.returning, served

    def check_end(self, name: str) -> None:
        wanted, current = self.wanted[name], self.engine._routes.current(name)
        assert current is not None
        assert fate_of(wanted) != SOUND or current.model == wanted, (
            f"{wanted.key} is sound and does not serve"
        )
        before = sum(self.answers.values())
        for _ in range(8):
            self.client(name)
            self.world.run(self.world.now + 1_000 * MS)
        assert sum(self.answers.values()) > before, f"{current.key} serves and does not answer"


def main() -> None:
    """Replay one seed and print what served."""
    world = CrowdedWorld(int(sys.argv[1]))
    world.play(swaps=12)
    print(dict(world.answers))


if __name__ == "__main__":
    main()
