"""The daemon itself: the sections ``[daemon]`` and ``[control]``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """How the daemon stops."""

    drain_grace_s: float = field(
        default=25.0,
        metadata={"min": 0, "unit": "s", "help": "how long accepted requests may take after SIGTERM"},
    )
    drain_notice_s: float = field(
        default=1.0,
        metadata={"min": 0, "unit": "s", "help": "how long to go on serving after health turned NOT_SERVING"},
    )


def socket_problems(path: str) -> Iterator[str]:
    """What keeps ``path`` from being a socket's."""
    if path and (not path.startswith("/") or len(path.encode()) > 100):
        yield f"'{path}' must be an absolute path of at most 100 bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    """The ``[control]`` section."""

    socket: str = field(
        default="",
        metadata={
            "help": "Unix socket on which the local operator may load and unload models over gRPC; only the user that "
            "runs the appliance can reach it; empty: off",
            "check": socket_problems,
        },
    )
    max_message_bytes: int = field(
        default=256 << 20,
        metadata={
            "min": 1024,
            "max": (1 << 31) - 1,
            "unit": "bytes",
            "help": "largest message there: files of a model travel in it",
        },
    )
