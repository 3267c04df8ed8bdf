"""Single keys from the terminal, without echo and without waiting for a newline; the terminal is left as it was."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Self


class Keys:
    """Waits for a key or a time. When not ``active``, standard input is not touched."""

    def __init__(self, active: bool) -> None:
        self._active = active
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._active:
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._active:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The key that was pressed within ``seconds``, lower case, or "" when none was."""
        if not self._active:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 64).decode("ascii", "replace")[:1].lower() if ready else ""
