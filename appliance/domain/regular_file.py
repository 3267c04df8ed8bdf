"""A regular file as it is read: from one descriptor, bounded, and held against the digest that is known of it.

Nothing is opened twice: the bytes that were compared are the bytes that are used. Errors say what is wrong with the
file, after what the caller has it ``called``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from appliance.domain.digest import PIECE_BYTES, Digester, digest_of
from appliance.domain.errors import ArtefactError, FileDiffers

_DIFFERS: Final = (
    "is not what it was when it was stored: its digest differs; install its package again and check the disk"
)


@contextmanager
def opened(path: str, called: str = "", *, follow: bool = True) -> Iterator[int]:
    """A read-only descriptor of the regular file at ``path``; without ``follow``, a link there is none. Raises
    ArtefactError where there is none."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise ArtefactError(f"{called} cannot be opened: {error.strerror}".lstrip()) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ArtefactError(f"{called} is not a file".lstrip())
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(path: str, limit: int, digest: str = "", called: str = "", *, follow: bool = True) -> bytes:
    """The contents of the file at ``path``, taken as ``opened`` does. Raises FileDiffers where they have another
    ``digest`` ("": none is known), ArtefactError above ``limit`` bytes and where they cannot be read."""
    with opened(path, called, follow=follow) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise ArtefactError(f"{called} has {size} bytes; at most {limit} are read".lstrip())
        try:
            data = b"".join(_chunks(descriptor, size + 1))
        except OSError as error:
            raise ArtefactError(f"{called} cannot be read: {error.strerror}".lstrip()) from error
    if digest and digest_of(data) != digest:
        raise FileDiffers(f"{called} {_DIFFERS}".lstrip())
    if len(data) != size:
        text = "changed while it was read; put files in place by renaming them"
        raise ArtefactError(f"{called} {text}".lstrip())
    return data


def check_digest(descriptor: int, digest: str, called: str = "") -> None:
    """Read all that is open at ``descriptor``, which is left where it was. Raises as ``read_file`` does."""
    found = Digester(pieces=False)
    try:
        for chunk in _chunks(descriptor, os.fstat(descriptor).st_size):
            found.update(chunk)
    except OSError as error:
        raise ArtefactError(f"{called} cannot be read: {error.strerror}".lstrip()) from error
    if found.finish().digest != digest:
        raise FileDiffers(f"{called} {_DIFFERS}".lstrip())


def _chunks(descriptor: int, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes, or as many as there are; one call takes no more than 2 GiB."""
    position = 0
    while position < size and (chunk := os.pread(descriptor, min(size - position, PIECE_BYTES), position)):
        yield chunk
        position += len(chunk)
