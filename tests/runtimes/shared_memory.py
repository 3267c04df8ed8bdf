"""What a process can reach of memory that it shares with others."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple


class Place(NamedTuple):
    """A piece of it, and by what it is reached."""

    by: str
    content: bytes


def shared_memory() -> Iterator[Place]:
    """All that is mapped, and all that a descriptor leads to."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        lines = [line.split() for line in maps]
    for line in lines:
        if line[1].startswith("r") and line[1].endswith("s"):
            start, end = (int(each, 16) for each in line[0].split("-"))
            yield Place(f"map of {line[5]}", ctypes.string_at(start, end - start))
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError, ValueError), mmap.mmap(int(descriptor), 0, prot=mmap.PROT_READ) as memory:
            yield Place(f"descriptor {descriptor}", memory[:])
    for name in os.listdir("/proc/self/map_files"):
        with suppress(OSError), open(f"/proc/self/map_files/{name}", "rb") as file:
            yield Place(f"file of a map {name}", file.read())


def places_of(said: str) -> list[str]:
    """Where the bytes are of which ``said`` has the complement, in hexadecimal: so that they are not where it is."""
    wanted = bytes(255 - each for each in bytes.fromhex(said))
    return [place.by for place in shared_memory() if wanted in place.content]


def complement(secret: bytes) -> str:
    """What ``places_of`` is told to look for ``secret``."""
    return bytes(255 - each for each in secret).hex()
