"""A world of operator's orders: the store's own commands, its source, the reconciler, records on a disk, and the core.

Orders are written by the commands that an operator has; the daemon sees them at some later moment, if it lives until
then. It may be stopped or killed between any two things that happen, and loses then what was not written down yet.
Only workers and requests are made up: what loading, golden set and watch find is a version's fate. What must be live
afterwards says ``OrderBook``, which knows nothing of the code.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import multiprocessing
import queue
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from appliance.cli import store_session
from appliance.cli.failure import CommandFailed
from appliance.cli.model import retention, want
from appliance.cli.model import rollout as commands
from appliance.config.repository import ReloadConfig, RepositoryConfig
from appliance.config.store import StoreConfig
from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.rollout import Rollout
from appliance.domain.assessment import Assessment
from appliance.domain.errors import ApplianceError
from appliance.engine.control.recorder import Recorder, SwapTerms
from appliance.engine.versions.record_files import FileRecords
from appliance.reconciler.reconciler import Reconciler
from appliance.repository.directory import RepositoryScan, ServableVersion
from appliance.sources.store import StoreSource
from appliance.store.catalog import InstalledVersion
from appliance.store.running import RunningVersion
from appliance.store.writer import open_store
from tests.domain.sample import make_version
from tests.simulation.order_book import OrderBook
from tests.simulation.rollout_world import CRASHES, FAILS, REFUSED, SOUND, RolloutWorld
from tests.store.arrivals import arrival
from tests.store.stores import install

NAME = "m"
MS = 1_000_000
FATES = (SOUND, SOUND, SOUND, SOUND, REFUSED, CRASHES, FAILS)
RUN_NS = (1 * MS, 2 * MS, 60 * MS)
BACKGROUND = StoreConfig(free_floor_bytes=0)
TRIES = 100
"""A box that is killed so often that a version is out of tries is another world's."""


class ScriptedSource(StoreSource):
    """The store's source; only the graphs in it are made up."""

    def _read_version(self, name: str, installed: InstalledVersion, config: bytes | None) -> RepositoryScan:
        model = self._known(
            ServableVersion(
                model=make_version(name, installed.version), fingerprint=self._fingerprint(installed)
            ),
            installed.digest,
            "unsigned",
        )
        return RepositoryScan(servable=(model,))


class AtOnce:
    """The reconciler's watcher, without a thread: the world says when it looks."""

    trouble = ""

    def __init__(self, source: StoreSource) -> None:
        self._source = source

    async def read(self) -> RepositoryScan:
        """See Watcher."""
        return self._source.read()

    async def apart(self, call: Callable[[], Any]) -> Any:
        """See Watcher."""
        return call()

    def later(self, call: Callable[[], object]) -> None:
        """See Watcher."""
        call()

    def start(self) -> None:
        """See Watcher."""


class TurnReconciler(Reconciler):
    """Without an event loop: what it puts off until the engine's turn is over the world does then."""

    def __init__(self, later: Callable[[Callable[[], None]], object], *rest: Any) -> None:
        super().__init__(*rest)
        self._later = later

    def _soon(self, call: Callable[[], None]) -> None:
        self._later(call)


class Facade:
    """The engine, as the reconciler sees it."""

    def __init__(self, world: OrderWorld) -> None:
        self._world = world
        self.watching: list[Callable[[], None]] = []

    def apply(self, catalog: Catalog, asked: Collection[str]) -> None:
        """See Engine."""
        world = self._world
        world.wanted = {entry.model.key: entry for entry in catalog.versions}
        world.tell(told.Wanted(catalog=catalog, asked=frozenset(asked), wall_ms=world.wall_ms()))

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """See Engine."""
        self.watching.append(call)
        return lambda: self.watching.remove(call)

    def settled_of(self, name: str) -> bool:
        """See Engine."""
        return self._world.core.registry.settled_of(name)

    def has_failed(self, name: str, number: int) -> bool:
        """See Engine."""
        return self._world.core.has_failed((name, number))

    def stand_in(self, name: str, candidates: Iterable[CatalogVersion]) -> CatalogVersion | None:
        """See Engine."""
        return self._world.core.stand_in(name, candidates)


