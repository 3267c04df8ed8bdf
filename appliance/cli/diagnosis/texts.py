"""Files that are taken as they are: the end of each, links that somebody else may have left not followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from appliance.cli.diagnosis.part import Files, Outcome
from appliance.domain.errors import ArtefactError
from appliance.domain.regular_file import opened


def read(files: Files, limit_bytes: int) -> Outcome:
    """What they hold, each behind its name where there are several, ``limit_bytes`` of all of them at most. Those that
    cannot be read are told of."""
    pieces, notes = [], []
    for path in files.paths:
        try:
            data = _tail(path, files.limit_bytes)
        except ArtefactError as error:
            notes.append(f"'{path}' {error}")
            continue
        except OSError as error:
            notes.append(f"'{path}': {error.strerror}")
            continue
        heading = f"==> {path} <==\n" if len(files.paths) > 1 else ""
        pieces.append(heading.encode() + data)
    whole = b"\n".join(pieces)
    if len(whole) > limit_bytes:
        notes.append(f"cut after {limit_bytes} bytes")
    note = "; ".join(notes)
    if not pieces:
        return Outcome(data=None, note=note or "there is no such file")
    return Outcome(data=whole[:limit_bytes], note=note)


def _tail(path: Path, limit: int) -> bytes:
    """The last ``limit`` bytes, from the beginning of a line on. Files of the kernel say no size."""
    with opened(str(path), follow=False) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > limit:
            os.lseek(descriptor, size - limit, os.SEEK_SET)
        data = b"".join(_chunks(descriptor, limit))
    return data[data.find(b"\n") + 1 :] if size > limit else data


def _chunks(descriptor: int, limit: int) -> Iterator[bytes]:
    while limit > 0 and (chunk := os.read(descriptor, min(limit, 1 << 16))):
        limit -= len(chunk)
        yield chunk
