"""What a release of the image says of itself: its version, its machine, its parts with size and digest. Values only.

A release is a directory, or a place on a server that gives the same paths: ``release.json`` is this, as canonical JSON;
``signature.json`` is an envelope over it, as packages of models have one; the parts are streams by their digests, with
indexes of their pieces, as everything that a box transfers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from appliance.domain.binding import bind
from appliance.domain.digest import is_digest
from appliance.domain.errors import ArtefactError, ConfigInvalid, Problem, WithProblems

FORMAT: Final = 1
IMAGE: Final = "edge-appliance"
RELEASE: Final = "release.json"
SIGNATURE: Final = "signature.json"
PAYLOAD_TYPE: Final = "application/vnd.edge-appliance.image+json;version=1"
RELEASE_BYTES_MAX: Final = 64 << 10
PART_BYTES_MAX: Final = 8 << 30
VERSION_CHARACTERS_MAX: Final = 14
"""It is part of a partition's label, which has 36: edge-appliance_V_verity."""
VARIANTS: Final = ("cpu", "gpu")
MACHINES: Final = ("x86-64", "arm64")
"""Architectures that the image is made for, as systemd calls them."""

_UUID: Final = "[0-9a-f]{32}"
_VERSION: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}")
_PARTS: Final = (
    rf"{IMAGE}_@\.root-%-verity\.{_UUID}\.raw",
    rf"{IMAGE}_@\.root-%\.{_UUID}\.raw",
    rf"{IMAGE}_@\.efi",
)
"""How the parts are called, @ being the version and % the machine: the tree of sums, the root, and the kernel with its
initrd."""


class ReleaseInvalid(WithProblems, ArtefactError):
    """A release that is not what it says, or none, with all of its problems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file of the image: its ``size`` bytes have the digest ``stream``, the index of their pieces ``index``."""

    name: str
    size: int
    stream: str
    index: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """See the module. ``machine`` is one of MACHINES, ``variant`` one of VARIANTS."""

    format: int = FORMAT
    image: str = IMAGE
    version: str
    machine: str
    variant: str
    parts: tuple[Part, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def kernel(self) -> Part:
        """The part that the firmware starts."""
        return next(part for part in self.parts if part.name.endswith(".efi"))


def version_key(version: str) -> tuple[int, ...]:
    """What versions are compared by: their numbers. Raises ValueError for what is no version."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version[:40]!r} is no version such as 1.4 or 1.4.2")
    return tuple(map(int, version.split(".")))


def is_newer(version: str, than: str) -> bool:
    """Whether ``version`` comes after ``than``; 1.4 and 1.4.0 are the same."""
    one, other = version_key(version), version_key(than)
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)) > other + (0,) * (length - len(other))


def problems(release: Release) -> Iterator[tuple[str, str]]:
    """Every rule that the release breaks: the key it stands at, and what is wrong there."""
    if release.format != FORMAT:
        yield "format", f"is {release.format}; this appliance knows format {FORMAT}"
    if release.image != IMAGE:
        yield "image", f"is of another product: {release.image[:40]!r}"
    if release.variant not in VARIANTS:
        yield "variant", f"is no variant of the image: {release.variant[:40]!r}"
    if release.machine not in MACHINES:
        yield "machine", f"is no architecture of the image: {release.machine[:40]!r}"
    if not _VERSION.fullmatch(release.version):
        yield "version", f"{release.version[:40]!r} is no version such as 1.4 or 1.4.2"
        return
    if len(release.version) > VERSION_CHARACTERS_MAX:
        yield (
            "version",
            f"{release.version!r} is longer than the {VERSION_CHARACTERS_MAX} characters that fit",
        )
    if release.machine in MACHINES:
        yield from _part_problems(release)


def _part_problems(release: Release) -> Iterator[tuple[str, str]]:
    for pattern in _PARTS:
        named = pattern.replace("%", release.machine)
        wanted = re.compile(named.replace("@", re.escape(release.version)))
        if sum(wanted.fullmatch(part.name) is not None for part in release.parts) != 1:
            yield (
                "parts",
                f"has not exactly one {named.replace('@', release.version).replace(_UUID, 'UUID')}",
            )
    if len(release.parts) != len(_PARTS):
        yield "parts", f"has {len(release.parts)} entries, not {len(_PARTS)}"
    for number, part in enumerate(release.parts[: len(_PARTS)]):
        if not 0 < part.size <= PART_BYTES_MAX:
            yield f"parts[{number}].size", f"is {part.size}, not 1 to {PART_BYTES_MAX}"
        for key in ("stream", "index"):
            if not is_digest(getattr(part, key)):
                yield f"parts[{number}].{key}", "is not a digest"


def encode(release: Release) -> bytes:
    """The canonical bytes. Raises ReleaseInvalid."""
    if found := [Problem(file=RELEASE, key=key, text=text) for key, text in problems(release)]:
        raise ReleaseInvalid(found)
    return json.dumps(asdict(release), sort_keys=True, separators=(",", ":")).encode()


def decode(data: bytes) -> Release:
    """The release that ``data`` is. Raises ReleaseInvalid with everything that is wrong with it."""
    try:
        if len(data) > RELEASE_BYTES_MAX:
            raise ValueError(f"has more than {RELEASE_BYTES_MAX} bytes")
        try:
            table = json.loads(data.decode())
        except ValueError as error:
            raise ValueError(f"is not JSON, so it was cut short or damaged: {error}") from None
        if not isinstance(table, dict):
            raise ValueError("is not a JSON object")
        release = bind(Release, table, RELEASE, checked=False)
    except (ValueError, RecursionError) as error:
        raise ReleaseInvalid([Problem(file=RELEASE, key="", text=str(error)[:200])]) from None
    except ConfigInvalid as error:
        raise ReleaseInvalid(error.problems[:20]) from None
    if encode(release) != data:
        raise ReleaseInvalid([Problem(file=RELEASE, key="", text="is not in canonical form")])
    return release
