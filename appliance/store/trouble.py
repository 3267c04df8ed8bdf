"""What the disk says, in words for the person who must act: where an OSError becomes an error of the store."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from appliance.domain.errors import StoreFull, StoreUnavailable
from appliance.store.full_disk import FULL, reason_of

_REMEDIES: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.EROFS: "mount it writable",
        errno.EIO: "the disk fails; look at the kernel's log and replace it",
        errno.EACCES: "run this as the user that owns the directory",
        errno.EPERM: "run this as the user that owns the directory, on a file system that has hard links",
        errno.EXDEV: "all of the directory must be on one file system",
        errno.EMLINK: "the file system allows no more links to one file",
        errno.ENODEV: "its disk is gone; mount it again",
        errno.ENOTDIR: "give a directory",
        errno.ESTALE: "its disk is gone; mount it again",
        errno.ELOOP: "the store follows no symbolic links; put the file itself there",
    }
)


def _absence(state: str) -> str:
    """What was never there, or vanished."""
    parents = Path(state).absolute().parents
    missing = next((parent for parent in reversed(parents) if not parent.exists()), None)
    if missing is not None:
        return f"there is no '{missing}'; make it, or mount its disk"
    return "something removed it while it was used; is its disk mounted?"


@contextmanager
def told(state: str, doing: str | Callable[[], str], needed: Callable[[], int] = int) -> Iterator[None]:
    """Whatever the disk refuses in here is told as a failure of ``doing`` something in the directory ``state``, for
    which so many bytes are ``needed`` (0: that is not known)."""
    try:
        yield
    except OSError as error:
        what = doing if isinstance(doing, str) else doing()
        reason = reason_of(error, state, needed())
        if error.errno in FULL:
            raise StoreFull(f"cannot {what} in '{state}': {reason}") from error
        remedy = _absence(state) if error.errno == errno.ENOENT else _REMEDIES.get(error.errno or 0, "")
        raise StoreUnavailable(
            f"cannot {what} in '{state}': {reason}{'; ' * bool(remedy)}{remedy}"
        ) from error
