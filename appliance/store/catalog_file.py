"""The catalog as its readers find it, without a lock; one that is lost: noticed, and made anew from what the views say
of themselves.

A store writes its catalog before its first blob, so blobs or views without a catalog mean that it was taken away: by a
file system that was repaired, a copy of half a directory, a hand. A new store in its place would have everything that
is installed collected as garbage, so none is begun.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.domain import manifest_codec
from appliance.domain.digest import digest_of, is_digest
from appliance.domain.errors import CatalogLost, PackageInvalid, StoreRefused, StoreUnavailable
from appliance.durable import Folder, RealFolder, read_whole
from appliance.store.blobs import BlobShelf, Progress, unnoticed
from appliance.store.catalog import (
    Catalog,
    CatalogModel,
    Floor,
    InstalledVersion,
)
from appliance.store.catalog_codec import CATALOG_BYTES_MAX, decode
from appliance.store.incoming import IncomingPackage
from appliance.store.layout import BLOBS, CATALOG, INCOMING, MANIFEST, SIGNATURE, VIEWS, view_path

GENERATION_MAX: Final = 1 << 62
PAPER_BYTES_MAX: Final = 16 << 20
"""Largest manifest or signature that is read."""

_OF_THE_FILE: Final = frozenset(
    {None, errno.EIO, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EUCLEAN, errno.EBADMSG}
)
"""What the disk says of one file that is damaged, or is none; None: what ``durable`` says of it."""

TrustOf = Callable[[bytes, bytes | None], str]
"""Manifest and signatures of a package to the word about what vouches for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A catalog made anew. ``left_out`` are views, by their digests, that it does not name, and why."""

    catalog: Catalog
    left_out: tuple[tuple[str, str], ...]


def check_not_lost(folder: Folder, name: str) -> None:
    """Raise CatalogLost when the state directory called ``name`` holds what only a catalog can have named, and no
    catalog. Raises OSError."""
    if not any(_remains(folder)) or folder.status(CATALOG) is not None:
        return  # the second is asked last: a writer may have begun meanwhile
    raise CatalogLost(
        f"'{name}/{CATALOG}' is gone, but what it named is there; restore the file, or have it made anew with "
        f"'appliance store check --rebuild --state-dir {name}'; nothing new is served, installed or removed before that"
    )


def check_may_begin(folder: Folder, name: str) -> None:
    """Raise CatalogLost as ``check_not_lost`` does, and StoreUnavailable where what a store empties when it is opened
    holds something that none can have put there: another program's directory. Raises OSError."""
    check_not_lost(folder, name)
    found = folder.status(INCOMING)
    names = folder.names(INCOMING) if found is not None and found.is_directory else []
    begun = names == [CATALOG] and all(folder.status(each) is not None for each in (BLOBS, VIEWS))
    # A writer that was killed while it began leaves the first catalog, and all directories.
    if names and not begun:
        raise StoreUnavailable(
            f"'{name}' holds no store, but '{INCOMING}/{names[0]}', which a store would remove; give the store a "
            "directory of its own"
        )


def check_any_remains(folder: Folder, name: str) -> None:
    """Raise StoreRefused where nothing is there of which a catalog could be made anew. Raises OSError."""
    if not any(_remains(folder)):
        raise StoreRefused(f"'{name}' holds no store; 'appliance model install' makes one")


def _remains(folder: Folder) -> Iterator[str]:
    for above in (VIEWS, BLOBS):
        found = folder.status(above)
        if found is None or not found.is_directory:
            continue
        for name in folder.names(above):
            place = f"{above}/{name}"
            inner = folder.status(place)
            if inner is not None and inner.is_directory:
                yield from (each for each in folder.names(place) if above == VIEWS or is_digest(each))


