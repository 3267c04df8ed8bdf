"""Versions that were uploaded: packages, verified like on a box, and the streams that bring them to boxes.

Streams are built once for all boxes: from scratch when a version comes, from another version when it is first wanted
where that one is. The same package with better signatures takes the place of the one that is there, in all of them:
what is told of a release is what boxes get. What takes long is done outside of transactions; what was built is noted in
one.
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
from appliance.controller.blobs import BlobStore, is_intact, write_blob
from appliance.controller.fleet_store import FleetStore, Rows, View
from appliance.controller.signatures import (
    Succession,
    lacking,
    may_mend,
    succession,
    trust_word,
    unverified,
)
from appliance.domain.errors import OperatorError, PackageInvalid, StoreRefused
from appliance.domain.golden import holds_answers
from appliance.domain.manifest import Manifest
from appliance.fleet.documents import TRANSFERS_MAX, Transfer, WishedVersion
from appliance.package.keys import PublicKey
from appliance.package.reader import open_package
from appliance.package.trust import Trust, judge
from appliance.package.verification import Policy, Verification, verify_package
from appliance.transfer.build import Built, build


class NoRelease(OperatorError):
    """A version that was never uploaded, or that was withdrawn."""


class Releases:
    """See the module. Blocks: off the event loop."""

    def __init__(self, store: FleetStore, blobs: BlobStore, keys: Sequence[PublicKey]) -> None:
        self._store = store
        self._blobs = blobs
        self._keys = keys

    def upload(self, draft: Path, who: str, now_ms: int) -> tuple[str, int]:
        """Take the package at ``draft``, which is gone then; gives its model and version. One that was released takes
        the place of the same one where boxes get more signatures by it. Raises PackageInvalid, StoreRefused for another
        one of the same number and for one with worse signatures, OperatorError and OSError."""
        verified = self._verified(draft)
        if verified.problems or verified.manifest is None:
            raise PackageInvalid([replace(each, file="the package") for each in verified.problems])
        with self._blobs.kept():
            self._keep(verified.manifest, verified, draft, who, now_ms)
        return verified.manifest.name, verified.manifest.version

    def _keep(self, manifest: Manifest, verified: Verification, draft: Path, who: str, now_ms: int) -> None:
        """The package at ``draft`` is a release from now on, as it was not yet or was before it was withdrawn; else see
        ``_again``."""
        digest = verified.digest
        with self._store.look() as rows:
            there = rows.one(tables.releases, model=manifest.name, version=manifest.version)
        if there is not None:
            _check_same(there, digest)
            if there.package:
                self._again(there, draft, who, now_ms)
                return
        package = self._blobs.take(draft)
        built = self._built(self._blobs.path(package), None)
        with self._store.transaction() as rows:
            if rows.one(tables.releases, model=manifest.name, version=manifest.version) != there:
                raise _overtaken(manifest.key)
            rows.put(
                tables.releases,
                model=manifest.name,
                version=manifest.version,
                manifest=digest,
                package=package,
                total_bytes=manifest.total_bytes,
                trust=trust_word(verified.trust),
                by_whom=who,
                at_ms=now_ms,
            )
            _note(rows, manifest.name, manifest.version, built)
            rows.note(now_ms, who, "release", model=manifest.name, version=manifest.version, manifest=digest)

    def golden_before(self, model: str, version: int) -> int:
        """The newest version below ``version`` that has golden answers, where that has none; 0: nothing is lost. A
        package that cannot be read any more has none: it stands in the way of no release."""
        with self._store.look() as rows:
            found = [row for row in rows.all(tables.releases, model=model) if row.version <= version]
        for row in sorted(found, key=lambda each: each.version, reverse=True):
            if self._holds_answers(row.package):
                return 0 if row.version == version else int(row.version)
        return 0

    def _holds_answers(self, package: str) -> bool:
        with suppress(PackageInvalid, OSError), open_package(self._blobs.path(package)) as reader:
            return holds_answers((file.path, file.size) for file in reader.manifest.files)
        return False

    def _verified(self, draft: Path) -> Verification:
        """Everything that can be said of the package; wrong signatures are judged apart, since they may be mended."""
        policy = Policy(keys=tuple(self._keys), unsigned=Unsigned.ALLOW, repository=RepositoryConfig())
        with tempfile.TemporaryDirectory(dir=draft.parent) as folder:
            return verify_package(draft, policy, Path(folder), lambda total: lambda count: None)

    def _again(self, there: Row[Any], draft: Path, who: str, now_ms: int) -> None:
        """The package of a release came again: keep the one that is there, or have this one in its place. Raises
        StoreRefused where it is signed worse."""
        key = f"{there.model}/{there.version}"
        before, coming = self._trust_before(there), self._trust_of(draft)
        if before is None:
            if not may_mend(there.trust, coming):
                raise StoreRefused(
                    f"the release {key} cannot be read at the controller any more, and was told as "
                    f"'{there.trust[:20]}'; this package is signed by no key that the fleet's root names: release "
                    "one that is"
                )
            self._replace(there, draft, coming, "release mended", who, now_ms)
            return
        match succession(before, coming):
            case Succession.UNTRUSTED:
                raise StoreRefused(
                    f"the release {key} is signed by the trusted key {before.keyids[0][:16]}, and this package by none "
                    "that the fleet's root names: boxes go on getting the one that is there"
                )
            case Succession.UNVERIFIED:
                raise StoreRefused(
                    f"this package adds signatures to the release {key} that no key of the fleet's root shows to be "
                    f"right, by {_named(unverified(before, coming))}; release it without them, or have the root name "
                    "the keys"
                )
            case Succession.LACKS:
                raise StoreRefused(
                    f"the release {key} has a signature that this package lacks, by {_named(lacking(before, coming))}, "
                    "and boxes may go by it; have 'appliance model sign' add the new one to the package that has it, "
                    "and release that"
                )
            case Succession.REPLACE:
                self._replace(there, draft, coming, "release signed anew", who, now_ms)
            case Succession.KEEP:
                self._note_trust(there, trust_word(before))

    def _replace(self, there: Row[Any], draft: Path, trust: Trust, what: str, who: str, now_ms: int) -> None:
        """Have boxes get the same version from the package at ``draft``. Everything is built before one transaction
        names it, so that a power cut leaves the release as it was, or as it shall be; then each device that it is
        wished for gets a new document, since the streams in that have other digests. A base that cannot be read any
        more is left out: boxes that have it get all of the version."""
        package, word = self._blobs.take(draft), trust_word(trust)
        found: dict[str, Built] = {}
        lost: set[str] = set()
        scope = {"model": there.model, "version": there.version}
        while True:
            with self._store.transaction() as rows:
                if release(rows, there.model, there.version).package != there.package:
                    raise _overtaken(f"{there.model}/{there.version}")
                bases = {row.base for row in rows.all(tables.transfers, **scope)} - found.keys() - lost
                packages = {row.manifest: row.package for row in rows.all(tables.releases, model=there.model)}
                if not bases:
                    rows.remove(tables.transfers, **scope)
                    for built in found.values():
                        _note(rows, there.model, there.version, built)
                    rows.change(tables.releases, scope, package=package, trust=word)
                    rows.count_up("revision")
                    rows.note(now_ms, who, what, **scope, trust=word)
                    return
            for base in bases:
                if base and not is_intact(self._blobs, packages.get(base, "")):
                    lost.add(base)
                    continue
                path = self._blobs.path(packages[base]) if base else None
                found[base] = self._built(self._blobs.path(package), path)

    def judge_again(self) -> None:
        """Note of every release who signed it, as the root says now: it may be another one than when they came. A
        package that cannot be read keeps the word that it has."""
        with self._store.look() as rows:
            found = rows.all(tables.releases)
        for row in found:
            with suppress(PackageInvalid, OSError):
                self._note_trust(row, trust_word(self._trust_of(self._blobs.path(row.package))))

    def _trust_before(self, there: Row[Any]) -> Trust | None:
        """What is known of who signed the package of a release; None: it is lost or damaged. All of it is read, since
        its first bytes alone do not tell."""
        with suppress(PackageInvalid, OSError):
            if is_intact(self._blobs, there.package):
                return self._trust_of(self._blobs.path(there.package))
        return None

    def _trust_of(self, path: Path) -> Trust:
        with open_package(path) as reader:
            return judge(reader.manifest_bytes, reader.signatures, self._keys)

    def _note_trust(self, there: Row[Any], word: str) -> None:
        """Have the word about a release, unless another package took its place meanwhile."""
        if word != there.trust:
            key = {"model": there.model, "version": there.version, "package": there.package}
            with self._store.transaction() as rows:
                rows.change(tables.releases, key, trust=word)

    def prepare(self, model: str, version: int, bases: Iterable[int]) -> None:
        """Have streams from the versions ``bases`` to ``version``, as far as there are releases of them that can
        be read. Raises NoRelease and OSError."""
        with self._blobs.kept():
            self._prepare(model, version, set(bases) - {version})

    def _prepare(self, model: str, version: int, wanted: set[int]) -> None:
        while True:
            with self._store.look() as rows:
                target = release(rows, model, version)
                known = {row.base for row in rows.all(tables.transfers, model=model, version=version)}
                found = [row for row in rows.all(tables.releases, model=model) if row.version in wanted]
            base = next((row for row in found if row.manifest not in known), None)
            if base is None:
                return
            if not is_intact(self._blobs, base.package):
                wanted.remove(base.version)
                continue
            built = self._built(self._blobs.path(target.package), self._blobs.path(base.package))
            with self._store.transaction() as rows:
                if (
                    release(rows, model, version).package == target.package
                ):  # else it was signed anew meanwhile
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


def _named(keyids: Sequence[str]) -> str:
    """Keys as a person is told of them: some of them, and of each the beginning."""
    return ", ".join(each[:16] for each in keyids[:4])


def _overtaken(key: str) -> StoreRefused:
    """Somebody else changed the release while this one was being built."""
    return StoreRefused(
        f"{key} was released by somebody else meanwhile; see 'appliance fleet releases', and do it again"
    )


def withdrawn(key: str) -> NoRelease:
    """The release was there once."""
    return NoRelease(
        f"{key} was withdrawn from the controller; hand the same package over again to have it back"
    )


def _check_same(there: Row[Any], digest: str) -> None:
    """Raise StoreRefused unless the package of that digest is the one that was released."""
    if there.manifest != digest:
        raise StoreRefused(
            f"the release {there.model}/{there.version} is {there.manifest[:12]}, and this is {digest[:12]}: what a "
            "version is never changes; give the new one another number"
        )


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


def release(rows: View, model: str, version: int) -> Row[Any]:
    """The release. Raises NoRelease, with those that there are."""
    found = rows.one(tables.releases, model=model, version=version)
    if found is not None and not found.package:
        raise withdrawn(f"{model}/{version}")
    if found is None:
        there = [str(row.version) for row in rows.all(tables.releases, model=model) if row.package]
        are = "is version" if len(there) == 1 else "are versions"
        known = f"there {are} {', '.join(there)}" if there else f"nothing was released of '{model}'"
        raise NoRelease(f"{model}/{version} was not released; {known}")
    return found


def wished_version(rows: View, model: str, version: int) -> WishedVersion:
    """The release as documents name it, with the ways to get it: from bases, the smallest of as many as a document
    holds, and from scratch. Raises NoRelease."""
    found = release(rows, model, version)
    ways = sorted(rows.all(tables.transfers, model=model, version=version), key=lambda row: int(row.size))
    from_bases = [row for row in ways if row.base]
    kept = [*from_bases[: TRANSFERS_MAX - 1], *(row for row in ways if not row.base)]
    return WishedVersion(
        version=version,
        manifest=found.manifest,
        total_bytes=found.total_bytes,
        transfers=tuple(
            Transfer(stream=row.stream, size=row.size, index=row.index_digest, base=row.base) for row in kept
        ),
    )
