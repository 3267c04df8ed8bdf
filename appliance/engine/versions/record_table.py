"""The rows of one file of records as its writer has them: encoded one by one, each when it changes.

A change only names its rows: that costs what the change costs, however many rows there are, and so does encoding.
What a change says in one call is written together or not at all.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from appliance.engine.versions.records import Newest

FORMAT: Final = 1

K = TypeVar("K")
V = TypeVar("V")


def as_json(content: object) -> bytes:
    """As JSON, on one line."""
    return json.dumps(content, separators=(",", ":")).encode()


class RecordTable(Generic[K, V]):
    """A document with the rows under ``key``, between two ``brackets``; ``row`` encodes one, ``name_of`` is as for
    Newest, which says here, too, what is kept. ``change`` is for any thread, everything else for the writer's."""

    def __init__(
        self, file: str, key: str, brackets: str, name_of: Callable[[K], str], row: Callable[[K, V], bytes]
    ) -> None:
        self.file = file
        self._open = f'{{"format":{FORMAT},"{key}":{brackets[0]}'.encode()
        self._close = brackets[1].encode()
        self._row = row
        self._rows: Newest[K, bytes] = Newest(name_of)
        self._changes: deque[tuple[tuple[tuple[K, V | None], ...], Mapping[str, int] | None]] = deque()
        self._known_beside: Mapping[str, int] | None = None
        self._beside = b""
        self._touched = False

    def change(self, rows: Iterable[tuple[K, V | None]], beside: Mapping[str, int] | None = None) -> None:
        """These rows were put in, in this order, or dropped where there is None. ``beside`` is what the document has
        under "asked" besides (None: nothing); it is never altered."""
        self._changes.append((tuple(rows), beside))

    def touch(self) -> None:
        """It is to be written even if nothing was changed."""
        self._touched = True

    def due(self) -> bool:
        """Take up what was changed until now; whether there is something to write."""
        while self._changes:
            rows, beside = self._changes.popleft()
            for key, value in rows:
                if value is None:
                    self._rows.drop(key)
                else:
                    self._rows.put(key, self._row(key, value))
            if beside is not self._known_beside:
                self._known_beside = beside
                self._beside = b"" if beside is None else b',"asked":' + as_json(beside)
            self._touched = True
        return self._touched

    def document(self) -> bytes:
        """All of it, as of ``due``."""
        return b"".join((self._open, b",".join(self._rows.all()), self._close, self._beside, b"}\n"))

    def written(self) -> None:
        """What ``document`` gave is on the disk."""
        self._touched = False
