"""What the disk says, in words for the person who must act: where an OSError becomes an error of the store."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from appliance.domain.errors import StoreFull, StoreUnavailable

_REMEDIES: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.EROFS: "mount it writable",
        errno.EIO: "the disk fails; look at the kernel's log and replace it",
        errno.EACCES: "run this as the user that owns the directory",
        errno.EPERM: "run this as the user that owns the directory, on a file system that has hard links",
        errno.EXDEV: "all of the directory must be on one file system",
        errno.EMLINK: "the file system allows no more links to one file",
        errno.ENOENT: "something removed it while it was used; is its disk mounted?",
        errno.ENODEV: "its disk is gone; mount it again",
        errno.ENOTDIR: "give a directory",
        errno.ESTALE: "its disk is gone; mount it again",
        errno.ELOOP: "the store follows no symbolic links; put the file itself there",
    }
)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _room(doing: str) -> str:
    """How there comes to be room. What takes room itself, such as uninstalling, is no way."""
    if doing.startswith("install"):
        return "free some space, or uninstall versions and run 'appliance store gc'"
    return (
        "free some space on that disk outside of the store, or run 'appliance store gc', which needs none, if there is "
        "garbage"
    )


@contextmanager
def told(state: str, doing: str | Callable[[], str]) -> Iterator[None]:
    """Whatever the disk refuses in here is told as a failure of ``doing`` something in the directory ``state``."""
    try:
        yield
    except OSError as error:
        what = doing if isinstance(doing, str) else doing()
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StoreFull(f"cannot {what} in '{state}': {reason}; {_room(what)}") from error
        remedy = _REMEDIES.get(error.errno or 0, "")
        raise StoreUnavailable(
            f"cannot {what} in '{state}': {reason}{'; ' * bool(remedy)}{remedy}"
        ) from error
