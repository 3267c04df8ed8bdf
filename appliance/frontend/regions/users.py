"""Users of this machine, as the kernel tells them of connections and the configuration names them."""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

UNKNOWN_USER: Final = -1
OVERFLOW_USER: Final = 65_534
"""What the kernel says for users that the process's user namespace does not have: all of them are one."""
USER_MAX: Final = (1 << 32) - 2
MAP: Final = Path("/proc/self/uid_map")
"""Which users this process's namespace has: the first, what that is outside, how many."""


def users_of(names: Sequence[str]) -> frozenset[int]:
    """The numbers of ``names``, which have no problems. Raises KeyError for a user that there is not any more."""
    return frozenset(map(_user_of, names))


def user_problems(names: Sequence[str]) -> Iterator[str]:
    """Why ``names`` cannot be users of this machine, one text for each that cannot."""
    for name in names:
        try:
            user = _user_of(name)
        except (KeyError, ValueError):
            yield f"'{name}' is no user of this machine; give the name of one, or its number"
        else:
            if user == OVERFLOW_USER:
                yield f"'{name}' stands for everybody of whom the kernel knows no user; name another one"
            elif not _is_told(user, MAP.read_text("ascii").splitlines()):
                yield (
                    f"'{name}' (user {user}) cannot be told from others here: the appliance runs in a user namespace "
                    "without that user; with systemd, set PrivateUsers=no in a drop-in of its unit"
                )


def _is_told(user: int, lines: Iterable[str]) -> bool:
    """Whether a namespace of which the kernel says these ``lines`` has ``user``."""
    spans = [tuple(map(int, line.split())) for line in lines]
    return any(first <= user < first + count for first, _, count in spans)


def _user_of(name: str) -> int:
    if not (name.isascii() and name.isdecimal()):
        return pwd.getpwnam(name).pw_uid
    if int(name) > USER_MAX:
        raise KeyError(name)
    return int(name)
