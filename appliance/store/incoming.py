"""A package that comes into the store: what the catalog will know of it, and its bytes.

What the package's own disk refuses is told as the package's trouble: the store's disk has nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from appliance.domain.digest import digest_of
from appliance.domain.errors import ArtefactError, PackageInvalid, Problem
from appliance.domain.manifest import NAME_RULE, Manifest, is_name
from appliance.durable import Bytes
from appliance.store.catalog import InstalledVersion, StoredFile, version_problems
from appliance.store.layout import MANIFEST, SIGNATURE

PIECE_BYTES: Final = 1 << 20
UNSIGNED: Final = "unsigned"


class Stream(Protocol):
    """The bytes of a content, from front to back."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes, none at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingPackage:
    """A package that comes in. ``trust`` is what was decided about its signatures. ``contents`` are digest, size and
    bytes of each content, once, in any order; those that the store has need not be among them, nor are they read.
    ``managed``: the fleet brings it, and the model with it where there is none."""

    manifest: Manifest
    manifest_bytes: bytes
    signatures: bytes | None
    trust: str
    contents: Iterable[tuple[str, int, Stream]] = ()
    fetch_ms: int = 0
    managed: bool = False

    @property
    def minimum(self) -> int:
        """The lowest version of the model that may become wanted from now on, if a trusted key says so; 0: any."""
        return 0 if self.trust == UNSIGNED else self.manifest.minimum_version or 0

    @property
    def papers(self) -> list[bytes]:
        """What comes beside the contents."""
        return [each for each in (self.manifest_bytes, self.signatures) if each is not None]

    def version(self, now_ms: int) -> InstalledVersion:
        """The version as the catalog will know it. Raises PackageInvalid."""
        manifest = self.manifest
        digest = digest_of(self.manifest_bytes)
        files = [StoredFile(path=MANIFEST, size=len(self.manifest_bytes), digest=digest)]
        if self.signatures is not None:
            size = len(self.signatures)
            files.append(StoredFile(path=SIGNATURE, size=size, digest=digest_of(self.signatures)))
        files += [
            StoredFile(path=f"{manifest.name}/{entry.path}", size=entry.size, digest=entry.digest)
            for entry in manifest.files
        ]
        version = InstalledVersion(
            version=manifest.version,
            digest=digest,
            trust=self.trust,
            files=tuple(sorted(files, key=lambda file: file.path)),
            installed_at_ms=max(now_ms, 0),
            fetch_ms=self.fetch_ms,
        )
        wrong = list(version_problems(manifest.name, version))
        if not is_name(manifest.name):
            wrong.append(("name", f"is not {NAME_RULE}"))
        if wrong:
            raise PackageInvalid(Problem(file="manifest.json", key=key, text=text) for key, text in wrong)
        return version

    def read(self) -> Iterator[tuple[str, int, Iterator[Bytes]]]:
        """Digest, size and pieces of each content. Raises ArtefactError where the package cannot be read, between its
        contents as well: those that are not taken are passed over by reading them."""
        contents = iter(self.contents)
        while True:
            with _told():
                found = next(contents, None)
            if found is None:
                return
            digest, size, stream = found
            yield digest, size, _pieces(stream)


def _pieces(stream: Stream) -> Iterator[Bytes]:
    while True:
        with _told():
            piece = stream.read(PIECE_BYTES)
        if not piece:
            return
        yield piece


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtefactError(f"the package cannot be read: {error.strerror or error}") from error
