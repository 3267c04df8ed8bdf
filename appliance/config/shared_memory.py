"""Client shared memory: the section ``[shared_memory]``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

USERS_MAX: Final = 64
_BYTES_MAX: Final = 1 << 40


def _too_many_problems(users: Sequence[str]) -> Iterator[str]:
    """What is wrong with the list itself; whether there are such users is a question to the machine."""
    if len(users) > USERS_MAX:
        yield f"names {len(users)} users; name at most {USERS_MAX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryConfig:
    """The ``[shared_memory]`` section. A user may have regions of ``max_bytes`` together open."""

    users: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "users of this machine, by name or number, who may hand over tensors in regions of shared memory "
            "that they register, when they connect over a Unix socket; empty: nobody",
            "check": _too_many_problems,
        },
    )
    max_bytes: int = field(
        default=1 << 30,
        metadata={
            "min": 4096,
            "max": _BYTES_MAX,
            "unit": "bytes",
            "help": "bytes in all open regions of one user together",
        },
    )
