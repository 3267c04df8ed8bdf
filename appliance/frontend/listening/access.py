"""Who may connect to the Unix sockets that are made here: what the settings mean on this machine."""

from __future__ import annotations

import grp
from collections.abc import Iterator
from typing import NamedTuple


class UnixAccess(NamedTuple):
    """Who may connect to a Unix socket: its permission bits, and its group (-1: that of the process)."""

    mode: int = 0o600
    group: int = -1


def group_problems(group: str) -> Iterator[str]:
    """Why ``group`` cannot be that of a Unix socket; "" stands for that of the process."""
    try:
        _group_of(group)
    except KeyError:
        yield f"'{group}' is no group of this machine; give the name of one, or its number"


def unix_access(mode: str, group: str) -> UnixAccess:
    """What two settings without problems mean. Raises KeyError for a group that there is not any more."""
    return UnixAccess(int(mode, 8), _group_of(group))


def _group_of(group: str) -> int:
    if not group:
        return -1
    return int(group) if group.isascii() and group.isdecimal() else grp.getgrnam(group).gr_gid
