"""Damage: looked for at once, on demand, or by the scrub, which reads what installed versions need to find bit rot.

The scrub reads from the disk and not from memory. It is a process of its own beside writer and daemon, at the lowest
classes of processor and disk, and no faster than it is told. It changes nothing but its own record, which tells how far
it is, so that it goes on there after a restart, and what it found. The record is for the writer: a damaged blob is
replaced by installing its package again, and leaves the record then, or, where a scrub is at work on it meanwhile, when
the scrub has read it anew.

Who looks needs no lock. A writer may be at work meanwhile: what it took away is no damage, so findings are told only
about versions that the catalog still has when everything was looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from appliance.config.store import StoreConfig
from appliance.domain.digest import is_digest
from appliance.domain.errors import StoreBusy
from appliance.domain.manifest import INT64_MAX
from appliance.durable import Folder, RealFolder, WriterLock, read_whole, replace_file
from appliance.store.blobs import BlobShelf, Progress, unnoticed
from appliance.store.catalog import Catalog
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import SCRUB, SCRUB_LOCK
from appliance.store.views import ViewShelf

FORMAT: Final = 1
RECORD_BYTES_MAX: Final = 64 << 20
SAVE_BYTES: Final = 1 << 30
"""How much is read again at most after a restart."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A blob that is not what its name says."""

    digest: str
    text: str
    found_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRecord:
    """How far the present pass is (``position``: the last digest that was read, "" at its beginning), when the last
    whole one ended (0: never), what a whole one read, and what is damaged."""

    position: str = ""
    started_ms: int = 0
    finished_ms: int = 0
    blobs: int = 0
    bytes: int = 0
    damaged: tuple[Damage, ...] = ()


def encode(record: ScrubRecord) -> bytes:
    """The bytes of the record's file."""
    return json.dumps({"format": FORMAT, **asdict(record)}, sort_keys=True, indent=1).encode() + b"\n"


def decode(data: bytes) -> ScrubRecord:
    """The record in ``data``; a new one when it cannot be read: it says nothing that a scrub does not find again."""
    try:
        document: Any = json.loads(data)
        if document.pop("format") != FORMAT:
            return ScrubRecord()
        damaged = tuple(Damage(**each) for each in document.pop("damaged"))
        record = ScrubRecord(damaged=damaged, **document)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return ScrubRecord()
    return record if _is_sound(record) else ScrubRecord()


def _is_sound(record: ScrubRecord) -> bool:
    numbers = (record.started_ms, record.finished_ms, record.blobs, record.bytes)
    return (
        all(type(each) is int and 0 <= each <= INT64_MAX for each in numbers)
        and (record.position == "" or (isinstance(record.position, str) and is_digest(record.position)))
        and all(
            isinstance(each.digest, str)
            and is_digest(each.digest)
            and isinstance(each.text, str)
            and type(each.found_ms) is int
            and 0 <= each.found_ms <= INT64_MAX
            for each in record.damaged
        )
    )


def read_record(state: Path) -> ScrubRecord:
    """What the scrub of ``state`` found so far. Raises OSError."""
    with closing(RealFolder(state)) as folder:
        data = read_whole(folder, SCRUB, RECORD_BYTES_MAX)
    return ScrubRecord() if data is None else decode(data)


def forget_damage(state: Path, repaired: Collection[str]) -> None:
    """Take blobs off the record that were repaired, unless a scrub has it. Raises OSError."""
    if not any(each.digest in repaired for each in read_record(state).damaged):
        return
    with suppress(StoreBusy), closing(RealFolder(state)) as folder:
        lock = WriterLock(state / SCRUB_LOCK)
        try:
            record = read_record(state)
            left = tuple(each for each in record.damaged if each.digest not in repaired)
            replace_file(folder, SCRUB, f"{SCRUB}.new", encode(replace(record, damaged=left)))
        finally:
            lock.release()


def due_s(record: ScrubRecord, interval_s: float, now_ms: int) -> float:
    """Seconds until a pass should begin or go on; a clock that was stepped makes that an interval at most."""
    if record.position or not record.finished_ms:
        return 0.0
    return min(max(record.finished_ms / 1000 + interval_s - now_ms / 1000, 0.0), interval_s)


def noted(record: ScrubRecord, digest: str, size: int, text: str, now_ms: int) -> ScrubRecord:
    """The record after the blob was read and ``text`` ("": nothing) found wrong with it."""
    others = tuple(each for each in record.damaged if each.digest != digest)
    before = next((each for each in record.damaged if each.digest == digest), None)
    found = (before or Damage(digest=digest, text=text, found_ms=now_ms),) if text else ()
    return replace(
        record,
        position=digest,
        blobs=record.blobs + 1,
        bytes=record.bytes + size,
        damaged=tuple(sorted((*others, *found), key=lambda each: each.digest)),
    )


class Scrub:
    """One scrub at a time per store. ``pause`` waits for that many seconds, ``elapsed_s`` tells seconds since any fixed
    moment, ``wall_ms`` is for the record."""

    def __init__(
        self,
        state: Path,
        config: StoreConfig,
        *,
        wall_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        """Raises StoreBusy when another scrub is at work, and OSError."""
        self._lock = WriterLock(state / SCRUB_LOCK)
        self._state = state
        self._folder = RealFolder(state)
        self._blobs = BlobShelf(self._folder)
        self._rate = config.scrub_bytes_per_s
        self._wall_ms = wall_ms
        self._elapsed_s = elapsed_s
        self._pause = pause
        self._next_s = elapsed_s()

    def close(self) -> None:
        """Let another scrub begin."""
        self._folder.close()
        self._lock.release()

    def run_pass(self, progress: Progress = unnoticed) -> ScrubRecord:
        """Begin a pass, or go on with the one that was interrupted, to its end. Raises OSError, CatalogInvalid and
        StoreUnavailable."""
        record = read_record(self._state)
        wanted = blobs_of(self._catalog())
        if not record.position:
            known = tuple(each for each in record.damaged if each.digest in wanted)
            record = replace(record, started_ms=self._wall_ms(), blobs=0, bytes=0, damaged=known)
        unsaved = 0
        for digest in sorted(each for each in wanted if each > record.position):
            size, _ = wanted[digest]
            text = self._damage(digest, size, progress)
            known_before = record.damaged
            record = noted(record, digest, size, text, self._wall_ms())
            unsaved += size
            if unsaved >= SAVE_BYTES or record.damaged != known_before:
                self._save(record)
                unsaved = 0
        record = replace(record, position="", finished_ms=self._wall_ms())
        self._save(record)
        return record

    def _damage(self, digest: str, size: int, progress: Progress) -> str:
        """What is wrong with the blob. One that was taken away while it was read is not damaged."""
        text = self._blobs.damage(digest, size, progress, self._slowly)
        return text if text and digest in blobs_of(self._catalog()) else ""

    def _slowly(self, path: str) -> Iterator[memoryview | bytes | bytearray]:
        for chunk in self._folder.uncached_chunks(path):
            now = self._elapsed_s()
            self._next_s = max(self._next_s, now) + len(chunk) / self._rate
            yield chunk
            if self._next_s > now:
                self._pause(self._next_s - now)

    def _catalog(self) -> Catalog:
        return read_catalog(self._state) or Catalog()

    def _save(self, record: ScrubRecord) -> None:
        replace_file(self._folder, SCRUB, f"{SCRUB}.new", encode(record))
