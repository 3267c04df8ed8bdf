"""The store as a source: ``serve --state-dir DIR`` serves what its catalog says is wanted.

The catalog is one file that is replaced as a whole, and a version's files never change, so what is there can be read at
once. Before a version's files are opened the store's writer is told, so that it does not take them away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from appliance.config.repository import RepositoryConfig
from appliance.config.store import StoreConfig
from appliance.domain.errors import ArtefactError, OperatorError, Problem
from appliance.domain.manifest_codec import MANIFEST_BYTES_MAX, decode
from appliance.domain.model import FormRoom
from appliance.domain.regular_file import read_file
from appliance.durable import make_own_directory
from appliance.repository.directory import BrokenVersion, RepositoryScan, ServableVersion, merged
from appliance.repository.model_directory import read_model_directory
from appliance.sources.source import Look
from appliance.store.catalog import Catalog, CatalogModel, InstalledVersion, Trial, identity_of
from appliance.store.catalog_file import read_catalog
from appliance.store.full_disk import reason_of
from appliance.store.layout import CATALOG, FORMS, MANIFEST, form_digest, view_root
from appliance.store.running import RunningRecord, RunningVersion
from appliance.workers.forms import remove_forms

Stamp = tuple[int, int, int]
"""(inode, size, time of the last change in ns) of the catalog"""


class _Engine(NamedTuple):
    """What it says of itself: the packages that it has, and packed forms from which others are about to be made."""

    held: Callable[[], Iterable[RunningVersion]]
    spared: Callable[[], Collection[str]]


class StoreSource:
    """Source over the state directory ``state``. ``held``: the packages that the engine has at the moment.
    ``report`` is told, in whatever thread calls, what keeps the store's writer from being told what runs. ``store``
    bounds packed forms. ``trust_of`` says who vouches for a version now, or raises ArtefactError where it may not be
    served. One owner at a time; calls block. Raises StoreBusy when another daemon serves from it, and
    OperatorError where it cannot be."""

    def __init__(
        self,
        state: Path,
        config: RepositoryConfig,
        held: Callable[[], Iterable[RunningVersion]],
        report: Callable[[str], None] = lambda problem: None,
        store: StoreConfig | None = None,
        trust_of: Callable[[InstalledVersion], str] = attrgetter("trust"),
        *,
        spared: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._state = state.absolute()
        self._trust_of = trust_of
        limits = store or StoreConfig()
        self._form_room = FormRoom(
            state=str(self._state),
            quota_bytes=limits.quota_bytes,
            free_floor_bytes=limits.free_floor_bytes,
        )
        self._config = config
        self._engine = _Engine(held, spared)
        self._report = report
        self._unsaid = ""
        self._stamp: Stamp | None = None
        self._seen = False
        self._catalog = Catalog()
        self._readings: dict[str, RepositoryScan] = {}
        self._used: dict[str, RunningVersion] = {}
        self._standing: list[tuple[str, InstalledVersion]] = []
        """What stands in, or may, until the engine has it."""
        self._published = False
        try:
            self._running = RunningRecord(self._state)
            make_own_directory(self._state / FORMS)
        except OSError as error:
            raise OperatorError(
                f"state_dir: '{self._state}' cannot be used: {error.strerror}; it must be a directory in which the "
                "appliance may write"
            ) from error

    def read(self) -> RepositoryScan:
        """See Source."""
        self._readings.clear()
        self._take(self._stamped())
        return self.scan()

    def look(self) -> Look:
        """See Source."""
        self._standing.clear()  # the engine has what stood in by now
        stamp = self._stamped()
        if stamp == self._stamp:
            self._publish(self._catalog)  # what has left by now may go
            return Look()
        self._take(stamp)
        return Look(scan=self.scan())

    def scan(self) -> RepositoryScan:
        """See Source."""
        found = merged(self._readings[version.digest] for _, version in _served(self._catalog))
        asked_ms = {
            (model.name, version.version): version.last_wanted_ms for model, version in _served(self._catalog)
        }
        orders = frozenset((model.name, model.wanted) for model in self._catalog.models if model.order)
        changes = frozenset(
            (model.name, model.wanted) for model in self._catalog.models if model.interface_change
        )
        installed = {version.digest for _, version in self._catalog.installed()}
        return replace(
            found,
            uninstalled=frozenset(each.digest for each in self._engine.held()) - installed,
            generation=self._catalog.generation,
            asked_ms=asked_ms,
            orders=orders,
            interface_changes=changes,
        )

    def standing_in(self, incumbents: Mapping[str, str]) -> Mapping[str, RepositoryScan]:
        """See Source. The writer is told that what stands in is used."""
        found = {
            model.name: version
            for model, version in self._catalog.installed()
            if model.wanted not in (0, version.version)
            and _is(model, version, incumbents.get(model.name, ""))
        }
        self._standing = list(found.items())
        self._publish(self._catalog)
        readings = {name: self._read(name, version) for name, version in found.items()}
        return {name: reading for name, reading in readings.items() if reading.servable}

    def wanted(self) -> Mapping[str, int]:
        """See Source."""
        return {model.name: model.wanted for model in self._catalog.models if model.wanted}

    def way_back(self, name: str, incumbent: str) -> Sequence[ServableVersion]:
        """See Source. The writer is told that they are used."""
        model = self._catalog.model(name)
        if model is None:
            return ()
        before = (model.version(number) for number in model.wanted_before)
        last = (each for each in model.versions if _is(model, each, incumbent))
        found = list({each.digest: each for each in (*before, *last) if each is not None}.values())
        self._standing += ((name, each) for each in found)
        self._publish(self._catalog)
        return [entry for each in found for entry in self._read(name, each).servable]

    def trials(self) -> Mapping[tuple[str, int], Trial]:
        """See Source."""
        tried = (model for model in self._catalog.models if model.wanted and model.trial)
        return {(model.name, model.trial.version): model.trial for model in tried if model.trial}

    def model(self, name: str, config: bytes | None = None) -> RepositoryScan | None:
        """See Source."""
        model = self._catalog.model(name)
        wanted = model.version(model.wanted) if model else None
        return self._read(name, wanted, config) if wanted else None

    def directories(self) -> Collection[str]:
        """See Source."""
        return (str(self._state),)

    @property
    def catalog(self) -> Catalog:
        """What is installed and wanted, by the last look."""
        return self._catalog

    def close(self) -> None:
        """Nothing of the store is used any more."""
        self._running.close()

    def _follow(self) -> None:
        """What runs is said where the store is now. Another directory in its place - its disk mounted anew, a copy put
        back - is taken over if it holds a catalog; until then the writer's side of the old one is still told. Raises
        OperatorError."""
        if self._running.is_in_place():
            return
        if read_catalog(self._state) is None and self._seen:
            raise OperatorError(
                f"'{self._state}' is not the directory that it was, and holds no catalog; is its disk mounted?"
            )
        try:
            running = RunningRecord(self._state)
            make_own_directory(self._state / FORMS)
        except OSError as error:
            raise OperatorError(f"'{self._state}' cannot be used: {error.strerror}") from error
        self._running.close()
        self._running, self._stamp, self._used = running, None, {}

    def _stamped(self) -> Stamp | None:
        self._follow()
        try:
            found = os.stat(self._state / CATALOG)
        except FileNotFoundError:
            read_catalog(self._state)  # raises CatalogLost where what it named is there
            if self._seen:
                raise self._gone() from None
            return None
        except OSError as error:
            raise OperatorError(f"'{self._state / CATALOG}' cannot be read: {error.strerror}") from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _gone(self) -> OperatorError:
        return OperatorError(
            f"'{self._state / CATALOG}' is gone; is the disk of the state directory mounted?"
        )

    def _take(self, stamp: Stamp | None) -> None:
        """Read the catalog and what is new in it, or was broken before. ``stamp`` is from before, so that a change
        meanwhile is seen."""
        found = read_catalog(self._state)
        if found is None and (self._seen or stamp is not None):
            raise self._gone()
        catalog = found or Catalog()
        self._publish(catalog)
        self._readings = {
            version.digest: self._reading(model.name, version) for model, version in _served(catalog)
        }
        self._catalog, self._stamp, self._seen = catalog, stamp, self._seen or stamp is not None

    def _reading(self, name: str, installed: InstalledVersion) -> RepositoryScan:
        """The version as it was read before, unless it was broken or its files were replaced since."""
        known = self._readings.get(installed.digest)
        if known is None or known.broken:
            return self._read(name, installed)
        fingerprint = self._fingerprint(installed)
        if all(version.fingerprint == fingerprint for version in known.servable):
            return known
        found = self._read(name, installed)
        return known if found.broken else found

    def _fingerprint(self, installed: InstalledVersion) -> str:
        """Changes when a file is replaced by another one: its package was installed again because the file was
        damaged. What a version is, its digest says."""
        root = view_root(self._state, installed.digest)
        try:
            inodes = [os.stat(root / file.path).st_ino for file in installed.files]
        except OSError:
            return ""  # reading it tells what is missing
        return " ".join(map(str, inodes))

    def _publish(self, catalog: Catalog) -> None:
        """Tell the store's writer what is used, and remove packed forms of what is not: of versions that are neither
        wanted nor held, unless others are about to be made from them. At the start what may have to stand in is not
        known yet, and everything installed keeps its own. Looked at each time: a builder may have finished for a
        version that has left meanwhile."""
        self._tell(catalog)
        installed = {version.digest for _, version in catalog.installed()}
        used = set(self._used)
        spared = {form_digest(name) for name in self._engine.spared()}
        kept = used | spared if self._published else used | installed
        remove_forms(str(self._state / FORMS), kept, installed, building=self._published)
        self._published = True

    def _tell(self, catalog: Catalog) -> None:
        """Wanted is used as soon as it is read, and then for as long as the engine has it, whatever is installed under
        its number meanwhile. Where that cannot be written it is tried again with each look: a full or a read-only disk
        keeps nothing from being served."""
        served = [(model.name, version) for model, version in _served(catalog)]
        wanted = [
            RunningVersion(name=name, version=version.version, digest=version.digest)
            for name, version in (*served, *self._standing)
        ]
        used = {each.digest: each for each in (*self._engine.held(), *wanted)}
        if used == self._used and not self._unsaid:
            return
        problem = ""
        try:
            self._running.publish(used.values())
        except OSError as error:
            problem = reason_of(error)
        if problem and problem != self._unsaid:
            self._report(problem)
        self._used, self._unsaid = used, problem

    def _read(self, name: str, installed: InstalledVersion, config: bytes | None = None) -> RepositoryScan:
        """The version as its manifest has it, which is the one that the catalog names. What is read here of other
        files, and what a worker reads of them, is held against that."""
        try:
            return self._read_version(name, installed, config)
        except Exception as error:  # noqa: BLE001  it is this version's reason, and no other's
            return _broken(
                name,
                installed.version,
                f"cannot be read, for a reason that nobody foresaw: {type(error).__name__}",
            )

    def _read_version(self, name: str, installed: InstalledVersion, config: bytes | None) -> RepositoryScan:
        root, fingerprint = view_root(self._state, installed.digest), self._fingerprint(installed)
        if not fingerprint:
            return _broken(name, installed.version, f"lacks files in '{root}'; install its package again")
        try:
            manifest = decode(read_file(str(root / MANIFEST), MANIFEST_BYTES_MAX, installed.digest, MANIFEST))
            trust = self._trust_of(installed)
        except ArtefactError as error:
            return _broken(name, installed.version, str(error))
        stored = {entry.path: entry for entry in manifest.files}
        reading = read_model_directory(str(root), name, self._config, config, stored=stored)
        if reading is None:
            return _broken(
                name,
                installed.version,
                f"has no model in '{root}'; 'appliance store check' tells what is missing",
            )
        versions = (replace(version, fingerprint=fingerprint) for version in reading.servable)
        return replace(
            reading, servable=tuple(self._known(version, installed.digest, trust) for version in versions)
        )

    def _known(self, version: ServableVersion, digest: str, trust: str) -> ServableVersion:
        """The version with what the catalog tells of it beyond its files."""
        model = replace(
            version.model,
            digest=digest,
            forms=str(self._state / FORMS),
            form_room=self._form_room,
            trust=trust,
        )
        return replace(version, model=model)


def _served(catalog: Catalog) -> Iterator[tuple[CatalogModel, InstalledVersion]]:
    """Versions that are wanted, and those on trial beside them."""
    for model, version in catalog.installed():
        if model.wanted and version.version in (model.wanted, model.trial.version if model.trial else 0):
            yield model, version


def _is(model: CatalogModel, version: InstalledVersion, identity: str) -> bool:
    return identity == identity_of(model.name, version)


def _broken(name: str, version: int, text: str) -> RepositoryScan:
    problem = Problem(file=f"{name}/{version}", key="", text=text)
    return RepositoryScan(broken=(BrokenVersion(name=name, version=str(version), problems=(problem,)),))
