"""What is wanted on this box: the models of its source, as an operator changed them by hand; tells the engine.

What is wanted may not be fit to serve, and a daemon that starts has nothing else of that model. So the version that was
proven last stands in for it, is loaded first, and is replaced as any other version would be: when the wanted one has
proven itself.

Owner: the event loop's thread. What blocks happens on the watcher's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from appliance.config.reload import ReloadConfig
from appliance.config.repository import RepositoryConfig
from appliance.core.rollout.catalog import Catalog, CatalogProblem, CatalogVersion
from appliance.core.rollout.reasons import Outlook
from appliance.core.rollout.wish import TrialWish
from appliance.domain.errors import InvalidRequest, NotReady, OperatorError, Problem, Stopping, UnknownModel
from appliance.domain.model import VersionState
from appliance.engine.engine import Engine
from appliance.engine.versions.records import Records
from appliance.engine.versions.wording import given_by_hand
from appliance.repository.directory import RepositoryScan
from appliance.repository.model_directory import ModelReading
from appliance.sources.overlay import Overlay
from appliance.sources.reading import read_model
from appliance.sources.selection import Selection
from appliance.sources.source import Source
from appliance.sources.watcher import Watcher
from appliance.store.catalog import Trial, TrialMode
from appliance.telemetry.notify import notify

AS_ASKED: Final = frozenset({Outlook.AS_WANTED, Outlook.SUCCESSOR_ON_TRIAL, Outlook.BY_HAND})
"""Of a version that is READY, with which it is as it was asked for, or is about to be."""

TIDY_S: Final = 1.0
"""How often it is looked whether versions have left whose files were given and are not wanted any more."""

UNLOADED: Final = (
    "unloaded by hand; it serves again when it is loaded by hand, or when the appliance starts anew"
)


class Desired:
    """The source, what was changed by hand, and what the engine was told of both. ``records`` tell what was
    proven last of each model, and which requests were heeded; ``report`` writes a log line."""

    def __init__(
        self,
        source: Source,
        engine: Engine,
        reload: ReloadConfig,
        repository: RepositoryConfig,
        records: Records,
        report: Callable[..., None],
    ) -> None:
        self._source = source
        self._engine = engine
        self._repository = repository
        self._records = records
        self._report = report
        self._watcher = Watcher(source, reload, self.take, report, self._troubled)
        self._selection = Selection()
        self._overlay = Overlay()
        self._standing_in: dict[str, ModelReading] = {}
        self._unwatch: Callable[[], None] | None = None
        self._told: frozenset[Problem] = frozenset()
        self._scan = RepositoryScan(servable=(), broken=(), notes=())
        self._generation = 0
        self._asked_ms = records.asked()
        """By key of the version, as of the last scan, of this process or one before; None: there was none."""
        self._owed: set[str] = set()
        """What was asked for and the engine has not heard of yet, because something stands in for its model."""
        self._unfit: frozenset[str] | None = None
        """What did not serve when the source could not be read any more; None: it can."""
        self._by_hand = asyncio.Lock()
        self._tidying: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def generation(self) -> int:
        """Of the store's catalog that the engine works towards, all of it; 0 while something stands in."""
        return self._generation

    @property
    def trouble(self) -> str:
        """Why the source cannot be read at present; "" when it can."""
        return self._watcher.trouble

    async def begin(self) -> RepositoryScan:
        """What the source holds; what stands in for some of it will at first be served. Raises OperatorError when it
        cannot be read."""
        found = await self._watcher.read()
        await self._watcher.apart(self._overlay.drop_leftovers)
        incumbents = self._records.incumbents()
        standing_in = await self._watcher.apart(lambda: self._source.standing_in(incumbents))
        self._standing_in.update(standing_in)
        for name, reading in sorted(standing_in.items()):
            stands = ", ".join(entry.model.key for entry in reading.servable)
            self._report(
                "the version that was proven last stands in for the wanted one", model=name, stands=stands
            )
        return found

    def _changed(self) -> None:
        """The engine has changed something: in the middle of its turn."""
        if any(self._engine.settled_of(name) for name in self._standing_in):
            asyncio.get_running_loop().call_soon(self._relieve)

    def _relieve(self) -> None:
        """What stood in has been loaded, or cannot be: what is wanted is to take its place."""
        there = [name for name in self._standing_in if self._engine.settled_of(name)]
        for name in there:
            del self._standing_in[name]
        if there:
            self.take(self._scan)

    def watch(self) -> None:
        """Keep the engine told from here on."""
        self._watcher.start()

    async def reread(self) -> None:
        """Read everything anew and say everything that is wrong; what cannot be read leaves all as it is, and so does
        the end."""
        try:
            found = await self._watcher.read()
        except Stopping:
            return
        except OperatorError as error:
            self._report("models cannot be read; everything stays as it is", error=str(error))
            return
        self._told = frozenset()
        self.take(found, {entry.model.name for entry in found.servable})

    def _troubled(self, trouble: str) -> None:
        """The source cannot be read, or can again: whatever was given up meanwhile may have been for that alone."""
        notify(STATUS=f"models cannot be read, what serves goes on: {trouble}" if trouble else "serving")
        if trouble and self._unfit is None:
            self._unfit = self._given_up()
        elif not trouble and self._unfit is not None:
            self._owed |= self._given_up() - self._unfit
            self._unfit = None

    def _given_up(self) -> frozenset[str]:
        index = self._engine.index(ready_only=False)
        return frozenset(
            f"{entry.name}/{entry.version}" for entry in index if entry.state is VersionState.UNAVAILABLE
        )

    async def stop(self) -> None:
        """No more news for the engine."""
        self._stopped = True
        if self._tidying is not None:
            self._tidying.cancel()
        await self._watcher.stop()

    async def close(self) -> None:
        """Models that were given by hand leave the disk: call when no worker needs them. Nothing is closed under the
        thread that reads."""
        await self.stop()
        await self._watcher.ended()
        self._overlay.close()
        self._source.close()

    def take(self, found: RepositoryScan, asked: Collection[str] = ()) -> None:
        """Say what a scan has to say that was not said before, then work towards it. ``asked``: names of models of
        which an operator wants what was given up to be tried again, as the versions are for which the store's commands
        have asked since the last scan."""
        if self._stopped:
            return
        self._scan = found
        if not self._standing_in:
            self._generation = found.generation
        wanted = self._selection.over(found)
        for problem in wanted.problems:
            if problem not in self._told:
                self._report(
                    "model cannot be served", file=problem.file, key=problem.key, reason=problem.text
                )
        for note in wanted.notes:
            if note not in self._told:
                self._report("setting has no effect", file=note.file, key=note.key, note=note.text)
        self._told = frozenset((*wanted.problems, *wanted.notes))
        asked = self._heeded(found, asked)
        catalog = catalog_of(standing(wanted, self._standing_in), self._source.trials())
        self._engine.apply(self._with_reasons(catalog, found), asked)
        if self._standing_in and self._unwatch is None:
            self._unwatch = self._engine.watch(self._changed)
        elif not self._standing_in and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _with_reasons(self, catalog: Catalog, found: RepositoryScan) -> Catalog:
        """What was changed by hand says so, whatever the source asks for meanwhile."""
        aside = [
            CatalogProblem(name=name, version=version, reason=UNLOADED)
            for name, version in self._selection.aside(found)
        ]
        passed_over = [
            CatalogProblem(name=name, version=version, reason=given_by_hand(name))
            for name, version in self._selection.given(found)
        ]
        versions = (
            replace(each, trial=None, by_hand=True) if self._selection.is_given(each.model.name) else each
            for each in catalog.versions
        )
        return replace(catalog, versions=tuple(versions), aside=(*aside, *passed_over))

    def _heeded(self, found: RepositoryScan, asked: Collection[str]) -> frozenset[str]:
        """``asked``, and the versions that were asked for since the last scan, as ``name/version``, without what has to
        wait. It counts as heeded before the engine begins, or one that takes the box down would be news each time."""
        before, asked_ms = (
            self._asked_ms,
            {f"{name}/{number}": at for (name, number), at in found.asked_ms.items()},
        )
        news = () if before is None else (key for key, at_ms in asked_ms.items() if before.get(key) != at_ms)
        owed = self._owed.union(asked, news)
        self._owed = {each for each in owed if each.partition("/")[0] in self._standing_in}
        self._asked_ms = asked_ms
        self._records.heed({key: at_ms for key, at_ms in asked_ms.items() if key not in self._owed})
        return frozenset(owed - self._owed)

    # --- by hand

    async def load(self, name: str, config: bytes | None, files: Mapping[str, bytes]) -> None:
        """Serve model ``name`` from here on, read anew: from the source, or from ``files``, whose ``config`` (a
        config.pbtxt) comes with them. Returns when it is ready. Raises InvalidRequest, UnknownModel or NotReady, and
        leaves everything as it was when the model cannot be read."""
        async with self._by_hand:
            reading = await self._watcher.apart(lambda: self._read(name, config, files))
            if reading is None:
                raise UnknownModel(f"failed to load '{name}': there is no such model")
            if not reading.servable:
                said = "; ".join(broken.reason for broken in reading.broken)
                raise InvalidRequest(f"failed to load '{name}': {said}")
            if files or config is not None:
                self._selection.replace(name, reading)
                for entry in reading.servable:
                    self._overlay.keep(entry.model.path)
            else:
                self._scan = await self._watcher.apart(self._source.scan)
                self._selection.take_back(name)
            self._standing_in.pop(name, None)
            self._report("model loaded by hand", model=name)
            self.take(self._scan, (name,))
            self._tidy()
        await self._settled(name, {str(entry.model.version) for entry in reading.servable})

    def _read(self, name: str, config: bytes | None, files: Mapping[str, bytes]) -> ModelReading | None:
        if not files:
            return self._source.model(name, config)
        if config is None:
            raise InvalidRequest(f"failed to load '{name}': files are given, but no config with them")
        root = str(self._overlay.put(name, files))
        reading = read_model(root, name, self._repository, config)
        if reading is None or not reading.servable:
            self._overlay.drop([root])
        return reading

    def _tidy(self) -> None:
        """Files that were given leave the disk when nobody wants them and no version is here that lies in them."""
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        if self._stopped:
            return
        unwanted = self._overlay.without(self._selection.paths())
        held = [model.path for model in self._engine.held()]
        unused = unwanted & self._overlay.without(held)
        if unused:
            self._overlay.forget(unused)
            self._watcher.later(partial(self._overlay.drop, unused))
        if unwanted - unused:
            self._tidying = asyncio.get_running_loop().call_later(TIDY_S, self._tidy)

    async def unload(self, name: str) -> None:
        """Serve nothing of this name until it is loaded again or the appliance starts anew. Raises UnknownModel."""
        if not any(entry.name == name for entry in self._engine.index(ready_only=False)):
            raise UnknownModel(f"failed to unload '{name}': there is no such model")
        self._selection.put_aside(name)
        self._standing_in.pop(name, None)
        self._report("model unloaded by hand", model=name)
        self.take(self._scan)
        self._tidy()

    async def _settled(self, name: str, asked: Collection[str]) -> None:
        """Wait until nothing of ``name`` is loading. Raises NotReady when none of the versions that were asked for
        serves then as it was asked for, whether or not an older one does."""
        settled = asyncio.Event()
        end = self._engine.watch(lambda: settled.set() if self._engine.settled_of(name) else None)
        try:
            if not self._engine.settled_of(name):
                await settled.wait()
        finally:
            end()
        index = self._engine.index(ready_only=False)
        entries = [entry for entry in index if entry.name == name and entry.version in asked]
        if not any(entry.state is VersionState.READY and entry.outlook in AS_ASKED for entry in entries):
            reasons = "; ".join(entry.reason for entry in entries if entry.reason)
            raise NotReady(f"failed to load '{name}': {reasons or 'it was unloaded meanwhile'}")


