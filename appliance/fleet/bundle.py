"""A bundle: what box and controller would say over the link, as files that somebody carries. Layout and index; values
only.

A bundle is a directory, or one uncompressed tar file of the same files in the order of the index. ``bundle.msgpack`` is
the index: every other file with its size and digest, signed as a whole. Documents and metadata prove themselves, as
they do on the link; the signature of the index is for what on the link is proven by the connection: acknowledgements of
telemetry on the way to boxes, whose telemetry it is on the way back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from appliance.domain.errors import OperatorError, Problem, WithProblems
from appliance.fleet.documents import (
    DOCUMENT_BYTES_MAX,
    STREAM_BYTES_MAX,
    STREAM_INDEX_BYTES_MAX,
    Count,
    Digest,
)
from appliance.fleet.messages import TELEMETRY_BYTES_MAX
from appliance.fleet.metadata import (
    ROOT_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    TARGETS_BYTES_MAX,
    TIMESTAMP_BYTES_MAX,
)

FORMAT: Final = 1
INDEX: Final = "bundle.msgpack"
INDEX_BYTES_MAX: Final = 16 << 20
MEMBERS_MAX: Final = 65_536
SIGNED_PREFIX: Final = b"edge-appliance bundle 1\n"
"""Goes before the index in what is signed, so that the signature is of nothing else."""

TO_BOXES: Final = "to-boxes"
FROM_BOX: Final = "from-box"

_DEVICE: Final = r"[a-z0-9_-][a-z0-9._-]{0,63}"
_KINDS: Final[Mapping[str, tuple[str, int, frozenset[str]]]] = MappingProxyType(
    {
        "root": (r"roots/[1-9][0-9]{0,17}\.json", ROOT_BYTES_MAX, frozenset({TO_BOXES})),
        "timestamp": (rf"devices/{_DEVICE}/timestamp\.json", TIMESTAMP_BYTES_MAX, frozenset({TO_BOXES})),
        "snapshot": (rf"devices/{_DEVICE}/snapshot\.json", SNAPSHOT_BYTES_MAX, frozenset({TO_BOXES})),
        "targets": (rf"devices/{_DEVICE}/targets\.json", TARGETS_BYTES_MAX, frozenset({TO_BOXES})),
        "document": (rf"devices/{_DEVICE}/desired\.msgpack", DOCUMENT_BYTES_MAX, frozenset({TO_BOXES})),
        "acknowledgements": (rf"devices/{_DEVICE}/acknowledged\.msgpack", 1 << 20, frozenset({TO_BOXES})),
        "stream": (r"streams/[0-9a-f]{64}", STREAM_BYTES_MAX, frozenset({TO_BOXES})),
        "index": (r"indexes/[0-9a-f]{64}", STREAM_INDEX_BYTES_MAX, frozenset({TO_BOXES})),
        "telemetry": (rf"telemetry/{_DEVICE}/[0-9]{{8}}\.zst", TELEMETRY_BYTES_MAX, frozenset({FROM_BOX})),
        "report": (rf"reports/{_DEVICE}\.msgpack", 1 << 20, frozenset({FROM_BOX})),
    }
)
"""What files there are: how they are called, their size at most, in which bundles they may be."""


class BundleInvalid(WithProblems, OperatorError):
    """A bundle that is not what it says, with all that is wrong with it."""


class Member(Struct, frozen=True, array_like=True):
    """A file of the bundle."""

    path: Annotated[str, Meta(max_length=256)]
    size: Count
    digest: Digest

    @property
    def kind(self) -> str:
        """What it is, by its name; "" for nothing that is known."""
        return next((kind for kind, (name, _, _) in _KINDS.items() if re.fullmatch(name, self.path)), "")

    @property
    def device(self) -> str:
        """Whose it is; "" for what belongs to no single box."""
        first, _, rest = self.path.partition("/")
        if first == "reports":
            return rest.removesuffix(".msgpack")
        return rest.partition("/")[0] if first in ("devices", "telemetry") else ""


class Index(Struct, frozen=True, array_like=True, kw_only=True):
    """All files of a bundle but the index itself. ``written_ms`` is the clock of whoever wrote it, for people."""

    format: Annotated[int, Meta(ge=1)] = FORMAT
    kind: Literal["to-boxes", "from-box"]
    written_ms: Count = 0
    members: Annotated[tuple[Member, ...], Meta(max_length=MEMBERS_MAX)] = ()

    def of(self, kind: str, device: str = "") -> tuple[Member, ...]:
        """The members of that kind, and of that device."""
        return tuple(each for each in self.members if each.kind == kind and each.device == device)

    @property
    def devices(self) -> tuple[str, ...]:
        """The boxes that it is for, or from."""
        return tuple(sorted({each.device for each in self.members} - {""}))


class SignedIndex(Struct, frozen=True, array_like=True, kw_only=True):
    """What is in ``bundle.msgpack``: an encoded Index, and its signature after ``SIGNED_PREFIX``. Signed by a box, with
    its ``certificate``; by a controller, with the key of its timestamps, whose id ``signer`` is; by nobody: both
    empty."""

    index: bytes
    certificate: Annotated[str, Meta(max_length=16 << 10)] = ""
    signer: Annotated[str, Meta(max_length=128)] = ""
    signature: Annotated[bytes, Meta(max_length=4096)] = b""


def encode(message: Struct) -> bytes:
    """The bytes of an Index or a SignedIndex."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> tuple[SignedIndex, Index]:
    """What an index says. Raises BundleInvalid with all that is wrong with it, whatever the files are."""
    try:
        signed = msgspec.msgpack.decode(data, type=SignedIndex)
        index = msgspec.msgpack.decode(signed.index, type=Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = str(error) if isinstance(error, msgspec.ValidationError) else "is no index of a bundle"
        raise BundleInvalid([Problem(file=INDEX, key="", text=text)]) from error
    if problems := list(_problems(index)):
        raise BundleInvalid(problems)
    return signed, index


def _problems(index: Index) -> Iterator[Problem]:
    if index.format != FORMAT:
        text = f"is {index.format}; this appliance knows format {FORMAT}"
        yield Problem(file=INDEX, key="format", text=text)
    seen: set[str] = set()
    for place, member in enumerate(index.members):
        key = f"members[{place}]"
        if not (kind := member.kind):
            yield Problem(file=INDEX, key=key, text="has a name that no file of a bundle has")
            continue
        _, limit, bundles = _KINDS[kind]
        if index.kind not in bundles:
            yield Problem(
                file=member.path, key=key, text=f"does not belong in a bundle of the kind {index.kind}"
            )
        if member.size > limit:
            yield Problem(file=member.path, key=key, text=f"has {member.size} bytes; the limit is {limit}")
        if member.path in seen:
            yield Problem(file=member.path, key=key, text="is there twice")
        seen.add(member.path)
        if kind in ("stream", "index") and not member.path.endswith(member.digest):
            yield Problem(file=member.path, key=key, text="is named after another digest than its own")
