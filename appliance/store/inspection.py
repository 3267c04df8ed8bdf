"""Look at all that a store should hold and tell what is not as it should be. Reads only, and needs no lock.

A writer may be at work meanwhile: what it took away is no damage, so findings are told only about versions that the
catalog still has when everything was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from appliance.durable import Folder
from appliance.store.blobs import BlobShelf, Progress, unnoticed
from appliance.store.catalog import Catalog
from appliance.store.views import ViewShelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong with what ``versions`` ("name/version") need: a blob by its digest, or a file of a view
    by its path in it."""

    what: str
    place: str
    text: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was looked at, and what was wrong with it."""

    versions: int
    blobs: int
    bytes: int
    findings: tuple[Finding, ...]


def blobs_of(catalog: Catalog) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Every blob that installed versions need: its size and those versions."""
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for model, version in catalog.installed():
        for digest, size in {file.digest: file.size for file in version.files}.items():
            _, others = found.get(digest, (size, ()))
            found[digest] = (size, (*others, f"{model.name}/{version.version}"))
    return found


def inspect(
    folder: Folder, read: Callable[[], Catalog], *, quick: bool = False, progress: Progress = unnoticed
) -> Inspection:
    """Look at everything; ``quick``: at names and sizes only, without reading blobs. ``read`` gives the catalog, and
    is asked again at the end. Raises OSError."""
    catalog = read()
    wanted = blobs_of(catalog)
    findings = [*_blob_findings(folder, catalog, quick, progress), *_view_findings(folder, catalog)]
    if findings:
        still = {f"{model.name}/{version.version}" for model, version in read().installed()}
        findings = [each for each in findings if still.intersection(each.versions)]
    return Inspection(
        versions=sum(1 for _ in catalog.installed()),
        blobs=len(wanted),
        bytes=sum(size for size, _ in wanted.values()),
        findings=tuple(findings),
    )


def _blob_findings(folder: Folder, catalog: Catalog, quick: bool, progress: Progress) -> Iterator[Finding]:
    blobs = BlobShelf(folder)
    for digest, (size, versions) in sorted(blobs_of(catalog).items()):
        text = blobs.misfit(digest, size) if quick else blobs.damage(digest, size, progress)
        if text:
            yield Finding(what="blob", place=digest, text=text, versions=versions)


def _view_findings(folder: Folder, catalog: Catalog) -> Iterator[Finding]:
    views = ViewShelf(folder)
    for model, version in catalog.installed():
        for path in views.misfits(version):
            key = f"{model.name}/{version.version}"
            yield Finding(what="view", place=path, text="is missing or not its blob", versions=(key,))
