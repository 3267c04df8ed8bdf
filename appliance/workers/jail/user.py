"""The user whom the workers of root become, where this machine has it (see ``confinement.become``)."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

WORKERS_USER: Final = "appliance-worker"
_NEEDED: Final = 1 << 0 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7
"""To give files away, to read what is root's, to kill, to change group and user."""
UserIds = tuple[int, ...]
"""Of the user and of its group; empty: of nobody else."""


def workers_user(name: str = WORKERS_USER) -> UserIds:
    """Give whom workers become: nobody else unless this process is root's, may do for another user what it does for
    its own, and there is such a user."""
    if os.geteuid() != 0 or capabilities() & _NEEDED != _NEEDED:
        return ()
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return ()
    return (found.pw_uid, found.pw_gid) if found.pw_uid else ()


def capabilities() -> int:
    """Give those that this process has, or may have when it asks for them, as bits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapPrm"))
