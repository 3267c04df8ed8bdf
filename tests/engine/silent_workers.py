"""Workers that do nothing and note what they were asked for."""

from __future__ import annotations

from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.workers import port
from appliance.workers.settings import WorkerSettings
from tests.workers.without_memory import WithoutMemory


class SilentWorkers(WithoutMemory):
    """Implements WorkerPort. ``asked`` holds the names of the calls, in order; ``loads`` who was to load what,
    ``built`` of which versions a form was to be built, ``rooms`` in how much memory of their devices."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.loads: list[tuple[int, int, LoadWish]] = []
        self.built: list[ModelVersion] = []
        self.rooms: list[int] = []

    def start(self, worker: int, group: int, settings: WorkerSettings) -> None:
        self.asked.append("start")

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        self.asked.append("load")
        self.loads.append((worker, model, wish))

    def evict_weights(self, worker: int, model: int) -> None:
        self.asked.append("evict_weights")

    def page_in(self, worker: int, model: int) -> None:
        self.asked.append("page_in")

    def build_form(self, worker: int, model: int, version: ModelVersion, room_bytes: int = 0) -> None:
        self.asked.append("build_form")
        self.built.append(version)
        self.rooms.append(room_bytes)

    def dispatch(self, worker: int, run: port.Run) -> None:
        self.asked.append("dispatch")

    def unload(self, worker: int, model: int) -> None:
        self.asked.append("unload")

    def fetch(self, worker: int, fetch: port.Fetch) -> None:
        self.asked.append("fetch")

    def stop(self, worker: int) -> None:
        self.asked.append("stop")

    def kill(self, worker: int, cause: ExitCause) -> None:
        self.asked.append("kill")
