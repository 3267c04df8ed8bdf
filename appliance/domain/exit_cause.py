"""Why a worker ended, as the pool saw it and restarts are decided."""

from __future__ import annotations

from enum import Enum


class ExitCause(Enum):
    """Why a worker ended."""

    STOPPED = "stopped"
    DIED = "died"
    KILLED = "killed"
    """By others: a person, or the kernel for want of memory."""
    GAVE_UP = "gave up"
    """By its own doing: a session that it ran went with the capture of a graph, and could not be made anew."""
    HUNG = "hung"
    NONSENSE = "answered nonsense"
    ZYGOTE = "zygote died"
