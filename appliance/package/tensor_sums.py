"""The digests of single tensors, compared while the bytes of the file that they are in go by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from appliance.domain.digest import Digester, digest_of
from appliance.domain.errors import PackageInvalid, Problem
from appliance.domain.manifest import Manifest, TensorEntry
from appliance.domain.manifest_codec import FILE as MANIFEST_FILE
from appliance.package.reader import Blob, Stream


def tensors_in(manifest: Manifest, digest: str) -> Sequence[TensorEntry]:
    """The tensors that lie in files with this content."""
    places = {entry.path for entry in manifest.files if entry.digest == digest}
    return [entry for entry in manifest.tensors if entry.file in places]


class _Place(NamedTuple):
    """Where tensors lie, and what they must come to. Many may share it."""

    offset: int
    length: int
    digest: str


class TensorSums:
    """Sums the tensors of one file while its bytes go by, each byte once: they are apart, but for those with equal
    places."""

    def __init__(self, entries: Sequence[TensorEntry]) -> None:
        self._entries: dict[_Place, list[TensorEntry]] = {}
        for entry in entries:
            place = _Place(entry.offset, entry.length, entry.digest)
            self._entries.setdefault(place, []).append(entry)
        self._waiting = sorted(self._entries, reverse=True)
        self._open: list[tuple[_Place, Digester]] = []
        self._position = 0
        self._wrong: list[_Place] = []

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        end = self._position + len(data)
        while self._waiting and self._waiting[-1].offset < end:
            self._open.append((self._waiting.pop(), Digester(pieces=False)))
        view = memoryview(data)
        still: list[tuple[_Place, Digester]] = []
        for place, digester in self._open:
            start = max(place.offset - self._position, 0)
            digester.update(view[start : place.offset + place.length - self._position])
            if place.offset + place.length > end:
                still.append((place, digester))
            elif digester.finish().digest != place.digest:
                self._wrong.append(place)
        self._open = still
        self._position = end

    def problems(self) -> Iterator[Problem]:
        """The tensors whose digests are others; call it at the end of the file."""
        empty = digest_of(b"")
        for place in (*self._wrong, *(place for place in self._waiting if place.digest != empty)):
            for entry in self._entries[place]:
                text = f"the bytes of '{entry.name}' in {entry.file} have another digest"
                yield Problem(file=MANIFEST_FILE, key="tensors", text=text)


class SummedStream:
    """The bytes of one content, of which the last are given only if those of each tensor were right; else
    PackageInvalid is raised."""

    def __init__(self, blob: Blob, tensors: Sequence[TensorEntry]) -> None:
        self._stream: Stream = blob.stream
        self._left = blob.size
        self._sums = TensorSums(tensors)

    def read(self, size: int, /) -> bytes:
        """See Stream. Raises PackageInvalid."""
        data = self._stream.read(size)
        if data:
            self._sums.update(data)
            self._left -= len(data)
            if not self._left and (wrong := list(self._sums.problems())):
                raise PackageInvalid(wrong)
        return data
