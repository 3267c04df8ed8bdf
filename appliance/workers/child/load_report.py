"""How far a load is, said on the way: each stage when it begins, and now and then how much of the weights is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from appliance.workers.messages import Load, Progress
from appliance.workers.port import LoadStage

SILENCE_NS: Final = 50_000_000
"""Between two words about how much is read."""

Tell = Callable[[Progress], None]


class LoadReport:
    """Of one load; silent unless it was asked to tell. Its methods are called by one thread at a time: the reader's
    while the weights are read, and then the loader's."""

    def __init__(self, load: Load, tell: Tell) -> None:
        self._model = load.model
        self._tell = tell if load.wish.tell else None
        self._stage: LoadStage | None = None
        self._done_bytes = self._total_bytes = 0
        self._silent_until_ns = 0

    def begin(self, stage: LoadStage) -> None:
        """The load has come to ``stage``."""
        if stage is not self._stage:
            self._stage = stage
            self._say()

    def read(self, done_bytes: int, total_bytes: int) -> None:
        """So much of the file of weights is in memory."""
        self._stage = LoadStage.READING
        self._done_bytes, self._total_bytes = done_bytes, total_bytes
        if time.monotonic_ns() >= self._silent_until_ns:
            self._say()

    def _say(self) -> None:
        if self._tell is not None and self._stage is not None:
            self._silent_until_ns = time.monotonic_ns() + SILENCE_NS
            self._tell(Progress(self._model, self._stage, self._done_bytes, self._total_bytes))