def standing(found: RepositoryScan, standing_in: Mapping[str, ModelReading]) -> RepositoryScan:
    """``found`` with what stands in for its models in their place."""
    if not standing_in:
        return found
    wanted = [entry for entry in found.servable if entry.model.name not in standing_in]
    stands = [entry for name in sorted(standing_in) for entry in standing_in[name].servable]
    return replace(found, servable=(*wanted, *stands))


def catalog_of(found: RepositoryScan, trials: Mapping[tuple[str, int], Trial]) -> Catalog:
    """What a scan asks for; ``trials`` are by name and version."""
    wishes = {key: trial_wish(trial) for key, trial in trials.items()}
    return Catalog(
        versions=tuple(
            CatalogVersion(
                model=entry.model,
                fingerprint=entry.fingerprint,
                trial=wishes.get((entry.model.name, entry.model.version)),
            )
            for entry in found.servable
        ),
        problems=tuple(
            CatalogProblem(name=broken.name, version=broken.version, reason=broken.reason)
            for broken in found.broken
        ),
    )


def trial_wish(trial: Trial) -> TrialWish:
    """What the engine is to do for a trial that the catalog asks for: it lasts as long as the catalog says so."""
    header, _, value = trial.header.partition(":")
    canary = trial.mode is TrialMode.CANARY
    return TrialWish(
        shadow_percent=0.0 if canary else trial.percent,
        canary_percent=trial.percent if canary else 0.0,
        header=header.strip().lower(),
        value=value.strip(),
        hold=True,
    )
