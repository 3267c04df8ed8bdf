"""Who may look into a state directory: its owner, who alone writes there, and its group where the operator gave it to
one (``chgrp GROUP DIR; chmod 2750 DIR``).

Workers read their version's files as the user that the daemon is, and in their jail no others. One that were another
user could not open a single one: such a worker would have to be given descriptors, or the capability to read what
another user owns, which the jail leaves to root's workers already (``workers/jail/entry.py``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from appliance.domain.errors import StoreUnavailable
from appliance.durable import SHARED, gives_away
from appliance.store.layout import OURS

LOST_AND_FOUND: Final = "lost+found"
"""What a file system has at its top by itself."""


class Mended(NamedTuple):
    """How many entries were open to others, or closed to the group, and why some still are, "" when none is."""

    entries: int = 0
    problem: str = ""


def check_own(state: Path) -> None:
    """Raises StoreUnavailable where the directory has things in it and none of them is of a store: a path that was
    mistyped may lead anywhere."""
    try:
        everybody_s = os.stat(state).st_mode & stat.S_ISVTX
        with os.scandir(state) as entries:
            names = {each.name for each in entries if everybody_s or not _comes_by_itself(each.name)}
    except OSError:
        return  # whoever opens it says why that cannot be
    if names and not names & OURS:
        raise StoreUnavailable(
            f"'{state}' holds other things, such as {min(names)!r}, and nothing of a store: give a directory of its own"
        )


def keep_private(state: Path) -> Mended:
    """Have all that is the appliance's in the state directory be as it would be made now: releases before this one let
    everybody read. Cheap where that is so already, as what is uppermost tells, which is changed last. Raises
    nothing."""
    try:
        root = os.stat(state)
        if _shared(root) or not root.st_mode & 0o077:
            with os.scandir(state) as entries:
                ours = (each for each in entries if each.name in OURS)
                if not any(_differs(each.stat(follow_symlinks=False), each.name, root) for each in ours):
                    return Mended()
        else:
            os.chmod(state, 0o700)
            root = os.stat(state)
    except OSError as error:
        return Mended(problem=error.strerror or str(error))
    try:
        top = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return Mended(problem=error.strerror or str(error))
    changed, problems = 0, list[str]()

    def tell(error: OSError) -> None:
        problems.append(f"{error.filename}: {error.strerror}")

    try:
        for parent, name in _entries(top, tell):
            try:
                changed += _mend(parent, name, root)
            except FileNotFoundError:
                continue  # it went meanwhile
            except OSError as error:
                tell(OSError(error.errno, error.strerror, name))
    except OSError as error:
        problems.append(error.strerror or str(error))
    finally:
        os.close(top)
    return Mended(changed, problems[-1] if problems else "")


def _comes_by_itself(name: str) -> bool:
    """Whether it is there without anybody having put it there: it may be the home of the user that all runs as, in
    which libraries, shells and Ansible keep what is hidden. In /tmp, which is everybody's, hidden things are others'
    work."""
    return name == LOST_AND_FOUND or name.startswith(".")


def _entries(top: int, tell: Callable[[OSError], None]) -> Iterator[tuple[int, str]]:
    """All that is the appliance's, the uppermost last, as a descriptor of its directory and its name; no link is
    followed. ``tell`` is told of each directory that cannot be read, which is passed over."""
    ours = sorted(OURS.intersection(os.listdir(top)))
    for each in ours:
        try:
            if stat.S_ISDIR(os.stat(each, dir_fd=top, follow_symlinks=False).st_mode):
                for _, directories, files, descriptor in os.fwalk(each, False, tell, dir_fd=top):
                    yield from ((descriptor, name) for name in (*directories, *files))
        except FileNotFoundError:
            continue  # it went meanwhile
        except OSError as error:
            tell(error)
    yield from ((top, each) for each in ours)


def _differs(found: os.stat_result, name: str, root: os.stat_result) -> bool:
    """Whether there is something to do for a directory or a file."""
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return False
    strange = (gives_away(root) and found.st_uid != root.st_uid) or (
        _shared(root) and found.st_gid != root.st_gid
    )
    return strange or stat.S_IMODE(found.st_mode) != _mode(found, name, root)


def _mode(found: os.stat_result, name: str, root: os.stat_result) -> int:
    """What the permissions of an entry should be."""
    own = found.st_mode & 0o700
    if stat.S_ISDIR(found.st_mode):
        # As made below such a directory.
        return SHARED if _shared(root) else own | found.st_mode & stat.S_ISGID
    return own | (own & 0o400) >> 3 if _shared(root) and not name.endswith((".lock", ".key")) else own


def _shared(root: os.stat_result) -> bool:
    return stat.S_IMODE(root.st_mode) == SHARED


def _mend(parent: int, name: str, root: os.stat_result) -> bool:
    """Whether there was anything to do for the entry. It is held meanwhile: who owns the directory may put a link to
    something else in its place."""
    if not _differs(os.stat(name, dir_fd=parent, follow_symlinks=False), name, root):
        return False
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    try:
        found = os.fstat(descriptor)
        if not _differs(found, name, root):
            return False
        user, group = root.st_uid if gives_away(root) else -1, root.st_gid if _shared(root) else -1
        os.fchown(descriptor, user, group)
        os.fchmod(descriptor, _mode(found, name, root))
    finally:
        os.close(descriptor)
    return True
