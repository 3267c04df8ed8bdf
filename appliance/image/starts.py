"""The count of starts that came to nothing, in a variable of the firmware: the initrd counts before it reads the root.

A version that proved itself has no tries any more, and a root that rots later would have the machine start it for
ever. After five such starts the initrd has another version started once and leaves GIVEN_UP before the count; that
version, once it is up, takes the other one's tries, so that it stays.
"""

from __future__ import annotations

import array
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.image.machine import Entry, Machine, set_tries

VARIABLE: Final = Path("/sys/firmware/efi/efivars/ApplianceStarts-9c9a4f3d-6a0e-4b8c-8c54-1f6de6a7b1c2")
GIVEN_UP: Final = b"given up"
_ATTRIBUTES_BYTES: Final = 4
_FS_IOC_GETFLAGS: Final = 0x80086601
_FS_IOC_SETFLAGS: Final = 0x40086602
_FS_IMMUTABLE_FL: Final = 0x10


def given_up(machine: Machine, variable: Path = VARIABLE) -> Entry | None:
    """The version that the initrd gave up, and that the boot loader would take again; None where this start is one as
    others are. Raises OSError."""
    try:
        said = variable.read_bytes()[_ATTRIBUTES_BYTES:]
    except FileNotFoundError:
        return None
    preferred = machine.next
    if preferred is None or preferred.left == 0 or preferred.version == machine.version:
        return None
    return preferred if said.startswith(GIVEN_UP) else None


def settle(machine: Machine, gone: Entry | None, variable: Path = VARIABLE) -> None:
    """Take all tries from the version that is ``gone``, and have the count begin anew: this start came to something.
    Raises OperatorError, OSError."""
    if gone is not None:
        set_tries(machine.folder, gone, 0)
    if variable.exists():
        _make_mutable(variable)
        variable.unlink()


def _make_mutable(variable: Path) -> None:
    """The kernel keeps people from erasing variables that it does not know. What has no such flag is left as it is."""
    descriptor = os.open(variable, os.O_RDONLY)
    try:
        flags = array.array("l", [0])
        with suppress(OSError):
            fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, flags, True)
            flags[0] &= ~_FS_IMMUTABLE_FL
            fcntl.ioctl(descriptor, _FS_IOC_SETFLAGS, flags, True)
    finally:
        os.close(descriptor)
