"""What a worker does beside its messages: one thing at a time, in the order asked, in threads that keep their class."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class BackgroundTasks:
    """Owner: the worker. What is done must not raise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._models: deque[int] = deque()
        """What is being done concerns the first of them, what waits the others."""

    def concern(self, model: int) -> bool:
        """Whether something is being done, or waits, for a model."""
        with self._changed:
            return model in self._models

    def settle(self, model: int) -> None:
        """Wait until nothing is being done for a model, and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: model not in self._models)

    def submit(self, model: int, do: Callable[[], None]) -> None:
        """Have something done for a model after what was submitted before."""
        with self._changed:
            self._waiting.append(do)
            self._models.append(model)
            if len(self._models) == 1:
                self._start()

    def finish(self) -> None:
        """Wait until everything is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._models)

    def _start(self) -> None:
        threading.Thread(target=self._run, args=(self._waiting.popleft(),), name="task", daemon=True).start()

    def _run(self, do: Callable[[], None]) -> None:
        try:
            do()
        finally:
            with self._changed:
                self._models.popleft()
                if self._waiting:
                    self._start()
                self._changed.notify_all()
