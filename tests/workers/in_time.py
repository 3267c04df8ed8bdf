"""What must not wait for anybody, tried beside the test: one that waits fails it instead of holding it up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")
PATIENCE_S: Final = 10.0


def in_time(do: Callable[[], Result]) -> Result:
    """What ``do`` gives."""
    given: list[Result] = []
    thread = threading.Thread(target=lambda: given.append(do()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits"
    (result,) = given
    return result
