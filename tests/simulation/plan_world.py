"""A box and its agent, by seed: documents come, people interfere, the daemon judges versions, the agent is killed.

The catalog changes by the store's own edits. What is made up is the daemon (each version has a fate), the link, and
what a step of the agent leaves undone when it is killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from appliance.domain.digest import digest_of
from appliance.domain.errors import StoreRefused
from appliance.fleet.documents import (
    DesiredState,
    Transfer,
    WishedModel,
    WishedTrial,
    WishedVersion,
    document_problems,
)
from appliance.store import edits
from appliance.store.catalog import Catalog, HandAct, Hold, Trial, TrialMode
from appliance.sync import plan as do
from appliance.sync.plan import Observed, Reason, Step, Waiting, converged, next_step, plan
from tests.store.catalogs import stored_version

NAMES: Final = ("a", "b", "c")
VERSIONS: Final = range(1, 6)
STEPS_MAX: Final = 60
"""Steps that the agent needs at most until nothing is left to do, whatever was before."""


class PlanWorld:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bad = {(name, each) for name in NAMES for each in VERSIONS if self.random.random() < 0.25}
        self.catalog = Catalog()
        self.desired: DesiredState | None = None
        self.live: dict[str, int] = {}
        self.failed: dict[str, dict[int, str]] = {}
        self.judged: dict[str, tuple[int, int]] = {}
        self.asked: dict[tuple[str, int], str] = {}
        self.spooled: dict[str, int] = {}
        self.stuck: dict[tuple[str, int], Waiting] = {}
        self.serving = True
        self.link = True
        self.window = True
        self.disk = True
        self.now_ms = 1

    def observed(self) -> Observed:
        """What the agent sees."""
        closed = Waiting(reason=Reason.WINDOW, text="later")
        return Observed(
            catalog=self.catalog,
            serving=self.serving,
            live=self.live if self.serving else {},
            failed=self.failed,
            asked=self.asked,
            spooled=self.spooled,
            stuck=self.stuck,
            free_bytes=1 << 40 if self.disk else 0,
            transfers=None if self.link else Waiting(reason=Reason.LINK, text="no link"),
            activation=None if self.window else closed,
        )

    def happen(self) -> None:
        """Something."""
        self.now_ms += 1
        weights: dict[Callable[[], object], int] = {
            self.agent: 12,
            self.daemon: 6,
            self.person: 2,
            self.document: 2,
            self.weather: 2,
            self.resume: 1,
        }
        self.random.choices(list(weights), list(weights.values()))[0]()

    def settle(self) -> tuple[Step, ...]:
        """Nothing comes from outside any more, and all that can go well does; what is still to be done then."""
        self.serving = self.link = self.window = self.disk = True
        self.stuck = {}
        for _ in range(STEPS_MAX):
            while self.agent(kill=False):
                pass
            before = (self.catalog, dict(self.live))
            self.daemon()
            if before == (self.catalog, self.live) and next_step(self.plan()) is None:
                return self.plan()
        raise AssertionError(f"it does not come to an end: {self.plan()}")

    def plan(self) -> tuple[Step, ...]:
        """What the agent would do."""
        return plan(self.desired, self.observed())

    # --- who acts

    def agent(self, kill: bool = True) -> bool:
        """Do the next step, perhaps not to its end; whether there was one."""
        step = next_step(self.plan())
        if step is None:
            return False
        before = self.catalog
        killed = kill and self.random.random() < 0.3
        self._do(step, killed)
        self._check(step, before)
        return True

    def daemon(self) -> None:
        """Load what is wanted; what is bad fails, and what served before serves on."""
        if not self.serving:
            return
        for model in self.catalog.models:
            for number in (model.wanted, model.trial.version if model.trial else 0):
                if number and not self._is_judged(model.name, number):
                    self._judge(model.name, number, wanted=number == model.wanted)
        self.live = {
            name: number
            for name, number in self.live.items()
            if (model_ := self.catalog.model(name)) and model_.version(number) and model_.wanted
        }

    def _is_judged(self, name: str, number: int) -> bool:
        """Whether the daemon is done with the wish for it: it looks again at what was asked for since."""
        version = edits._model(self.catalog, name).version(number)
        assert version is not None
        seen = self.judged.get(f"{name}/{number}")
        done = seen == (version.last_wanted_ms, number)
        is_wanted = number == edits._model(self.catalog, name).wanted
        return done and (
            not is_wanted or self.live.get(name) == number or number in self.failed.get(name, {})
        )

    def _judge(self, name: str, number: int, *, wanted: bool) -> None:
        version = edits._model(self.catalog, name).version(number)
        assert version is not None
        self.judged[f"{name}/{number}"] = (version.last_wanted_ms, number)
        if (name, number) in self.bad:
            self.failed.setdefault(name, {})[number] = "it is bad"
        else:
            self.failed.get(name, {}).pop(number, None)
            if wanted:
                self.live[name] = number

    def person(self) -> None:
        """Do something to a model on the box; what the store refuses changes nothing."""
        name, number = self.random.choice(NAMES), self.random.choice(VERSIONS)
        version = replace(stored_version(name, number), last_wanted_ms=self.now_ms)
        acts: list[tuple[HandAct, Callable[[Catalog], Catalog]]] = [
            (HandAct.WANT, lambda at: edits.wanting(at, name, number, self.now_ms, order=True)),
            (HandAct.ROLLBACK, lambda at: edits.rolled_back(at, name, self.now_ms)),
            (HandAct.PIN, lambda at: edits.pinned(at, name, number)),
            (HandAct.UNPIN, lambda at: edits.unpinned(at, name, number)),
            (HandAct.UNINSTALL, lambda at: edits.without_model(at, name)),
            (HandAct.TRIAL_STOP, lambda at: edits.on_trial(at, name, None)),
            (
                HandAct.TRIAL,
                lambda at: edits.on_trial(at, name, Trial(version=number, mode=TrialMode.SHADOW)),
            ),
            (
                HandAct.INSTALL,
                lambda at: edits.wanting(edits.with_version(at, name, version), name, number, self.now_ms),
            ),
        ]
        what, act = self.random.choice(acts)
        try:
            changed = act(self.catalog)
        except StoreRefused:
            return
        hold = Hold(name=name, what=what, version=number, who="anna", since_ms=self.now_ms)
        self.catalog = edits.held(changed, hold)

    def resume(self) -> None:
        """A person lets one go."""
        self.catalog = edits.resumed(self.catalog, self.random.choice(NAMES))

    def weather(self) -> None:
        """The link, the window, the disk, the daemon come and go; what the agent kept in memory is lost."""
        self.link, self.window, self.serving, self.disk = (self.random.random() < 0.7 for _ in range(4))
        self.stuck = {}
        if self.random.random() < 0.1:
            self.asked = {}  # a file that may be lost

    def document(self) -> None:
        """Something else is wanted."""
        generation = self.desired.generation + 1 if self.desired else 1
        models = tuple(self._wish(name) for name in NAMES if self.random.random() < 0.7)
        self.desired = DesiredState(device="box", generation=generation, models=models)
        assert not list(document_problems(self.desired))

    def _wish(self, name: str) -> WishedModel:
        chance = self.random.random
        trial = WishedTrial(
            version=self._version(name), mode=self.random.choice(("canary", "shadow")), percent=5
        )
        return WishedModel(
            name=name,
            wanted=self._version(name) if chance() < 0.8 else None,
            trial=trial if chance() < 0.3 else None,
            prefetch=tuple(self._version(name) for _ in range(self.random.randrange(3))),
            order=chance() < 0.3,
            interface_change=chance() < 0.3,
            downgrade=chance() < 0.5,
        )

    def _version(self, name: str) -> WishedVersion:
        number = self.random.choice(VERSIONS)
        stored = stored_version(name, number)
        other = self.random.choice(VERSIONS)
        whole = Transfer(stream=_stream(name, number, 0), size=100, index=digest_of(b"i"))
        delta = msgspec.structs.replace(
            whole, stream=_stream(name, number, other), size=30, base=stored_version(name, other).digest
        )
        ways = (whole, delta) if self.random.random() < 0.8 else (delta,)
        return WishedVersion(version=number, manifest=stored.digest, total_bytes=107, transfers=ways)

    # --- what the agent does

    def _do(self, step: Step, killed: bool) -> None:
        if isinstance(step, do.Fetch):
            assert step.way is not None
            some = self.random.randrange(100) if killed else step.way.size
            before = self.spooled.get(step.way.stream, 0)
            self.spooled[step.way.stream] = min(max(some, before), step.way.size)
            return
        if killed and self.random.random() < 0.5:
            return  # before anything of it was done
        if isinstance(step, do.Install):
            self._install(step)
        elif isinstance(step, do.Uninstall):
            self.catalog = edits.without_model(self.catalog, step.name)
        elif isinstance(step, do.StopTrial):
            self.catalog = edits.on_trial(self.catalog, step.name, None)
        elif isinstance(step, do.Want):
            self._want(step)
            if not killed:
                self.asked[step.name, step.version] = step.wish
        elif isinstance(step, do.StartTrial):
            self.catalog = edits.on_trial(self.catalog, step.name, step.trial)
            if step.again:
                number = step.trial.version
                self.catalog = edits.asked_again(self.catalog, step.name, number, self.now_ms)
            if not killed:
                self.asked[step.name, step.trial.version] = step.wish
        else:
            raise AssertionError(step)

    def _install(self, step: do.Install) -> None:
        number = step.version.version
        if not self.disk:
            self.stuck[step.name, number] = Waiting(reason=Reason.DISK, text="full")
            return
        version = stored_version(step.name, number)
        if not step.downgrade:
            edits.check_install(self.catalog, step.name, version, want=False)
        fresh = self.catalog.model(step.name) is None
        self.catalog = edits.with_version(self.catalog, step.name, version)
        if fresh:
            self.catalog = edits.brought(self.catalog, step.name)
        self.spooled.pop(step.way.stream, None)

    def _want(self, step: do.Want) -> None:
        before = self.catalog.model(step.name)
        assert before is not None
        self.catalog = edits.wanting(
            self.catalog, step.name, step.version, self.now_ms, order=step.order,
            interface_change=step.interface_change,
        )  # fmt: skip
        if before.wanted == step.version and (step.again or step.order):
            self.catalog = edits.asked_again(
                self.catalog, step.name, step.version, self.now_ms, order=step.order
            )

    # --- what must hold

    def _check(self, step: Step, before: Catalog) -> None:
        """Nobody's hold is touched, nothing leaves that is named, or that the fleet did not bring."""
        assert before.holds == self.catalog.holds
        for hold in before.holds:
            assert before.model(hold.name) == self.catalog.model(hold.name), step
        assert self.desired is not None
        for model in before.models:
            after = self.catalog.model(model.name)
            gone = {each.version for each in model.versions} - {
                each.version for each in (after.versions if after else ())
            }
            if gone:
                assert model.managed, step
                assert self.desired.model(model.name) is None, step

    def check_settled(self, steps: tuple[Step, ...]) -> None:
        """The box is as is wished, but for what is held, cannot be had, or proved bad here."""
        desired = self.desired
        if desired is None:
            assert not steps
            return
        why = {step.waits.reason for step in steps if step.waits}
        assert why <= {Reason.HOLD, Reason.FAILED, Reason.REFUSED, Reason.NO_WAY, Reason.TRIAL}, steps
        told = {step.name for step in steps}
        for wish in desired.models:
            model = self.catalog.model(wish.name)
            if self.catalog.hold(wish.name) is None and wish.name not in told:
                for version in wish.versions():
                    assert model is not None
                    assert model.version(version.version) is not None
                if wish.wanted and model:
                    assert model.wanted == wish.wanted.version == self.live[wish.name]
        for step in steps:
            if isinstance(step, do.Prove):
                assert (step.name, step.version) in self.bad
            if step.waits and step.waits.reason is Reason.FAILED:
                assert isinstance(step, do.Prove | do.Want | do.StartTrial)
        unnamed = [m for m in self.catalog.models if m.managed and desired.model(m.name) is None]
        assert all(self.catalog.hold(m.name) or m.pins for m in unnamed)
        assert converged(steps) == all(isinstance(step, do.Leave) for step in steps)


def _stream(name: str, number: int, base: int) -> str:
    return digest_of(f"{name}/{number} from {base}".encode())
