"""A gate before the runs of a fake model: a test knows that a run stands there, and lets it go when it wants to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self


class Gate:
    """For fake models whose parameter ``gate`` is ``path``: within the block their runs wait, after it none does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pipe = -1

    def __enter__(self) -> Self:
        os.mkfifo(self._path)
        return self

    def reached(self) -> None:
        """Wait until a run stands there."""
        self._pipe = os.open(self._path, os.O_WRONLY)

    def __exit__(self, *_: object) -> None:
        if self._pipe < 0:
            self._pipe = os.open(self._path, os.O_RDWR)  # which waits for nobody
        self._path.unlink()  # first, so that the run after the one that waits finds no gate
        os.close(self._pipe)
