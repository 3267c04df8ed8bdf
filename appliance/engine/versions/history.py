"""The history of versions as lines of JSON, and how it is read: one file that grows, and the one before it.

A line that cannot be read, such as the last one before a power cut, is left out; the others stand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from appliance.core.rollout.records import BLAMELESS, Change, Ending, of_record_key, record_key
from appliance.core.rollout.version import Artifact
from appliance.domain.binding import bind
from appliance.domain.errors import ConfigInvalid
from appliance.engine.versions.records import CHANGES_KEPT

FILE: Final = "history.jsonl"
FILE_BEFORE: Final = "history.jsonl.1"
FILE_BYTES_MAX: Final = 1 << 20
"""At this size the file becomes the one before."""


def encoded(change: Change) -> bytes:
    """One line."""
    document = asdict(change)
    document["identity"] = record_key(change.identity, document.pop("artifact"))
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def decoded(line: bytes) -> Change | None:
    """What a line says; None when it cannot be read."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            return None
        change = bind(Change, document, FILE)
        identity, artifact = of_record_key(change.identity)
        return replace(change, identity=identity, artifact=artifact)
    except (ValueError, RecursionError, ConfigInvalid):
        return None


def read_history(folder: Path, name: str = "", after: int = 0) -> tuple[Change, ...]:
    """The changes of model ``name``, of all for "", with a higher number than ``after``, that the files in ``folder``
    tell of, oldest first, the last CHANGES_KEPT. Raises OSError; a file that is not there tells nothing."""
    numbered = _numbered(_changes(folder))
    changes = [each for each in numbered if each.sequence > after and (not name or each.name == name)]
    return tuple(changes[-CHANGES_KEPT:])


def _numbered(changes: Iterable[Change]) -> Iterator[Change]:
    """Lines of releases that gave them no number are counted on from the one before."""
    last = 0
    for change in changes:
        numbered = change if change.sequence else replace(change, sequence=last + 1)
        last = numbered.sequence
        yield numbered


def unfit(changes: Iterable[Change]) -> frozenset[int]:
    """The versions, of the one model that ``changes`` are of, that failed when they were tried last."""
    last: dict[int, Ending] = {}
    for change in changes:
        if change.ending not in BLAMELESS and change.artifact is Artifact.AS_PACKAGED:
            last[change.version] = change.ending
    return frozenset(version for version, ending in last.items() if ending is not Ending.LIVE)


def _changes(folder: Path) -> Iterator[Change]:
    for file in (FILE_BEFORE, FILE):
        try:
            with (folder / file).open("rb") as lines:
                lines.seek(max(os.fstat(lines.fileno()).st_size - 2 * FILE_BYTES_MAX, 0))
                data = lines.read(2 * FILE_BYTES_MAX)
        except FileNotFoundError:
            continue
        for line in data.splitlines():
            if (change := decoded(line)) is not None:
                yield change
