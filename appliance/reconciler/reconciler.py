"""What is wanted on this box: the models of its source, as an operator changed them by hand; tells the engine.

What is wanted may not be fit to serve, and a daemon that starts has nothing else of that model. So the version that was
proven last stands in for it, is loaded first, and is replaced as any other version would be: when the wanted one has
proven itself.

Owner: the event loop's thread. What blocks happens on the watcher's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from appliance.config.repository import ReloadConfig, RepositoryConfig
from appliance.core.rollout.reasons import Outlook
from appliance.domain.errors import InvalidRequest, NotReady, OperatorError, Stopping, UnknownModel
from appliance.domain.model import VersionState
from appliance.domain.model_names import which_may_be_meant
from appliance.engine.engine import Engine
from appliance.engine.versions.records import Records
from appliance.reconciler.by_hand import ModelsByHand
from appliance.reconciler.requests import OperatorRequests
from appliance.reconciler.scan_news import ScanNews
from appliance.reconciler.stand_ins import StandIns, Way
from appliance.reconciler.wanted import catalog_of, with_fallbacks
from appliance.repository.directory import RepositoryScan
from appliance.sources.source import Source
from appliance.sources.watcher import Watcher
from appliance.telemetry.notify import notify

AS_ASKED: Final = frozenset({Outlook.AS_WANTED, Outlook.SUCCESSOR_ON_TRIAL, Outlook.BY_HAND})
"""Of a version that is READY, with which it is as it was asked for, or is about to be."""


class Reconciler:
    """The source, what was changed by hand, and what the engine was told of both. ``records`` tell what was
    proven last of each model, and which requests were heeded; ``report`` and ``tell_auto`` are those of ScanNews."""

    def __init__(
        self,
        source: Source,
        engine: Engine,
        reload: ReloadConfig,
        repository: RepositoryConfig,
        records: Records,
        report: Callable[..., None],
        tell_auto: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._engine = engine
        self._records = records
        self._report = report
        self._watcher = Watcher(source, reload, self.take, report, self._troubled)
        self._by_hand = ModelsByHand(source, engine, repository, self._watcher)
        self._requests = OperatorRequests(records)
        self._stand_ins = StandIns(source, engine, records.incumbents, self._read_apart, self._again)
        self._fallbacks: dict[str, RepositoryScan] = {}
        self._news = ScanNews(report, tell_auto)
        self._scan = RepositoryScan(servable=(), broken=(), notes=())
        self._generation = 0
        self._one_by_one = asyncio.Lock()
        """Held while a model is loaded by hand."""
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None

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
        self._loop = asyncio.get_running_loop()
        found = await self._watcher.read()
        self._engine.watch(self._changed)
        await self._watcher.apart(self._by_hand.drop_leftovers)
        incumbents = self._records.incumbents()
        standing_in = await self._watcher.apart(lambda: self._source.standing_in(incumbents))
        self._fallbacks.update(standing_in)
        for name, reading in sorted(standing_in.items()):
            stands = ", ".join(entry.model.key for entry in reading.servable)
            self._report(
                "the version that was proven last stands in for the wanted one", model=name, stands=stands
            )
        return found

    def _changed(self) -> None:
        """The engine has changed something: in the middle of its turn."""
        self._soon(self._relieve)

    def _soon(self, call: Callable[[], None]) -> None:
        """When the engine's turn is over. From the reader's thread, too."""
        assert self._loop is not None, "nothing is taken before it has begun"
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(call)

    def _read_apart(self, read: Callable[[], Way], take: Callable[[Way], None]) -> None:
        def work() -> None:
            way = read()
            self._soon(lambda: None if self._stopped else take(way))

        self._watcher.later(work)

    def _again(self) -> None:
        """Work towards the last scan again: others stand in."""
        self.take(self._scan)

    def _relieve(self) -> None:
        """What stood in at the start has been loaded, or cannot be: what is wanted is to take its place. What is wanted
        and failed has another stand in."""
        there = [name for name in self._fallbacks if self._engine.settled_of(name)]
        for name in there:
            del self._fallbacks[name]
        if there:
            self._again()
        if not self._stopped:
            self._stand_ins.look()

    def watch(self) -> None:
        """Keep the engine told from here on."""
        self._engine.watch(self._changed)
        self._changed()
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
        self._news.forget()
        self.take(found, {entry.model.name for entry in found.servable})

    def _troubled(self, trouble: str) -> None:
        """The source cannot be read, or can again: whatever was given up meanwhile may have been for that alone."""
        notify(STATUS=f"models cannot be read, what serves goes on: {trouble}" if trouble else "serving")
        if trouble:
            self._requests.source_lost(self._given_up())
        else:
            self._requests.source_found(self._given_up())

    def _given_up(self) -> frozenset[str]:
        index = self._engine.index(ready_only=False)
        return frozenset(
            f"{entry.name}/{entry.version}" for entry in index if entry.state is VersionState.UNAVAILABLE
        )

    async def stop(self) -> None:
        """No more news for the engine."""
        self._stopped = True
        self._by_hand.stop()
        await self._watcher.stop()

    async def close(self) -> None:
        """Models that were given by hand leave the disk: call when no worker needs them. Nothing is closed under the
        thread that reads."""
        await self.stop()
        await self._watcher.ended()
        self._by_hand.close()
        self._source.close()

    def take(self, found: RepositoryScan, asked: Collection[str] = (), loaded: str = "") -> None:
        """Say what a scan has to say that was not said before, then work towards it. ``asked``: names of models of
        which an operator wants what was given up to be tried again, as the versions are for which the store's commands
        have asked since the last scan. ``loaded`` is the model of which one does by hand, whatever its interface."""
        if self._stopped:
            return
        self._scan = found
        if not self._fallbacks:
            self._generation = found.generation
        wanted = self._by_hand.over(found)
        asked = self._requests.heeded(found, asked, self._fallbacks)
        served = with_fallbacks(wanted, self._fallbacks)
        self._news.tell(served)
        slots = ((entry.model.name, entry.model.version) for entry in served.servable)
        changes = found.interface_changes.union(slot for slot in slots if slot[0] == loaded)
        catalog = catalog_of(served, self._source.trials(), found.orders, changes)
        catalog = self._stand_ins.over(self._by_hand.with_reasons(catalog, found))
        self._engine.apply(catalog, asked)

    # --- by hand

    async def load(self, name: str, config: bytes | None, files: Mapping[str, bytes]) -> None:
        """Serve model ``name`` from here on, read anew: from the source, or from ``files``, whose ``config`` (a
        config.pbtxt) comes with them. A configuration that was given before for the source's files stays until these
        change, as in Triton. Returns when it is ready. Raises InvalidRequest, UnknownModel or NotReady, and leaves
        everything as it was when the model cannot be read."""
        async with self._one_by_one:
            reading = await self._watcher.apart(lambda: self._by_hand.read(name, config, files))
            if reading is None:
                raise UnknownModel(f"failed to load '{name}': there is no such model; {self._near(name)}")
            given = bool(files) or config is not None
            kept = None if given else self._by_hand.kept(name, reading)
            reading = kept or reading
            if not reading.servable:
                said = "; ".join(broken.reason for broken in reading.broken)
                raise InvalidRequest(f"failed to load '{name}': {said}")
            if given:
                own = None if files else await self._watcher.apart(lambda: self._source.model(name))
                self._by_hand.give(name, reading, own)
            elif kept is None:
                self._scan = await self._watcher.apart(self._source.scan)
                self._by_hand.take_back(name)
            self._fallbacks.pop(name, None)
            self._report("model loaded by hand", model=name)
            self.take(self._scan, (name,), loaded=name)
            self._by_hand.tidy()
        await self._settled(name, {str(entry.model.version) for entry in reading.servable})

    async def unload(self, name: str) -> None:
        """Serve nothing of this name until it is loaded again or the appliance starts anew. Raises UnknownModel."""
        if not any(entry.name == name for entry in self._engine.index(ready_only=False)):
            raise UnknownModel(f"failed to unload '{name}': there is no such model; {self._near(name)}")
        self._by_hand.put_aside(name)
        self._fallbacks.pop(name, None)
        self._report("model unloaded by hand", model=name)
        self.take(self._scan)
        self._by_hand.tidy()

    def _near(self, name: str) -> str:
        return which_may_be_meant(name, {entry.name for entry in self._engine.index(ready_only=False)})

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
