"""What is said of a disk that is full, the same everywhere: which one, how much it has and needs, what frees some."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from appliance.domain.quantity import bytes_text

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
WAY_OUT: Final = (
    "make room there: 'appliance store gc' frees what a store does not need, and needs no room itself; 'appliance "
    "store usage' shows what could be uninstalled; or remove other files"
)


def reason_of(error: OSError, place: str | Path = "", needed_bytes: int = 0) -> str:
    """Why ``place`` could not be written, in the system's words; where its disk is full, with what to do. Without a
    place the words stay the same while the disk fills, and tell clients nothing of where it is."""
    said = error.strerror or str(error)
    if error.errno not in FULL:
        return said
    free = _free_bytes(Path(place)) if place else None
    room = "" if free is None else f": {bytes_text(free)} are free on the disk of '{place}'"
    needed = f", {bytes_text(needed_bytes)} are needed" if needed_bytes else ""
    return f"{said}{room}{needed}; {WAY_OUT}"


def _free_bytes(place: Path) -> int | None:
    """What its disk has for this user, or that of what is there of the way to it."""
    for part in (place, *place.absolute().parents):
        try:
            there = os.statvfs(part)
        except OSError:
            continue
        return there.f_bavail * there.f_frsize
    return None
