"""A world for the rollout's core alone: no workers, no requests, no scheduler; everything follows from a seed.

A model of what each version is worth says what must serve at the end: a version has a fate, which its loads, its
figures and its crashes follow. Catalogs come and go, some of them as orders; memory is short now and then; the daemon
dies and starts anew with the records that there are. After every step these hold:

* an order of what is proven here is compared with nothing, and fails only where its load does;
* the same id is loaded once, after its attempt was counted, and never more in the background than there are places;
* names mean a version that is there; what may answer never has a fate that is found out before it serves;
* once something serves a model, something does until nothing of it is wanted;
* what clients of the version that served cannot talk to serves only where the wish allows it, or it served before.

At the end the wanted version serves if it is sound and clients can talk to it, and nothing is on its way or leaves.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from dataclasses import replace

from appliance.core.memory.budget import WaitsForIdle
from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.rollout.events import Figures
from appliance.core.rollout.phase import ON_ITS_WAY, SERVING, Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.rollout import Rollout
from appliance.core.rollout.version import Version
from appliance.domain.histogram import BOUNDS_NS
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.engine.control.recorder import Recorder, SwapTerms
from appliance.engine.versions.records import MemoryRecords, Records
from tests.domain.sample import make_version

SECOND = 1_000_000_000
SOUND, REFUSED, CRASHES, FAILS, UNLIKE = "sound", "refused", "crashes", "fails", "unlike"
FATES = (SOUND, SOUND, SOUND, REFUSED, CRASHES, FAILS, UNLIKE)
NEVER_SERVE = (REFUSED, CRASHES)
RUNS = (0,) * (len(BOUNDS_NS) + 1)


class RolloutWorld:
    """One run: a core, and whoever does what it wants."""

    def __init__(self, seed: int) -> None:
        self.rand = rand = random.Random(seed)
        self.policy = RolloutPolicy(
            loads=rand.choice((1, 2)),
            tries=rand.choice((1, 3)),
            shadow_percent=rand.choice((0.0, 50.0)),
            canary_percent=rand.choice((0.0, 20.0)),
            trial_requests=5,
            stage_s=0.5,
            error_percent=0.0,
            differing_percent=0.0,
            watch_s=rand.choice((0.0, 5.0)),
        )
        self.records: Records = MemoryRecords()
        self.now = 0
        self.fates: dict[str, str] = {}
        self.wanted: dict[str, CatalogVersion] = {}
        self.before: dict[str, CatalogVersion] = {}
        self.full = False
        self.endings = 0
        self.held = 0
        self.ever_served: set[str] = set()
        self._files = 0
        for name in ("a", "b"):
            self.wish(name, 1, SOUND)
        self.boot()

    def boot(self) -> None:
        """A daemon that begins, with the records there are."""
        recorder = Recorder(SwapTerms(self.policy, self.records, lambda model: "box"), self.wall_ms)
        self.recorder, self.core = recorder, Rollout(self.policy, recorder)
        self.versions: dict[int, Version] = {}
        self.loading: dict[int, bool] = {}
        self.counted: set[int] = set()
        self.answered: dict[int, int] = {}
        self.splits: dict[int, int] = {}
        self.told: deque[told.Event] = deque()
        self.names: dict[tuple[str, int], int] = {}
        self.served: set[str] = set()
        self.live: dict[str, CatalogVersion] = {}
        self.apply()

    def wall_ms(self) -> int:
        return 1_800_000_000_000 + self.now // 1_000_000

    # --- what is wanted

    def wish(
        self,
        name: str,
        number: int,
        fate: str,
        *,
        order: bool = False,
        inputs: str = "x",
        allowed: bool = False,
    ) -> None:
        """``inputs`` are what its input is called, which is all that clients know; ``allowed``: they change along."""
        self._files += 1
        spec = TensorSpec(name=inputs, datatype=Datatype.FP32, shape=(4,))
        model, files = make_version(name, number, inputs=(spec,)), str(self._files)
        if name in self.wanted:
            self.before[name] = self.wanted[name]
        self.wanted[name] = CatalogVersion(
            model=model, fingerprint=files, order=order, interface_change=allowed
        )
        self.fates[self.wanted[name].identity] = fate

    def apply(self, asked: frozenset[str] = frozenset()) -> None:
        catalog = Catalog(versions=tuple(self.wanted.values()))
        self.tell(told.Wanted(catalog=catalog, asked=asked, wall_ms=self.wall_ms()))

    # --- what is done

    def tell(self, event: told.Event) -> None:
        """Let it happen, with whatever follows at once."""
        self.told.append(event)
        touched = False
        while self.told:
            for action in self.core.step(self.told.popleft(), self.now):
                touched |= isinstance(action, do.Touch)
                self.perform(action)
        self.check()
        if touched:
            self.tell(told.Changed(self.wall_ms()))

    def perform(self, action: do.Action) -> None:
        match action:
            case do.Add():
                assert action.version.id not in self.versions, "added twice"
                self.versions[action.version.id] = action.version
            case do.Route():
                self.names[self.versions[action.version].slot] = action.version
            case do.Unroute():
                assert self.names.pop(self.versions[action.version].slot) == action.version
            case do.ReserveMemory():
                self.told.append(self.memory(action))
            case do.RecordAttempts():
                self.counted |= set(action.versions)
                self.recorder.record_attempts(action, lambda problem: None)
                self.told.append(told.AttemptsRecorded(action.versions, None))
            case do.Load():
                for version in action.versions:
                    self.load(version)
            case do.Unload() | do.Forget():
                self.loading.pop(action.version, None)
                if isinstance(action, do.Forget):
                    del self.versions[action.version]
            case do.Split():
                assert not self.ordered(action.version), "an order is compared"
                assert action.before not in self.splits, "two trials beside one version"
                assert self.versions[action.before].phase in SERVING
                self.splits[action.before] = action.version
            case do.Unsplit():
                assert self.splits.pop(action.before) == action.version
            case do.ReadFigures():
                self.told.append(self.figures(action))
            case (
                do.Forgive()
                | do.GiveBack()
                | do.Reject()
                | do.GiveUp()
                | do.Prove()
                | do.Seat()
                | do.Retried()
            ):
                self.recorder.perform(action)
            case do.Note():
                self.endings += 1
                self.recorder.perform(action)

    def ordered(self, version: int) -> bool:
        """Whether it is an order of a version that is proven here."""
        model = self.versions[version].model
        entry = self.wanted.get(model.name)
        wanted = entry is not None and entry.order and entry.identity == self.versions[version].identity
        return wanted and self.core.trials.attempts[version].known

    def memory(self, action: do.ReserveMemory) -> told.MemoryAnswered:
        if action.rest and self.full:
            return told.MemoryAnswered(action.version, asked=False, rests=True)
        if not action.reserve:
            return told.MemoryAnswered(action.version, asked=False)
        if not self.full:
            return told.MemoryAnswered(action.version, there=True)
        reason = WaitsForIdle(need_bytes=1) if self.rand.random() < 0.5 else None
        return told.MemoryAnswered(action.version, reason=reason, again_ns=self.now + SECOND)

    def load(self, version: int) -> None:
        attempt = self.core.trials.attempts[version]
        assert version not in self.loading, "loaded twice"
        assert attempt.known or version in self.counted, "loaded before it was counted"
        self.loading[version] = attempt.contender.background

    def figures(self, action: do.ReadFigures) -> told.FiguresRead:
        new = self.fate(action.version)
        failed = self.answered.get(action.version, 0) if new == FAILS else 0
        answered = self.answered.get(action.version, 0) - failed
        mine = Figures(answered, failed, RUNS)
        return told.FiguresRead(action.version, mine, mine, Figures(100, 0, RUNS), action.reference)

    def fate(self, version: int) -> str:
        return self.fates.get(self.versions[version].identity, SOUND)

    # --- time

    def tick(self) -> None:
        """A moment passes: loads end, requests are answered, what leaves has drained."""
        self.now += self.rand.randrange(1, SECOND)
        for version in [each for each in self.loading if self.rand.random() < 0.5]:
            if version in self.loading:
                self.end_load(version)
        for each in list(self.versions.values()):
            if each.phase in (Phase.CANARY, Phase.WATCHED, Phase.SHADOW):
                self.answered[each.id] = self.answered.get(each.id, 0) + self.rand.randrange(10)
            if each.phase is Phase.SHADOW:
                self.tell(told.Compared(each.id, "differs" if self.fate(each.id) == UNLIKE else None))
        self.tell(told.Tick(frozenset(each for each, aside in self.loading.items() if aside), self.wall_ms()))
        leaving = tuple(each.id for each in self.core.registry.leaving if self.rand.random() < 0.5)
        if leaving:
            self.tell(told.Drained(leaving))

    def end_load(self, version: int) -> None:
        fate = self.fate(version)
        del self.loading[version]
        if fate == REFUSED:
            self.tell(told.Refused(version, "golden case 'a' differs"))
        elif fate == CRASHES:
            self.tell(told.Crashed(version, "died", repeated=True))
        else:
            self.tell(told.Loaded(version, None, (), packed=False))
            self.tell(told.Opened(version))

    def check(self) -> None:
        """The invariants that hold after every step."""
        registry = self.core.registry
        occupied = sum(self.loading.values())
        assert occupied <= self.policy.loads, "more loads in the background than there are places"
        for slot, version in self.names.items():
            assert registry.find(slot) is self.versions[version], "names are not as they were told to be"
        for name in ("a", "b"):
            current = registry.current(name)
            if current is not None:
                self.served.add(name)
                assert self.fate(current.id) not in NEVER_SERVE, "what was refused serves"
                self.check_clients(name, current)
            else:
                self.live.pop(name, None)
            if current is None and name in self.served:
                assert name not in self.wanted, f"nothing serves {name}"
        for attempt in self.core.trials.attempts.values():
            assert attempt.phase in ON_ITS_WAY | {Phase.WATCHED}, "an attempt that is over"

    def check_clients(self, name: str, current: Version) -> None:
        """Clients of what served until now can talk to what does."""
        before, wanted = self.live.get(name), self.wanted[name]
        if before is not None and before.model.inputs != current.model.inputs:
            allowed = wanted.identity == current.identity and wanted.interface_change
            known = current.identity in self.ever_served
            assert allowed or known, f"clients of {before.model.key} cannot talk to {current.model.key}"
        self.live[name] = CatalogVersion(model=current.model, fingerprint=current.spec.fingerprint)
        self.ever_served.add(current.identity)

    def is_held(self, entry: CatalogVersion, current: Version) -> bool:
        """Whether clients keep what is wanted from serving."""
        proof = self.recorder.proof(entry.identity, entry.model)
        free = entry.interface_change or (proof is not None and proof.proven)
        return not free and entry.model.inputs != current.model.inputs

    # --- the run

    def play(self, steps: int = 40) -> None:
        """Let things happen, and then come to their end."""
        rand = self.rand
        for _ in range(12):
            self.tick()
        for _ in range(steps):
            draw = rand.random()
            name = rand.choice(("a", "b"))
            if draw < 0.07 and name in self.before:
                back = replace(self.before[name], order=rand.random() < 0.7)
                self.before[name], self.wanted[name] = self.wanted[name], back
                self.apply()
            elif draw < 0.1:
                self.wanted[name] = replace(self.wanted[name], order=True)
                self.apply()
            elif draw < 0.23:
                number = self.wanted[name].model.version + rand.choice((0, 1))
                inputs, allowed = rand.choice("xxxz"), rand.random() < 0.3
                fate, order = rand.choice(FATES), rand.random() < 0.2
                self.wish(name, number, fate, order=order, inputs=inputs, allowed=allowed)
                self.apply()
            elif draw < 0.28:
                self.apply(frozenset({name}))
            elif draw < 0.3:
                self.wanted[name] = replace(self.wanted[name], interface_change=True)
                self.apply()
            elif draw < 0.33:
                self.full = not self.full
            elif draw < 0.36:
                self.boot()
            self.tick()
        self.full = False
        self.apply(frozenset(self.wanted))  # where the daemon died too often meanwhile, somebody asks again
        for _ in range(60):
            self.tick()
        self.check_end()

    def check_end(self) -> None:
        """What was wanted last serves if it is sound, and nothing is left."""
        registry = self.core.registry
        for name, entry in self.wanted.items():
            if self.fates[entry.identity] == SOUND:
                current = registry.current(name)
                assert current is not None, f"{name} does not serve"
                if self.is_held(entry, current):
                    self.held += 1
                    continue
                assert current.identity == entry.identity, f"{entry.model.key} is sound and does not serve"
        assert not self.core.trials.attempts or self.policy.watch_s, "an attempt without an end"
        assert not self.splits, "a trial without an end"
        assert not self.loading
        assert not registry.leaving
        kept = {each.id for each in registry.named()} | {each.id for each in registry.incoming.values()}
        standby = {each.id for each in self.versions.values() if each.phase is Phase.STANDBY}
        assert set(self.versions) <= kept | standby, "versions were left behind"


def main() -> None:
    """Replay one seed and print what happened."""
    world = RolloutWorld(int(sys.argv[1]))
    try:
        world.play()
    finally:
        for change in world.records.history(""):
            print(change)


if __name__ == "__main__":
    main()
