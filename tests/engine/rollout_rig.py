"""The rollout's core with somebody who does what it wants, at once and without workers."""

from __future__ import annotations

from collections import deque
from functools import partial

from appliance.core.memory.budget import WaitsForMemory
from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.attempt import Contender, Steps
from appliance.core.rollout.catalog import TrialWish
from appliance.core.rollout.events import Figures
from appliance.core.rollout.phase import SERVING
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.rollout import Rollout
from appliance.core.rollout.version import Version, VersionSpec
from appliance.domain.histogram import BOUNDS_NS
from appliance.domain.model import ModelVersion
from appliance.engine.control.recorder import Recorder, SwapTerms
from appliance.engine.versions.records import MemoryRecords
from tests.domain.sample import make_version

NOW_MS = 1_800_000_000_000
NOTHING = Figures(0, 0, (0,) * (len(BOUNDS_NS) + 1))


class RolloutRig:
    """A version that is to be loaded is there at once if they ``open``. ``waits_for`` is what version 1 waits for,
    ``room`` whether there is memory for it; ``resting``: what is proven begins without."""

    def __init__(self, records: MemoryRecords | None = None, config: RolloutPolicy | None = None) -> None:
        self.records = records or MemoryRecords()
        self.config = config or RolloutPolicy(watch_s=600.0)
        self.recorder = Recorder(SwapTerms(self.config, self.records, lambda model: "box"), lambda: NOW_MS)
        self.core = Rollout(self.config, self.recorder)
        self.room = True
        self.waits_for: WaitsForMemory | None = None
        self.resting = False
        self.opens = True
        self.done: list[do.Action] = []
        self._told: deque[told.Event] = deque()

    # --- who does it

    def tell(self, event: told.Event, now_ns: int = 0) -> None:
        """Let it happen, with whatever follows at once."""
        self._told.append(event)
        self.drain(now_ns)

    def drain(self, now_ns: int) -> None:
        """Do what is wanted, until nothing is."""
        while self._told:
            self._perform(self.core.step(self._told.popleft(), now_ns), now_ns)

    def carry_out(self, steps: Steps, now_ns: int = 0) -> None:
        """Let a part of the core go through its ``steps``."""
        self._perform(list(self.core.carry_out(steps, now_ns)), now_ns)
        self.drain(now_ns)

    def _perform(self, actions: list[do.Action], now_ns: int) -> None:
        self.done += actions
        for action in actions:
            match action:
                case do.ReserveMemory():
                    self._told.append(self._memory(action))
                case do.ReadFigures():
                    read = told.FiguresRead(action.version, NOTHING, NOTHING, NOTHING, action.reference)
                    self._told.append(read)
                case do.RecordAttempts():
                    self.recorder.record_attempts(action, partial(self._recorded, action.versions))
                case do.Load():
                    self._told.extend(told.Opened(version) for version in action.versions if self.opens)
                case (
                    do.Forgive()
                    | do.GiveBack()
                    | do.Reject()
                    | do.GiveUp()
                    | do.Prove()
                    | do.Seat()
                    | do.Note()
                    | do.Retried()
                ):
                    self.recorder.perform(action)

    def _recorded(self, versions: tuple[int, ...], problem: str | None) -> None:
        self._told.append(told.AttemptsRecorded(versions, problem))

    def _memory(self, action: do.ReserveMemory) -> told.MemoryAnswered:
        if action.rest and self.resting:
            return told.MemoryAnswered(action.version, asked=False, rests=True)
        if not action.reserve:
            return told.MemoryAnswered(action.version, asked=False)
        there = self.room or self.core.registry.versions[action.version].model.version != 1
        return told.MemoryAnswered(action.version, there=there, reason=None if there else self.waits_for)

    # --- what is there

    def version(self, number: int, files: str = "d", model: ModelVersion | None = None) -> Version:
        """One that is here; what its number means, unless another one of it is."""
        model = model or make_version("m", number)
        spec = VersionSpec(
            id=self.core.registry.take_id(), model=model, fingerprint=files, identity=f"m/{number}@{files}"
        )
        version = Version(spec=spec)
        self.core.registry.versions[version.id] = version
        if self.core.registry.find(version.slot) is None:
            self.core.registry.put(version)
        return version

    def try_(
        self,
        version: Version,
        before: Version | None = None,
        wish: TrialWish | None = None,
        *,
        background: bool = False,
        fallen: bool = False,
        order: bool = False,
        allowed: bool = False,
        now_ns: int = 0,
    ) -> None:
        """It is to serve in the place of ``before``; ``start`` starts it."""
        contender = Contender(
            version=version,
            before=before,
            wish=wish,
            background=background,
            fallen=fallen,
            order=order,
            allowed=allowed,
        )
        self.core.trials.begin(contender, now_ns)

    def start(self, now_ns: int = 0) -> None:
        """Start what may start."""
        self.tell(told.Tick(frozenset(), NOW_MS), now_ns)

    def open(self, version: Version) -> None:
        """Its workers hold it."""
        self.tell(told.Opened(version.id))

    def stage_of(self, version: Version) -> str:
        """How far its attempt has come; "" where there is none."""
        return version.phase.value if version.id in self.core.trials.attempts else ""

    @property
    def serving(self) -> list[Version]:
        """What serves."""
        return [each for each in self.core.registry.versions.values() if each.phase in SERVING]
