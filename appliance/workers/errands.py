"""What a worker does beside its messages: one thing at a time, in the order asked, in threads that yield to nobody."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Errands:
    """Owner: the worker. What is done must not raise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def submit(self, do: Callable[[], None]) -> None:
        """Have something done after what was submitted before."""
        with self._changed:
            self._waiting.append(do)
            if not self._busy:
                self._busy = True
                self._start()

    def finish(self) -> None:
        """Wait until everything is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)

    def _start(self) -> None:
        threading.Thread(
            target=self._run, args=(self._waiting.popleft(),), name="errand", daemon=True
        ).start()

    def _run(self, do: Callable[[], None]) -> None:
        try:
            do()
        finally:
            with self._changed:
                if self._waiting:
                    self._start()
                else:
                    self._busy = False
                    self._changed.notify_all()
