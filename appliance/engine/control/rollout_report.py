"""What there is to tell of versions: to people, to the index of models, and to front ends, which hand on those headers
that rollouts look at. Changes nothing. Owner: the rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.core.rollout.attempt import key_of
from appliance.core.rollout.retries import tries_left
from appliance.core.rollout.rollout import Rollout
from appliance.engine.control.instance_groups import InstanceGroups
from appliance.engine.control.memory_port import MemoryPort
from appliance.engine.control.recorder import Recorder
from appliance.engine.control.traffic import Traffic
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.version_status import said_of, version_status
from appliance.engine.versions.wording import Said
from appliance.telemetry.snapshot import SwapFigures, VersionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """Asks ``core`` what it decided, and the others what came of that. ``memory`` None: nothing is in memory yet."""

    core: Rollout
    routes: Routes
    groups: InstanceGroups
    traffic: Traffic
    recorder: Recorder
    memory: MemoryPort | None

    def said(self) -> dict[int, Said]:
        """What there is to say of each version, by its id."""
        registry = self.core.registry
        return {served.id: said_of(served, registry) for served in self.routes.all()}

    def headers(self) -> tuple[str, ...]:
        """Headers by whose values requests are led to versions on trial."""
        return self.traffic.headers(self.core.trials.splits)

    def figures(self) -> SwapFigures:
        """For people, as of now."""
        return self.recorder.figures(self.traffic.taken(self.core.trials.splits))

    def version_statuses(
        self, queued: Mapping[int, int], running: Mapping[int, int], held: Mapping[int, int]
    ) -> tuple[VersionStatus, ...]:
        """All versions, for people; ``queued`` and ``running`` count requests by model id, ``held`` clients."""
        said = self.said()
        return tuple(
            version_status(
                served,
                said=said[served.id],
                queued=queued.get(served.id, 0),
                running=running.get(served.id, 0),
                held_clients=held.get(served.id, 0),
                workers=self.groups.holders(served),
                memory=self.memory.memory_of(served) if self.memory is not None else (0, 0),
                trial=self.traffic.status(self.core.trials.attempts.get(served.id)),
                tries_left=tries_left(self.recorder.standing(key_of(served.version)), self.core.config),
                next_try_ms=self.core.retries.next_try_ms(served.version),
            )
            for served in self.routes.all()
        )
