"""The two outboxes of ``serve``: figures and events, of which the oldest go where there is no room, and the history of
models, of which nothing goes. One owner: the outlet's thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from appliance.core.rollout.records import Change
from appliance.durable import RealFolder, WriterLock, make_own_directory, read_whole, replace_file
from appliance.fleet.records import AnyRecord, ModelHistory, encode
from appliance.outbox.outbox import Outbox, Policy
from appliance.store.layout import OUTBOX

FIGURES: Final = "serve"
HISTORY: Final = "history"
HISTORY_SHARE: Final = 8
"""One part of so many of the bytes that an outbox may take is for the history."""
LOCK: Final = "serve.lock"
POSITION: Final = "position.json"
POSITION_BYTES_MAX: Final = 4096
REASON_CHARACTERS: Final = 4096


class Outboxes:
    """The outboxes below the state directory ``state``, and what was told last. Raises OSError when they cannot be
    opened, StoreBusy when another process writes to them."""

    def __init__(self, state: Path, limit_bytes: int) -> None:
        place = state / OUTBOX
        for each in (place, place / FIGURES, place / HISTORY):
            make_own_directory(each)
        share = limit_bytes // HISTORY_SHARE
        with ExitStack() as opened:
            opened.callback(WriterLock(place / LOCK).release)
            folders = [RealFolder(place / each) for each in (FIGURES, HISTORY)]
            for folder in folders:
                opened.callback(folder.close)
            self._folders = folders
            self._place = folders[1]
            self._figures = opened.enter_context(Outbox(folders[0], limit_bytes - share, Policy.DROP_OLDEST))
            self._history = opened.enter_context(Outbox(folders[1], share, Policy.REFUSE))
            self._sequence = _position(self._place)
            self._opened = opened.pop_all()

    def is_in_place(self) -> bool:
        """Whether what is written lies where an agent reads it: directories may be moved away or lost."""
        return all(each.is_in_place() for each in self._folders)

    def figures(self, records: Sequence[AnyRecord]) -> None:
        """Keep them. Raises OSError."""
        self._figures.append([encode(each) for each in records])

    def history(self, changes: Sequence[Change]) -> None:
        """Keep the lines that are not told. Raises OSError and OutboxFull; then they come again."""
        if changes and changes[-1].sequence < self._sequence:
            self._sequence = 0  # the box began to count anew
        news = [each for each in changes if each.sequence > self._sequence]
        if not news:
            return
        self._history.append([encode(_told(each)) for each in news])
        self._sequence = news[-1].sequence
        document = json.dumps({"sequence": self._sequence}).encode()
        replace_file(self._place, POSITION, f"{POSITION}.new", document)

    def close(self) -> None:
        """Let go of the files."""
        self._opened.close()


def _position(folder: RealFolder) -> int:
    """The line of history that was told last; 0 where that is not known: then all are told again, and are known by
    their sequence."""
    try:
        return int(json.loads(read_whole(folder, POSITION, POSITION_BYTES_MAX) or b"{}")["sequence"])
    except (ValueError, KeyError, TypeError):
        return 0


def _told(change: Change) -> ModelHistory:
    return ModelHistory(
        at_ms=max(change.at_ms, 0),
        sequence=change.sequence,
        name=change.name,
        version=change.version,
        identity=change.identity,
        ending=change.ending.value,
        before=change.before,
        after=change.after,
        stage=change.stage,
        reason=change.reason[:REASON_CHARACTERS].encode("utf-8", "replace").decode(),
        took_ms=max(change.took_ms, 0),
        artifact=change.artifact.value,
    )