def rebuilt(
    folder: Folder,
    *,
    trust_of: TrustOf,
    served: Mapping[str, int],
    now_ms: int,
    progress: Progress = unnoticed,
) -> Rebuilt:
    """The catalog that the views tell: every version whose manifest and blobs are there, byte by byte. ``served`` are
    the versions that were served last, by name, and so are wanted. What nothing tells any more is lost: pins, trials,
    where a rollback leads. By a clock that is right, its generation is later than any that was counted. Raises
    OSError, but not for a view that is damaged."""
    found: dict[tuple[str, int], InstalledVersion] = {}
    minima: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for digest in folder.names(VIEWS) if folder.status(VIEWS) is not None else ():
        try:
            package, version = _version(folder, digest, trust_of, now_ms, progress)
        except PackageInvalid as problem:
            left_out[digest] = "; ".join(f"{each.key} {each.text}".strip() for each in problem.problems)
            continue
        except ValueError as problem:
            left_out[digest] = str(problem)
            continue
        except OSError as problem:
            if problem.errno not in _OF_THE_FILE:
                raise  # what is left out is garbage: not for what may be gone in a moment
            left_out[digest] = f"cannot be read: {problem.strerror or problem}"
            continue
        key = package.manifest.name, version.version
        if key in found:
            for each in (digest, found[key].digest):
                left_out[each] = f"is one of several that say to be {package.manifest.key}"
            continue
        found[key] = version
        minima[key[0]] = max(minima.get(key[0], 0), package.minimum)
    kept = {key: version for key, version in found.items() if version.digest not in left_out}
    models = [
        _model(name, [version for (other, _), version in kept.items() if other == name], served.get(name, 0))
        for name in sorted({name for name, _ in kept})
    ]
    floors = tuple(Floor(name=name, minimum=minimum) for name, minimum in sorted(minima.items()) if minimum)
    catalog = Catalog(generation=max(now_ms // 1000, 1), models=tuple(models), floors=floors)
    return Rebuilt(catalog=catalog, left_out=tuple(sorted(left_out.items())))


def _model(name: str, versions: Iterable[InstalledVersion], served: int) -> CatalogModel:
    ascending = tuple(sorted(versions, key=lambda each: each.version))
    wanted = served if served in {each.version for each in ascending} else 0
    return CatalogModel(name=name, versions=ascending, wanted=wanted)


def _version(
    folder: Folder, digest: str, trust_of: TrustOf, now_ms: int, progress: Progress
) -> tuple[IncomingPackage, InstalledVersion]:
    """What the view says it is. Raises ValueError or PackageInvalid when that is not so, or not all of it is there."""
    root = view_path(digest)
    data = read_whole(folder, f"{root}/{MANIFEST}", PAPER_BYTES_MAX)
    if data is None or digest_of(data) != digest:
        raise ValueError(f"has no {MANIFEST} of that digest")
    manifest = manifest_codec.decode(data)
    signatures = read_whole(folder, f"{root}/{SIGNATURE}", PAPER_BYTES_MAX)
    trust = trust_of(data, signatures)
    package = IncomingPackage(manifest=manifest, manifest_bytes=data, signatures=signatures, trust=trust)
    version = package.version(now_ms)
    blobs = BlobShelf(folder)
    for blob, size in {file.digest: file.size for file in version.files}.items():
        if damage := blobs.damage(blob, size, progress):
            raise ValueError(f"{manifest.key} needs blob {blob}, which {damage}")
    return package, version


def counted(data: bytes) -> int:
    """The generation that a damaged catalog tells; 0 when it tells none."""
    try:
        generation = json.loads(data)["catalog"]["generation"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
    return generation if type(generation) is int and 0 < generation < GENERATION_MAX else 0


def read_catalog(state: Path) -> Catalog | None:
    """The catalog of the state directory; None where nothing is installed yet. A reader that has seen one and finds
    none later has lost its disk: no catalog is ever removed. Raises CatalogInvalid, CatalogLost and
    StoreUnavailable."""
    try:
        with closing(RealFolder(state)) as folder:
            data = read_whole(folder, CATALOG, CATALOG_BYTES_MAX)
            if data is None:
                check_not_lost(folder, str(state))
    except OSError as error:
        reason = error.strerror or error
        remedy = "is its disk mounted?"
        if isinstance(error, PermissionError):
            remedy = "run this as the user that owns the directory, or as one of a group that it is given to"
        raise StoreUnavailable(f"'{state / CATALOG}' cannot be read: {reason}; {remedy}") from error
    return None if data is None else decode(data, str(state / CATALOG))