class OrderWorld(RolloutWorld):
    """One history, in the directory ``state``."""

    may_be: Sequence[str] = FATES
    """What may become of a version."""

    def __init__(self, seed: int, state: Path) -> None:
        self.rand = rand = random.Random(seed)
        self.state = state
        self.policy = RolloutPolicy(
            loads=rand.choice((1, 2)),
            tries=TRIES,
            trial_requests=5,
            stage_s=0.5,
            error_percent=0.0,
            watch_s=rand.choice((0.0, 3.0)),
        )
        self.now = 0
        self.wall = 1_800_000_000_000
        self.run_ns: dict[str, int] = {}
        self.fates: dict[str, str] = {}
        self.book = OrderBook()
        self.full = False
        self.log: list[str] = []
        self.alive = False
        self._next = 1

    # --- the daemon

    def start(self) -> None:
        """A daemon that begins, with what is on the disk."""
        self.forget()
        self.log.append("start")
        self.told, self.later = deque[told.Event](), deque[Callable[[], None]]()
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.records = self.disk = FileRecords(
            self.state / "serve", self.told_later, lambda *said, **more: None
        )
        self.disk._jobs.put(None)
        self.disk._thread.join()
        self.disk._jobs = self.jobs
        self.recorder = Recorder(SwapTerms(self.policy, self.records, lambda model: "box"), self.wall_ms)
        self.core = Rollout(self.policy, self.recorder)
        self.source = ScriptedSource(self.state, RepositoryConfig(), self.held_now, store=BACKGROUND)
        self.engine = Facade(self)
        self.reconciler = TurnReconciler(
            self.later.append, self.source, self.engine, ReloadConfig(), RepositoryConfig(), self.records,
            lambda *said, **more: None,
        )  # fmt: skip
        self.reconciler._watcher = self.reconciler._by_hand._watcher = AtOnce(self.source)  # type: ignore[assignment]
        self.alive = True
        self.reconciler.take(asyncio.run(self.reconciler.begin()))
        self.reconciler.watch()
        self.after_turn()

    def told_later(self, call: Callable[[], None]) -> None:
        """What the records' thread posts."""
        call()

    def kill(self) -> None:
        """Nothing more is written; a part of what was to be may have been."""
        self.log.append("kill")
        self.write(self.rand.randrange(self.jobs.qsize() + 1))
        self.end()

    def stop(self) -> None:
        """As it is asked to: what was counted is given back, and all is written."""
        self.log.append("stop")
        self.tell(told.Stopping())
        self.write()
        self.end()

    def end(self) -> None:
        """The process is gone."""
        self.source.close()
        self.disk._folder.close()
        self.alive = False

    def write(self, most: int = 1 << 30) -> None:
        """Let the records' thread write."""
        while most and not self.jobs.empty():
            job = self.jobs.get()
            assert job is not None
            job()
            most -= 1

    def see(self) -> None:
        """The daemon looks at the store."""
        look = self.source.look()
        if look.scan is not None:
            self.reconciler.take(look.scan)
            self.after_turn()

    def after_turn(self) -> None:
        """What was put off until now."""
        while self.later:
            self.later.popleft()()

    def held_now(self) -> list[RunningVersion]:
        """What the daemon tells the store's writer that it uses."""
        held = self.core.registry.held()
        return [RunningVersion(name=each.name, version=each.version, digest=each.digest) for each in held]

    # --- what the core asks for

    def perform(self, action: do.Action) -> None:
        match action:
            case do.RecordAttempts():
                self.counted |= set(action.versions)
                self.recorder.record_attempts(
                    action, lambda problem: self.told.append(told.AttemptsRecorded(action.versions, problem))
                )
                self.write()
            case do.Touch():
                for call in list(self.engine.watching):
                    call()
            case _:
                super().perform(action)

    def ordered(self, version: int) -> bool:
        model = self.versions[version].model
        entry = self.wanted.get(model.key)
        return entry is not None and entry.order and self.core.trials.attempts[version].known

    def fate(self, version: int) -> str:
        return self.fates[self.versions[version].model.digest]

    def end_load(self, version: int) -> None:
        if self.fate(version) in (REFUSED, CRASHES):
            super().end_load(version)
            return
        del self.loading[version]
        ns = self.run_ns[self.versions[version].model.digest]
        self.tell(told.Loaded(version, Assessment(1, (), 1, 10, ns, ns, 0), (), packed=False))
        self.tell(told.Opened(version))

    def check(self) -> None:
        assert sum(self.loading.values()) <= self.policy.loads

    def wall_ms(self) -> int:
        return self.wall + self.now // MS

    @property
    def serving(self) -> int:
        """The version that serves requests that name none; 0: none does."""
        current = self.core.registry.current(NAME)
        return current.model.version if current is not None else 0

    def tick(self) -> None:
        super().tick()
        self.after_turn()
        if self.rand.random() < 0.7:
            self.write()

    # --- orders

    def install(self, *, want: bool) -> bool:
        """As ``model install`` does, once the package is read."""
        number = self._next
        package = arrival(NAME, number, {f"{number}/graph.onnx": b"%d" % number})
        digest = package.version(0).digest
        self.fates[digest], self.run_ns[digest] = self.rand.choice(self.may_be), self.rand.choice(RUN_NS)
        if not self.book.installed:
            self.fates[digest] = SOUND
        with open_store(self.state, BACKGROUND) as store:
            install(store, package, want=want, now_ms=self.wall_ms())
        self._next += 1
        self.log.append(f"install {number} {want} {self.fates[digest]} {self.run_ns[digest]}")
        self.book.install(number, want=want, sound=self.fates[digest] == SOUND, run_ns=self.run_ns[digest])
        return True

    def command(self, run: Callable[[argparse.Namespace], int], model: str, **more: Any) -> str | None:
        """What a command prints; None where it refuses."""
        arguments = argparse.Namespace(
            model=model, state_dir=self.state, config=None, wait=False, timeout=None, allow_interface_change=False,
            force=False, header="", stop=False, canary=None, shadow=None,
        )  # fmt: skip
        vars(arguments).update(more)
        said = io.StringIO()
        self.log.append(f"{getattr(run, '__name__', 'pin')} {model} {more}")
        try:
            with contextlib.redirect_stdout(said):
                run(arguments)
        except (CommandFailed, ApplianceError) as refused:
            self.log.append(f"   refused: {refused}")
            return None
        self.log.append(f"   {said.getvalue().strip()}")
        return said.getvalue()

    def order(self) -> None:
        """One order of an operator; the store says whether it can be."""
        rand, book = self.rand, self.book
        number = rand.choice(sorted(book.installed)) if book.installed else 1
        key, draw = f"{NAME}/{number}", rand.random()
        if not book.installed or draw < 0.28:
            self.install(want=not book.installed or rand.random() < 0.8)
        elif draw < 0.45:
            if self.command(want.WANT.run, key) is not None:
                book.want(number)
        elif draw < 0.67:
            if self.command(commands.ROLLBACK.run, NAME) is not None:
                book.roll_back(self.catalog_wanted())
        elif draw < 0.75:
            if self.command(commands.TRIAL.run, key, canary=20) is not None:
                book.try_out(number)
        elif draw < 0.82:
            if self.command(commands.TRIAL.run, NAME, stop=True) is not None:
                book.stop_trial()
        elif draw < 0.88:
            pinned = rand.random() < 0.5
            if self.command((retention.PIN if pinned else retention.UNPIN).run, key) is not None:
                book.pin(number, pinned=pinned)
        elif draw < 0.98:
            self.uninstall(number)
        elif self.command(retention.UNINSTALL.run, NAME) is not None:
            book.uninstall_all()
        if rand.random() < 0.04 and book.installed:
            self.damage(rand.choice(sorted(book.installed)))

    def uninstall(self, number: int) -> None:
        """One version, even the last that has served."""
        key = f"{NAME}/{number}"
        done = self.command(retention.UNINSTALL.run, key, force=True) is not None
        assert done is self.book.may_uninstall(number), f"uninstall of {key}"
        if done:
            self.book.uninstall(number)

    def damage(self, number: int) -> None:
        """From now on it cannot be loaded any more."""
        catalog = store_session.catalog_of(self.state)
        found = catalog.models[0].version(number)
        assert found is not None
        self.fates[found.digest] = REFUSED
        self.book.damage(number)
        self.log.append(f"damage {number}")

    def catalog_wanted(self) -> int:
        """What the command came to."""
        model = store_session.catalog_of(self.state).model(NAME)
        assert model is not None
        return model.wanted

    # --- the run

    def play(self, steps: int = 14) -> None:
        """Orders, with whatever between them, and what must be live whenever all has come to its end."""
        rand = self.rand
        self.install(want=True)
        self.start()
        self.settle()
        for _ in range(steps):
            self.order()
            draw = rand.random()
            if draw < 0.15:
                (self.kill if self.alive and rand.random() < 0.6 else self.halt)()
            if not self.alive and rand.random() < 0.7:
                self.start()
            if not self.alive:
                continue
            if rand.random() < 0.6:
                self.see()
            for _ in range(rand.choice((0, 0, 1, 3, 10))):
                self.tick()
            if rand.random() < 0.15:
                self.kill()
                self.start()
            if rand.random() < 0.5:
                self.settle()
        self.settle()
        self.halt()
        self.start()
        self.settle()
        self.halt()

    def halt(self) -> None:
        """End as asked to, if there is a daemon."""
        if self.alive:
            self.stop()

    def settle(self) -> None:
        """Until nothing more is to come; then what must be live is."""
        if not self.alive:
            self.start()
        for _ in range(3):
            self.see()
            for _ in range(20):
                self.tick()
            self.after_turn()
        self.write()
        self.log.append(f"   live: {self.serving}")
        self.book.check(self.serving)

    def forget(self) -> None:
        """What a process before knew."""
        self.versions, self.loading, self.counted = {}, {}, set()
        self.answered, self.splits, self.names, self.endings = {}, {}, {}, 0


