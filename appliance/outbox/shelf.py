"""The segments of an outbox on the disk: which there are, what each holds, where the reader is.

Names: ``NUMBER.segment``, the number of its first record with twenty digits; ``cursor``, the reader's; ``damaged/`` for
what could not be read. A segment is written by one process from its creation on and never again: after a restart a new
one is begun, whose first number says where the one before it ends.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from appliance.durable import Folder, ensure_directory, read_whole, remove_file, replace_file
from appliance.outbox.segment import Contents, decode

CURSOR: Final = "cursor"
CURSOR_BYTES_MAX: Final = 4096
DAMAGED: Final = "damaged"
DAMAGED_KEPT: Final = 8
SEGMENT_BYTES_MAX: Final = 16 << 20
_NAME: Final = re.compile(r"([0-9]{20})\.segment")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to where the receiver has everything: all before ``next`` of ``epoch``."""

    epoch: str = ""
    next: int = 0


def segment_name(first: int) -> str:
    """The name of the segment that begins with the number ``first``."""
    return f"{first:020d}.segment"


def segments(folder: Folder) -> list[tuple[int, str]]:
    """First number and name of each segment, ascending."""
    found = ((match, name) for name in folder.names("") if (match := _NAME.fullmatch(name)))
    return [(int(match[1]), name) for match, name in found]


def read_segment(folder: Folder, name: str) -> Contents | None:
    """What the segment of that name holds; None when it cannot be told. Raises OSError, also for one that is gone."""
    found = decode(segment_bytes(folder, name))
    return found if found is not None and segment_name(found.header.first) == name else None


def segment_bytes(folder: Folder, name: str) -> bytes:
    """All of the segment of that name. Raises OSError."""
    data = read_whole(folder, name, SEGMENT_BYTES_MAX)
    if data is None:
        raise FileNotFoundError(f"'{name}' is gone")
    return data


def read_cursor(folder: Folder) -> Cursor:
    """Where the reader is; at the beginning of nothing where that is not known."""
    data = read_whole(folder, CURSOR, CURSOR_BYTES_MAX)
    try:
        document = json.loads(data or b"{}")
        return Cursor(str(document["epoch"]), int(document["next"]))
    except (ValueError, KeyError, TypeError):
        return Cursor()


def write_cursor(folder: Folder, cursor: Cursor) -> None:
    """Have the reader be there, for good. Raises OSError."""
    data = json.dumps({"epoch": cursor.epoch, "next": cursor.next}).encode()
    replace_file(folder, CURSOR, f"{CURSOR}.new", data)


def set_aside(folder: Folder, name: str) -> None:
    """Move a segment that cannot be read to where a person finds it, the last few of them. Raises OSError."""
    ensure_directory(folder, DAMAGED)
    for old in folder.names(DAMAGED)[: 1 - DAMAGED_KEPT]:
        remove_file(folder, f"{DAMAGED}/{old}")
    folder.rename(name, f"{DAMAGED}/{name}")
    folder.sync_directory(DAMAGED)
    folder.sync_directory("")


def was_set_aside(folder: Folder, first: int, end: int) -> bool:
    """Whether a segment was set aside that began with one of the numbers from ``first`` to before ``end``."""
    if folder.status(DAMAGED) is None:
        return False
    found = (match for name in folder.names(DAMAGED) if (match := _NAME.fullmatch(name)))
    return any(first <= int(match[1]) < end for match in found)
