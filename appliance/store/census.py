"""What lies in a store at a moment, how much space it takes, what needs it, and what would leave for more. Reads only,
and needs no lock.

Without the lock a writer may be at work meanwhile: what it brings counts as garbage until its catalog names it. What
lies there is listed before it is asked what needs it, so what was brought by then is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from appliance.config.store import StoreConfig
from appliance.domain.errors import StoreFull, StoreUnavailable
from appliance.domain.quantity import bytes_text
from appliance.durable import Folder, RealFolder
from appliance.store.blobs import BlobShelf
from appliance.store.catalog import Catalog, InstalledVersion
from appliance.store.edits import with_version
from appliance.store.eviction import Lacking, Leaving, Tenancy, plan_room
from appliance.store.full_disk import WAY_OUT
from appliance.store.running import RunningVersion, read_incumbents, read_running
from appliance.store.trouble import told
from appliance.store.views import FormShelf, ViewShelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What may be removed: views by manifest digest, blobs by digest with their sizes."""

    views: tuple[str, ...] = ()
    blobs: tuple[tuple[str, int], ...] = ()

    @property
    def bytes(self) -> int:
        """What the blobs hold."""
        return sum(size for _, size in self.blobs)


def find_garbage(
    catalog: Catalog,
    running: Collection[str],
    views: Mapping[str, Collection[str]],
    blobs: Mapping[str, int],
) -> Garbage:
    """``running``: manifest digests of what a daemon runs; ``views``: each view with the blobs it links to; ``blobs``:
    each blob with its size. What a running version links to stays, installed or not."""
    installed = {version.digest for _, version in catalog.installed()}
    reached = {file.digest for _, version in catalog.installed() for file in version.files}
    for digest in running:
        reached.update(views.get(digest, ()))
    return Garbage(
        views=tuple(sorted(views.keys() - installed - set(running))),
        blobs=tuple(sorted((digest, size) for digest, size in blobs.items() if digest not in reached)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionUsage:
    """A version, ``in_use`` while a daemon needs its files, None where that is not known: ``bytes`` of all its blobs,
    ``own_bytes`` of those that no other version has, ``form_bytes`` of packed forms of it that were built on this
    box."""

    name: str
    version: int
    digest: str
    trust: str
    wanted: bool
    pinned: bool
    in_use: bool | None
    bytes: int
    own_bytes: int
    form_bytes: int
    installed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUsage:
    """The whole. ``garbage_bytes`` belong to no installed version; packed forms are not among ``bytes``.
    ``quota_bytes`` 0: none. ``unsaid`` is why it is not known what is in use, "" where it is."""

    versions: tuple[VersionUsage, ...]
    blobs: int
    bytes: int
    garbage_bytes: int
    form_bytes: int
    free_bytes: int
    quota_bytes: int
    free_floor_bytes: int
    unsaid: str = ""


class Coming(NamedTuple):
    """A version of the model ``name`` that comes, or is mended."""

    name: str
    version: InstalledVersion
    now_ms: int


class Census:
    """See the module. ``running`` and ``incumbents`` say what may not leave; ``name`` is for people."""

    __slots__ = ("_blobs", "_config", "_folder", "_forms", "_incumbents", "_name", "_running", "_views")

    def __init__(
        self,
        folder: Folder,
        config: StoreConfig,
        running: Callable[[], Collection[RunningVersion]],
        name: str = "store",
        incumbents: Callable[[], Iterable[RunningVersion]] = tuple,
    ) -> None:
        self._folder = folder
        self._config = config
        self._running = running
        self._incumbents = incumbents
        self._name = name
        self._blobs = BlobShelf(folder)
        self._views = ViewShelf(folder)
        self._forms = FormShelf(folder)

    @property
    def free_bytes(self) -> int:
        """What is free on the disk now. Raises StoreUnavailable."""
        with told(self._name, "ask how much is free"):
            return self._folder.free_bytes()

    def garbage(self, read: Callable[[], Catalog]) -> Garbage:
        """The garbage by the catalog that ``read`` gives. Raises what that raises, and StoreUnavailable, also
        when a daemon does not say what it runs."""
        with told(self._name, "look for garbage"):
            sizes, views = self._shelved()
        running = {each.digest for each in self._running()}
        return find_garbage(read(), running, views, sizes)

    def usage(
        self, catalog: Catalog, trust_of: Callable[[InstalledVersion], str] = attrgetter("trust")
    ) -> StoreUsage:
        """What takes how much space, as rows for people. Raises StoreUnavailable."""
        with told(self._name, "look at the store"):
            blobs = self._blobs.listing()
            forms: Counter[str] = Counter()
            for form in self._forms.listing():
                forms[form.digest] += form.bytes
        used, unsaid = None, ""
        try:
            used = {each.digest for each in self._running()}
        except StoreUnavailable as error:
            unsaid = str(error)
        needed = {file.digest for _, version in catalog.installed() for file in version.files}
        return StoreUsage(
            versions=tuple(_version_usages(catalog, used, forms, trust_of)),
            blobs=len(blobs),
            bytes=sum(found.size for found in blobs.values()),
            garbage_bytes=sum(found.size for digest, found in blobs.items() if digest not in needed),
            form_bytes=sum(forms.values()),
            free_bytes=self.free_bytes,
            quota_bytes=self._config.quota_bytes,
            free_floor_bytes=self._config.free_floor_bytes,
            unsaid=unsaid,
        )

    def _shelved(self) -> tuple[Mapping[str, int], Mapping[str, frozenset[str]]]:
        """The blobs that are there with their sizes, and every view with the blobs that it links to."""
        listing = self._blobs.listing()
        views = self._views.listing({found.identity: name for name, found in listing.items()})
        return {name: each.size for name, each in listing.items()}, views

    def lacking(self, missing: Mapping[str, int]) -> Lacking:
        """What is missing so that the blobs ``missing`` may come, by their sizes; packed forms count as blobs do. A
        damaged blob that is to be replaced counts once within the quota; on the disk both are there for a moment.
        Raises OSError."""
        needed = sum(missing.values())
        disk = needed - (self._folder.free_bytes() - self._config.free_floor_bytes)
        if not self._config.quota_bytes:
            return Lacking(0, disk)
        return Lacking(self.taken_bytes(missing) + needed - self._config.quota_bytes, disk)

    def taken_bytes(self, missing: Collection[str] = ()) -> int:
        """What the quota counts of what lies here, but for the blobs ``missing``. Raises OSError."""
        used = sum(found.size for digest, found in self._blobs.listing().items() if digest not in missing)
        return used + sum(form.bytes for form in self._forms.listing())

    def leaving(self, catalog: Catalog, coming: Coming, lacking: Lacking) -> Leaving:
        """The versions of ``catalog`` that have to leave for what is ``coming``, whose own blobs stay. Raises
        StoreFull, StoreUnavailable and OSError."""
        name, version, now_ms = coming
        forms = self._forms.listing()
        running = {each.digest for each in self._running()}
        _, views = self._shelved()
        tenancy = Tenancy(
            catalog=catalog,
            forms=forms,
            running=running,
            staying={version.digest, *(each.digest for each in self._incumbents())},
            kept=_kept(version, running, views),
        )
        leaving = plan_room(tenancy, lacking, now_ms)
        if leaving is None:
            quota = bytes_text(self._config.quota_bytes) if self._config.quota_bytes else "none"
            raise StoreFull(
                f"{name}/{version.version} needs {bytes_text(max(lacking))} more than there are within "
                f"store.quota_bytes ({quota}) and store.free_floor_bytes "
                f"({bytes_text(self._config.free_floor_bytes)}), and what may be evicted is not enough, packed forms "
                f"included ({bytes_text(sum(each.bytes for each in forms))} now); {WAY_OUT}"
            )
        return leaving

    def outgrown(self, catalog: Catalog, coming: Coming) -> Leaving:
        """The versions of ``catalog`` that have to leave for what is ``coming`` and lies here already; none where the
        quota holds all that lies here. Raises like ``leaving``."""
        over = self.lacking({}).quota
        if over <= 0:
            return Leaving()
        after = with_version(catalog, coming.name, coming.version)
        return self.leaving(catalog, coming, Lacking(over - self.garbage(lambda: after).bytes, 0))


@contextmanager
def census_of(state: Path, config: StoreConfig) -> Iterator[Census]:
    """The census of the state directory ``state``, for as long as the context lasts. Raises StoreUnavailable."""
    with told(str(state), "look at the store"):
        folder = RealFolder(state)
    with closing(folder):
        yield Census(
            folder, config, partial(read_running, state), str(state), partial(read_incumbents, state)
        )


def _version_usages(
    catalog: Catalog,
    used: Collection[str] | None,
    forms: Mapping[str, int],
    trust_of: Callable[[InstalledVersion], str],
) -> Iterator[VersionUsage]:
    """``used``: manifest digests of what a daemon needs, None where that is not known; ``forms``: bytes of packed forms
    by manifest digest."""
    holders = Counter(digest for _, version in catalog.installed() for digest in _sizes(version))
    for model, version in catalog.installed():
        yield VersionUsage(
            name=model.name,
            version=version.version,
            digest=version.digest,
            trust=trust_of(version),
            wanted=version.version == model.wanted,
            pinned=version.version in model.pins,
            in_use=None if used is None else version.digest in used,
            bytes=version.bytes,
            own_bytes=sum(size for digest, size in _sizes(version).items() if holders[digest] == 1),
            form_bytes=forms.get(version.digest, 0),
            installed_at_ms=version.installed_at_ms,
        )


def _sizes(version: InstalledVersion) -> Mapping[str, int]:
    return {file.digest: file.size for file in version.files}


def _kept(
    version: InstalledVersion, running: Collection[str], views: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    own = {file.digest for file in version.files}
    return frozenset(own.union(*(views.get(digest, frozenset()) for digest in running)))
