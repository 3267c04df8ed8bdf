"""Views: what belongs to a version as a directory of hard links to blobs, so that it reads like any model directory.

A view is built beside its place and renamed there, whole. One that lost files, or links to a blob that was replaced, is
mended name by name, each in one step, so that a reader finds right bytes at every moment.

Packed forms lie beside them: directories that the daemon builds and can build again. The writer counts them, and
removes some where an install needs their room; one that is mapped by a worker stays whole for that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from appliance.durable import Folder, ensure_directory, remove_tree
from appliance.store.catalog import InstalledVersion
from appliance.store.layout import FORMS, INCOMING, REFUSED_FORM, VIEWS, blob_path, form_digest, view_path


class ViewShelf:
    """The views of a store; one writer."""

    __slots__ = ("_folder",)

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def ensure(self, version: InstalledVersion) -> bool:
        """Have a whole view of the version, whose blobs are there, for good; gives whether anything had to be done.
        Raises OSError."""
        place = view_path(version.digest)
        found = self._folder.status(place)
        if found is None or not found.is_directory:
            remove_tree(self._folder, place)
            self._build(version, place)
            return True
        mended = self._complete(version, place)
        self._folder.sync_directory(VIEWS)
        return mended

    def misfits(self, version: InstalledVersion) -> Iterable[str]:
        """Files of the view that are not the blobs that they should be."""
        for file in version.files:
            found = self._folder.status(f"{view_path(version.digest)}/{file.path}")
            blob = self._folder.status(blob_path(file.digest))
            if found is None or blob is None or found.identity != blob.identity:
                yield file.path

    def remove(self, digest: str) -> None:
        """Take a view away, at once for every reader; not synced: one that comes back, in part perhaps, is garbage
        again. Raises OSError."""
        _take_away(self._folder, f"{VIEWS}/{digest}", f"{INCOMING}/gone-{digest}")

    def listing(self, owners: Mapping[tuple[int, int], str]) -> Mapping[str, frozenset[str]]:
        """Every view with the digests of the blobs that it links to, which ``owners`` names by the file's identity.
        What goes meanwhile links to nothing."""
        return {
            name: frozenset(self._linked(f"{VIEWS}/{name}", owners)) for name in self._folder.names(VIEWS)
        }

    def _linked(self, place: str, owners: Mapping[tuple[int, int], str]) -> Iterable[str]:
        found = self._folder.status(place)
        if found is not None and found.is_directory:
            names: list[str] = []
            with suppress(FileNotFoundError, NotADirectoryError):
                names = self._folder.names(place)
            for name in names:
                yield from self._linked(f"{place}/{name}", owners)
        elif found is not None and found.identity in owners:
            yield owners[found.identity]

    def _build(self, version: InstalledVersion, place: str) -> None:
        aside = f"{INCOMING}/view-{version.digest}"
        remove_tree(self._folder, aside)
        self._folder.make_directory(aside)
        self._complete(version, aside)
        self._folder.rename(aside, place)
        self._folder.sync_directory(VIEWS)

    def _complete(self, version: InstalledVersion, root: str) -> bool:
        """Make the directory ``root`` what the view must be; gives whether anything was to be done."""
        changed = False
        wanted: dict[str, set[str]] = {root: set()}
        for file in version.files:
            place = f"{root}/{file.path}"
            for parent in _parents(root, place):
                wanted.setdefault(parent.rpartition("/")[0], set()).add(parent.rpartition("/")[2])
                wanted.setdefault(parent, set())
                changed |= self._ensure_directory(parent)
            wanted[place.rpartition("/")[0]].add(place.rpartition("/")[2])
            changed |= self._ensure_link(blob_path(file.digest), place)
        for directory, names in wanted.items():
            for name in set(self._folder.names(directory)) - names:
                remove_tree(self._folder, f"{directory}/{name}")
                changed = True
        for directory in sorted(wanted, reverse=True):
            self._folder.sync_directory(directory)
        return changed

    def _ensure_directory(self, place: str) -> bool:
        found = self._folder.status(place)
        if found is not None and found.is_directory:
            return False
        if found is not None:
            self._folder.unlink(place)
        ensure_directory(self._folder, place)
        return True

    def _ensure_link(self, blob: str, place: str) -> bool:
        """Have ``place`` be the file ``blob``. A wrong file there is replaced without a moment in which none is."""
        found, wanted = self._folder.status(place), self._folder.status(blob)
        if found is None:
            self._folder.link(blob, place)
            return True
        if wanted is not None and found.identity == wanted.identity:
            return False
        if found.is_directory:
            remove_tree(self._folder, place)
        aside = f"{INCOMING}/link"
        remove_tree(self._folder, aside)
        self._folder.link(blob, aside)
        self._folder.rename(aside, place)
        return True


def _parents(root: str, place: str) -> Iterable[str]:
    """The directories between ``root`` and ``place``, from above."""
    steps = place[len(root) + 1 :].split("/")[:-1]
    return [f"{root}/{'/'.join(steps[: depth + 1])}" for depth in range(len(steps))]


class StoredForm(NamedTuple):
    """A form by the name of its directory, whole or being built; ``digest`` is that of its version's manifest.
    ``refused``: no more than the mark that it proved wrong."""

    name: str
    digest: str
    bytes: int
    refused: bool


class FormShelf:
    """The forms beside a store."""

    __slots__ = ("_folder",)

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def listing(self) -> tuple[StoredForm, ...]:
        """Every form, in order of their names. What else lies there is left alone. Whatever goes meanwhile counts no
        bytes."""
        above = self._folder.status(FORMS)
        names = sorted(self._folder.names(FORMS)) if above is not None and above.is_directory else ()
        return tuple(self._measured(name, digest) for name in names if (digest := form_digest(name)))

    def _measured(self, name: str, digest: str) -> StoredForm:
        home, files = f"{FORMS}/{name}", list[str]()
        with suppress(FileNotFoundError, NotADirectoryError):
            files = self._folder.names(home)
        sizes = [found.size for file in files if (found := self._folder.status(f"{home}/{file}")) is not None]
        return StoredForm(name, digest, sum(sizes), REFUSED_FORM in files)

    def remove(self, name: str) -> None:
        """Take the form away, all of it at one moment: a worker that is about to load finds it whole or not at all. The
        daemon may have been first."""
        with suppress(FileNotFoundError):
            _take_away(self._folder, f"{FORMS}/{name}", f"{INCOMING}/form-{name}")


def _take_away(folder: Folder, place: str, aside: str) -> None:
    """Remove a directory, all of it at one moment for every reader; not synced."""
    remove_tree(folder, aside)
    folder.rename(place, aside)
    remove_tree(folder, aside)
