"""How this process lives: as long as its parent, under which name, and who ends it.

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


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends; leave at once when it has ended already."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


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
