"""A support archive as a file: a table of contents, then the parts, in one compressed tar that is there whole or not
at all, and is one user's alone."""

from __future__ import annotations

import io
import json
import os
import secrets
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from appliance.cli.diagnosis.collection import Taken
from appliance.durable import give_to_owner

FORMAT: Final = 1
CONTENTS: Final = "contents.json"
SUFFIX: Final = ".tar.gz"
PRIVATE: Final = 0o600
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def contents_of(head: dict[str, Any], taken: Sequence[Taken]) -> dict[str, Any]:
    """The table of contents: ``head`` says of what box and when, then what is there and what is missing, and why."""
    return {
        "format": FORMAT,
        **head,
        "parts": [
            {**_said(each), "bytes": len(each.data), "redacted": each.redacted, "note": each.note}
            for each in taken
            if each.data is not None
        ],
        "missing": [{**_said(each), "reason": each.note} for each in taken if each.data is None],
    }


def _said(taken: Taken) -> dict[str, str]:
    return {"path": taken.part.path, "about": taken.part.about, "from": taken.said}


def packed(folder: str, contents: dict[str, Any], taken: Sequence[Taken], at_s: int) -> bytes:
    """The archive, all below ``folder``, the table of contents first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, f"{folder}/{CONTENTS}", (json.dumps(contents, indent=2) + "\n").encode(), at_s)
        for each in taken:
            if each.data is not None:
                _add(archive, f"{folder}/{each.part.path}", each.data, at_s)
    return out.getvalue()


def _add(archive: tarfile.TarFile, path: str, data: bytes, at_s: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mtime, entry.mode = len(data), at_s, PRIVATE
    archive.addfile(entry, io.BytesIO(data))


def write(target: Path, data: bytes) -> None:
    """Put the archive where it belongs, in the place of what is there. What root makes belongs to whom the directory
    does, so that it can be carried away from there. Raises OSError, and leaves nothing then."""
    parent = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _write_in(parent, target.name, data)
    finally:
        os.close(parent)


def _write_in(parent: int, name: str, data: bytes) -> None:
    """The same in the directory that is open at ``parent``: what its path comes to meanwhile is all the same."""
    beside = f".{name}.{secrets.token_hex(4)}"
    descriptor = os.open(beside, _CREATE, PRIVATE, dir_fd=parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            give_to_owner(file.fileno(), os.fstat(parent))
            os.fsync(file.fileno())
        os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=parent)
        raise