def play(seed: int, kind: type[OrderWorld] = OrderWorld) -> OrderWorld:
    """One history, on a directory in memory where there is one."""
    shared = Path("/dev/shm")
    state = Path(tempfile.mkdtemp(prefix="orders-", dir=shared if shared.is_dir() else None))
    world = kind(seed, state / "state")
    try:
        world.play()
    except Exception as error:
        said = "\n".join([*world.log, *map(str, world.book.told)])
        raise AssertionError(f"{said}\nreplay with: python -m {kind.__module__} {seed}") from error
    finally:
        if world.alive:
            world.end()
        shutil.rmtree(state)
    return world


def tried(seed: int) -> tuple[int, str]:
    """How often was looked at what is live, and what does not hold."""
    try:
        return play(seed).book.checks, ""
    except AssertionError as error:
        return 0, f"{seed}: {error.__cause__}"


def main() -> None:
    """``SEED``: replay one and print what happened; ``FIRST HISTORIES``: play so many, and print what does not hold."""
    first, *rest = map(int, sys.argv[1:])
    if not rest:
        print("\n".join(play(first).log))
        return
    began, checks, failed = time.monotonic(), 0, 0
    with multiprocessing.Pool() as pool:
        for checked, problem in pool.imap_unordered(tried, range(first, first + rest[0]), chunksize=20):
            checks += checked
            if problem:
                failed += 1
                print(problem, flush=True)
    print(
        f"{rest[0]} histories, {checks} times checked what is live, {failed} failed, "
        f"{time.monotonic() - began:.0f} s"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
