"""The part of WorkerPort that concerns the native front end, for workers that share no memory with one."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.domain.model import ModelVersion
from appliance.workers import port


class WithoutMemory:
    """To be mixed in."""

    @property
    def rings(self) -> bool:
        return False

    def memory(self, worker: int) -> port.LaneMemory | None:
        return None

    def grown(self, worker: int) -> Mapping[int, int]:
        return {}

    def learn(self, worker: int, learn: port.Learn) -> None:
        raise AssertionError("nobody can use it")

    def forget(self, worker: int, plans: tuple[int, ...]) -> None:
        raise AssertionError("nothing was learned")

    def run_timeout_ns(self, version: ModelVersion) -> int:
        return 10_000_000_000
