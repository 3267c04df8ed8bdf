"""What the box trusts, on its disk: one file, replaced whole, so that a kill leaves the set before or the set after.

The root that the box was enrolled with is kept beside it and never touched again. Where the file is damaged, all that
is trusted follows from that root once more; what was seen since is forgotten, which ``Loaded.damage`` tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from appliance.domain.digest import digest_of
from appliance.durable import Folder, read_whole, replace_file
from appliance.fleet.documents import DOCUMENT_BYTES_MAX
from appliance.fleet.metadata import (
    ROOT_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    TARGETS_BYTES_MAX,
    TIMESTAMP_BYTES_MAX,
)
from appliance.sync.trust import NoRoot, Trusted, begin, restored

FILE: Final = "trusted"
TEMPORARY: Final = "trusted.new"
FIRST_ROOT: Final = "root.json"
FORMAT: Final = 1
BYTES_MAX: Final = (
    ROOT_BYTES_MAX
    + TIMESTAMP_BYTES_MAX
    + SNAPSHOT_BYTES_MAX
    + TARGETS_BYTES_MAX
    + 2 * DOCUMENT_BYTES_MAX
    + 4096
)
_SUM_BYTES: Final = 64


class _Kept(Struct, frozen=True, array_like=True):
    """``works``: what is worked towards is ``document``; else it is ``working``."""

    format: int
    root: bytes
    timestamp: bytes
    snapshot: bytes
    targets: bytes
    document: bytes
    working: bytes
    works: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What is trusted, and what happened to what was kept ("": nothing)."""

    trusted: Trusted
    damage: str = ""


def enrol(folder: Folder, root: bytes) -> Trusted:
    """Have ``root`` as the first that this box trusts, and forget all that was trusted. Raises NoRoot, OSError."""
    trusted = begin(root)
    replace_file(folder, FIRST_ROOT, TEMPORARY, root)
    keep(folder, trusted)
    return trusted


def load(folder: Folder) -> Loaded:
    """What was kept. Raises NoRoot where there is nothing to begin with, and OSError."""
    try:
        data = read_whole(folder, FILE, BYTES_MAX)
        if data is not None:
            return Loaded(trusted=_decoded(data))
        damage = f"'{FILE}' is gone"
    except (NoRoot, msgspec.MsgspecError, UnicodeDecodeError) as error:
        damage = f"'{FILE}' is damaged: {error}"
    root = read_whole(folder, FIRST_ROOT, ROOT_BYTES_MAX)
    if root is None:
        raise NoRoot(f"{damage}, and the root of the enrolment is not there either; enrol this box again")
    return Loaded(trusted=begin(root), damage=damage)


def keep(folder: Folder, trusted: Trusted) -> None:
    """Have ``trusted`` on the disk for good, in the place of what was there. Raises OSError."""
    same = trusted.working == trusted.document
    body = msgspec.msgpack.encode(
        _Kept(
            FORMAT, trusted.root, trusted.timestamp, trusted.snapshot, trusted.targets, trusted.document,
            b"" if same else trusted.working, same,
        )
    )  # fmt: skip
    replace_file(folder, FILE, TEMPORARY, digest_of(body).encode() + body)


def _decoded(data: bytes) -> Trusted:
    body = data[_SUM_BYTES:]
    if data[:_SUM_BYTES] != digest_of(body).encode():
        raise NoRoot("its sum is wrong")
    kept = msgspec.msgpack.decode(body, type=_Kept)
    if kept.format != FORMAT:
        raise NoRoot(f"it has format {kept.format}, and this appliance knows {FORMAT}")
    working = kept.document if kept.works else kept.working
    return restored(kept.root, kept.timestamp, kept.snapshot, kept.targets, kept.document, working)
