"""The one writer of a store: installs, uninstalls, wishes, collects. What it acknowledged survives a power cut.

The order of every change: blobs are there for good, then the view, then the catalog that names them; only then the
caller is told. What goes away goes in the other order; what leaves for a version that comes is left out by the catalog
that names that. Opening repairs what a killed writer left behind, so there is no other recovery. Blocks for the disk:
nothing here belongs on an event loop. One owner: its opener.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from appliance.config.store import StoreConfig
from appliance.domain.digest import digest_of
from appliance.domain.errors import (
    ApplianceError,
    BlobMismatch,
    StoreUnavailable,
)
from appliance.durable import (
    Folder,
    RealFolder,
    WriterLock,
    ensure_directory,
    read_whole,
    remove_tree,
    replace_file,
    sync_name,
)
from appliance.store import edits
from appliance.store.blobs import BlobShelf, Progress
from appliance.store.catalog import Catalog, HandAct, Hold, InstalledVersion, Trial
from appliance.store.catalog_codec import CATALOG_BYTES_MAX, decode, encode
from appliance.store.catalog_file import check_may_begin
from appliance.store.census import Census, Coming, Garbage
from appliance.store.eviction import Lacking, Leaving
from appliance.store.incoming import UNSIGNED, IncomingPackage
from appliance.store.installation import InstallAttempt, Installed, InstallRequest
from appliance.store.layout import (
    BLOBS,
    CATALOG,
    INCOMING,
    LOCK,
    VIEWS,
)
from appliance.store.privacy import check_own, keep_private
from appliance.store.running import RunningVersion, read_incumbents, read_running
from appliance.store.trouble import told
from appliance.store.views import FormShelf, ViewShelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """A person who changes the store: what he does to a model is held."""

    who: str
    now_ms: int


class StoreWriter:
    """See the module. ``folder`` is the state directory, whose lock the caller holds; ``name`` is for people. What is
    ``running`` is not collected, and neither that nor ``incumbents`` are evicted. What a ``hand`` changes is held from
    then on."""

    def __init__(
        self,
        folder: Folder,
        config: StoreConfig,
        running: Callable[[], Collection[RunningVersion]],
        name: str = "store",
        incumbents: Callable[[], Iterable[RunningVersion]] = tuple,
        hand: Hand | None = None,
    ) -> None:
        """Recovers, once it is known that this is a store. Raises CatalogInvalid, CatalogLost and StoreUnavailable."""
        self._folder = folder
        self._name = name
        self._hand = hand
        self._blobs = BlobShelf(folder)
        self._views = ViewShelf(folder)
        self._forms = FormShelf(folder)
        self._census = Census(folder, config, running, name, incumbents)
        self._doubt = False
        with told(name, "open the store"):
            data = read_whole(folder, CATALOG, CATALOG_BYTES_MAX)
            if data is None:
                check_may_begin(folder, name)
        self._begun = data is not None
        self.catalog = Catalog() if data is None else decode(data, f"{name}/{CATALOG}")
        with told(name, "open the store"):
            self._recover()
            self._mend_views()

    def _recover(self) -> None:
        """Remove what a killed writer was about to do, and sync the catalog, which may be at the disk's mercy still.
        Blobs and views that it left are synced when they are used."""
        for directory in (BLOBS, VIEWS, INCOMING):
            ensure_directory(self._folder, directory)
        for name in self._folder.names(INCOMING):
            remove_tree(self._folder, f"{INCOMING}/{name}")

    def _mend_views(self) -> None:
        """Have the views of installed versions lead to the blobs that are there: one that was replaced, because it was
        damaged, may belong to others, too."""
        for _, version in self.catalog.installed():
            if any(self._views.misfits(version)) and self._has_blobs(version):
                self._views.ensure(version)

    def _has_blobs(self, version: InstalledVersion) -> bool:
        return not any(self._blobs.misfit(file.digest, file.size) for file in version.files)

    def install(self, request: InstallRequest) -> Installed:
        """Have a version installed. Blobs that are there are read and compared, damaged ones replaced. Who has to leave
        leaves with the change of the catalog that brings the version; errors after somebody left say who.
        Raises StoreRefused, StoreFull, StoreUnavailable, PackageInvalid, BlobMismatch."""
        coming, before = self._coming(request), self.catalog
        name, version = coming.name, coming.version
        attempt = InstallAttempt(request.package.manifest.key)
        with self._telling(attempt):
            self._begin()
            written, mended = self._bring(request, coming, attempt)
            attempt.tidy = True
            request.accept(version.digest)
            leaving = self._outgrown(coming, bool(written))
            attempt.tidy = False
            catalog, installed = self._catalog_with(request, coming, leaving), self.catalog
            self._commit(catalog, again=bool(written or mended))
            attempt.done = True
            self._remove(leaving, installed, attempt)
        return Installed(
            name=name,
            version=version.version,
            digest=version.digest,
            changed=bool(written or mended or self.catalog.model(name) != before.model(name)),
            written_bytes=written,
            evicted=tuple(attempt.evicted),
            evicted_forms=tuple(attempt.evicted_forms),
        )

    def _coming(self, request: InstallRequest) -> Coming:
        """What is to be installed. What cannot be is refused here, before anything is done."""
        package, now_ms = request.package, request.now_ms
        name = package.manifest.name
        version = self._better(name, package.version(now_ms))
        known = edits.with_version(self.catalog, name, version, package.minimum)
        if not request.downgrade:
            edits.check_install(self.catalog, name, version, want=request.want)
        if request.want:
            edits.wanting(known, name, version.version, now_ms)
        return Coming(name, version, now_ms)

    def _bring(self, request: InstallRequest, coming: Coming, attempt: InstallAttempt) -> tuple[int, bool]:
        """Have its blobs and its view there; gives the bytes that were written, and whether the view was mended."""
        version, progress = coming.version, request.progress
        whole = self._whole(version, progress)
        attempt.needed_bytes = sum(file.size for file in version.files if file.digest not in whole)
        attempt.tidy = self._make_room(coming, whole, attempt)
        written = self._take_in(request.package, version, whole, progress)
        mended = self._views.ensure(version)
        if written:
            self._mend_views()
        return written, mended

    def _catalog_with(self, request: InstallRequest, coming: Coming, leaving: Leaving) -> Catalog:
        """The catalog that names what is ``coming``, and no more what is ``leaving``."""
        name, number, package = coming.name, coming.version.version, request.package
        catalog = edits.with_version(_without(self.catalog, leaving), name, coming.version, package.minimum)
        if package.managed and self.catalog.model(name) is None:
            catalog = edits.brought(catalog, name)
        if not request.want:
            return catalog
        catalog = edits.wanting(
            catalog, name, number, request.now_ms, interface_change=request.interface_change
        )
        return self._held(catalog, name, HandAct.INSTALL, number)

    @contextmanager
    def _telling(self, attempt: InstallAttempt) -> Iterator[None]:
        """Where the package proves bad in here, have what came of it go at once, if that is to be done; an error also
        says what is changed nevertheless."""
        try:
            with told(self._name, lambda: attempt.doing, lambda: attempt.needed_bytes):
                yield
        except ApplianceError as error:
            if attempt.tidy:
                with suppress(ApplianceError):  # what stays is garbage, and goes another time
                    self.collect()
            attempt.own_up(error)
            raise

    def uninstall(self, name: str, number: int | None = None) -> Garbage:
        """Forget a version, or all of a model (None), and remove the garbage. Raises StoreRefused and
        StoreUnavailable."""
        if number is None:
            catalog = edits.without_model(self.catalog, name)
        else:
            catalog = edits.without_version(self.catalog, name, number)
        self._commit(self._held(catalog, name, HandAct.UNINSTALL, number or 0))
        return self.collect()

    def want(
        self, name: str, number: int, now_ms: int, *, interface_change: bool = False, order: bool = True
    ) -> None:
        """Have the version served, by ``order`` or as a proposal; ``interface_change``: clients change along. Raises
        StoreRefused and StoreUnavailable."""
        catalog = edits.wanting(
            self.catalog, name, number, now_ms, order=order, interface_change=interface_change
        )
        self._commit(self._held(catalog, name, HandAct.WANT, number))

    def resume(self, name: str) -> None:
        """Let the fleet change the model again. Raises StoreUnavailable."""
        self._commit(edits.resumed(self.catalog, name))

    def ask_again(self, name: str, number: int, now_ms: int, *, order: bool = False) -> None:
        """Have a daemon try a version again that it gave up and that is wanted, perhaps by ``order`` now, or on trial.
        Raises like ``want``."""
        self._commit(edits.asked_again(self.catalog, name, number, now_ms, order=order))

    def roll_back(self, name: str, now_ms: int, unfit: Collection[int] = ()) -> int:
        """Have the version served that was wanted before, but no ``unfit`` one; gives it. Raises like ``want``."""
        catalog = edits.rolled_back(self.catalog, name, now_ms, unfit)
        model = catalog.model(name)
        assert model is not None
        self._commit(self._held(catalog, name, HandAct.ROLLBACK, model.wanted))
        return model.wanted

    def pin(self, name: str, number: int, *, pinned: bool) -> None:
        """Keep a version from being evicted, or not any more. Who lets one go holds no model that nobody holds: he
        decides nothing that a fleet would change. Raises like ``want``."""
        catalog = (edits.pinned if pinned else edits.unpinned)(self.catalog, name, number)
        if pinned or catalog.hold(name) is not None:
            catalog = self._held(catalog, name, HandAct.PIN if pinned else HandAct.UNPIN, number)
        self._commit(catalog)

    def try_out(self, name: str, trial: Trial | None) -> None:
        """Ask for a trial, or for none any more. Raises like ``want``."""
        catalog, act = (
            edits.on_trial(self.catalog, name, trial),
            HandAct.TRIAL if trial else HandAct.TRIAL_STOP,
        )
        self._commit(self._held(catalog, name, act, trial.version if trial else 0))

    def _held(self, catalog: Catalog, name: str, what: HandAct, number: int) -> Catalog:
        """The changed ``catalog`` with the hold of who changed it."""
        if self._hand is None:
            return catalog
        since_ms = max(self._hand.now_ms, 0)
        return edits.held(
            catalog, Hold(name=name, what=what, version=number, who=self._hand.who, since_ms=since_ms)
        )

    def garbage(self) -> Garbage:
        """Blobs and views that nothing leads to. Raises StoreUnavailable, also when a daemon does not say what it
        runs."""
        return self._census.garbage(lambda: self.catalog)

    def collect(self, spared: Collection[str] = ()) -> Garbage:
        """Remove the garbage, but for the blobs ``spared``; gives what it was. Raises like ``garbage``."""
        self._check_certain()
        found = self.garbage()
        found = replace(found, blobs=tuple(each for each in found.blobs if each[0] not in spared))
        total = f"{len(found.views)} views and {len(found.blobs)} blobs"
        for number, view in enumerate(found.views):
            with told(self._name, f"remove garbage ({number} views of {total} are gone)"):
                self._views.remove(view)
        for number, (digest, _) in enumerate(found.blobs):
            with told(self._name, f"remove garbage (all views and {number} blobs of {total} are gone)"):
                self._blobs.remove(digest)
        return found

    @property
    def free_bytes(self) -> int:
        """What is free on the disk now. Raises StoreUnavailable."""
        return self._census.free_bytes

    def _check_certain(self) -> None:
        """Refuse to go on from a catalog that may not be the one on the disk."""
        if self._doubt:
            raise StoreUnavailable(
                f"the catalog in '{self._name}' could not be written; open the store again"
            )

    def _begin(self) -> None:
        """Have a catalog before the first blob: blobs without one mean that it was lost."""
        if not self._begun:
            self._write(self.catalog)

    def _better(self, name: str, version: InstalledVersion) -> InstalledVersion:
        """The version as it is installed, if it is, unless the one that comes brings trust that it did not have."""
        model = self.catalog.model(name)
        present = model.version(version.version) if model else None
        if present is None or present.digest != version.digest:
            return version
        if version.trust == UNSIGNED or present.trust != UNSIGNED:
            return present
        return replace(
            version, installed_at_ms=present.installed_at_ms, last_wanted_ms=present.last_wanted_ms
        )

    def _whole(self, version: InstalledVersion, progress: Progress) -> frozenset[str]:
        """Digests of the version's blobs that are in the store and right."""
        sizes = {file.digest: file.size for file in version.files}
        found = {
            digest
            for digest, size in sizes.items()
            if self._blobs.status(digest) is not None and not self._blobs.damage(digest, size, progress)
        }
        for digest in found:
            self._blobs.keep(digest)
        return frozenset(found)

    def _make_room(self, coming: Coming, whole: frozenset[str], attempt: InstallAttempt) -> bool:
        """See that what is missing fits, if need be without garbage and without those who may leave. They stay until
        the package is known to be good, unless the disk has no room to take it in: who has to leave for that leaves
        now. Gives whether more have to. Raises StoreFull, and has evicted nothing then."""
        missing = {file.digest: file.size for file in coming.version.files if file.digest not in whole}
        if not sum(missing.values()) or max(self._census.lacking(missing)) <= 0:
            return False
        self.collect(spared=whole)
        lacking = self._census.lacking(missing)
        if max(lacking) <= 0:
            return False
        self._census.leaving(self.catalog, coming, lacking)
        if lacking.disk > 0:
            here = self.catalog
            leaving = self._census.leaving(here, coming, Lacking(0, lacking.disk))
            self._remove_forms(leaving, here, attempt)  # first: a catalog needs room, too
            self._commit(_without(here, leaving))
            attempt.note(leaving)
            self.collect(spared=whole)
        return lacking.quota > 0

    def _outgrown(self, coming: Coming, arrives: bool) -> Leaving:
        """Those who have to leave with the change that brings what is ``coming``; none where nothing ``arrives``."""
        after = edits.with_version(self.catalog, coming.name, coming.version)
        arrives = arrives or after != self.catalog
        return self._census.outgrown(self.catalog, coming) if arrives else Leaving()

    def _remove(self, leaving: Leaving, catalog: Catalog, attempt: InstallAttempt) -> None:
        """Remove what has left ``catalog``. Raises OSError and StoreUnavailable."""
        if leaving != Leaving():
            attempt.note(leaving)
            self._remove_forms(leaving, catalog, attempt)
            self.collect()

    def _remove_forms(self, leaving: Leaving, catalog: Catalog, attempt: InstallAttempt) -> None:
        """Remove packed forms, and note them by the versions that ``catalog`` has of them. Raises OSError."""
        keys = {each.digest: f"{model.name}/{each.version}" for model, each in catalog.installed()}
        for form in leaving.forms:
            self._forms.remove(form.name)
            attempt.evicted_forms.append(keys.get(form.digest, ""))

    def _take_in(
        self, arrival: IncomingPackage, version: InstalledVersion, whole: frozenset[str], progress: Progress
    ) -> int:
        """Put the blobs that are missing; gives their bytes."""
        sizes = {file.digest: file.size for file in version.files}
        missing = sizes.keys() - whole
        written = 0
        for paper in arrival.papers:
            if (digest := digest_of(paper)) in missing:
                self._blobs.put(digest, sizes[digest], [paper], progress)
                missing -= {digest}
                written += len(paper)
        for digest, size, pieces in arrival.read():
            if digest in missing:
                if size != sizes[digest]:
                    raise BlobMismatch(
                        f"blob {digest} comes with {size} bytes, the manifest says {sizes[digest]}"
                    )
                self._blobs.put(digest, size, pieces, progress)
                missing -= {digest}
                written += size
        if missing:
            raise BlobMismatch(
                f"{arrival.manifest.key} came without {len(missing)} of its blobs, such as {min(missing)}"
            )
        return written

    def _commit(self, catalog: Catalog, *, again: bool = False) -> None:
        """Make ``catalog`` the store's, for good; ``again``: even if nothing changes in it: readers look at files
        that were repaired. Raises StoreUnavailable; whether it is then the store's is not known before the store is
        opened again."""
        if catalog == self.catalog and not again:
            return
        self._check_certain()
        self._write(replace(catalog, generation=self.catalog.generation + 1))

    def _write(self, catalog: Catalog) -> None:
        data = encode(catalog)
        with told(self._name, "write the catalog", lambda: len(data)):
            if not self._folder.is_in_place():
                raise StoreUnavailable(
                    f"'{self._name}' is not where it was any more; was its disk unmounted?"
                )
            self._doubt = True
            replace_file(self._folder, CATALOG, f"{INCOMING}/{CATALOG}", data)
            self._doubt = False
        self.catalog, self._begun = catalog, True


def _without(catalog: Catalog, leaving: Leaving) -> Catalog:
    for each in leaving.versions:
        catalog = edits.without_version(catalog, each.name, each.version)
    return catalog


@contextmanager
def open_store(state: Path, config: StoreConfig, hand: Hand | None = None) -> Iterator[StoreWriter]:
    """The store in ``state``, which becomes one if it is empty or not there, for as long as the context lasts. Raises
    StoreBusy with the pid of the writer, StoreUnavailable, CatalogInvalid, CatalogLost."""
    running, incumbents = partial(read_running, state), partial(read_incumbents, state)
    with locked(state) as folder:
        yield StoreWriter(folder, config, running, str(state), incumbents, hand)


@contextmanager
def locked(state: Path) -> Iterator[RealFolder]:
    """The state directory, made if need be, with the lock of its one writer. Raises StoreBusy and StoreUnavailable."""
    with told(str(state), "open the store"):
        state.mkdir(mode=0o700, exist_ok=True)
        check_own(state)
        keep_private(state)
        if not (state / CATALOG).exists():
            sync_name(state)
        lock = WriterLock(state / LOCK)
    try:
        with told(str(state), "open the store"):
            folder = RealFolder(state)
        with closing(folder):
            yield folder
    finally:
        lock.release()
