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
_GET_FLAGS: Final = 0x80086601
_SET_FLAGS: Final = 0x40086602
_IMMUTABLE: Final = 0x10


def settle(machine: Machine, variable: Path = VARIABLE) -> Entry | None:
    """Have the count begin anew, now that this start came to something. Gives the version that was given up, whose
    tries are taken from it, or None. Raises OperatorError, OSError."""
    try:
        said = variable.read_bytes()[_ATTRIBUTES_BYTES:]
    except FileNotFoundError:
        return None
    gone = None
    preferred = machine.next
    if (
        said.startswith(GIVEN_UP)
        and preferred is not None
        and preferred.version != machine.version
        and preferred.left != 0
    ):
        gone = set_tries(machine.folder, preferred, 0)
    _remove(variable)
    return gone


def _remove(variable: Path) -> None:
    """The kernel keeps people from erasing variables that it does not know."""
    descriptor = os.open(variable, os.O_RDONLY)
    try:
        flags = array.array("l", [0])
        with suppress(
            OSError
        ):  # it has no flags, or may not be changed: then it cannot be erased, which is told
            fcntl.ioctl(descriptor, _GET_FLAGS, flags, True)
            flags[0] &= ~_IMMUTABLE
            fcntl.ioctl(descriptor, _SET_FLAGS, flags, True)
    finally:
        os.close(descriptor)
    variable.unlink()
