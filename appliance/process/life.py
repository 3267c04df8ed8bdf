"""How this process lives: as long as its parent, under which name, who ends it, and how it says that it cannot go on.

Linux only, like the appliance.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from appliance.process.calls import prctl

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
GAVE_UP: Final = os.EX_TEMPFAIL
"""The status of a process that gave up what it did, for another one to try."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends; leave at once when it has ended already."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def give_up() -> None:
    """End at once, as what this process runs cannot go on in it, and nothing of that is to blame."""
    os._exit(GAVE_UP)


def adopt_orphans() -> None:
    """Be the parent of whatever the children of this process leave behind when they end."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def rename(name: str) -> None:
    """What this process is called in process lists (15 characters)."""
    prctl(_PR_SET_NAME, name.encode()[:15])


def ignore_terminal_signals() -> None:
    """Leave whether and when to stop to the daemon: a signal to the process group decides nothing."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
