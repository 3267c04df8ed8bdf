"""Versions that were uploaded: packages, verified like on a box, and the streams that bring them to boxes.

Streams are built once for all boxes: from scratch when a version comes, from another version when it is first wanted
where that one is. What takes long is done outside of transactions; what was built is noted in one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from appliance.config.repository import RepositoryConfig
from appliance.config.store import Unsigned
from appliance.controller import tables
from appliance.controller.blobs import BlobStore, write_blob
from appliance.controller.fleet_store import FleetStore, Rows
from appliance.domain.errors import OperatorError, PackageInvalid, StoreRefused
from appliance.domain.golden import holds_answers
from appliance.fleet.documents import Transfer, WishedVersion
from appliance.package.keys import PublicKey
from appliance.package.reader import open_package
from appliance.package.verification import Policy, verify_package
from appliance.transfer.build import Built, build


class NoRelease(OperatorError):
    """A version that was never uploaded."""


class Releases:
    """See the module. Blocks: off the event loop."""

    def __init__(self, store: FleetStore, blobs: BlobStore, keys: Sequence[PublicKey]) -> None:
        self._store = store
        self._blobs = blobs
        self._keys = keys

    def upload(self, draft: Path, who: str, now_ms: int) -> tuple[str, int]:
        """Take the package at ``draft``, which is gone then; gives its model and version. Raises PackageInvalid,
        StoreRefused for another one of the same number, OperatorError and OSError."""
        policy = Policy(keys=tuple(self._keys), unsigned=Unsigned.ALLOW, repository=RepositoryConfig())
        with tempfile.TemporaryDirectory(dir=draft.parent) as folder:
            verified = verify_package(draft, policy, Path(folder), lambda total: lambda count: None)
        if verified.problems or verified.manifest is None:
            raise PackageInvalid([replace(each, file="the package") for each in verified.problems])
        manifest, digest = verified.manifest, verified.digest
        with self._store.transaction() as rows:
            there = rows.one(tables.releases, model=manifest.name, version=manifest.version)
        if there is not None:
            if there.manifest != digest:
                raise StoreRefused(
                    f"the release {manifest.key} is {there.manifest[:12]}, and this is {digest[:12]}: what a version "
                    "is never changes; give the new one another number"
                )
            self._note_trust(manifest.name, manifest.version, verified.trust.word)
            return manifest.name, manifest.version
        package = self._blobs.take(draft)
        built = self._built(self._blobs.path(package), None)
        with self._store.transaction() as rows:
            rows.put(
                tables.releases,
                model=manifest.name,
                version=manifest.version,
                manifest=digest,
                package=package,
                total_bytes=manifest.total_bytes,
                trust=verified.trust.word,
                by_whom=who,
                at_ms=now_ms,
            )
            _note(rows, manifest.name, manifest.version, built)
            rows.note(now_ms, who, "release", model=manifest.name, version=manifest.version, manifest=digest)
        return manifest.name, manifest.version

    def golden_before(self, model: str, version: int) -> int:
        """The newest version below ``version`` that has golden answers, where that has none; 0: nothing is lost. A
        package that cannot be read any more has none: it stands in the way of no release."""
        with self._store.transaction() as rows:
            found = [row for row in rows.all(tables.releases, model=model) if row.version <= version]
        for row in sorted(found, key=lambda each: each.version, reverse=True):
            if self._holds_answers(row.package):
                return 0 if row.version == version else int(row.version)
        return 0

    def _holds_answers(self, package: str) -> bool:
        with suppress(PackageInvalid, OSError), open_package(self._blobs.path(package)) as reader:
            return holds_answers((file.path, file.size) for file in reader.manifest.files)
        return False

    def _note_trust(self, model: str, version: int, word: str) -> None:
        """Who signed it, as the root says now."""
        with self._store.transaction() as rows:
            rows.change(tables.releases, {"model": model, "version": version}, trust=word)

    def prepare(self, model: str, version: int, bases: Iterable[int]) -> None:
        """Have streams from the versions ``bases`` to ``version``, as far as there are releases of them. Raises
        NoRelease and OSError."""
        with self._store.transaction() as rows:
            target = release(rows, model, version)
            wanted = set(bases) - {version}
            found = [row for row in rows.all(tables.releases, model=model) if row.version in wanted]
            known = {row.base for row in rows.all(tables.transfers, model=model, version=version)}
        for base in found:
            if base.manifest not in known:
                built = self._built(self._blobs.path(target.package), self._blobs.path(base.package))
                with self._store.transaction() as rows:
                    _note(rows, model, version, built)

    def _built(self, target: Path, base: Path | None) -> Built:
        """The stream and its index as blobs."""
        folder = Path(tempfile.mkdtemp(dir=self._blobs.draft().parent))
        try:
            made = build(target, base, folder / "stream")
            stream = self._blobs.draft()
            (folder / "stream").rename(stream)
            self._blobs.take(stream)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        write_blob(self._blobs, lambda path: path.write_bytes(made.index))
        return made


def _note(rows: Rows, model: str, version: int, built: Built) -> None:
    rows.put(
        tables.transfers,
        model=model,
        version=version,
        base=built.base,
        stream=built.stream,
        size=built.size,
        index_digest=built.index_digest,
    )


def release(rows: Rows, model: str, version: int) -> Row[Any]:
    """The release. Raises NoRelease, with those that there are."""
    found = rows.one(tables.releases, model=model, version=version)
    if found is None:
        there = [str(row.version) for row in rows.all(tables.releases, model=model)]
        known = f"there are {', '.join(there)}" if there else f"nothing was released of '{model}'"
        raise NoRelease(f"{model}/{version} was not released; {known}")
    return found


def wished_version(rows: Rows, model: str, version: int) -> WishedVersion:
    """The release as documents name it, with all ways to get it, those from a base first. Raises NoRelease."""
    found = release(rows, model, version)
    ways = sorted(
        rows.all(tables.transfers, model=model, version=version), key=lambda row: (row.base == "", row.size)
    )
    return WishedVersion(
        version=version,
        manifest=found.manifest,
        total_bytes=found.total_bytes,
        transfers=tuple(
            Transfer(stream=row.stream, size=row.size, index=row.index_digest, base=row.base)
            for row in ways[-64:]
        ),
    )
